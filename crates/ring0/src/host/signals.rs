//! Blocking signals for a short time.
//!
//! This module makes bare system calls, because a preloaded library may have replaced the C library's functions. It
//! does not use another crate for this, because this crate depends on no other crate of Bedplate.

use std::marker::PhantomData;

use crate::arch::instructions::syscall;

/// Blocks all signals of this thread until it is dropped.
pub struct BlockedSignals {
    before: u64,
    _this_thread: PhantomData<*mut ()>,
}

impl BlockedSignals {
    /// Blocks all signals of this thread.
    pub fn new() -> BlockedSignals {
        let (all, mut before) = (u64::MAX, 0u64);
        let how = libc::SIG_BLOCK as u64;
        // SAFETY: reads one of the variables and writes the other.
        unsafe {
            let arguments = [how, (&raw const all) as u64, (&raw mut before) as u64, 8, 0, 0];
            syscall(libc::SYS_rt_sigprocmask as u64, arguments);
        }
        BlockedSignals { before, _this_thread: PhantomData }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        let how = libc::SIG_SETMASK as u64;
        // SAFETY: reads the variable.
        unsafe {
            let arguments = [how, (&raw const self.before) as u64, 0, 8, 0, 0];
            syscall(libc::SYS_rt_sigprocmask as u64, arguments);
        }
    }
}

/// Whether the caller runs on the alternate signal stack.
pub fn on_alternate_stack() -> bool {
    let mut stack = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: 0, ss_size: 0 };
    // SAFETY: writes to the variable.
    unsafe { syscall(libc::SYS_sigaltstack as u64, [0, (&raw mut stack) as u64, 0, 0, 0, 0]) };
    stack.ss_flags & libc::SS_ONSTACK != 0
}
