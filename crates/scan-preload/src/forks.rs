//! Forks: a child has a library of its own, and closes what it shares with its parent.
//!
//! The child's objects are made anew ([`PerProcess`](bedplate_threads::forks::PerProcess)); those of the parent are leaked. The
//! allocator waits during a fork, so that the child finds it whole. A signal handler that forks while it interrupts the library cannot
//! wait for what the library holds, so the library serves nothing in the child.

use std::cell::Cell;
use std::mem::ManuallyDrop;

use crate::allocator::{self, Held};
use crate::inside::is_inside;
use crate::{connections, settings, statistics};

thread_local! {
    static HELD: Cell<Option<ManuallyDrop<Held>>> = const { Cell::new(None) };
}

extern "C" fn before() {
    if is_inside() {
        return;
    }
    HELD.set(Some(ManuallyDrop::new(allocator::hold())));
}

extern "C" fn in_parent() {
    if let Some(held) = HELD.take() {
        drop(ManuallyDrop::into_inner(held));
    }
}

extern "C" fn in_child() {
    if is_inside() {
        settings::deactivate();
    }
    in_parent();
    connections::close_in_child();
    statistics::reset();
}

/// Notices forks from now on.
pub fn register() {
    bedplate_threads::forks::watch();
    // SAFETY: functions that may run around a fork.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
}
