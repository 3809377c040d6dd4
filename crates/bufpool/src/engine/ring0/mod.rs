//! The `ring0` engine: TABBY (section 5 of the paper) on a privileged process.
//!
//! A page's number is its address, and the word that says whose page it is and who uses it is in the page itself. When its
//! frame is given to another page, nobody is told: who is led to the frame by an old translation, in the page tables or in
//! a processor's TLB, finds another page's number, and has its own processor look again (`protocol`). So an eviction
//! changes no entry, interrupts no processor, and makes no system call.
//!
//! `addresses` has the page tables, `frames` the memory, `registry` brings threads to ring 0 that are not there, or have lost it.
//! Guards stay with their threads, whose processors know where their pages are.

mod addresses;
mod frames;
mod protocol;
mod registry;

use std::sync::atomic::AtomicU32;

use bedplate_ring0::frames::Frame;
use bedplate_ring0::paging::Slot as Entry;
use bedplate_ring0::{Cpu, Process};

use self::addresses::{Addresses, MOST_PAGES};
use self::frames::Frames;
use self::protocol::Machine;
use super::{Kind, Place, Victim};
use crate::error::{Error, Result};
use crate::page::{PAGE, PageId};
use crate::protocol::slots::{Slot, Slots};
use crate::protocol::word::Word;
use crate::region::Region;
use crate::statistics::Counter;

/// From an error of ring 0's.
fn unavailable(error: impl std::fmt::Display) -> Error {
    Error::Unavailable { engine: Kind::Ring0, reason: error.to_string() }
}

/// What of the engine is used, for those who want to know what each part is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Free frames are in lists of the processors, and not in one behind a lock.
    pub local_lists: bool,
    /// Frames are not cleared before they are used again.
    pub no_clearing: bool,
}

impl Parts {
    /// All of it.
    pub const ALL: Parts = Parts { local_lists: true, no_clearing: true };
}

/// See the module.
pub(crate) struct Ring0 {
    frames: Frames,
    addresses: Addresses,
    /// For each page, the version that it has while it is not present.
    versions: Region,
    parts: Parts,
    /// Translations of a processor's that were old, while the entry was not.
    pub stale: Counter,
}

impl Ring0 {
    /// For so many pages, of which so many are in memory.
    pub fn new(pages: u64, slots: usize, parts: Parts) -> Result<Self> {
        if pages > MOST_PAGES {
            return Err(unavailable("it has addresses for 512 GiB: choose a smaller capacity"));
        }
        let process = Process::this().map_err(unavailable)?;
        let versions = Region::new(pages as usize * size_of::<AtomicU32>())?;
        let frames = Frames::new(process, slots)?;
        let addresses = Addresses::new(process, pages)?;
        Ok(Self { frames, addresses, versions, parts, stale: Counter::default() })
    }

    /// Where a page is, for threads in ring 0. Others come there when they touch it.
    #[inline(always)]
    pub fn place(&self, page: PageId) -> Place<'_> {
        let memory = self.addresses.base().wrapping_add(page.0 as usize * PAGE);
        // SAFETY: a page's address always leads to a frame, which begins with a word, of this page or another.
        Place { word: unsafe { &*memory.cast::<Word>() }, memory }
    }

    /// The word of the page in a slot.
    #[inline]
    pub fn word_of(&self, slot: Slot) -> &Word {
        self.frames.word(slot)
    }

    /// The memory of the page in a slot.
    pub fn memory_of(&self, slot: Slot) -> *mut u8 {
        self.frames.memory(slot)
    }

    /// The slots of a pool with this engine. Those that are free it has itself, unless it is to do without.
    pub fn slots(&self, count: usize) -> Slots {
        if self.parts.local_lists { Slots::all_taken(count) } else { Slots::new(count) }
    }

    pub fn take(&self, slots: &Slots) -> Option<Slot> {
        if self.parts.local_lists { self.frames.take() } else { slots.take() }
    }

    pub fn give(&self, slots: &Slots, given: impl IntoIterator<Item = Slot>) {
        if self.parts.local_lists {
            given.into_iter().for_each(|slot| self.frames.give(slot));
        } else {
            slots.give(given);
        }
    }

    pub fn free_count(&self, slots: &Slots) -> usize {
        if self.parts.local_lists { self.frames.free_count() } else { slots.free_count() }
    }

    /// Whether the page is there, and only this processor's translation was old.
    pub fn refresh(&self, page: PageId) -> bool {
        let was_stale = protocol::refresh(self, page.0);
        if was_stale {
            self.stale.add(1);
        }
        was_stale
    }

    /// Whether somebody has claimed the page.
    pub fn is_claimed(&self, page: PageId) -> bool {
        self.addresses.entry(page.0).load().is_locked()
    }

    pub fn claim(&self, slots: &Slots, slot: Slot, page: PageId) -> Option<Place<'_>> {
        if !protocol::claim(self, slot, page.0) {
            return None;
        }
        let memory = self.frames.memory(slot);
        if !self.parts.no_clearing {
            // SAFETY: the frame was free, and is the claim's. Its word, which others may look at, is left alone.
            unsafe { memory.add(size_of::<Word>()).write_bytes(0, PAGE - size_of::<Word>()) };
        }
        slots.set_page(slot, page.0);
        Some(Place { word: self.frames.word(slot), memory })
    }

    /// The claimed page's memory has its content, or will have: everybody finds it, locked.
    pub fn settle(&self, slot: Slot, page: PageId) -> Place<'_> {
        protocol::map(self, slot, page.0);
        self.place(page)
    }

    pub fn abandon(&self, slots: &Slots, slot: Slot, page: PageId) {
        slots.set_page(slot, 0);
        protocol::abandon(self, slot, page.0);
    }

    /// Victims' frames can be used again at once.
    pub fn release(&self, victims: &[Victim]) {
        victims.iter().for_each(|victim| protocol::keep_version(self, victim.slot, victim.page.0));
    }
}

impl Machine for Ring0 {
    #[inline]
    fn at<R>(&self, page: u64, access: impl FnOnce(&Word) -> R) -> R {
        access(self.place(PageId(page)).word)
    }

    #[inline]
    fn entry(&self, page: u64) -> &Entry {
        self.addresses.entry(page)
    }

    #[inline]
    fn flush(&self, page: u64) {
        // Natively there is nothing to forget: who enters begins with nothing.
        if let Some(cpu) = Cpu::current() {
            cpu.flush_page(self.addresses.address(page));
        }
    }

    #[inline]
    fn word(&self, slot: Slot) -> &Word {
        self.frames.word(slot)
    }

    #[inline]
    fn frame(&self, slot: Slot) -> Frame {
        self.frames.frame(slot)
    }

    #[inline]
    fn version(&self, page: u64) -> &AtomicU32 {
        // SAFETY: in bounds, as the page is; memory of zeros that is only used as these words.
        unsafe { &*self.versions.base().cast::<AtomicU32>().add(page as usize) }
    }
}
