//! Memory that snapshots can be taken of.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64};

#[cfg(target_arch = "x86_64")]
use crate::engine::Ring0;
use crate::engine::{Engine, Fork, Mapped, Shape, Statistics};
use crate::region::{Region, counts_promises};
use crate::task::Task;
use crate::{Choice, Error, Heap, Kind, PAGE, Snapshot, View, remap, uffd};

/// Bytes of the largest memory.
const LARGEST: usize = 1 << 46;

/// How a [`Memory`] is to be made.
#[derive(Clone, Copy, Debug)]
pub struct Builder {
    shape: Shape,
    choice: Choice,
}

impl Builder {
    /// Which engine it gets; unless told, the best one that works here.
    ///
    /// That is `remap`, whose pause is the shortest, also for snapshots that threads of this process read; or `uffd` if
    /// [several](Self::snapshots_at_once) of these are asked for. Where neither works it is `fork`. `remap` is not chosen where
    /// `vm.overcommit_memory` is 2. `docs/snapshot.md` says which programs must ask for `uffd`: for instance those that
    /// have devices write into the memory (`O_DIRECT`, registered buffers).
    pub fn engine(mut self, choice: Choice) -> Self {
        self.choice = choice;
        self
    }

    /// The size to which the memory can [grow](Memory::grow); unless told, it cannot. Addresses are reserved for it, and with
    /// `uffd` once more for each snapshot, but no memory. `ring0` has no such memories.
    pub fn reserve(mut self, bytes: usize) -> Self {
        self.shape.reserve = bytes;
        self
    }

    /// Whether the kernel may back it with transparent huge pages; unless told, it may not. For `uffd` that needs
    /// `/sys/kernel/mm/transparent_hugepage/shmem_enabled` to be `advise` or more.
    pub fn huge_pages(mut self, allowed: bool) -> Self {
        self.shape.huge_pages = allowed;
        self
    }

    /// Whether [tasks](Memory::spawn) run in a child process, where they see the memory at its own address. `fork` always
    /// does so.
    pub fn in_child(mut self, in_child: bool) -> Self {
        self.shape.in_child = in_child;
        self
    }

    /// How many snapshots may be active at once, one unless told. In this process `remap` has one and `uffd` has 16; in
    /// children `remap` has any number. `ring0` has room for the pages of so many, and gives those up
    /// ([`Error::Incomplete`]) that need more. An engine that has fewer is not chosen; if it is asked for,
    /// [`build`](Self::build) fails.
    pub fn snapshots_at_once(mut self, snapshots: usize) -> Self {
        self.shape.at_once = snapshots;
        self
    }

    /// Whether the memory keeps track of which of its pages change, for [`Snapshot::changed_since`]. Only `uffd` can: it is
    /// chosen then. A writer that walks through memory has more faults with it: each page has its own.
    pub fn track_changes(mut self, track: bool) -> Self {
        self.shape.track_changes = track;
        self
    }

    /// For `ring0`: how many snapshots can be taken in a row without copying page tables, two unless told (the
    /// paper's 4.2). Each takes 1/256 of the memory's size. With 0, tables are copied at each snapshot.
    pub fn ahead(mut self, snapshots: usize) -> Self {
        self.shape.ahead = snapshots;
        self
    }

    /// For `ring0`: how many threads make tables ready for that, one unless told.
    pub fn copiers(mut self, threads: usize) -> Self {
        self.shape.copiers = threads;
        self
    }

    /// Makes it, filled with zeros.
    ///
    /// # Errors
    /// [`Error::Size`]; [`Error::Unavailable`] when the engine that was asked for does not work here;
    /// [`Error::System`].
    pub fn build(self) -> Result<Memory, Error> {
        let shape = self.shape;
        let reserve = shape.reserve.max(shape.bytes);
        if shape.bytes == 0 || reserve > LARGEST {
            return Err(Error::Size { bytes: reserve });
        }
        let (bytes, reserve) = (shape.bytes.next_multiple_of(PAGE), reserve.next_multiple_of(PAGE));
        let shape = Shape { bytes, reserve, ..shape };
        let (engine, why_not): (Box<dyn Engine>, _) = match self.choice {
            Choice::Only(Kind::Remap) => (Box::new(Mapped::<remap::Region>::new(shape)?), None),
            Choice::Only(Kind::Uffd) => (Box::new(Mapped::<uffd::Region>::new(shape)?), None),
            Choice::Only(Kind::Fork) => (Box::new(Fork::new(shape)?), None),
            #[cfg(target_arch = "x86_64")]
            Choice::Only(Kind::Ring0) => (Box::new(Ring0::new(shape)?), None),
            #[cfg(not(target_arch = "x86_64"))]
            Choice::Only(Kind::Ring0) => {
                let reason = "it exists for x86-64 only".to_owned();
                return Err(Error::Unavailable { engine: Kind::Ring0, reason });
            }
            Choice::Auto => Self::best(shape)?,
        };
        Ok(Memory { engine, why_not })
    }

    /// The best engine that works here, and why there is no better one.
    fn best(shape: Shape) -> Result<(Box<dyn Engine>, Option<String>), Error> {
        if shape.track_changes {
            return Ok((Box::new(Mapped::<uffd::Region>::new(shape)?), None));
        }
        let mut reasons = Vec::new();
        if counts_promises() {
            reasons.push("remap: vm.overcommit_memory is 2".to_owned());
        } else if let Some(remap) = Self::if_available::<remap::Region>(shape, &mut reasons)? {
            return Ok((remap, None));
        }
        let engine = match Self::if_available::<uffd::Region>(shape, &mut reasons)? {
            Some(uffd) => uffd,
            None => Box::new(Fork::new(shape)?),
        };
        Ok((engine, (!reasons.is_empty()).then(|| reasons.join("; "))))
    }

    /// An engine, or its reason for not being available is added.
    fn if_available<R: Region>(
        shape: Shape,
        reasons: &mut Vec<String>,
    ) -> Result<Option<Box<dyn Engine>>, Error> {
        match Mapped::<R>::new(shape) {
            Ok(engine) => Ok(Some(Box::new(engine))),
            Err(Error::Unavailable { engine, reason }) => {
                reasons.push(format!("{engine}: {reason}"));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// Memory that any thread may write and that snapshots can be taken of at any time.
pub struct Memory {
    engine: Box<dyn Engine>,
    why_not: Option<String>,
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory")
            .field("engine", &self.kind())
            .field("bytes", &self.len())
            .finish_non_exhaustive()
    }
}

impl Memory {
    /// Begins a memory of so many bytes, rounded up to whole pages.
    pub fn builder(bytes: usize) -> Builder {
        Builder {
            shape: Shape {
                bytes,
                reserve: 0,
                huge_pages: false,
                in_child: false,
                at_once: 1,
                track_changes: false,
                ahead: 2,
                copiers: 1,
            },
            choice: Choice::Auto,
        }
    }

    /// Which engine it has.
    pub fn kind(&self) -> Kind {
        self.engine.kind()
    }

    /// Why it does not have a better engine, if there is one that does not work here.
    pub fn why_not_better(&self) -> Option<&str> {
        self.why_not.as_deref()
    }

    /// Where it begins: for data structures of the owner's, who answers for races between its threads.
    pub fn base(&self) -> NonNull<u8> {
        self.engine.base()
    }

    /// How many bytes of it are accessible: those that it began with and those by which it has grown.
    pub fn len(&self) -> usize {
        self.engine.bytes()
    }

    /// Never: a memory has at least one page.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// All of it in bytes.
    pub fn bytes(&self) -> &[AtomicU8] {
        // SAFETY: the engine's memory lives as long as it does, and is only accessed atomically through this.
        unsafe { std::slice::from_raw_parts(self.base().as_ptr().cast(), self.len()) }
    }

    /// All of it in words.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: as above; a page's address is aligned.
        unsafe { std::slice::from_raw_parts(self.base().as_ptr().cast(), self.len() / size_of::<u64>()) }
    }

    /// Makes `bytes` more of the memory accessible, rounded up to whole pages, and gives where they are. They are zero.
    /// Snapshots that were taken before do not have them.
    ///
    /// # Errors
    /// [`Error::Full`] beyond what is [reserved](Builder::reserve); [`Error::OfASnapshot`] in a task's process;
    /// [`Error::System`]. The memory is as before.
    ///
    /// ```
    /// # fn main() -> Result<(), bedplate_snapshot::Error> {
    /// use bedplate_snapshot::{Error, Memory};
    ///
    /// let memory = Memory::builder(1 << 20).reserve(1 << 30).build()?;
    /// assert_eq!(memory.grow(5000)?, (1 << 20)..(1 << 20) + 8192);
    /// assert_eq!(memory.bytes().len(), (1 << 20) + 8192);
    /// assert!(matches!(memory.grow(1 << 30), Err(Error::Full { .. })));
    /// # Ok(())
    /// # }
    /// ```
    pub fn grow(&self, bytes: usize) -> Result<Range<usize>, Error> {
        self.engine.grow(bytes)
    }

    /// Makes a heap of it, from which data structures are allocated. The bytes cannot be reached otherwise then, because the
    /// heap's blocks are the data structures' own. The memory's content is lost.
    pub fn into_heap(self) -> Heap {
        Heap::new(self)
    }

    /// Takes a snapshot that any thread of this process can hold and read, at an address of its own. It ends with its
    /// last handle. `remap` has one at a time: the one before must have ended. `uffd` has up to 16.
    ///
    /// # Errors
    /// [`Error::TooManySnapshots`]; [`Error::Unavailable`] with `fork` and `ring0`, whose snapshots only
    /// [tasks](Self::spawn) see; [`Error::System`].
    ///
    /// ```
    /// # fn main() -> Result<(), bedplate_snapshot::Error> {
    /// use bedplate_snapshot::{Error, Memory};
    /// use std::sync::atomic::Ordering;
    ///
    /// let memory = Memory::builder(1 << 20).snapshots_at_once(2).build()?;
    /// let words = memory.words();
    /// let first = match memory.snapshot() {
    ///     Err(Error::Unavailable { .. }) => return Ok(()), // There is no userfaultfd here.
    ///     first => first?,
    /// };
    /// words[0].store(1, Ordering::Relaxed);
    /// let second = memory.snapshot()?;
    /// words[0].store(2, Ordering::Relaxed);
    /// assert_eq!(first.read(|view| view.words()[0])?, 0);
    /// assert_eq!(second.read(|view| view.words()[0])?, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn snapshot(&self) -> Result<Snapshot, Error> {
        self.engine.snapshot().map_err(|error| match (error, &self.why_not) {
            (Error::Unavailable { engine, reason }, Some(why_not)) => {
                Error::Unavailable { engine, reason: format!("{reason}; {why_not}") }
            }
            (error, _) => error,
        })
    }

    /// Takes a snapshot and runs `task` on it, beside the owner. What it returns is bytes, because it may run in
    /// another process ([`Kind`]); it must then not rely on threads or locks of the owner's.
    ///
    /// # Errors
    /// [`Error::TooManySnapshots`]; [`Error::OfASnapshot`] in a task's process; [`Error::System`].
    pub fn spawn(&self, task: impl FnOnce(&View<'_>) -> Vec<u8> + Send + 'static) -> Result<Task, Error> {
        self.engine.spawn(Box::new(task))
    }

    /// Takes a snapshot and runs `task` on it in a child process, whatever the builder was told. The child has a copy of all
    /// that the task borrows, and sees the memory at its own address: data with pointers can be read there. The child has
    /// one thread. So it must not wait for a lock that another thread may have held; a lock that the caller holds, it has,
    /// too.
    ///
    /// # Errors
    /// As [`spawn`](Self::spawn); [`Error::Unavailable`] with `ring0`.
    ///
    /// ```
    /// # fn main() -> Result<(), bedplate_snapshot::Error> {
    /// use bedplate_snapshot::Memory;
    ///
    /// let memory = Memory::builder(1 << 20).build()?;
    /// let mut names = vec!["a", "b"];
    /// let task = memory.spawn_in_child(|_| names.concat().into_bytes())?;
    /// names.clear();
    /// assert_eq!(task.join()?, b"ab");
    /// # Ok(())
    /// # }
    /// ```
    pub fn spawn_in_child(&self, task: impl FnOnce(&View<'_>) -> Vec<u8>) -> Result<Task, Error> {
        self.engine.spawn_in_child(Box::new(task))
    }

    /// Does what can be done ahead of the next snapshot, or waits until it is done. With `uffd` this write-protects all pages
    /// that were written since the snapshot before, which shortens the next pause; the next write to each of them is slower.
    /// The other engines work ahead by themselves.
    pub fn settle(&self) {
        self.engine.settle();
    }

    /// What has happened so far.
    pub fn statistics(&self) -> Statistics {
        self.engine.statistics()
    }
}
