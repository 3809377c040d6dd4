//! The engines: what an engine must do, what each of them can do, and how one is made.
//!
//! An engine owns a memory and takes snapshots of it. All of them promise: a snapshot is what every writer's stores had made of
//! the memory at one moment while it was taken; no later store shows; snapshots end in any order; there are no snapshots of
//! snapshots.
//!
//! Two traits say what an engine must do:
//! - [`Engine`] is for every engine: where its memory is, and how snapshots begin and end. [`Memory`](crate::Memory) needs no
//!   more.
//! - [`Arena`] is for engines whose memory a program's own allocator divides up: pages are claimed and given back at any
//!   time, and children that know nothing of this library inherit them. The preloaded library needs that.
//!
//! They are two because a memory of `fork`, and one of `ring0` for tasks in threads, have no pages to claim. With one trait,
//! these two would fail in half of its methods, and only at run time. A function that takes an `Arena` cannot get them.
//!
//! What differs between engines and is known before one is made is in one table, [`Kind::abilities`].

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

/// What runs on a snapshot. It returns bytes because it may run in another process.
pub type Work = Box<dyn FnOnce(&View<'_>) -> Vec<u8> + Send>;

/// What runs on a snapshot in a child of this process, at once: the child has a copy of all that it borrows.
pub type ChildWork<'a> = Box<dyn FnOnce(&View<'_>) -> Vec<u8> + 'a>;

/// A mechanism that makes snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Page tables are detached and the memory is mapped privately in their place, which takes as long for any size; the
    /// kernel's copy-on-write does the rest. When snapshots have ended, what the owner wrote meanwhile is merged into the
    /// memory. In this process there is one snapshot at a time; of children ([`Builder::in_child`]) there is any number.
    ///
    /// [`Builder::in_child`]: crate::Builder::in_child
    Remap,
    /// Write protection by userfaultfd, prioritized copy-on-write in user space. The task runs in a thread of this
    /// process and sees the memory at another address, or in a child at the same one ([`Builder::in_child`]).
    ///
    /// [`Builder::in_child`]: crate::Builder::in_child
    Uffd,
    /// `fork`: what databases do today. The task runs in a child process.
    Fork,
    /// Page tables of the process's own in ring 0 (`bedplate-ring0`), prioritized copy-on-write by its own handler of
    /// page faults. The task runs in a thread of this process, in ring 0, and sees the memory at its own address; other
    /// threads do not, so it cannot start any. Never chosen unless it is asked for, because every system call of
    /// threads in ring 0 costs more.
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

/// Which engine a memory gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The best one that works here, found by trying.
    #[default]
    Auto,
    /// This one, or an error.
    Only(Kind),
}

/// What an engine can do, whatever its memory is like.
#[derive(Clone, Copy, Debug)]
pub struct Abilities {
    /// How many snapshots can be active at once for threads of this process; `usize::MAX` if only memory limits them.
    pub in_process: usize,
    /// The same for children.
    pub in_children: usize,
    /// Whether the engine can keep track of changes.
    pub tracks_changes: bool,
    /// Whether a snapshot in this process is a mapping of its own, to which its readers may write.
    pub views_are_writable: bool,
    /// Whether parts of the memory can have access rights of their own. They cannot where page tables are moved, because
    /// these are moved in one piece only from few mappings.
    pub parts_have_rights: bool,
    /// Whether pages move to other frames at snapshots.
    pub moves_pages: bool,
    /// Whether a child that has a snapshot can fork.
    pub children_can_fork: bool,
}

impl Kind {
    /// What this engine can do.
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

    /// Whether the engine has what is asked for: so many snapshots at once, and keeping track of changes.
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

/// Snapshots of `ring0` at once: as many as a word has bits.
pub(crate) const RING0_SNAPSHOTS: usize = 64;

/// How a memory is to be made.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Its size in bytes to begin with, a multiple of the page's.
    pub bytes: usize,
    /// The size to which it can grow, likewise. It has addresses for so many bytes.
    pub reserve: usize,
    /// Whether the kernel may back it with huge pages. `remap` and `uffd` take them from a file system of their own if that is
    /// allowed (CAP_SYS_ADMIN), else from memory files where `shmem_enabled` allows it. They are copied page by page all the
    /// same.
    pub huge_pages: bool,
    /// Whether tasks must see it at its own address, where that takes a child process.
    pub in_child: bool,
    /// How many snapshots there may be at once.
    pub at_once: usize,
    /// Whether it keeps track of changes.
    pub track_changes: bool,
    /// For `ring0`: how many snapshots can be taken in a row without copying page tables.
    pub ahead: usize,
    /// For `ring0`: how many threads make tables ready for that.
    pub copiers: usize,
}

impl Options {
    /// A memory of so many bytes that does not grow, and has nothing special.
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
    /// Its number: later ones have greater ones.
    pub epoch: u32,
    /// How often the numbers were used up before, and began anew.
    pub(crate) era: u32,
    /// Where the owner's process sees it.
    pub base: usize,
    /// Pages that it has: no page from this one on was ever in use at the snapshot.
    pub pages: usize,
    /// How long it held up writers, in nanoseconds.
    pub pause_ns: u64,
}

/// The number of a snapshot among all of its memory. `epoch` begins anew in each era.
pub(crate) fn number(era: u32, epoch: u32) -> u64 {
    u64::from(era) << 32 | u64::from(epoch)
}

/// What every engine does with its memory. Any thread may call all of it. Nothing but errors allocates.
///
/// Some engines need threads before snapshots can be taken: a [`Service`] starts them.
pub trait Engine: Threads + Send + Sync + 'static {
    /// Which one this is.
    fn kind(&self) -> Kind;

    /// Where the memory begins.
    fn base(&self) -> usize;

    /// Its size in pages, of which not all need be accessible.
    fn pages(&self) -> usize;

    /// Makes pages accessible that nobody has used yet. They are zero. An engine whose pages are all accessible has nothing to do.
    ///
    /// # Errors
    /// [`Error::System`]: they are not accessible.
    fn grow(&self, _: Range<usize>) -> Result<(), Error> {
        Ok(())
    }

    /// Takes a snapshot that this process sees at another address.
    ///
    /// # Errors
    /// [`Error::TooManySnapshots`], [`Error::System`]; [`Error::Unavailable`] if only tasks see the engine's snapshots.
    fn snapshot(&self) -> Result<SnapshotId, Error> {
        let reason = "only a task sees its snapshots (Memory::spawn); the engines remap and uffd have others";
        Err(Error::Unavailable { engine: self.kind(), reason: reason.to_owned() })
    }

    /// Ends a snapshot of this process's.
    ///
    /// # Safety
    /// Nobody reads it any more.
    unsafe fn end(&self, _: SnapshotId) {}

    /// Whether a snapshot of this process's that has not ended has its own copies of all pages that were written so far.
    fn is_whole(&self, _: &SnapshotId) -> bool {
        true
    }

    /// Of pages that were in use at the earlier snapshot with the number `since`, of the same era, the first run that was
    /// written until a later snapshot, which has not ended. If no track is kept, all pages are in one.
    fn first_changed(&self, _: &SnapshotId, _since: u32, pages: Range<usize>) -> Option<Range<usize>> {
        (!pages.is_empty()).then_some(pages)
    }

    /// Takes a snapshot and runs `work` on it in a thread that sees the memory at its own address. Only `ring0` can.
    ///
    /// # Errors
    /// [`Error::TooManySnapshots`], [`Error::OfASnapshot`], [`Error::System`]; [`Error::Unavailable`].
    fn spawn(&self, _: Work) -> Result<Task, Error> {
        let reason = "its threads do not see snapshots at the memory's own address".to_owned();
        Err(Error::Unavailable { engine: self.kind(), reason })
    }

    /// Takes a snapshot for the child of a `fork` that is the next thing this thread does, with all signals blocked that a
    /// handler of the program's may answer.
    ///
    /// # Errors
    /// [`Error::TooManySnapshots`], [`Error::System`]: all is as before; [`Error::Unavailable`] if the engine has no
    /// snapshots in children.
    fn freeze(&self) -> Result<Frozen<'_>, Error> {
        let reason = "its tasks run in this process (Memory::spawn)".to_owned();
        Err(Error::Unavailable { engine: self.kind(), reason })
    }

    /// Does all that can be done ahead of the next snapshot, or waits until it is done: pages armed, tables copied.
    fn settle(&self) {}

    /// What has happened so far.
    fn statistics(&self) -> Statistics;
}

/// An engine whose pages a program's allocator claims and gives back. Nothing here allocates by the program's allocator.
///
/// The process that made it is its owner. Processes that are forked from the owner have a snapshot of it, or, if it was not
/// [served](Self::is_served) yet, a copy.
pub trait Arena: Engine {
    /// Claims so many pages at the lowest free place that is aligned to `align` pages. They are zero.
    fn claim_anywhere(&self, count: usize, align: usize) -> Option<Range<usize>>;

    /// Claims these pages if they are all free.
    fn claim_exactly(&self, pages: Range<usize>) -> bool;

    /// Pages become zero and are in use, whether they were before or not. No other thread can claim them meanwhile. Gives
    /// whether that worked.
    fn replace(&self, pages: Range<usize>) -> bool;

    /// Pages are not in use any more, and their memory goes back to the kernel. Snapshots keep what they see of them.
    fn release(&self, pages: Range<usize>);

    /// Pages become zero, and their memory goes back to the kernel. Snapshots keep what they see of them.
    fn discard(&self, pages: Range<usize>);

    /// In a child: pages become zero for the child. They stay mapped, so that nothing else is ever there.
    ///
    /// # Safety
    /// The child has given them up.
    unsafe fn discard_in_child(&self, pages: Range<usize>) {
        let (at, len) = ((self.base() + pages.start * PAGE) as *mut u8, pages.len() * PAGE);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: the child's own memory, as the caller says.
        unsafe {
            if mmap_anonymous(at.cast(), len, ProtFlags::READ | ProtFlags::WRITE, flags).is_err() {
                // There can only be so many mappings.
                at.write_bytes(0, len);
            }
        }
    }

    /// Pins all pages from now on, because devices may write to their frames: the process is about to begin direct reads, or
    /// to set up a ring of io_uring. Snapshots take longer where pages would have moved.
    ///
    /// # Errors
    /// [`Error::System`]: what devices write may be lost. All else is as before.
    fn pin(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Whether there can be one more snapshot in a child now.
    fn has_room(&self) -> bool {
        true
    }

    /// Whether snapshots can be taken yet. Children that are forked before call [`copy_in_child`](Self::copy_in_child).
    fn is_served(&self) -> bool {
        true
    }

    /// In a child that was forked when the arena was not served: maps it, all of it the child's own.
    ///
    /// # Errors
    /// [`Error::System`]; [`Error::OfASnapshot`] where arenas are always served.
    ///
    /// # Safety
    /// The child has one thread, which has not touched the arena.
    unsafe fn copy_in_child(&self) -> Result<(), Error> {
        Err(Error::OfASnapshot)
    }

    /// In a child, before it forks: makes every page the child's own, where nobody would copy pages for its child.
    fn own_everything(&self) {}

    /// Keeps the statistics on a page from now on, where other processes can read them
    /// ([`processes`](crate::statistics::processes)), with the reason why the engine is this one. Numbers on the page are at
    /// most about a second old. Without memory or descriptors for a page there is none.
    fn publish_statistics(&self, why: &str);

    /// Counts a snapshot that could not be taken.
    fn count_failure(&self);

    /// Whether an address is in it.
    fn contains(&self, address: usize) -> bool {
        (self.base()..self.base() + self.pages() * PAGE).contains(&address)
    }
}

/// Makes an engine for a [`Memory`](crate::Memory).
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

/// Makes an arena of the engine `remap` or `uffd`, without threads yet. The one of `ring0` is a [region](crate::ring0::Region)
/// that exists as long as the process.
///
/// # Errors
/// [`Error::Unavailable`] where the engine does not work, or has no such arenas; [`Error::System`].
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
