//! Engines: where a page's word and memory are, and how its memory is given back.
//!
//! | engine | a page's memory | eviction |
//! |---|---|---|
//! | [`Kind::Stock`] | its number is its address | the kernel unmaps a batch with one flush of the processors' TLBs |
//! | [`Kind::Vmcache`] | its number is its address | the kernel unmaps each page with a flush of its own |
//! | [`Kind::Hashtable`] | a frame that a hash table tells | the frame is used again |
//!
//! The first two differ in nothing but [`release`](release::Release). Everything else about pages is the same for all
//! engines, and is in `protocol`, `fault`, `evict` and `writeback`; an engine answers the questions of [`Engine`] and has
//! no say in the protocol. An engine whose words are in the pages' headers has [`Layout::IN_PAGE`] and tells by the page's
//! number in the word whether what it found is the page ([`Engine::is_of`]).

mod mapped;
mod release;
mod table;

use std::fmt;

pub(crate) use mapped::Mapped;
pub(crate) use release::Release;
pub(crate) use table::Table;

use crate::page::PageId;
use crate::protocol::slots::{Slot, Slots};
use crate::protocol::word::{Layout, Word};

/// An engine's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Virtual memory; evictions in batches. What to use.
    Stock,
    /// Virtual memory; evictions one by one, as in the paper "Virtual-Memory Assisted Buffer Management".
    Vmcache,
    /// Frames and a hash table, as database systems have had for decades.
    Hashtable,
}

impl Kind {
    /// Its name in configurations and reports.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Stock => "stock",
            Kind::Vmcache => "vmcache",
            Kind::Hashtable => "hashtable",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where a page is, or may be.
#[derive(Clone, Copy)]
pub(crate) struct Place<'p> {
    pub word: &'p Word,
    pub memory: *mut u8,
}

/// A page to be evicted, which is locked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Victim {
    pub slot: Slot,
    pub page: PageId,
}

/// The engine of a pool. Which one it is is asked on every access, by a branch that always goes the same way.
pub(crate) enum Engine {
    Mapped(Mapped),
    Table(Table),
}

impl Engine {
    /// Which bits of its words are the version.
    pub fn layout(&self) -> Layout {
        match self {
            Engine::Mapped(_) | Engine::Table(_) => Layout::OUTSIDE,
        }
    }

    /// Where the page is, if it is anywhere; its word says whether it is there. The page's number is in bounds.
    #[inline(always)]
    pub fn find(&self, page: PageId) -> Option<Place<'_>> {
        match self {
            Engine::Mapped(mapped) => Some(mapped.place(page)),
            Engine::Table(table) => table.find(page),
        }
    }

    /// Whether a place that [`Engine::find`] told still is the page's, after its word was loaded, or locked.
    #[inline(always)]
    pub fn is_of(&self, slots: &Slots, place: &Place<'_>, page: PageId) -> bool {
        match self {
            Engine::Mapped(_) => true,
            Engine::Table(table) => table.is_of(slots, place, page),
        }
    }

    /// The word of a page in a slot.
    #[inline]
    pub fn word_of(&self, slot: Slot, page: PageId) -> &Word {
        match self {
            Engine::Mapped(mapped) => mapped.place(page).word,
            Engine::Table(table) => table.place(slot).word,
        }
    }

    /// The memory of a page in a slot.
    pub fn memory_of(&self, slot: Slot, page: PageId) -> *mut u8 {
        match self {
            Engine::Mapped(mapped) => mapped.place(page).memory,
            Engine::Table(table) => table.place(slot).memory,
        }
    }

    /// Claims an absent page for the caller, who brings it in, into a slot that the caller has taken. None if somebody
    /// else has claimed it, or has brought it in.
    pub fn claim(&self, slots: &Slots, slot: Slot, page: PageId) -> Option<Place<'_>> {
        match self {
            Engine::Mapped(mapped) => {
                let place = mapped.place(page);
                place.word.try_claim().then(|| {
                    slots.set_page(slot, page.0);
                    place
                })
            }
            Engine::Table(table) => table.claim(slots, slot, page),
        }
    }

    /// Gives up a claim; the caller keeps the slot.
    pub fn abandon(&self, slots: &Slots, slot: Slot, page: PageId) {
        match self {
            Engine::Mapped(mapped) => {
                slots.set_page(slot, 0);
                mapped.place(page).word.abandon(self.layout());
            }
            Engine::Table(table) => table.abandon(slots, slot, page),
        }
    }

    /// Gives back the memory of pages that could not be brought in.
    pub fn discard(&self, victims: &[Victim]) -> std::io::Result<()> {
        match self {
            Engine::Mapped(mapped) => mapped.release(victims).0.map_err(|(_, error)| error),
            Engine::Table(_) => Ok(()),
        }
    }

    /// Gives back the memory of victims. Returns of how many, from the first one on, and why not of the others; the second
    /// number is how many system calls it took.
    pub fn release(&self, victims: &[Victim]) -> (Result<(), (usize, std::io::Error)>, u64) {
        match self {
            Engine::Mapped(mapped) => mapped.release(victims),
            Engine::Table(table) => {
                table.release(victims);
                (Ok(()), 0)
            }
        }
    }
}
