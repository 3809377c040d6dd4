//! Forks: a child gets objects of its own, and closes its copies of its parent's connections.
//!
//! The child makes new objects ([`PerProcess`](bedplate_threads::forks::PerProcess)) and leaks those of its parent. The thread
//! that forks holds the allocator's lock during the fork, so the allocator is in a consistent state in the child.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU32, Ordering};

use bedplate_preload_allocator::LockedAllocator;

use crate::inside::Inside;
use crate::{ALLOCATOR, connections, process, statistics};

/// The state (`process`) of the process that forks.
static STATE: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static LOCKED: Cell<Option<ManuallyDrop<(LockedAllocator<'static>, Inside)>>> = const { Cell::new(None) };
}

extern "C" fn before() {
    // A signal handler may fork while its thread is inside, where it would wait for its own thread. During the fork, reads of
    // this thread's signal handlers go to the kernel.
    if let Some(inside) = Inside::enter() {
        LOCKED.set(Some(ManuallyDrop::new((ALLOCATOR.lock(), inside))));
        STATE.store(process::state(), Ordering::Relaxed);
    }
}

/// Unlocks the allocator. Returns whether this thread had locked it.
fn unlock() -> bool {
    LOCKED.take().map(|locked| drop(ManuallyDrop::into_inner(locked))).is_some()
}

extern "C" fn in_parent() {
    unlock();
}

extern "C" fn in_child() {
    connections::close_in_child();
    if unlock() {
        statistics::reset();
        process::resume(STATE.load(Ordering::Relaxed));
    }
}

/// Registers the handlers around forks.
pub fn register() {
    bedplate_threads::forks::watch();
    // SAFETY: these functions may run around a fork.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
}
