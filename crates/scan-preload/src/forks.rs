//! Forks: a child has a library of its own, and closes what it shares with its parent.
//!
//! The child's objects are made anew ([`PerProcess`](bedplate_threads::forks::PerProcess)); those of the parent are leaked. The
//! allocator waits during a fork, so that the child finds it whole.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::allocator::{self, Held};
use crate::limits::MAX_READERS;
use crate::statistics;

thread_local! {
    static HELD: Cell<Option<ManuallyDrop<Held>>> = const { Cell::new(None) };
}

/// Connections of this process's readers, less one, so that 0 is none.
static CONNECTIONS: [AtomicI32; MAX_READERS] = [const { AtomicI32::new(0) }; MAX_READERS];

/// A connection that children close.
#[derive(Debug)]
pub struct Connection(usize);

impl Connection {
    /// Of a descriptor. `None`: there are [`MAX_READERS`].
    pub fn note(descriptor: i32) -> Option<Self> {
        let free = |place: &AtomicI32| {
            place.compare_exchange(0, descriptor + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        CONNECTIONS.iter().position(free).map(Self)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        CONNECTIONS[self.0].store(0, Ordering::Release);
    }
}

extern "C" fn before() {
    HELD.set(Some(ManuallyDrop::new(allocator::hold())));
}

extern "C" fn in_parent() {
    if let Some(held) = HELD.take() {
        drop(ManuallyDrop::into_inner(held));
    }
}

extern "C" fn in_child() {
    in_parent();
    for place in &CONNECTIONS {
        let descriptor = place.swap(0, Ordering::Relaxed) - 1;
        if descriptor >= 0 {
            // SAFETY: the child's copy of a connection, which nothing in the child uses. A bare system call, because `close` is this
            // library's.
            unsafe { libc::syscall(libc::SYS_close, descriptor) };
        }
    }
    statistics::reset();
}

/// Notices forks from now on.
pub fn register() {
    bedplate_threads::forks::watch();
    // SAFETY: functions that may run around a fork.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
}
