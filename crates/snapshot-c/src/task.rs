//! Tasks: functions of the program that run on a snapshot of their own, in a child process or in a thread.
//!
//! A task's result goes through bytes, because it may come from another process: a number that says whether the task had its
//! output, the function's result, and the bytes that it has written.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError};

use bedplate_c_support::output;
use bedplate_c_support::table::{Bad, Table};
use bedplate_snapshot::{Error, Task, View};

use crate::code::bp_snapshot_code::*;
use crate::code::{Refusal, answer};
use crate::memory::{Space, Store, bp_snapshot_memory, store};
use crate::snapshot::{bp_snapshot_info, bp_snapshot_view};

static TASKS: Table<Arc<Running>> = Table::new(b'T');
static OUTPUTS: Table<Vec<u8>> = Table::new(b'O');

/// A function that runs on a snapshot.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_snapshot_task {
    /// Its number; never 0.
    pub handle: u64,
}

/// The output of a task: see bp_snapshot_write(). It is closed when the task's function returns.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_snapshot_output {
    /// Its number; never 0.
    pub handle: u64,
}

/// A task's function. `argument` is the value that the program passed, and `view` is the memory as it was. The function's return
/// value is the `status` of the task's result. It must return: neither longjmp() nor a C++ exception may leave it.
pub type bp_snapshot_work = Option<
    unsafe extern "C-unwind" fn(
        argument: *mut c_void,
        view: *const bp_snapshot_view,
        output: bp_snapshot_output,
    ) -> c_int,
>;

/// The result of a task.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_snapshot_result {
    /// The bytes that it has written. They exist until the task is closed.
    pub data: *const u8,
    /// Number of bytes.
    pub len: usize,
    /// The return value of its function.
    pub status: i32,
    /// Always 0.
    pub reserved: u32,
}

/// A task, with its result once it has been joined.
struct Running {
    info: bp_snapshot_info,
    state: Mutex<State>,
}

enum State {
    Running(Option<Task>),
    Ended(Result<Vec<u8>, Error>),
}

/// The task that this process was forked for: the process, and the memory by its handle.
static OWN: OnceLock<(u32, u64, Arc<Store>)> = OnceLock::new();

/// The memory of a handle, if this process was forked for a task on it.
pub(crate) fn own_store(handle: u64) -> Option<Arc<Store>> {
    let (process, own, store) = OWN.get()?;
    (*own == handle && *process == std::process::id()).then(|| store.clone())
}

const HEADER: usize = 8;
const DONE: u8 = 0;
const NO_OUTPUT: u8 = 1;

/// A function of the program, with its argument.
#[derive(Clone, Copy)]
struct Work {
    function: unsafe extern "C-unwind" fn(*mut c_void, *const bp_snapshot_view, bp_snapshot_output) -> c_int,
    argument: *mut c_void,
    home: *const u8,
}

// SAFETY: the program guarantees that the function can have its argument in any thread.
unsafe impl Send for Work {}

impl Work {
    fn run(self, view: &View<'_>) -> Vec<u8> {
        let mut header = vec![0; HEADER];
        let Ok(handle) = OUTPUTS.insert(header.clone()) else {
            header[0] = NO_OUTPUT;
            return header;
        };
        let bytes = view.bytes();
        let seen = bp_snapshot_view { data: bytes.as_ptr(), len: bytes.len(), home: self.home };
        // SAFETY: guaranteed by the caller of `bp_snapshot_spawn`.
        let status =
            unsafe { (self.function)(self.argument, &raw const seen, bp_snapshot_output { handle }) };
        // If it was broken, the failure has been reported.
        let mut returned = OUTPUTS.remove_in_turn(handle).unwrap_or(header);
        returned[0] = DONE;
        returned[4..HEADER].copy_from_slice(&status.to_ne_bytes());
        returned
    }
}

/// Takes a snapshot and runs `work` on it: in a child process if the memory was created with BP_SNAPSHOT_IN_CHILD or has the
/// engine fork, and otherwise in a thread. So the function must not rely on threads or locks of the program. A heap does not
/// support tasks in threads.
///
/// # Safety
/// `work` is NULL or a function that may be called with `argument` in any thread; `spawned` is writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_snapshot_spawn(
    memory: bp_snapshot_memory,
    work: bp_snapshot_work,
    argument: *mut c_void,
    spawned: *mut bp_snapshot_task,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    answer(|| unsafe { spawn(memory, work, argument, spawned, false) })
}

/// Takes a snapshot and runs `work` on it in a child process. The child sees the memory at its own address, so data with
/// pointers can be read there, and has a copy of everything else in the program. It has one thread, so it must not wait for a
/// lock that another thread may have held. No handle of the program works in it, except that of the memory for the functions of
/// heaps: it can allocate from free memory.
///
/// # Safety
/// `work` is NULL or a function that may be called with `argument`; `spawned` is writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_snapshot_spawn_in_child(
    memory: bp_snapshot_memory,
    work: bp_snapshot_work,
    argument: *mut c_void,
    spawned: *mut bp_snapshot_task,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    answer(|| unsafe { spawn(memory, work, argument, spawned, true) })
}

/// # Safety
/// The same as for the functions above.
unsafe fn spawn(
    memory: bp_snapshot_memory,
    work: bp_snapshot_work,
    argument: *mut c_void,
    place: *mut bp_snapshot_task,
    in_child: bool,
) -> crate::code::Answer {
    let Some(function) = work else { return Err(Refusal::null("no function")) };
    if place.is_null() {
        return Err(Refusal::null("no place for the task"));
    }
    let store = store(memory)?;
    let work = Work { function, argument, home: store.base().as_ptr() };
    // Only a child keeps the memory. A thread's task continues without it.
    let in_child = in_child || store.runs_in_child();
    let own = in_child.then(|| (memory.handle, store.clone()));
    let run = move |view: &View<'_>| {
        if let Some((handle, store)) = own {
            let _ = OWN.set((std::process::id(), handle, store));
        }
        work.run(view)
    };
    let task = match &store.space {
        Space::Memory(memory) if in_child => memory.spawn_in_child(run)?,
        Space::Memory(memory) => memory.spawn(run)?,
        Space::Heap(heap) if in_child => heap.spawn_in_child(run)?,
        Space::Heap(_) => {
            let text = "tasks of a heap run in children: bp_snapshot_spawn_in_child()";
            return Err(Refusal::new(BP_SNAPSHOT_ERROR_A_HEAP, text));
        }
    };
    let info = bp_snapshot_info { epoch: task.epoch(), pause_ns: task.pause().as_nanos() as u64 };
    let running = Running { info, state: Mutex::new(State::Running(Some(task))) };
    let handle = TASKS.insert(Arc::new(running)).map_err(Refusal::full)?;
    // SAFETY: guaranteed by the caller.
    unsafe { place.write_unaligned(bp_snapshot_task { handle }) };
    Ok(BP_SNAPSHOT_OK)
}

/// Appends to the result of a task. Only the task's function can do so, in its own process.
///
/// # Safety
/// `len` bytes at `data` are readable, or `data` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_snapshot_write(
    output: bp_snapshot_output,
    data: *const c_void,
    len: usize,
) -> c_int {
    answer(|| {
        let mut written = OUTPUTS.enter_in_turn(output.handle)?;
        if len == 0 {
            return Ok(BP_SNAPSHOT_OK);
        }
        if data.is_null() {
            return Err(Refusal::null("nothing to write"));
        }
        if isize::try_from(len).is_err() || written.try_reserve(len).is_err() {
            return Err(Refusal::no_memory(format!("{len} bytes more of a task's output")));
        }
        // SAFETY: guaranteed by the caller.
        written.extend_from_slice(unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len) });
        Ok(BP_SNAPSHOT_OK)
    })
}

fn running(task: bp_snapshot_task) -> Result<Arc<Running>, Bad> {
    Ok(TASKS.enter_in_turn(task.handle)?.clone())
}

/// Tells whether a task has ended. BP_SNAPSHOT_NOT_YET: it has not. BP_SNAPSHOT_OK: it has, so bp_snapshot_join() does not wait.
#[unsafe(no_mangle)]
pub extern "C" fn bp_snapshot_poll(task: bp_snapshot_task) -> c_int {
    answer(|| {
        let running = running(task)?;
        let state = match running.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another thread waits for the task.
            Err(TryLockError::WouldBlock) => return Ok(BP_SNAPSHOT_NOT_YET),
        };
        match &*state {
            State::Running(Some(task)) if !task.is_finished() => Ok(BP_SNAPSHOT_NOT_YET),
            _ => Ok(BP_SNAPSHOT_OK),
        }
    })
}

/// Waits for a task and gives its result. It can be called again, and by several threads. `size` is sizeof the structure.
/// BP_SNAPSHOT_ERROR_INCOMPLETE, BP_SNAPSHOT_ERROR_TASK: the result is lost, and `result` stays unchanged.
///
/// # Safety
/// `result` has `size` writable bytes, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_snapshot_join(
    task: bp_snapshot_task,
    result: *mut bp_snapshot_result,
    size: usize,
) -> c_int {
    answer(|| {
        if result.is_null() {
            return Err(Refusal::null("no place for the result"));
        }
        let running = running(task)?;
        let mut state = running.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let State::Running(task) = &mut *state {
            let Some(task) = task.take() else {
                return Err(Bad::Broken.into());
            };
            *state = State::Ended(task.join());
        }
        let State::Ended(ended) = &*state else { return Err(Bad::Broken.into()) };
        let bytes = ended.as_ref().map_err(|error| Refusal::from(error.clone()))?;
        let Some((header, data)) = bytes.split_first_chunk::<HEADER>() else {
            return Err(Error::Task("it did not say how".into()).into());
        };
        if header[0] != DONE {
            return Err(Refusal::full(()));
        }
        let status = i32::from_ne_bytes([header[4], header[5], header[6], header[7]]);
        let now = bp_snapshot_result { data: data.as_ptr(), len: data.len(), status, reserved: 0 };
        // SAFETY: guaranteed by the caller; the structure has no gaps.
        unsafe { output::sized(&now, result, size) };
        Ok(BP_SNAPSHOT_OK)
    })
}

/// Gives the number of a task's snapshot, and the time for which it stopped writers: with a child, including its fork(). `size`
/// is sizeof the structure.
///
/// # Safety
/// `info` has `size` writable bytes, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_snapshot_get_task_info(
    task: bp_snapshot_task,
    info: *mut bp_snapshot_info,
    size: usize,
) -> c_int {
    answer(|| {
        if info.is_null() {
            return Err(Refusal::null("no place for what the task's snapshot is"));
        }
        let running = running(task)?;
        // SAFETY: guaranteed by the caller; the structure has no gaps.
        unsafe { output::sized(&running.info, info, size) };
        Ok(BP_SNAPSHOT_OK)
    })
}

/// Closes a task without waiting: a task that has not ended continues. Its result is freed.
#[unsafe(no_mangle)]
pub extern "C" fn bp_snapshot_close_task(task: bp_snapshot_task) -> c_int {
    answer(|| {
        drop(TASKS.remove_in_turn(task.handle)?);
        Ok(BP_SNAPSHOT_OK)
    })
}

/// Takes the maximum number of outputs.
#[cfg(test)]
pub(crate) fn fill_outputs() -> Vec<u64> {
    std::iter::from_fn(|| OUTPUTS.insert(Vec::new()).ok()).collect()
}

#[cfg(test)]
pub(crate) fn empty_outputs(filled: Vec<u64>) {
    assert_eq!(filled.len(), 65536);
    filled.into_iter().for_each(|handle| drop(OUTPUTS.remove_in_turn(handle)));
}
