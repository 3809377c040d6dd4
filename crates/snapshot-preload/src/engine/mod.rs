//! What the functions that this library puts before the C library's need from a snapshot engine.

pub mod mapped;
#[cfg(target_arch = "x86_64")]
pub mod ring0;

use std::ops::Range;

use bedplate_snapshot::engine::Statistics;
use bedplate_snapshot::{Error, Kind, PAGE};

/// Why the engine is the one that it is, if the user asked for it.
pub const ASKED_FOR: &str = "it was asked for";

/// A region for large mappings, of which `fork` takes a snapshot. Usable from any thread; nothing here allocates by the
/// program's allocator.
pub trait Engine: Sync {
    /// Which one it is.
    fn kind(&self) -> Kind;
    /// Where it begins.
    fn base(&self) -> usize;
    /// Its size in pages.
    fn pages(&self) -> usize;
    /// Starts its threads: the program is about to begin, and may allocate.
    fn start_threads(&self) -> Result<(), Error>;
    /// Claims so many pages, aligned to so many, or none.
    fn claim_anywhere(&self, count: usize, align: usize) -> Option<Range<usize>>;
    /// Claims these pages if they are free.
    fn claim_exactly(&self, pages: Range<usize>) -> bool;
    /// Pages are zero and in use, whether they were before or not.
    fn replace(&self, pages: Range<usize>) -> bool;
    /// Pages are not in use any more.
    fn release(&self, pages: Range<usize>);
    /// Pages become zero.
    fn discard(&self, pages: Range<usize>);
    /// The same in a snapshot's process.
    fn empty_in_snapshot(&self, pages: Range<usize>);
    /// Whether the program may change the rights of parts of it.
    fn parts_have_rights(&self) -> bool;
    /// Whether pages move to other frames at snapshots.
    fn moves_pages(&self) -> bool;
    /// No page does from now on.
    fn keep_in_place(&self) -> Result<(), Error>;
    /// Whether snapshots can be taken.
    fn is_served(&self) -> bool;
    /// Whether there can be one more.
    fn has_room(&self) -> bool;
    /// Takes a snapshot; everything stands still until one of the next two is called by this thread.
    fn before_fork(&self) -> Result<(), Error>;
    /// All goes on.
    fn after_fork_in_parent(&self);
    /// The child's memory is the snapshot.
    fn after_fork_in_child(&self) -> Result<(), Error>;
    /// Whether a snapshot's process can fork.
    fn lets_snapshots_fork(&self) -> bool;
    /// Before it does: nobody keeps pages for the grandchild, so it gets all of its own.
    fn own_everything(&self);
    /// What happened.
    fn statistics(&self) -> Statistics;
    /// Keeps that where other processes can read it, with the reason why the engine is this one.
    fn publish_statistics(&self, why: &str);
    /// Counts a snapshot that could not be taken.
    fn count_failure(&self);

    /// What else did, in words of the form `name=value`, each after a space.
    fn more_statistics(&self) -> String {
        String::new()
    }

    /// Whether an address is in it.
    fn contains(&self, address: usize) -> bool {
        (self.base()..self.base() + self.pages() * PAGE).contains(&address)
    }
}
