//! A snapshot that threads of the owner's process hold and read.

use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use crate::engine::{self, Engine, Service, SnapshotId};
use crate::{Error, PAGE, View};

/// A [`Memory`](crate::Memory) as it was at one moment, for any thread of the owner's process.
///
/// It derefs to [`View`], which gives the bytes as slices. A clone is another handle of the same snapshot. The
/// snapshot ends when the last handle is dropped. It may outlive the `Memory` value: the mapping stays until both
/// are dropped.
///
/// The engine `uffd` abandons a snapshot if there is no memory for a page that the snapshot still shares with the
/// owner. Such a page then shows later writes of the owner. A result is therefore valid only after
/// [`check`](Self::check) has succeeded; [`read`](Self::read) includes the check. Code that reads before the check
/// must not rely on the data, for instance to skip the validation of text. With `remap` a snapshot is always
/// complete.
///
/// Forked children do not inherit the snapshot's mapping, so they must not use the handle.
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
    pin: Arc<Pin>,
}

/// The state that all handles of a snapshot share. The snapshot ends when it is dropped.
struct Pin {
    engine: Arc<Service<dyn Engine>>,
    id: SnapshotId,
    view: View<'static>,
    bookmark: Option<Bookmark>,
}

impl Pin {
    /// The first run of bytes, in whole pages, that were written since the earlier snapshot with the number
    /// `since`.
    fn first_changed(&self, since: u64, bytes: Range<usize>) -> Option<Range<usize>> {
        if since >> 32 != u64::from(self.id.era) {
            // Epochs of different eras cannot be compared, so all pages count as changed.
            return (!bytes.is_empty()).then_some(bytes);
        }
        let pages = bytes.start / PAGE..bytes.end / PAGE;
        let changed = self.engine.first_changed(&self.id, since as u32, pages)?;
        Some(changed.start * PAGE..changed.end * PAGE)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        // In a child no thread unlocks the engine's locks, and the snapshot belongs to the parent.
        if self.engine.is_owner() {
            // SAFETY: the view does not exist any more, because this was the snapshot's last handle.
            unsafe { self.engine.end(self.id) };
        }
    }
}

/// The moment at which a snapshot was taken. Later snapshots can be compared with it, even after the snapshot
/// itself has ended.
///
/// It uses no memory of its own. It has no meaning in another process or for another memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bookmark {
    pub(crate) memory: u64,
    pub(crate) epoch: u64,
    /// The memory's size in bytes at that moment.
    pub(crate) bytes: usize,
}

impl Bookmark {
    /// The bookmark as numbers, for interfaces to other languages.
    pub fn to_words(&self) -> [u64; 3] {
        [self.memory, self.epoch, self.bytes as u64]
    }

    /// The inverse of [`to_words`](Self::to_words). Returns `None` if the words cannot be a bookmark. Invented
    /// words may be accepted; the changes since such a bookmark are then wrong, but there is no other harm.
    pub fn from_words([memory, epoch, bytes]: [u64; 3]) -> Option<Self> {
        let bytes = usize::try_from(bytes).ok().filter(|bytes| bytes.is_multiple_of(PAGE))?;
        Some(Self { memory, epoch, bytes })
    }
}

/// The parts of a memory that were written between two snapshots. See [`Snapshot::changed_since`].
#[derive(Debug)]
pub struct Changes<'a> {
    snapshot: &'a Snapshot,
    since: u64,
    /// The remaining part that both snapshots contain.
    both: Range<usize>,
    /// The part that only the later snapshot contains, until it is returned.
    new: Range<usize>,
}

impl Changes<'_> {
    /// Skips everything before the page with this offset in bytes. An iteration can thus be resumed at the end of
    /// the last range of another one.
    pub fn starting_at(mut self, offset: usize) -> Self {
        let offset = offset / PAGE * PAGE;
        self.both.start = offset.clamp(self.both.start, self.both.end);
        self.new.start = offset.clamp(self.new.start, self.new.end);
        self
    }
}

impl Iterator for Changes<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        if let Some(run) = self.snapshot.pin.first_changed(self.since, self.both.clone()) {
            self.both.start = run.end;
            return Some(run);
        }
        self.both.start = self.both.end;
        let new = std::mem::replace(&mut self.new, 0..0);
        (!new.is_empty()).then_some(new)
    }
}

impl std::iter::FusedIterator for Changes<'_> {}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot")
            .field("epoch", &self.epoch())
            .field("pause", &self.pause())
            .field("view", &self.pin.view)
            .finish_non_exhaustive()
    }
}

impl Deref for Snapshot {
    type Target = View<'static>;

    fn deref(&self) -> &View<'static> {
        &self.pin.view
    }
}

impl Snapshot {
    /// Takes a snapshot. `memory` is the number of the memory, if it tracks changes.
    pub(crate) fn take(engine: &Arc<Service<dyn Engine>>, memory: Option<u64>) -> Result<Self, Error> {
        let id = engine.snapshot()?;
        let (base, bytes) = (std::ptr::with_exposed_provenance(id.base), id.pages * PAGE);
        let epoch = engine::number(id.era, id.epoch);
        let bookmark = memory.map(|memory| Bookmark { memory, epoch, bytes });
        // SAFETY: the snapshot's mapping, which exists until the pin is dropped. It changes only if the snapshot is
        // abandoned, which `check` reports.
        let view = unsafe { View::new(base, bytes, std::ptr::with_exposed_provenance(engine.base())) };
        Ok(Self { pin: Arc::new(Pin { engine: engine.clone(), id, view, bookmark }) })
    }

    /// The number of the snapshot. Later snapshots of a memory have larger numbers (section 4.1).
    pub fn epoch(&self) -> u64 {
        engine::number(self.pin.id.era, self.pin.id.epoch)
    }

    /// Time that the memory's writers had to wait for the snapshot.
    pub fn pause(&self) -> Duration {
        Duration::from_nanos(self.pin.id.pause_ns)
    }

    /// Whether everything that was read before this call is the content of the memory at the snapshot.
    ///
    /// # Errors
    /// [`Error::Incomplete`] if the snapshot was abandoned for lack of memory.
    pub fn check(&self) -> Result<(), Error> {
        // The engine marks the snapshot before it lets the owner write to the page. A thread that has read the
        // owner's write therefore finds the mark here.
        fence(Ordering::Acquire);
        if self.pin.engine.is_whole(&self.pin.id) { Ok(()) } else { Err(Error::Incomplete) }
    }

    /// Returns the result of `read` on the snapshot, if the snapshot was complete until `read` had ended.
    ///
    /// # Errors
    /// [`Error::Incomplete`] as for [`check`](Self::check).
    pub fn read<T>(&self, read: impl FnOnce(&View<'_>) -> T) -> Result<T, Error> {
        let result = read(&self.pin.view);
        self.check()?;
        Ok(result)
    }

    /// The moment of this snapshot, with which later snapshots can be [compared](Self::changed_since).
    ///
    /// # Errors
    /// [`Error::NotTracked`] unless the memory was built with [`track_changes`](crate::Builder::track_changes).
    pub fn bookmark(&self) -> Result<Bookmark, Error> {
        self.pin.bookmark.ok_or(Error::NotTracked)
    }

    /// The parts that were written since an earlier snapshot of the same memory: ranges of bytes, in whole pages,
    /// in ascending order. If the memory has grown, the last range contains the growth.
    ///
    /// Every page that changed is in a range. The ranges contain exactly the pages that were written, including
    /// pages that were overwritten with the same content. There is one exception. A page may also be in a range if
    /// a thread began its first write to the page before this snapshot, and the write took effect after the
    /// snapshot.
    ///
    /// Writes of devices into the memory are not tracked: direct reads (`O_DIRECT`), and reads into a buffer
    /// registered with io_uring. A memory that tracks changes must not be the target of such reads.
    ///
    /// The earlier snapshot may have ended, and may have been abandoned.
    ///
    /// # Errors
    /// [`Error::NotTracked`] as for [`bookmark`](Self::bookmark); [`Error::NotEarlier`] for a bookmark of another
    /// memory, or of a later snapshot.
    ///
    /// ```
    /// # fn main() -> Result<(), bedplate_snapshot::Error> {
    /// use bedplate_snapshot::{Error, Memory, PAGE};
    /// use std::sync::atomic::Ordering;
    ///
    /// let memory = match Memory::builder(1 << 20).track_changes(true).build() {
    ///     Err(Error::Unavailable { .. }) => return Ok(()), // There is no userfaultfd with write protection here.
    ///     memory => memory?,
    /// };
    /// // A copy that is brought up to date.
    /// let snapshot = memory.snapshot()?;
    /// let (mut copy, bookmark) = (snapshot.bytes().to_vec(), snapshot.bookmark()?);
    /// snapshot.check()?;
    /// drop(snapshot);
    /// memory.bytes()[9 * PAGE + 1].store(1, Ordering::Relaxed);
    /// let snapshot = memory.snapshot()?;
    /// for changed in snapshot.changed_since(&bookmark)? {
    ///     copy[changed.clone()].copy_from_slice(&snapshot.bytes()[changed]);
    /// }
    /// snapshot.check()?;
    /// assert_eq!(copy[9 * PAGE + 1], 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn changed_since(&self, earlier: &Bookmark) -> Result<Changes<'_>, Error> {
        let own = self.bookmark()?;
        if own.memory != earlier.memory || own.epoch < earlier.epoch || own.bytes < earlier.bytes {
            return Err(Error::NotEarlier);
        }
        // Nothing changed since this snapshot itself.
        let both = if own.epoch == earlier.epoch { 0..0 } else { 0..earlier.bytes };
        Ok(Changes { snapshot: self, since: earlier.epoch, both, new: earlier.bytes..own.bytes })
    }
}
