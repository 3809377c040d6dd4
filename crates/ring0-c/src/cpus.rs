//! Operations of one processor on others and on itself. Handlers may call all of them, so they leave no error text.

use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

use bedplate_ring0::shootdown::{Batch, MOST_CPUS};
use bedplate_ring0::{Cpu, Error, Process, TrapFrame};

use crate::handlers::bp_ring0_trap_frame;
use crate::tables::bp_ring0_page_size;

/// Called at each tick, with the interrupted code's registers, which it may change.
pub type bp_ring0_tick_handler = Option<extern "C" fn(cpu: u32, frame: *mut bp_ring0_trap_frame)>;

static TICK_HANDLERS: [AtomicPtr<()>; MOST_CPUS] = [const { AtomicPtr::new(ptr::null_mut()) }; MOST_CPUS];

fn on_cpu(work: impl FnOnce(Cpu) -> Result<(), Error>) -> c_int {
    match Cpu::current().ok_or(Error::NotInRing0).and_then(work) {
        Ok(()) => 0,
        Err(error) => -error.errno(),
    }
}

/// Switches this thread's processor to other page tables, until its thread ends. 0 stands for the process's page
/// tables. Returns -EPERM in ring 3.
///
/// # Safety
/// `root` must be 0, or page tables that bp_ring0_tables_create() made.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_ring0_set_root(root: u64) -> c_int {
    on_cpu(|cpu| {
        let root = if root == 0 { cpu.process().root() } else { root };
        // SAFETY: as the caller promised: the tables share everything else with the process's.
        unsafe { cpu.set_root(root) }
    })
}

/// Makes all processors drop the cached translations of `pages` pages of this size from `address` on, or all
/// translations if `pages` is 0. When it returns, no processor uses these translations any more. The caller must
/// change the page tables before. Returns -EPERM in ring 3.
///
/// A processor with interrupts off delays this call until it enables them or calls bp_ring0_relax().
#[unsafe(no_mangle)]
pub extern "C" fn bp_ring0_shoot_down(address: u64, pages: u64, size: bp_ring0_page_size) -> c_int {
    // A batch makes a full flush of more pages anyway.
    const MOST: u64 = 64;
    let mut batch = if (1..=MOST).contains(&pages) { Batch::new() } else { Batch::full() };
    if !batch.is_full() {
        (0..pages).for_each(|page| batch.add(address.wrapping_add(page * size.size().bytes()), size.size()));
    }
    on_cpu(|cpu| cpu.shoot_down_everywhere(&batch))
}

/// Sends an interrupt (vectors 32 to 239) to a processor. Its handler of this vector runs at once if that processor
/// is in the guest, and otherwise before its next instruction there. Returns -EPERM in ring 3, -EINVAL for another
/// vector, and -ESRCH if no thread owns the processor.
#[unsafe(no_mangle)]
pub extern "C" fn bp_ring0_send(cpu: u32, vector: u8) -> c_int {
    on_cpu(|own| if cpu == own.number() { own.send_self(vector) } else { own.send(cpu, vector) })
}

/// A function call on another processor.
struct Call {
    function: extern "C" fn(u32, *mut c_void),
    argument: *mut c_void,
}

/// Calls `function(number of the processor, argument)` on a processor, like an interrupt handler, and waits until
/// it has returned. That takes at least as long as the processor's thread stays in a system call or in ring 3.
/// Returns -EPERM in ring 3, and -ESRCH if no thread owns the processor.
///
/// # Safety
/// The function may be called there with the argument.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_ring0_call(
    cpu: u32,
    function: Option<extern "C" fn(u32, *mut c_void)>,
    argument: *mut c_void,
) -> c_int {
    fn make(cpu: Cpu, call: u64) {
        // SAFETY: the caller of `bp_ring0_call` waits, so the value stays valid.
        let call = unsafe { &*(call as *const Call) };
        (call.function)(cpu.number(), call.argument);
    }
    let Some(function) = function else { return -libc::EINVAL };
    let call = Call { function, argument };
    on_cpu(|own| {
        own.call(cpu, make, ptr::from_ref(&call) as u64)?.wait();
        Ok(())
    })
}

/// One iteration of a loop that waits for another processor. Serves the requests that other processors have for
/// this one.
#[unsafe(no_mangle)]
pub extern "C" fn bp_ring0_relax() {
    match Cpu::current() {
        Some(cpu) => cpu.relax(),
        None => std::hint::spin_loop(),
    }
}

/// Number of processors: the largest number of threads that owned one at the same time. They are numbered from 0
/// on.
#[unsafe(no_mangle)]
pub extern "C" fn bp_ring0_cpus() -> u32 {
    Process::current().map_or(0, |process| process.cpus() as u32)
}

/// Calls `handler` about every `nanoseconds` (200 000 to 4 000 000 000) while this thread is in ring 0, until
/// bp_ring0_stop_ticks(). Returns -EPERM in ring 3.
#[unsafe(no_mangle)]
pub extern "C" fn bp_ring0_start_ticks(nanoseconds: u64, handler: bp_ring0_tick_handler) -> c_int {
    let Some(handler) = handler else { return -libc::EINVAL };
    on_cpu(|cpu| {
        if let Some(place) = TICK_HANDLERS.get(cpu.number() as usize) {
            place.store(handler as *mut (), Ordering::Release);
        }
        cpu.start_ticks(Duration::from_nanos(nanoseconds), tick)
    })
}

/// Stops the ticks of this thread. Returns -EPERM in ring 3.
#[unsafe(no_mangle)]
pub extern "C" fn bp_ring0_stop_ticks() -> c_int {
    on_cpu(|cpu| cpu.stop_ticks())
}

fn tick(cpu: Cpu, frame: &mut TrapFrame) {
    let handler = TICK_HANDLERS.get(cpu.number() as usize).map(|place| place.load(Ordering::Acquire));
    // SAFETY: only `bp_ring0_start_ticks` stores there, and stores such functions; the initial value is null.
    let handler = unsafe { transmute::<*mut (), bp_ring0_tick_handler>(handler.unwrap_or(ptr::null_mut())) };
    if let Some(handler) = handler {
        handler(cpu.number(), ptr::from_mut(frame).cast());
    }
}
