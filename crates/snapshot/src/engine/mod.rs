//! The engines, and which of them works here.
//!
//! An engine owns a memory and makes snapshots of it. All of them promise: a task sees what every writer's stores had
//! made of the memory at one moment during [`Engine::spawn`]; no later store shows; snapshots end in any order; there
//! are no snapshots of snapshots.

mod fork;
mod mapped;
#[cfg(target_arch = "x86_64")]
mod ring0;

use std::ops::Range;
use std::ptr::NonNull;

use crate::task::Task;
use crate::{Error, PAGE, Snapshot, View};

pub use crate::statistics::Statistics;
pub(crate) use fork::Fork;
pub(crate) use mapped::Mapped;
#[cfg(target_arch = "x86_64")]
pub(crate) use ring0::{Ring0, process as ring0_process};

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

/// How a memory is to be made.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Its size in bytes to begin with, a multiple of the page's.
    pub bytes: usize,
    /// The size to which it can grow, likewise.
    pub reserve: usize,
    /// Whether the kernel may back it with transparent huge pages.
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

/// A memory and how snapshots of it are made. Usable from any thread.
pub trait Engine: Send + Sync {
    /// Which one this is.
    fn kind(&self) -> Kind;

    /// Where the memory begins.
    fn base(&self) -> NonNull<u8>;

    /// How many bytes of it are accessible.
    fn bytes(&self) -> usize;

    /// Makes so many bytes more accessible, in whole pages, and gives where they are.
    ///
    /// # Errors
    /// [`Error::Full`]; [`Error::OfASnapshot`] in a task's process; [`Error::System`]; [`Error::Unavailable`].
    fn grow(&self, bytes: usize) -> Result<Range<usize>, Error>;

    /// Takes a snapshot that threads of this process hold.
    ///
    /// # Errors
    /// As [`spawn`](Self::spawn); [`Error::Unavailable`] if only a task can see the engine's snapshots.
    fn snapshot(&self) -> Result<Snapshot, Error> {
        let reason = "only a task sees its snapshots (Memory::spawn); the engines remap and uffd have others";
        Err(Error::Unavailable { engine: self.kind(), reason: reason.to_owned() })
    }

    /// Takes a snapshot and runs `work` on it.
    ///
    /// # Errors
    /// [`Error::TooManySnapshots`], [`Error::OfASnapshot`], [`Error::System`]; the memory is as before.
    fn spawn(&self, work: Work) -> Result<Task, Error>;

    /// Takes a snapshot and runs `work` on it in a child.
    ///
    /// # Errors
    /// As [`spawn`](Self::spawn); [`Error::Unavailable`] if the engine's tasks run in this process.
    fn spawn_in_child(&self, work: ChildWork<'_>) -> Result<Task, Error>;

    /// Waits until what can be done ahead of the next snapshot is done: pages armed, tables copied.
    fn settle(&self);

    /// What has happened so far.
    fn statistics(&self) -> Statistics;
}

/// Whether an engine has what is asked for: so many snapshots at once, and keeping track of changes.
fn check_shape(engine: Kind, shape: Shape, most: usize, tracks_changes: bool) -> Result<(), Error> {
    let reason = if shape.at_once > most {
        format!("it has {most} snapshots at once, and {} are asked for", shape.at_once)
    } else if shape.track_changes && !tracks_changes {
        "it keeps no track of changes: the engine uffd does".to_owned()
    } else {
        return Ok(());
    };
    Err(Error::Unavailable { engine, reason })
}

/// The size of a memory that grows by so many bytes.
fn grown(len: usize, bytes: usize, reserve: usize) -> Result<usize, Error> {
    let grown = bytes.checked_next_multiple_of(PAGE).and_then(|bytes| len.checked_add(bytes));
    match grown {
        Some(grown) if grown <= reserve => Ok(grown),
        _ => Err(Error::Full { bytes: len.saturating_add(bytes), reserved: reserve }),
    }
}
