//! Pages whose number is their address: the processor's page tables are the pool's.
//!
//! Reading a page that is not there never fails: the kernel maps a page of zeros. Nobody believes it, since the page's
//! word says that it is absent, or locked, and its version is another afterwards.

use std::io;

use super::release::Release;
use super::{Place, Victim};
use crate::error::Result;
use crate::page::{PAGE, PageId};
use crate::protocol::word::Word;
use crate::region::Region;

pub(crate) struct Mapped {
    base: *mut u8,
    words: *const Word,
    pages: u64,
    release: Release,
    /// What the pointers point into.
    _regions: [Region; 2],
}

// SAFETY: the pointers are to the regions, which are owned; words are atomic, and pages are guarded by them.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Reserves addresses for that many pages.
    pub fn new(pages: u64, release: Release) -> Result<Self> {
        let memory = Region::new(pages as usize * PAGE)?;
        let words = Region::new(pages as usize * size_of::<Word>())?;
        Ok(Self {
            base: memory.base(),
            words: words.base().cast::<Word>(),
            pages,
            release,
            _regions: [memory, words],
        })
    }

    #[inline(always)]
    pub fn place(&self, page: PageId) -> Place<'_> {
        debug_assert!(page.0 < self.pages);
        // SAFETY: the pool asks for pages in bounds only. Memory of zeros is a valid word, and atomic.
        let word = unsafe { &*self.words.add(page.0 as usize) };
        Place { word, memory: self.base.wrapping_add(page.0 as usize * PAGE) }
    }

    pub fn release(&self, victims: &[Victim]) -> (std::result::Result<(), (usize, io::Error)>, u64) {
        // SAFETY: victims are locked pages of the region: nobody believes what is in their memory.
        unsafe { self.release.run(victims.iter().map(|victim| self.place(victim.page).memory)) }
    }
}
