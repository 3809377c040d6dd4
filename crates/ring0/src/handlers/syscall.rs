//! System call handlers. In ring 0, a handler sees each system call before Linux does.
//!
//! The handler runs on a stack of its own. System calls that the handler makes go to Linux directly.

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
    /// The system call's number.
    pub number: u64,
    /// The arguments.
    pub arguments: [u64; 6],
    rflags: u64,
    /// The address where the caller continues.
    pub rip: u64,
    /// The caller's stack pointer.
    pub rsp: u64,
}

/// The action for a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Pass the call on: to the next [layer](add_syscall_layer), if any, and then to Linux, with the number and the
    /// arguments that are in the frame now.
    Proxy,
    /// Return this result without asking Linux. An error is a negative errno: `Return(-libc::EPERM as i64)` refuses
    /// the call.
    Return(i64),
}

/// A handler of system calls.
pub type SyscallHandler = fn(Cpu, &mut SyscallFrame) -> Answer;

impl SyscallFrame {
    /// Makes the call in Linux and returns its result. The handler can then return that result itself.
    ///
    /// The call must be [ordinary](Self::is_ordinary).
    pub fn proxy(&self) -> i64 {
        debug_assert!(self.is_ordinary());
        // SAFETY: the program asked for this call, and could make it.
        unsafe { stubs::bedplate_ring0_proxy_syscall(self) }
    }

    /// Whether the call returns exactly once, to the place where it was made. Calls like clone, fork and exit do
    /// not.
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

/// The limit of layers.
pub const MOST_LAYERS: usize = 4;
static LAYERS: [AtomicPtr<()>; MOST_LAYERS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; MOST_LAYERS];
/// Held while a layer is added.
static ADDING: Mutex<()> = Mutex::new(());

/// The program's handler, followed by the layers.
fn handlers() -> impl Iterator<Item = SyscallHandler> {
    std::iter::once(&HANDLER).chain(&LAYERS).filter_map(|place| {
        let pointer = place.load(Ordering::Acquire);
        // SAFETY: only `set_syscall_handler` and `add_syscall_layer` store here, and store such functions.
        (!pointer.is_null()).then(|| unsafe { std::mem::transmute::<*mut (), SyscallHandler>(pointer) })
    })
}

/// Sets or removes the program's handler of system calls. It takes effect for this thread at once. A thread that
/// was already in ring 0 while there was no handler uses it when it enters again.
pub fn set_syscall_handler(handler: Option<SyscallHandler>) {
    HANDLER.store(handler.map_or(std::ptr::null_mut(), |handler| handler as *mut ()), Ordering::Release);
    use_entry();
}

/// Adds a handler of system calls for a library. It is called after the program's handler and the layers added
/// before, if they return [`Answer::Proxy`], and sees the number and the arguments as they left them. A layer
/// cannot be removed. Adding the same handler again changes nothing. It takes effect as [`set_syscall_handler`]
/// describes.
///
/// # Errors
/// [`Error::TooManyLayers`] if there are [`MOST_LAYERS`] layers already.
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

/// Makes this thread use the right system-call entry, if it is in ring 0.
fn use_entry() {
    if let Some(local) = CpuLocal::current() {
        let entry = entry();
        local.syscall_entry.store(entry, Ordering::Relaxed);
        // SAFETY: in ring 0; the entry is one of ours.
        unsafe { instructions::write_msr(control::MSR_LSTAR, entry) };
    }
}

/// The address for LSTAR: the entry with handlers if there is a handler.
pub(crate) fn entry() -> u64 {
    match handlers().next() {
        None => stubs::bedplate_ring0_syscall as *const () as u64,
        Some(_) => stubs::bedplate_ring0_syscall_handled as *const () as u64,
    }
}

/// Calls the handlers. Returns 1 if the frame's number is the result, 0 if Linux must be asked.
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
