//! The `array` engine: a page number is the index of an entry that says which frame the page is in.
//!
//! The translation array has four bytes for each page that the storage may ever have. Its address space is reserved. It uses
//! memory only where it is touched: 4 KiB for 1024 adjacent pages if one of them was ever in memory. An eviction changes one
//! entry. It makes no system call, unmaps nothing, interrupts no processor, and needs no particular kernel. The next page in the
//! frame causes no page fault, and the kernel clears no memory for it.
//!
//! To find a page, a thread compares its number with the pool's limit and loads the entry and the frame's state. The
//! address of the page's memory is known at the same time as that of the state, so a processor loads both in parallel.
//! `entry` explains why a reader cannot mistake another page for its own.
//!
//! The states are beside the frames, and not in the page headers as in the `ring0` engine. So a read from storage never
//! overwrites a state, and the content of a damaged page is never used as a state.

mod entry;

use entry::Entry;

use super::frames::Frames;
use super::{FrameRef, Victim};
use crate::error::Result;
use crate::page::PageId;
use crate::page_size::PageSize;
use crate::protocol::frame_table::{FrameId, FrameTable};
use crate::protocol::{atomics, frame_table, page_state};
use crate::region::Region;

/// The engine of a pool. See the module.
pub(crate) struct Array {
    entries: Region,
    pages: u64,
    frames: Frames,
}

impl Array {
    /// Reserves entries for `pages` pages, and memory for `frames` frames of this size.
    pub fn new(pages: u64, frames: usize, size: PageSize) -> Result<Self> {
        let entries = Region::new(pages as usize * size_of::<Entry>())?;
        Ok(Self { entries, pages, frames: Frames::new(frames, size)? })
    }

    #[inline(always)]
    fn entry(&self, page: PageId) -> &Entry {
        debug_assert!(page.0 < self.pages);
        // SAFETY: the pool only passes pages in bounds. Zeros are a valid entry, and an entry is atomic.
        unsafe { &*self.entries.base().cast::<Entry>().add(page.0 as usize) }
    }

    #[inline(always)]
    pub fn find(&self, page: PageId) -> Option<FrameRef<'_>> {
        self.entry(page).frame().map(|frame| self.frames.frame_ref(frame))
    }

    #[inline(always)]
    pub fn is_of(&self, frame_ref: &FrameRef<'_>, page: PageId) -> bool {
        self.entry(page).leads_to(self.frames.frame_of(frame_ref))
    }

    #[inline]
    pub fn frame_ref(&self, frame: FrameId) -> FrameRef<'_> {
        self.frames.frame_ref(frame)
    }

    pub fn is_claimed(&self, page: PageId) -> bool {
        self.entry(page).is_claimed()
    }

    pub fn claim(&self, frames: &FrameTable, frame: FrameId, page: PageId) -> Option<FrameRef<'_>> {
        let frame_ref = self.frame_ref(frame);
        entry::claim(frames, self.entry(page), frame, frame_ref.state, page.0).then_some(frame_ref)
    }

    pub fn abandon(&self, frames: &FrameTable, frame: FrameId, page: PageId) {
        entry::abandon(frames, self.entry(page), frame, self.frame_ref(frame).state);
    }

    /// Clears the entries of victims. They stay locked until their states say that they are absent.
    pub fn release(&self, victims: &[Victim]) {
        victims.iter().for_each(|victim| self.entry(victim.page).clear());
    }
}
