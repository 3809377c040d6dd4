//! The `ring0` engine: TABBY (section 5 of the paper) on a privileged process.
//!
//! The engine has pages of 4 KiB only. A larger page would need several entries in the page tables, and threads would
//! have to notice a stale translation of each of its parts, but only the first part has the page's number.
//!
//! A page's number determines its address. The page's state is in the page itself: the page's number, and which threads use it.
//! When a frame is given to another page, no other thread is notified. A thread may reach the frame through a stale translation
//! in the page tables or a TLB. It finds another page's number there and refreshes its processor's translation (`protocol`). So
//! an eviction changes no entry, sends no shootdown, and makes no system call.
//!
//! `addresses` has the page tables and `frames` the memory. `registry` takes threads into ring 0 that are not there
//! yet, or that have left it. A guard stays on its thread, because that thread's processor has a current translation of
//! the page.

mod addresses;
mod frames;
mod protocol;
mod registry;

use std::sync::atomic::AtomicU32;

use bedplate_ring0::frames::Frame as PhysicalFrame;
use bedplate_ring0::paging::Slot as Entry;
use bedplate_ring0::{Cpu, Process};

use self::addresses::{Addresses, MOST_PAGES};
use self::frames::Frames;
use self::protocol::Machine;
use super::{FrameRef, Kind, Victim};
use crate::access::payload::page_words;
use crate::error::{Error, Result};
use crate::page::{PAGE, PageId};
use crate::page_size::PageSize;
use crate::protocol::frame_table::{FrameId, FrameTable};
use crate::protocol::page_state::PageState;
use crate::protocol::words;
use crate::region::Region;
use crate::statistics::Counter;

/// Converts an error of ring 0.
fn unavailable(error: impl std::fmt::Display) -> Error {
    Error::Unavailable { engine: Kind::Ring0, reason: error.to_string() }
}

/// The parts of the engine that are in use. Benchmarks measure the effect of each part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Free frames are in lists of the processors, not in one list behind a lock.
    pub local_lists: bool,
    /// Frames are not cleared before they are used again.
    pub no_clearing: bool,
}

impl Parts {
    /// All parts.
    pub const ALL: Parts = Parts { local_lists: true, no_clearing: true };
}

/// The engine of a pool. See the module.
pub(crate) struct Ring0 {
    frames: Frames,
    addresses: Addresses,
    /// The version of each page that is not present.
    versions: Region,
    parts: Parts,
    /// Number of accesses through a stale translation whose entry was current.
    pub stale: Counter,
}

impl Ring0 {
    /// Creates an engine for `pages` pages, with `frames` frames. Fails if ring 0 is not available.
    pub fn new(pages: u64, size: PageSize, frames: usize, parts: Parts) -> Result<Self> {
        if size != PageSize::MIN {
            return Err(unavailable(format!(
                "it has pages of 4 KiB only, and these have {size}: choose pages of 4 KiB, or another engine"
            )));
        }
        if pages > MOST_PAGES {
            return Err(unavailable("it has addresses for 512 GiB: choose a smaller capacity"));
        }
        let process = Process::this().map_err(unavailable)?;
        let versions = Region::new(pages as usize * size_of::<AtomicU32>())?;
        let frames = Frames::new(process, frames)?;
        let addresses = Addresses::new(process, pages)?;
        Ok(Self { frames, addresses, versions, parts, stale: Counter::default() })
    }

    /// The location of a page, for threads in ring 0. Another thread enters ring 0 when it touches that address.
    #[inline(always)]
    pub fn frame_ref(&self, page: PageId) -> FrameRef<'_> {
        let memory = self.addresses.base().wrapping_add(page.0 as usize * PAGE);
        // SAFETY: a page's address always leads to a frame. The frame begins with a word, of this page or of another
        // one.
        FrameRef { state: unsafe { &*memory.cast::<PageState>() }, memory }
    }

    /// The word of the page in a frame.
    #[inline]
    pub fn state_of(&self, frame: FrameId) -> &PageState {
        self.frames.word(frame)
    }

    /// The memory of the page in a frame.
    pub fn memory_of(&self, frame: FrameId) -> *mut u8 {
        self.frames.memory(frame)
    }

    /// The frame table of a pool. With `local_lists`, the engine has the free frames itself.
    pub fn frames(&self, count: usize) -> FrameTable {
        if self.parts.local_lists { FrameTable::all_taken(count) } else { FrameTable::new(count) }
    }

    pub fn take(&self, frames: &FrameTable) -> Option<FrameId> {
        if self.parts.local_lists { self.frames.take() } else { frames.take().map(|(frame, _)| frame) }
    }

    pub fn free(&self, frames: &FrameTable, given: impl IntoIterator<Item = FrameId>) {
        if self.parts.local_lists {
            given.into_iter().for_each(|frame| self.frames.free(frame));
        } else {
            frames.free(given);
        }
    }

    pub fn free_count(&self, frames: &FrameTable) -> usize {
        if self.parts.local_lists { self.frames.free_count() } else { frames.free_count() }
    }

    /// Whether the page is present, and only this processor's translation was stale.
    pub fn refresh(&self, page: PageId) -> bool {
        let was_stale = protocol::refresh(self, page.0);
        if was_stale {
            self.stale.add(1);
        }
        was_stale
    }

    /// Whether a thread has claimed the page.
    pub fn is_claimed(&self, page: PageId) -> bool {
        self.addresses.entry(page.0).load().is_locked()
    }

    pub fn claim(&self, frames: &FrameTable, frame: FrameId, page: PageId) -> Option<FrameRef<'_>> {
        if !protocol::claim(self, frame, page.0) {
            return None;
        }
        let memory = self.frames.memory(frame);
        if !self.parts.no_clearing {
            // SAFETY: the frame was free and belongs to the claim. Readers with a stale translation load words only.
            let words = unsafe { page_words(memory, PageSize::MIN) };
            words::fill(words, size_of::<PageState>()..PAGE, 0);
        }
        frames.set_page(frame, page.0);
        Some(FrameRef { state: self.frames.word(frame), memory })
    }

    /// Makes a claimed page visible to all threads. It stays locked. Its memory has its content, or will have it.
    pub fn settle(&self, frame: FrameId, page: PageId) -> FrameRef<'_> {
        protocol::map(self, frame, page.0);
        self.frame_ref(page)
    }

    pub fn abandon(&self, frames: &FrameTable, frame: FrameId, page: PageId) {
        frames.set_page(frame, 0);
        protocol::abandon(self, frame, page.0);
    }

    /// Stores the versions of victims. Afterwards their frames can be used again at once.
    pub fn release(&self, victims: &[Victim]) {
        victims.iter().for_each(|victim| protocol::keep_version(self, victim.frame, victim.page.0));
    }
}

impl Machine for Ring0 {
    #[inline]
    fn at<R>(&self, page: u64, access: impl FnOnce(&PageState) -> R) -> R {
        access(self.frame_ref(PageId(page)).state)
    }

    #[inline]
    fn entry(&self, page: u64) -> &Entry {
        self.addresses.entry(page)
    }

    #[inline]
    fn flush(&self, page: u64) {
        // In ring 3 there is nothing to flush: a thread enters ring 0 without cached translations.
        if let Some(cpu) = Cpu::current() {
            cpu.flush_page(self.addresses.address(page));
        }
    }

    #[inline]
    fn word(&self, frame: FrameId) -> &PageState {
        self.frames.word(frame)
    }

    #[inline]
    fn physical_frame(&self, frame: FrameId) -> PhysicalFrame {
        self.frames.physical_frame(frame)
    }

    #[inline]
    fn version(&self, page: u64) -> &AtomicU32 {
        // SAFETY: in bounds, because the page is. The memory starts as zeros and is used only as these atomics.
        unsafe { &*self.versions.base().cast::<AtomicU32>().add(page as usize) }
    }
}
