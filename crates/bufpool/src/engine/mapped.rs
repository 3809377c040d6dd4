//! Engines whose page numbers determine addresses: the processor's page tables are the pool's translation.
//!
//! A read of a page that is absent never faults, because the kernel maps a page of zeros. The reader detects this: the
//! page's state is absent or locked, or its version has changed afterwards.

use std::io;

use super::release::Release;
use super::{FrameRef, Victim};
use crate::error::Result;
use crate::page::PageId;
use crate::page_size::PageSize;
use crate::protocol::page_state::PageState;
use crate::region::Region;

pub(crate) struct Mapped {
    base: *mut u8,
    states: *const PageState,
    pages: u64,
    size: PageSize,
    release: Release,
    /// Owns the memory that the pointers refer to.
    _regions: [Region; 2],
}

// SAFETY: the pointers are to the regions, which are owned. States are atomic, and they guard the pages.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Reserves addresses for `pages` pages of this size.
    pub fn new(pages: u64, size: PageSize, release: Release) -> Result<Self> {
        let memory = Region::new((pages as usize) << size.shift())?;
        let states = Region::new(pages as usize * size_of::<PageState>())?;
        Ok(Self {
            base: memory.base(),
            states: states.base().cast::<PageState>(),
            pages,
            size,
            release,
            _regions: [memory, states],
        })
    }

    #[inline(always)]
    pub fn frame_ref(&self, page: PageId) -> FrameRef<'_> {
        debug_assert!(page.0 < self.pages);
        // SAFETY: the pool only passes pages in bounds. Zeros are a valid state, and a state is atomic.
        let state = unsafe { &*self.states.add(page.0 as usize) };
        FrameRef { state, memory: self.base.wrapping_add((page.0 as usize) << self.size.shift()) }
    }

    pub fn release(&self, victims: &[Victim]) -> (std::result::Result<(), (usize, io::Error)>, u64) {
        // SAFETY: victims are locked pages of the region, so no thread uses the content of their memory.
        unsafe {
            self.release.run(victims.iter().map(|victim| self.frame_ref(victim.page).memory), self.size)
        }
    }
}
