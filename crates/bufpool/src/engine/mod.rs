//! Engines: where a page's word and memory are, and how its memory is given back.
//!
//! | engine | a page's memory | eviction |
//! |---|---|---|
//! | [`Kind::Stock`] | its number is its address | the kernel unmaps a batch with one flush of the processors' TLBs |
//! | [`Kind::Vmcache`] | its number is its address | the kernel unmaps each page with a flush of its own |
//! | [`Kind::Hashtable`] | a frame that a hash table tells | the frame is used again |
//! | [`Kind::Ring0`] | its number is its address | the frame is used again, and the address leads there until somebody notices |
//!
//! The first two differ in nothing but [`release`](release::Release). Everything else about pages is the same for all
//! engines, and is in `protocol`, `fault`, `evict` and `writeback`; an engine answers the questions of [`Engine`] and has
//! no say in the protocol. An engine whose words are in the pages' headers has [`Layout::IN_PAGE`] and tells by the page's
//! number in the word whether what it found is the page ([`Engine::is_of`]).

mod mapped;
mod release;
#[cfg(target_arch = "x86_64")]
pub(crate) mod ring0;
mod table;

use std::fmt;

pub(crate) use mapped::Mapped;
pub(crate) use release::Release;
#[cfg(target_arch = "x86_64")]
pub(crate) use ring0::Ring0;
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
    /// Virtual memory, in ring 0: evictions change no mapping, and old ones are noticed by who uses them.
    Ring0,
}

impl Kind {
    /// Its name in configurations and reports.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Stock => "stock",
            Kind::Vmcache => "vmcache",
            Kind::Hashtable => "hashtable",
            Kind::Ring0 => "ring0",
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
    #[cfg(target_arch = "x86_64")]
    Ring0(Box<Ring0>),
}

impl Engine {
    /// Which bits of its words are the version.
    pub fn layout(&self) -> Layout {
        match self {
            Engine::Mapped(_) | Engine::Table(_) => Layout::OUTSIDE,
            #[cfg(target_arch = "x86_64")]
            Engine::Ring0(_) => Layout::IN_PAGE,
        }
    }

    /// Where the page is, if it is anywhere; its word says whether it is there. The page's number is in bounds.
    #[inline(always)]
    pub fn find(&self, page: PageId) -> Option<Place<'_>> {
        match self {
            Engine::Mapped(mapped) => Some(mapped.place(page)),
            Engine::Table(table) => table.find(page),
            #[cfg(target_arch = "x86_64")]
            Engine::Ring0(ring0) => Some(ring0.place(page)),
        }
    }

    /// Whether a place that [`Engine::find`] told still is the page's, after its word was loaded, or locked.
    #[inline(always)]
    pub fn is_of(&self, slots: &Slots, place: &Place<'_>, page: PageId) -> bool {
        match self {
            Engine::Mapped(_) => true,
            Engine::Table(table) => table.is_of(slots, place, page),
            // The word tells, which is asked of the word that is compared and swapped.
            #[cfg(target_arch = "x86_64")]
            Engine::Ring0(_) => true,
        }
    }

    /// The word of a page in a slot.
    #[inline]
    pub fn word_of(&self, slot: Slot, page: PageId) -> &Word {
        match self {
            Engine::Mapped(mapped) => mapped.place(page).word,
            Engine::Table(table) => table.place(slot).word,
            #[cfg(target_arch = "x86_64")]
            Engine::Ring0(ring0) => ring0.word_of(slot),
        }
    }

    /// The memory of a page in a slot.
    pub fn memory_of(&self, slot: Slot, page: PageId) -> *mut u8 {
        match self {
            Engine::Mapped(mapped) => mapped.place(page).memory,
            Engine::Table(table) => table.place(slot).memory,
            #[cfg(target_arch = "x86_64")]
            Engine::Ring0(ring0) => ring0.memory_of(slot),
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
            #[cfg(target_arch = "x86_64")]
            Engine::Ring0(ring0) => ring0.claim(slots, slot, page),
        }
    }

    /// Whether a page that seemed to be absent is there after all, and this processor had only not noticed.
    pub fn refresh(&self, page: PageId) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Engine::Ring0(ring0) => ring0.refresh(page),
            _ => {
                let _ = page;
                false
            }
        }
    }

    /// Whether somebody is bringing the page in, where its word does not tell.
    pub fn is_claimed(&self, page: PageId) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Engine::Ring0(ring0) => ring0.is_claimed(page),
            _ => {
                let _ = page;
                false
            }
        }
    }

    /// The memory of a claimed page has its content, or is its claimer's to fill: returns where it is for everybody, who
    /// find it locked.
    pub fn settle<'e>(&'e self, slot: Slot, page: PageId, claimed: Place<'e>) -> Place<'e> {
        match self {
            #[cfg(target_arch = "x86_64")]
            Engine::Ring0(ring0) => ring0.settle(slot, page),
            _ => {
                let _ = (slot, page);
                claimed
            }
        }
    }

    /// Takes a free slot.
    pub fn take(&self, slots: &Slots) -> Option<Slot> {
        match self {
            #[cfg(target_arch = "x86_64")]
            Engine::Ring0(ring0) => ring0.take(slots),
            _ => slots.take(),
        }
    }

    /// Gives slots back that have no page.
    pub fn give(&self, slots: &Slots, given: impl IntoIterator<Item = Slot>) {
        match self {
            #[cfg(target_arch = "x86_64")]
            Engine::Ring0(ring0) => ring0.give(slots, given),
            _ => slots.give(given),
        }
    }

    /// How many slots are free.
    pub fn free_count(&self, slots: &Slots) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Engine::Ring0(ring0) => ring0.free_count(slots),
            _ => slots.free_count(),
        }
    }

    /// The slots of a pool that has so many.
    pub fn slots(&self, count: usize) -> Slots {
        match self {
            #[cfg(target_arch = "x86_64")]
            Engine::Ring0(ring0) => ring0.slots(count),
            _ => Slots::new(count),
        }
    }

    /// How often a processor's translation was old.
    pub fn stale(&self) -> u64 {
        match self {
            #[cfg(target_arch = "x86_64")]
            Engine::Ring0(ring0) => ring0.stale.get(),
            _ => 0,
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
            #[cfg(target_arch = "x86_64")]
            Engine::Ring0(ring0) => ring0.abandon(slots, slot, page),
        }
    }

    /// Gives back the memory of pages that could not be brought in.
    pub fn discard(&self, victims: &[Victim]) -> std::io::Result<()> {
        match self {
            Engine::Mapped(mapped) => mapped.release(victims).0.map_err(|(_, error)| error),
            Engine::Table(_) => Ok(()),
            #[cfg(target_arch = "x86_64")]
            Engine::Ring0(_) => Ok(()),
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
            #[cfg(target_arch = "x86_64")]
            Engine::Ring0(ring0) => {
                ring0.release(victims);
                (Ok(()), 0)
            }
        }
    }
}
