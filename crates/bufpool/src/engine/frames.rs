//! The frames of engines that translate page numbers in software: their memory, and the state of each frame.
//!
//! The memory is one piece, with huge pages if the kernel has them. This is possible because a frame never changes its
//! address and never returns to the kernel. Engines that map pages cannot use huge pages, because they release memory
//! page by page.
//!
//! The kernel provides a frame's memory at its first use. So a pool that is never full does not use all the memory it
//! was given. A pool that is smaller than a huge page has no huge pages.

use super::FrameRef;
use crate::error::Result;
use crate::page_size::PageSize;
use crate::protocol::frame_table::FrameId;
use crate::protocol::page_state::PageState;
use crate::region::Region;

/// The frames of a pool. See the module.
pub(crate) struct Frames {
    memory: Region,
    states: Region,
    count: usize,
    shift: u32,
}

impl Frames {
    /// Reserves memory for `count` frames of this size.
    pub fn new(count: usize, size: PageSize) -> Result<Self> {
        let memory = Region::huge(count << size.shift())?;
        let states = Region::huge(count * size_of::<PageState>())?;
        Ok(Self { memory, states, count, shift: size.shift() })
    }

    /// The state and the memory of a frame.
    #[inline(always)]
    pub fn frame_ref(&self, frame: FrameId) -> FrameRef<'_> {
        debug_assert!((frame as usize) < self.count);
        // SAFETY: the numbers of frames are below the count. Zeros are a valid state, and a state is atomic.
        let state = unsafe { &*self.states.base().cast::<PageState>().add(frame as usize) };
        FrameRef { state, memory: self.memory.base().wrapping_add((frame as usize) << self.shift) }
    }

    /// The frame that has this memory.
    #[inline(always)]
    pub fn frame_of(&self, frame_ref: &FrameRef<'_>) -> FrameId {
        ((frame_ref.memory.addr() - self.memory.base().addr()) >> self.shift) as FrameId
    }
}
