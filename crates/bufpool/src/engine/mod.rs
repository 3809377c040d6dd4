//! Engines: where the state and the memory of a page are, and how the memory is released.
//!
//! | engine | memory of a page | eviction |
//! |---|---|---|
//! | [`Kind::Array`] | the frame in the page's entry of an array | the entry is cleared, and the frame is used again |
//! | [`Kind::Stock`] | at the address that the page number determines | the kernel unmaps a batch with one TLB flush |
//! | `Kind::Vmcache` | at the address that the page number determines | the kernel unmaps each page with its own TLB flush |
//! | [`Kind::Hashtable`] | the frame in the page's entry of a hash table | the entry is removed, and the frame is used again |
//! | `Kind::Ring0` | at the address that the page number determines | the frame is reused, stale translations are noticed |
//!
//! `Kind::Ring0` exists with the feature `ring0` only, and `Kind::Vmcache` with the feature `bench` only.
//!
//! `stock` and `vmcache` differ only in [`release`](release::Release). `array` and `hashtable` have the same
//! [`frames`]. Everything else is the same for all engines, and is in `protocol`, `access`, `replacement` and
//! `durability`. An engine implements the methods of [`Engine`] and does not change the protocol. If an engine's states
//! are in the page headers, it has `Layout::IN_PAGE`, and the state itself says which page it belongs to. For the
//! other engines, [`Engine::is_of`] says whether a frame still has the page.

mod array;
mod frames;
mod mapped;
mod release;
#[cfg(all(feature = "ring0", target_arch = "x86_64"))]
pub(crate) mod ring0;
mod table;

use std::fmt;

pub(crate) use array::Array;
pub(crate) use mapped::Mapped;
pub(crate) use release::Release;
#[cfg(all(feature = "ring0", target_arch = "x86_64"))]
pub(crate) use ring0::Ring0;
pub(crate) use table::Table;

use crate::page::PageId;
use crate::protocol::frame_table::{FrameId, FrameTable};
use crate::protocol::page_state::{Layout, PageState};

/// The kinds of engines that this build has. Two kinds exist only with a cargo feature: `Ring0` with the feature `ring0`,
/// and `Vmcache` with the feature `bench`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Frames, with an array that has the frame of each page.
    Array,
    /// Virtual memory, with evictions in batches.
    Stock,
    /// Virtual memory, with single evictions, as in the paper "Virtual-Memory Assisted Buffer Management". This is the
    /// baseline of benchmarks. It exists with the feature `bench` only.
    #[cfg(feature = "bench")]
    Vmcache,
    /// Frames, with a hash table that has the frame of each page in memory. This is the classic design of database
    /// systems.
    Hashtable,
    /// Virtual memory in ring 0. Evictions change no mapping, and threads notice stale mappings. It exists with the
    /// feature `ring0` only, and works on x86-64 processors only.
    #[cfg(feature = "ring0")]
    Ring0,
}

impl Kind {
    /// The name of the engine in configurations and reports.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Array => "array",
            Kind::Stock => "stock",
            #[cfg(feature = "bench")]
            Kind::Vmcache => "vmcache",
            Kind::Hashtable => "hashtable",
            #[cfg(feature = "ring0")]
            Kind::Ring0 => "ring0",
        }
    }

    /// Whether this is the engine in ring 0.
    pub(crate) fn is_ring0(self) -> bool {
        match self {
            #[cfg(feature = "ring0")]
            Kind::Ring0 => true,
            _ => false,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The state and the memory of a frame where a page is, or may be.
#[derive(Clone, Copy)]
pub(crate) struct FrameRef<'p> {
    pub state: &'p PageState,
    pub memory: *mut u8,
}

/// A page that is being evicted. It is locked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Victim {
    pub frame: FrameId,
    pub page: PageId,
}

/// The engine of a pool. Every access branches on the variant, and that branch always goes the same way.
pub(crate) enum Engine {
    Array(Array),
    Mapped(Mapped),
    Table(Table),
    #[cfg(all(feature = "ring0", target_arch = "x86_64"))]
    Ring0(Box<Ring0>),
}

impl Engine {
    /// The bits of the engine's words that are the version.
    pub fn layout(&self) -> Layout {
        match self {
            Engine::Array(_) | Engine::Mapped(_) | Engine::Table(_) => Layout::OUTSIDE,
            #[cfg(all(feature = "ring0", target_arch = "x86_64"))]
            Engine::Ring0(_) => Layout::IN_PAGE,
        }
    }

    /// The frame where the page may be. The frame's state says whether it is present. The page number must be in
    /// bounds.
    #[inline(always)]
    pub fn find(&self, page: PageId) -> Option<FrameRef<'_>> {
        match self {
            Engine::Array(array) => array.find(page),
            Engine::Mapped(mapped) => Some(mapped.frame_ref(page)),
            Engine::Table(table) => table.find(page),
            #[cfg(all(feature = "ring0", target_arch = "x86_64"))]
            Engine::Ring0(ring0) => Some(ring0.frame_ref(page)),
        }
    }

    /// Whether the frame that [`Engine::find`] returned still has the page. The caller has loaded or locked the state
    /// before.
    #[inline(always)]
    pub fn is_of(&self, frames: &FrameTable, frame_ref: &FrameRef<'_>, page: PageId) -> bool {
        match self {
            Engine::Array(array) => array.is_of(frame_ref, page),
            Engine::Mapped(_) => true,
            Engine::Table(table) => table.is_of(frames, frame_ref, page),
            // The word itself has the page number, which the compare-and-swap checks.
            #[cfg(all(feature = "ring0", target_arch = "x86_64"))]
            Engine::Ring0(_) => true,
        }
    }

    /// The state of a page in a frame.
    #[inline]
    pub fn state_of(&self, frame: FrameId, page: PageId) -> &PageState {
        match self {
            Engine::Array(array) => array.frame_ref(frame).state,
            Engine::Mapped(mapped) => mapped.frame_ref(page).state,
            Engine::Table(table) => table.frame_ref(frame).state,
            #[cfg(all(feature = "ring0", target_arch = "x86_64"))]
            Engine::Ring0(ring0) => ring0.state_of(frame),
        }
    }

    /// The memory of a page in a frame.
    pub fn memory_of(&self, frame: FrameId, page: PageId) -> *mut u8 {
        match self {
            Engine::Array(array) => array.frame_ref(frame).memory,
            Engine::Mapped(mapped) => mapped.frame_ref(page).memory,
            Engine::Table(table) => table.frame_ref(frame).memory,
            #[cfg(all(feature = "ring0", target_arch = "x86_64"))]
            Engine::Ring0(ring0) => ring0.memory_of(frame),
        }
    }

    /// Claims an absent page for the caller, which reads it into a frame that it has taken. Returns none if another
    /// thread has claimed the page or has read it in.
    pub fn claim(&self, frames: &FrameTable, frame: FrameId, page: PageId) -> Option<FrameRef<'_>> {
        match self {
            Engine::Array(array) => array.claim(frames, frame, page),
            Engine::Mapped(mapped) => {
                let frame_ref = mapped.frame_ref(page);
                frame_ref.state.try_claim().then(|| {
                    frames.set_page(frame, page.0);
                    frame_ref
                })
            }
            Engine::Table(table) => table.claim(frames, frame, page),
            #[cfg(all(feature = "ring0", target_arch = "x86_64"))]
            Engine::Ring0(ring0) => ring0.claim(frames, frame, page),
        }
    }

    /// Whether a page that seemed absent is present, and only this processor's translation was stale.
    pub fn refresh(&self, page: PageId) -> bool {
        match self {
            #[cfg(all(feature = "ring0", target_arch = "x86_64"))]
            Engine::Ring0(ring0) => ring0.refresh(page),
            _ => {
                let _ = page;
                false
            }
        }
    }

    /// Whether a thread has claimed the page, for engines where the state of the page does not say so. Other engines
    /// return false.
    pub fn is_claimed(&self, page: PageId) -> bool {
        match self {
            Engine::Array(array) => array.is_claimed(page),
            #[cfg(all(feature = "ring0", target_arch = "x86_64"))]
            Engine::Ring0(ring0) => ring0.is_claimed(page),
            _ => false,
        }
    }

    /// Makes a claimed page visible to all threads. It stays locked. Its memory has its content, or the claimer fills
    /// it later. Returns the final location of the page.
    pub fn settle<'e>(&'e self, frame: FrameId, page: PageId, claimed: FrameRef<'e>) -> FrameRef<'e> {
        match self {
            #[cfg(all(feature = "ring0", target_arch = "x86_64"))]
            Engine::Ring0(ring0) => ring0.settle(frame, page),
            _ => {
                let _ = (frame, page);
                claimed
            }
        }
    }

    /// Takes a free frame. Returns it and the number of free frames left. The engine `ring0` has several lists of free frames and
    /// does not count them, so its number is `usize::MAX`. Returns none if no frame is free.
    pub fn take(&self, frames: &FrameTable) -> Option<(FrameId, usize)> {
        match self {
            #[cfg(all(feature = "ring0", target_arch = "x86_64"))]
            Engine::Ring0(ring0) => ring0.take(frames).map(|frame| (frame, usize::MAX)),
            _ => frames.take(),
        }
    }

    /// Frees frames that have no page.
    pub fn free(&self, frames: &FrameTable, given: impl IntoIterator<Item = FrameId>) {
        match self {
            #[cfg(all(feature = "ring0", target_arch = "x86_64"))]
            Engine::Ring0(ring0) => ring0.free(frames, given),
            _ => frames.free(given),
        }
    }

    /// Number of free frames.
    pub fn free_count(&self, frames: &FrameTable) -> usize {
        match self {
            #[cfg(all(feature = "ring0", target_arch = "x86_64"))]
            Engine::Ring0(ring0) => ring0.free_count(frames),
            _ => frames.free_count(),
        }
    }

    /// Creates the frame table of a pool with `count` frames.
    pub fn frames(&self, count: usize) -> FrameTable {
        match self {
            #[cfg(all(feature = "ring0", target_arch = "x86_64"))]
            Engine::Ring0(ring0) => ring0.frames(count),
            _ => FrameTable::new(count),
        }
    }

    /// Number of accesses through a stale translation.
    #[cfg(feature = "ring0")]
    pub fn stale(&self) -> u64 {
        match self {
            #[cfg(all(feature = "ring0", target_arch = "x86_64"))]
            Engine::Ring0(ring0) => ring0.stale.get(),
            _ => 0,
        }
    }

    /// Abandons a claim. The caller keeps the frame.
    pub fn abandon(&self, frames: &FrameTable, frame: FrameId, page: PageId) {
        match self {
            Engine::Array(array) => array.abandon(frames, frame, page),
            Engine::Mapped(mapped) => {
                frames.set_page(frame, 0);
                mapped.frame_ref(page).state.abandon(self.layout());
            }
            Engine::Table(table) => table.abandon(frames, frame, page),
            #[cfg(all(feature = "ring0", target_arch = "x86_64"))]
            Engine::Ring0(ring0) => ring0.abandon(frames, frame, page),
        }
    }

    /// Releases the memory of pages that could not be read in.
    pub fn discard(&self, victims: &[Victim]) -> std::io::Result<()> {
        match self {
            Engine::Mapped(mapped) => mapped.release(victims).0.map_err(|(_, error)| error),
            Engine::Array(_) | Engine::Table(_) => Ok(()),
            #[cfg(all(feature = "ring0", target_arch = "x86_64"))]
            Engine::Ring0(_) => Ok(()),
        }
    }

    /// Releases the memory of victims. On an error, the first number counts the victims released before it. The last number
    /// counts system calls.
    pub fn release(&self, victims: &[Victim]) -> (Result<(), (usize, std::io::Error)>, u64) {
        match self {
            Engine::Array(array) => {
                array.release(victims);
                (Ok(()), 0)
            }
            Engine::Mapped(mapped) => mapped.release(victims),
            Engine::Table(table) => {
                table.release(victims);
                (Ok(()), 0)
            }
            #[cfg(all(feature = "ring0", target_arch = "x86_64"))]
            Engine::Ring0(ring0) => {
                ring0.release(victims);
                (Ok(()), 0)
            }
        }
    }
}
