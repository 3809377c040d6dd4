//! The engines: their interface, their abilities, and their creation.
//!
//! An engine owns a memory and takes snapshots of it. All engines make these promises. A snapshot contains the
//! stores of every writer up to one moment while it was taken, and no later store. Snapshots may end in any order.
//! There are no snapshots of snapshots.
//!
//! There are two traits:
//! - [`Engine`] is implemented by every engine. It says where the memory is, and how snapshots begin and end.
//!   [`Memory`](crate::Memory) needs no more.
//! - [`Arena`] is for engines whose memory a program's own allocator divides up. Pages are claimed and released at
//!   any time, and children that do not know this library inherit them. The preloaded library needs that.
//!
//! The traits are separate because a memory of `fork`, and one of `ring0` for tasks in threads, have no pages to
//! claim. With a single trait, these engines would fail in half of its methods, and only at run time. A function
//! that takes an `Arena` cannot be given such an engine.
//!
//! The table [`Kind::abilities`] has all differences between engines that are known before an engine is created.

mod fork;
mod frozen;
#[cfg(target_arch = "x86_64")]
mod ring0;
mod service;

use std::ops::Range;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use crate::region::MmapBox;
use crate::task::Task;
use crate::{Error, PAGE, View, remap, uffd};

pub use crate::statistics::Statistics;
pub use frozen::Frozen;
pub use service::Service;
pub(crate) use service::Threads;

/// The work of a task on a snapshot. It returns bytes because it may run in another process.
pub type Work = Box<dyn FnOnce(&View<'_>) -> Vec<u8> + Send>;

/// The work of a task on a snapshot in a child of this process. It runs at once, and the child has a copy of
/// everything it borrows.
pub type ChildWork<'a> = Box<dyn FnOnce(&View<'_>) -> Vec<u8> + 'a>;

/// A mechanism that makes snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Page tables are detached, and the memory is mapped privately in their place. This takes constant time. The
    /// kernel's copy-on-write does the rest. When all snapshots have ended, the owner's writes are merged into the
    /// memory. Only one in-process snapshot can be active at a time; snapshots in children ([`Builder::in_child`])
    /// are not limited.
    ///
    /// [`Builder::in_child`]: crate::Builder::in_child
    Remap,
    /// Write protection by userfaultfd, prioritized copy-on-write in user space. The task runs in a thread of this
    /// process and sees the memory at another address, or in a child at the same one ([`Builder::in_child`]).
    ///
    /// [`Builder::in_child`]: crate::Builder::in_child
    Uffd,
    /// `fork`, as databases use it today. The task runs in a child process.
    Fork,
    /// Page tables of the process itself in ring 0 (`bedplate-ring0`), with prioritized copy-on-write in its own
    /// page-fault handler. The task runs in a thread of this process, in ring 0, and sees the memory at its own
    /// address. Other threads do not see the snapshot, so the task cannot start threads. This engine is never
    /// chosen unless it is requested, because every system call of a thread in ring 0 costs more.
    Ring0,
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Remap => "remap",
            Self::Uffd => "uffd",
            Self::Fork => "fork",
            Self::Ring0 => "ring0",
        })
    }
}

impl std::str::FromStr for Kind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "remap" => Ok(Self::Remap),
            "uffd" => Ok(Self::Uffd),
            "fork" => Ok(Self::Fork),
            "ring0" => Ok(Self::Ring0),
            _ => Err(format!("no engine is called {name}: there are remap, uffd, fork and ring0")),
        }
    }
}

/// The choice of a memory's engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The best engine that works here. Each one is tried.
    #[default]
    Auto,
    /// This engine, or an error.
    Only(Kind),
}

/// The abilities of an engine, independent of its memory.
#[derive(Clone, Copy, Debug)]
pub struct Abilities {
    /// Limit of simultaneous snapshots for threads of this process; `usize::MAX` if only memory limits them.
    pub in_process: usize,
    /// Limit of simultaneous snapshots for children, in the same form.
    pub in_children: usize,
    /// Whether the engine can track changes.
    pub tracks_changes: bool,
    /// Whether a snapshot in this process is a mapping of its own, to which its readers may write.
    pub views_are_writable: bool,
    /// Whether parts of the memory can have access rights of their own. They cannot if page tables are moved,
    /// because tables can be moved in one piece only if there are few mappings.
    pub parts_have_rights: bool,
    /// Whether pages move to other frames at snapshots.
    pub moves_pages: bool,
    /// Whether a child that has a snapshot can fork.
    pub children_can_fork: bool,
}

impl Kind {
    /// The abilities of this engine.
    pub const fn abilities(self) -> Abilities {
        let fork = Abilities {
            in_process: usize::MAX,
            in_children: usize::MAX,
            tracks_changes: false,
            views_are_writable: false,
            parts_have_rights: true,
            moves_pages: false,
            children_can_fork: true,
        };
        match self {
            Self::Remap => {
                Abilities { in_process: remap::TASKS, parts_have_rights: false, moves_pages: true, ..fork }
            }
            Self::Uffd => Abilities {
                in_process: uffd::SNAPSHOTS,
                in_children: uffd::SNAPSHOTS,
                tracks_changes: true,
                views_are_writable: true,
                ..fork
            },
            Self::Fork => fork,
            Self::Ring0 => Abilities {
                in_process: RING0_SNAPSHOTS,
                in_children: RING0_SNAPSHOTS,
                parts_have_rights: false,
                children_can_fork: false,
                ..fork
            },
        }
    }

    /// Refuses options that the engine does not support: the number of simultaneous snapshots, and the tracking of
    /// changes.
    fn check(self, options: &Options) -> Result<(), Error> {
        let abilities = self.abilities();
        let most = if options.in_child { abilities.in_children } else { abilities.in_process };
        let reason = if options.at_once > most {
            format!("it has {most} snapshots at once, and {} are asked for", options.at_once)
        } else if options.track_changes && !abilities.tracks_changes {
            "it keeps no track of changes: the engine uffd does".to_owned()
        } else {
            return Ok(());
        };
        Err(Error::Unavailable { engine: self, reason })
    }
}

/// Limit of simultaneous snapshots of `ring0`: one for each bit of a word.
pub(crate) const RING0_SNAPSHOTS: usize = 64;

/// The options of a memory.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The initial size in bytes, a multiple of the page size.
    pub bytes: usize,
    /// The size in bytes to which it can grow, a multiple of the page size. Addresses are reserved for this size.
    pub reserve: usize,
    /// Whether the kernel may back it with huge pages. `remap` and `uffd` take them from a file system of their own
    /// if that is allowed (CAP_SYS_ADMIN), and otherwise from memory files if `shmem_enabled` allows it. They are
    /// still copied page by page.
    pub huge_pages: bool,
    /// Whether tasks must see the memory at its own address, even if that takes a child process.
    pub in_child: bool,
    /// Number of snapshots that may be active at once.
    pub at_once: usize,
    /// Whether the memory tracks changes.
    pub track_changes: bool,
    /// For `ring0`: number of snapshots that can be taken in a row without copying page tables.
    pub ahead: usize,
    /// For `ring0`: number of threads that prepare such tables.
    pub copiers: usize,
}

impl Options {
    /// The options of a memory of this many bytes that does not grow, with default values.
    pub const fn new(bytes: usize) -> Self {
        Self {
            bytes,
            reserve: bytes,
            huge_pages: false,
            in_child: false,
            at_once: 1,
            track_changes: false,
            ahead: 2,
            copiers: 1,
        }
    }
}

/// A snapshot that the owner's process sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotId {
    pub(crate) slot: usize,
    /// The number of the snapshot in its era. Later snapshots have larger numbers.
    pub epoch: u32,
    /// The era: number of times that the numbers have wrapped around.
    pub(crate) era: u32,
    /// The address of the snapshot in the owner's process.
    pub base: usize,
    /// Number of pages of the snapshot. No page from this one on had been in use at the snapshot.
    pub pages: usize,
    /// Time that writers had to wait for the snapshot, in nanoseconds.
    pub pause_ns: u64,
}

/// The number of a snapshot among all snapshots of its memory. `epoch` starts again in each era.
pub(crate) fn number(era: u32, epoch: u32) -> u64 {
    u64::from(era) << 32 | u64::from(epoch)
}

/// The operations of every engine. Any thread may call them. Only errors allocate memory.
///
/// Some engines need threads before snapshots can be taken. A [`Service`] starts them.
pub trait Engine: Threads + Send + Sync + 'static {
    /// The kind of this engine.
    fn kind(&self) -> Kind;

    /// The first address of the memory.
    fn base(&self) -> usize;

    /// The size of the memory in pages, which need not all be accessible.
    fn pages(&self) -> usize;

    /// Makes unused pages accessible. They are zero. An engine whose pages are all accessible does nothing.
    ///
    /// # Errors
    /// [`Error::System`]: the pages are not accessible.
    fn grow(&self, _: Range<usize>) -> Result<(), Error> {
        Ok(())
    }

    /// Takes a snapshot that this process sees at another address.
    ///
    /// # Errors
    /// [`Error::TooManySnapshots`], [`Error::System`]; [`Error::Unavailable`] if only tasks can see the engine's
    /// snapshots.
    fn snapshot(&self) -> Result<SnapshotId, Error> {
        let reason = "only a task sees its snapshots (Memory::spawn); the engines remap and uffd have others";
        Err(Error::Unavailable { engine: self.kind(), reason: reason.to_owned() })
    }

    /// Ends a snapshot of this process.
    ///
    /// # Safety
    /// No code may read the snapshot any more.
    unsafe fn end(&self, _: SnapshotId) {}

    /// Whether an active snapshot of this process has its own copies of all pages that were written so far.
    fn is_whole(&self, _: &SnapshotId) -> bool {
        true
    }

    /// The first run of pages, among `pages`, that were written between the earlier snapshot `since` and this later
    /// snapshot, which is still active. Both snapshots must be of the same era, and all `pages` must have been in
    /// use at the earlier one. An engine that does not track changes returns all pages.
    fn first_changed(&self, _: &SnapshotId, _since: u32, pages: Range<usize>) -> Option<Range<usize>> {
        (!pages.is_empty()).then_some(pages)
    }

    /// Takes a snapshot and runs `work` on it in a thread that sees the memory at its own address. Only `ring0`
    /// supports this.
    ///
    /// # Errors
    /// [`Error::TooManySnapshots`], [`Error::OfASnapshot`], [`Error::System`]; [`Error::Unavailable`].
    fn spawn(&self, _: Work) -> Result<Task, Error> {
        let reason = "its threads do not see snapshots at the memory's own address".to_owned();
        Err(Error::Unavailable { engine: self.kind(), reason })
    }

    /// Takes a snapshot for the child of a `fork`. The thread must call `fork` next. All signals that a handler of
    /// the program may handle must be blocked.
    ///
    /// # Errors
    /// [`Error::TooManySnapshots`], [`Error::System`]: the engine is unchanged; [`Error::Unavailable`] if the
    /// engine has no snapshots in children.
    fn freeze(&self) -> Result<Frozen<'_>, Error> {
        let reason = "its tasks run in this process (Memory::spawn)".to_owned();
        Err(Error::Unavailable { engine: self.kind(), reason })
    }

    /// Does all work that can be done ahead of the next snapshot, or waits until it is done: write-protecting
    /// pages, copying tables.
    fn settle(&self) {}

    /// The statistics so far.
    fn statistics(&self) -> Statistics;
}

/// An engine whose pages a program's allocator claims and releases. No method allocates with the program's
/// allocator.
///
/// The process that created the arena is its owner. A process forked from the owner has a snapshot of it, or a copy
/// if it was not [served](Self::is_served) yet.
pub trait Arena: Engine {
    /// Claims `count` free pages at the lowest address that is aligned to `align` pages. They are zero.
    fn claim_anywhere(&self, count: usize, align: usize) -> Option<Range<usize>>;

    /// Claims these pages if they are all free. Returns whether it did.
    fn claim_exactly(&self, pages: Range<usize>) -> bool;

    /// Makes pages zero and in use, whether they were in use before or not. No other thread may claim them
    /// meanwhile. Returns whether that worked.
    fn replace(&self, pages: Range<usize>) -> bool;

    /// Releases pages, and returns their memory to the kernel. Snapshots keep their content.
    fn release(&self, pages: Range<usize>);

    /// Makes pages zero, and returns their memory to the kernel. Snapshots keep their content.
    fn discard(&self, pages: Range<usize>);

    /// Makes pages zero in a child. They stay mapped, so that no other mapping can take their place.
    ///
    /// # Safety
    /// The child must not need their content any more.
    unsafe fn discard_in_child(&self, pages: Range<usize>) {
        let (at, len) = ((self.base() + pages.start * PAGE) as *mut u8, pages.len() * PAGE);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: the child's own memory, by the caller's promise.
        unsafe {
            if mmap_anonymous(at.cast(), len, ProtFlags::READ | ProtFlags::WRITE, flags).is_err() {
                // The limit of mappings of a process may be reached.
                at.write_bytes(0, len);
            }
        }
    }

    /// Pins all pages from now on, because devices may write to their frames. The process calls it before it starts
    /// direct reads or sets up a ring of io_uring. Afterwards, snapshots take longer if pages would otherwise move.
    ///
    /// # Errors
    /// [`Error::System`]: writes of devices may be lost. Nothing else changes.
    fn pin(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Whether one more snapshot in a child is possible now.
    fn has_room(&self) -> bool {
        true
    }

    /// Whether snapshots can be taken. A child that is forked before that must call
    /// [`copy_in_child`](Self::copy_in_child).
    fn is_served(&self) -> bool {
        true
    }

    /// Maps the arena in a child that was forked before the arena was served. All of it is the child's own.
    ///
    /// # Errors
    /// [`Error::System`]; [`Error::OfASnapshot`] if arenas of this engine are always served.
    ///
    /// # Safety
    /// The child must have one thread, and must not have touched the arena.
    unsafe fn copy_in_child(&self) -> Result<(), Error> {
        Err(Error::OfASnapshot)
    }

    /// Makes every page the child's own, in a child that is about to fork. It is needed if no thread would copy
    /// pages for the grandchild.
    fn own_everything(&self) {}

    /// Publishes the statistics on a page that other processes can read
    /// ([`processes`](crate::statistics::processes)), with the reason for the choice of this engine. The numbers on
    /// the page are at most about one second old. Without memory or descriptors for the page, it is not created.
    fn publish_statistics(&self, why: &str);

    /// Counts a snapshot that could not be taken.
    fn count_failure(&self);

    /// Whether an address is in the arena.
    fn contains(&self, address: usize) -> bool {
        (self.base()..self.base() + self.pages() * PAGE).contains(&address)
    }
}

/// Creates an engine for a [`Memory`](crate::Memory).
pub(crate) fn open(kind: Kind, options: Options) -> Result<Service<dyn Engine>, Error> {
    kind.check(&options)?;
    let engine = match kind {
        Kind::Remap => remap::Region::new(options)?.into_engine(),
        Kind::Uffd => uffd::Region::new(options)?.into_engine(),
        Kind::Fork => boxed(fork::Fork::new(options)?)?,
        #[cfg(target_arch = "x86_64")]
        Kind::Ring0 => boxed(ring0::Ring0::new(options)?)?,
        #[cfg(not(target_arch = "x86_64"))]
        Kind::Ring0 => {
            let reason = "it exists for x86-64 only".to_owned();
            return Err(Error::Unavailable { engine: kind, reason });
        }
    };
    Ok(Service::new(engine))
}

fn boxed(engine: impl Engine + 'static) -> Result<MmapBox<dyn Engine>, Error> {
    MmapBox::new(engine).map(MmapBox::into_engine).map_err(Error::system("mapping the engine"))
}

/// Creates an arena of the engine `remap` or `uffd`, without threads yet. The arena of `ring0` is a
/// [region](crate::ring0::Region) that exists as long as the process.
///
/// # Errors
/// [`Error::Unavailable`] if the engine does not work here, or has no such arenas; [`Error::System`].
pub fn open_arena(kind: Kind, options: Options) -> Result<Service<dyn Arena>, Error> {
    match kind {
        Kind::Remap => remap::Region::new(options).map(|region| Service::new(region.into_arena())),
        Kind::Uffd => uffd::Region::new(options).map(|region| Service::new(region.into_arena())),
        Kind::Fork | Kind::Ring0 => {
            let reason = "it has no arenas: the engines remap and uffd have them".to_owned();
            Err(Error::Unavailable { engine: kind, reason })
        }
    }
}
