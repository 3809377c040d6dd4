//! What is between the handlers before and after a fork.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};

use bedplate_preload_allocator::LockedAllocator;
use bedplate_snapshot::Error;
use bedplate_snapshot::engine::{Arena, Frozen};
use bedplate_threads::BlockedSignals;

use crate::ALLOCATOR;

/// An arena of which a child is about to be forked, and what must not happen meanwhile. A handler of the program's might
/// write to the arena, and wait for this thread. Another thread might have this library's allocator, and the child would find
/// it so.
pub struct Pending {
    frozen: Frozen<'static>,
    allocator: LockedAllocator<'static>,
    signals: BlockedSignals,
}

impl Pending {
    /// Takes a snapshot; everything stands still until one of the next two is called by this thread, or in its child.
    pub fn begin(arena: &'static dyn Arena) -> Result<Self, Error> {
        let signals = BlockedSignals::all_but_faults();
        let frozen = arena.freeze()?;
        Ok(Self { frozen, allocator: ALLOCATOR.lock(), signals })
    }

    /// In the parent: all goes on.
    pub fn thaw(self) {
        let Self { frozen, allocator, signals } = self;
        drop(allocator);
        frozen.thaw();
        drop(signals);
    }

    /// In the child: its memory is the snapshot.
    ///
    /// # Safety
    /// As [`Frozen::map_in_child`].
    pub unsafe fn map_in_child(self) -> Result<(), Error> {
        let Self { frozen, allocator, signals } = self;
        drop(allocator);
        // SAFETY: as the caller says.
        let map = || unsafe { frozen.map_in_child() };
        #[cfg(target_arch = "x86_64")]
        let map = || crate::signals::natively(map);
        let mapped = map();
        drop(signals);
        mapped
    }
}

/// The one of the thread that forks.
pub static PENDING: Slot = Slot { thread: AtomicUsize::new(0), pending: UnsafeCell::new(None) };

/// A place for what is pending.
pub struct Slot {
    /// The thread that has the arena frozen, or 0. Another may fork, too, for which it could not be frozen.
    thread: AtomicUsize,
    pending: UnsafeCell<Option<Pending>>,
}

// SAFETY: `pending` is only used by the thread that has the arena frozen: there is one at a time.
unsafe impl Sync for Slot {}

impl Slot {
    /// This thread's name, which is its child's after a fork.
    fn this_thread() -> usize {
        // SAFETY: a question.
        unsafe { libc::pthread_self() as usize }
    }

    /// Called by the thread that has the arena frozen.
    pub fn put(&self, pending: Pending) {
        // SAFETY: nobody else has it frozen, and before this thread is named nobody takes it.
        unsafe { *self.pending.get() = Some(pending) };
        self.thread.store(Self::this_thread(), Ordering::Release);
    }

    /// What is pending, for the thread that put it there.
    pub fn take(&self) -> Option<Pending> {
        if self.thread.load(Ordering::Acquire) != Self::this_thread() {
            return None;
        }
        self.thread.store(0, Ordering::Release);
        // SAFETY: this thread has the arena frozen until it drops this.
        unsafe { (*self.pending.get()).take() }
    }
}
