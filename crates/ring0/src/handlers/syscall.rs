//! System calls: shown to a handler in ring 0 before Linux is asked.
//!
//! The handler runs on a stack of its own. System calls that it makes itself go straight to Linux.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::arch::stubs;
use crate::arch::{control, instructions};
use crate::cpu::Cpu;
use crate::error::{Error, Result};
use crate::process::local::CpuLocal;

/// A system call.
#[derive(Debug)]
#[repr(C)]
pub struct SyscallFrame {
    rbx: u64,
    /// Its number.
    pub number: u64,
    /// Its arguments.
    pub arguments: [u64; 6],
    rflags: u64,
    /// Where the code goes on.
    pub rip: u64,
    /// The caller's stack pointer.
    pub rsp: u64,
}

/// What happens with a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Linux is asked, after the [layers](add_syscall_layer) that come behind, with the number and the arguments that are in the
    /// frame now.
    Proxy,
    /// This is the result; Linux is not asked. Errors are negative errnos: `Return(-libc::EPERM as i64)` refuses.
    Return(i64),
}

/// A handler.
pub type SyscallHandler = fn(Cpu, &mut SyscallFrame) -> Answer;

impl SyscallFrame {
    /// Asks Linux now, so that the handler sees the result, which it then returns.
    ///
    /// Not for calls that do not return like others: those of [`is_ordinary`](Self::is_ordinary) are.
    pub fn proxy(&self) -> i64 {
        debug_assert!(self.is_ordinary());
        // SAFETY: the program asked for this call, and could make it.
        unsafe { stubs::bedplate_ring0_proxy_syscall(self) }
    }

    /// Whether the call returns once, to where it was made: not clone, fork, exit and the like.
    pub fn is_ordinary(&self) -> bool {
        const OTHERS: [i64; 8] = [
            libc::SYS_clone,
            libc::SYS_clone3,
            libc::SYS_fork,
            libc::SYS_vfork,
            libc::SYS_exit,
            libc::SYS_exit_group,
            libc::SYS_rt_sigreturn,
            libc::SYS_execve,
        ];
        !OTHERS.contains(&(self.number as i64))
    }
}

static HANDLER: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// How many libraries can have a layer.
pub const MOST_LAYERS: usize = 4;
static LAYERS: [AtomicPtr<()>; MOST_LAYERS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; MOST_LAYERS];
/// Held while a layer is added.
static ADDING: Mutex<()> = Mutex::new(());

/// The program's handler, then those of libraries.
fn handlers() -> impl Iterator<Item = SyscallHandler> {
    std::iter::once(&HANDLER).chain(&LAYERS).filter_map(|place| {
        let pointer = place.load(Ordering::Acquire);
        // SAFETY: only `set_syscall_handler` and `add_syscall_layer` store here, and store such functions.
        (!pointer.is_null()).then(|| unsafe { std::mem::transmute::<*mut (), SyscallHandler>(pointer) })
    })
}

/// Sets the program's handler of system calls, or takes it away. This thread uses it from now on; others that are in ring 0
/// while there was none before use it when they enter again.
pub fn set_syscall_handler(handler: Option<SyscallHandler>) {
    HANDLER.store(handler.map_or(std::ptr::null_mut(), |handler| handler as *mut ()), Ordering::Release);
    use_entry();
}

/// Adds a handler of system calls for a library, between the program's and Linux: it gets the calls, with their number and
/// arguments, for which the program's handler and the layers added before say [`Answer::Proxy`]. It stays. Adding it again
/// changes nothing. Which threads use it is as for [`set_syscall_handler`].
///
/// # Errors
/// [`Error::TooManyLayers`].
pub fn add_syscall_layer(handler: SyscallHandler) -> Result<()> {
    let _adding = ADDING.lock().unwrap_or_else(PoisonError::into_inner);
    let new = handler as *mut ();
    let place = LAYERS.iter().find(|place| {
        let there = place.load(Ordering::Relaxed);
        there.is_null() || there == new
    });
    place.ok_or(Error::TooManyLayers { limit: MOST_LAYERS })?.store(new, Ordering::Release);
    use_entry();
    Ok(())
}

/// Has this thread, if it is in ring 0, use the entry that there is to be.
fn use_entry() {
    if let Some(local) = CpuLocal::current() {
        let entry = entry();
        local.syscall_entry.store(entry, Ordering::Relaxed);
        // SAFETY: in ring 0; the entry is one of ours.
        unsafe { instructions::write_msr(control::MSR_LSTAR, entry) };
    }
}

/// The entry that LSTAR points to.
pub(crate) fn entry() -> u64 {
    match handlers().next() {
        None => stubs::bedplate_ring0_syscall as *const () as u64,
        Some(_) => stubs::bedplate_ring0_syscall_handled as *const () as u64,
    }
}

/// Asks the handlers. Returns 1 if the frame's number is the result, 0 if Linux is to be asked.
#[unsafe(no_mangle)]
extern "C" fn bedplate_ring0_handle_syscall(frame: &mut SyscallFrame) -> u32 {
    let Some(local) = CpuLocal::current() else { return 0 };
    for handle in handlers() {
        if let Answer::Return(result) = handle(Cpu::new(local), frame) {
            local.counters.system_calls_answered.increment();
            frame.number = result as u64;
            return 1;
        }
    }
    0
}
