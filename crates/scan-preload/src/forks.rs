//! Forks: a child has a library of its own, and closes what it shares with its parent.
//!
//! The child's objects are made anew ([`PerProcess`](bedplate_threads::forks::PerProcess)); those of the parent are leaked. The
//! allocator waits during a fork, so that the child finds it whole.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::allocator::{self, Held};
use crate::inside::Inside;
use crate::{connections, process, statistics};

/// What the library may do in the process that forks.
static STATE: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static HELD: Cell<Option<ManuallyDrop<(Held, Inside)>>> = const { Cell::new(None) };
}

extern "C" fn before() {
    // A signal handler that forks while its thread is inside would wait for its own thread. One that reads while this thread forks goes
    // to the kernel.
    if let Some(inside) = Inside::enter() {
        HELD.set(Some(ManuallyDrop::new((allocator::hold(), inside))));
        STATE.store(process::state(), Ordering::Relaxed);
    }
}

/// Gives whether the allocator was held.
fn let_go() -> bool {
    HELD.take().map(|held| drop(ManuallyDrop::into_inner(held))).is_some()
}

extern "C" fn in_parent() {
    let_go();
}

extern "C" fn in_child() {
    connections::close_in_child();
    if let_go() {
        statistics::reset();
        process::resume(STATE.load(Ordering::Relaxed));
    }
}

/// Notices forks from now on.
pub fn register() {
    bedplate_threads::forks::watch();
    // SAFETY: functions that may run around a fork.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
}
