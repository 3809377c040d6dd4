//! A snapshot that threads of the owner's process hold and read.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use crate::{Error, View};

/// What keeps a snapshot for this process. The snapshot ends when this is dropped.
pub(crate) trait Kept: Send + Sync {
    /// Whether every page could be kept so far.
    fn is_whole(&self) -> bool;
}

/// A [`Memory`](crate::Memory) as it was at one moment, for any thread of the owner's process.
///
/// It derefs to [`View`], which gives the bytes as slices. A clone is another handle of the same snapshot; the snapshot
/// ends when the last handle is dropped. It may outlive the `Memory` value: the mapping stays until both are dropped.
///
/// The engine `uffd` gives a snapshot up when there is no memory for a page that the snapshot still shares with the
/// owner. Such a page then shows what the owner writes. So a result counts only after [`check`](Self::check) has
/// succeeded; [`read`](Self::read) does both. Code that reads before that must not rely on what it finds, for instance to
/// skip the validation of text. With `remap` a snapshot is always whole.
///
/// Forked children do not inherit the snapshot's mapping: they must not use the handle.
///
/// ```
/// # fn main() -> Result<(), bedplate_snapshot::Error> {
/// # use bedplate_snapshot::Memory;
/// # use std::sync::atomic::Ordering;
/// let memory = Memory::builder(1 << 20).build()?;
/// memory.words()[7].store(1, Ordering::Relaxed);
/// # let kind = memory.kind();
/// # if !matches!(kind, bedplate_snapshot::Kind::Remap | bedplate_snapshot::Kind::Uffd) { return Ok(()) }
/// let snapshot = memory.snapshot()?;
/// let other = snapshot.clone();
/// let sum = std::thread::spawn(move || other.read(|view| view.words().iter().sum::<u64>()));
/// memory.words()[7].store(2, Ordering::Relaxed);
/// assert_eq!(sum.join().unwrap()?, 1);
/// assert_eq!(snapshot.words()[7], 1);
/// snapshot.check()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Snapshot {
    shared: Arc<Shared>,
}

/// What all handles of a snapshot have in common.
struct Shared {
    view: View<'static>,
    epoch: u64,
    pause: Duration,
    kept: Box<dyn Kept>,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot")
            .field("epoch", &self.epoch())
            .field("pause", &self.pause())
            .field("view", &self.shared.view)
            .finish_non_exhaustive()
    }
}

impl Deref for Snapshot {
    type Target = View<'static>;

    fn deref(&self) -> &View<'static> {
        &self.shared.view
    }
}

impl Snapshot {
    /// # Safety
    /// `kept` keeps the view's memory readable until it is dropped.
    pub(crate) unsafe fn new(view: View<'static>, epoch: u64, pause: Duration, kept: Box<dyn Kept>) -> Self {
        Self { shared: Arc::new(Shared { view, epoch, pause, kept }) }
    }

    /// Its number: later snapshots of a memory have greater ones (4.1).
    pub fn epoch(&self) -> u64 {
        self.shared.epoch
    }

    /// How long the memory's writers stood still for it.
    pub fn pause(&self) -> Duration {
        self.shared.pause
    }

    /// Whether all that was read before this call is what the memory was at the snapshot.
    ///
    /// # Errors
    /// [`Error::Torn`] when the snapshot was given up for lack of memory.
    pub fn check(&self) -> Result<(), Error> {
        // The engine marks the snapshot before it lets the owner write to the page. So a thread that has read what the owner
        // wrote finds the mark here.
        fence(Ordering::Acquire);
        if self.shared.kept.is_whole() { Ok(()) } else { Err(Error::Torn) }
    }

    /// Gives what `read` makes of the snapshot, if the snapshot was whole until `read` had ended.
    ///
    /// # Errors
    /// [`Error::Torn`] as [`check`](Self::check).
    pub fn read<T>(&self, read: impl FnOnce(&View<'_>) -> T) -> Result<T, Error> {
        let result = read(&self.shared.view);
        self.check()?;
        Ok(result)
    }
}
