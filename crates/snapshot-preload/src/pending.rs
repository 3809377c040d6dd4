//! The state between the handlers before and after a fork.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};

use bedplate_preload_allocator::LockedAllocator;
use bedplate_snapshot::Error;
use bedplate_snapshot::engine::{Arena, Frozen};
use bedplate_threads::BlockedSignals;

use crate::ALLOCATOR;

/// An arena of which a child is about to be forked, with the locks that prevent accesses meanwhile. Without them, a handler of
/// the program might write to the arena, and wait for this thread. Another thread might hold the lock of this library's
/// allocator, and the child would inherit the locked state.
pub struct Pending {
    frozen: Frozen<'static>,
    allocator: LockedAllocator<'static>,
    signals: BlockedSignals,
}

impl Pending {
    /// Takes a snapshot. Writers wait until this thread, or its child, calls one of the next two functions.
    pub fn begin(arena: &'static dyn Arena) -> Result<Self, Error> {
        let signals = BlockedSignals::all_but_faults();
        let frozen = arena.freeze()?;
        Ok(Self { frozen, allocator: ALLOCATOR.lock(), signals })
    }

    /// Ends the freeze in the parent.
    pub fn thaw(self) {
        let Self { frozen, allocator, signals } = self;
        drop(allocator);
        frozen.thaw();
        drop(signals);
    }

    /// Makes the memory of the child the snapshot.
    ///
    /// # Safety
    /// The same as for [`Frozen::map_in_child`].
    pub unsafe fn map_in_child(self) -> Result<(), Error> {
        let Self { frozen, allocator, signals } = self;
        drop(allocator);
        // SAFETY: guaranteed by the caller.
        let map = || unsafe { frozen.map_in_child() };
        #[cfg(target_arch = "x86_64")]
        let map = || crate::signals::natively(map);
        let mapped = map();
        drop(signals);
        mapped
    }
}

/// The slot of the thread that forks.
pub static PENDING: Slot = Slot { thread: AtomicUsize::new(0), pending: UnsafeCell::new(None) };

/// A place for the pending fork.
pub struct Slot {
    /// The thread that has the arena frozen, or 0. Another thread may fork too, but the arena cannot be frozen for it.
    thread: AtomicUsize,
    pending: UnsafeCell<Option<Pending>>,
}

// SAFETY: only the thread that has the arena frozen uses `pending`, and there is one at a time.
unsafe impl Sync for Slot {}

impl Slot {
    /// The ID of this thread. It stays the same in the child of a fork.
    fn this_thread() -> usize {
        // SAFETY: only queries the ID.
        unsafe { libc::pthread_self() as usize }
    }

    /// Stores the pending fork. Only the thread that has the arena frozen calls this.
    pub fn put(&self, pending: Pending) {
        // SAFETY: no other thread has it frozen, and no thread takes it before this thread's ID is stored.
        unsafe { *self.pending.get() = Some(pending) };
        self.thread.store(Self::this_thread(), Ordering::Release);
    }

    /// Takes the pending fork, for the thread that stored it.
    pub fn take(&self) -> Option<Pending> {
        if self.thread.load(Ordering::Acquire) != Self::this_thread() {
            return None;
        }
        self.thread.store(0, Ordering::Release);
        // SAFETY: this thread has the arena frozen until it drops this.
        unsafe { (*self.pending.get()).take() }
    }
}
