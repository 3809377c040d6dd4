//! The frames of the `ring0` engine. They are one piece of memory, so the clock finds their words by address alone. The
//! memory has huge pages if available. The host provides it once, and it is never cleared.
//!
//! The number of a pool frame is the offset of its physical frame. Free frames are in lists of the processors, with
//! global lists behind them.

use bedplate_ring0::frames::{Backing, Frame as PhysicalFrame, FramePool, HostMemory};
use bedplate_ring0::shootdown::MOST_CPUS;
use bedplate_ring0::{Attached, Cpu, Process};

use super::unavailable;
use crate::error::Result;
use crate::page::PAGE;
use crate::protocol::frame_table::FrameId;
use crate::protocol::page_state::PageState;

/// Number of adjacent frames that go to the list of the same processor at the start.
const SHARE: u32 = 64;

/// The frames of a pool. See the module.
pub struct Frames {
    lists: FramePool,
    first: PhysicalFrame,
    base: *mut u8,
    attached: Attached,
    process: &'static Process,
    /// Number of physical frames beyond the pool's frames. They are not used; memory comes in pieces of 2 MiB.
    rest: u64,
}

// SAFETY: the pointer is to the memory, which `lists` owns. The words of the frames say which thread may use which
// frame.
unsafe impl Send for Frames {}
// SAFETY: as above.
unsafe impl Sync for Frames {}

impl Frames {
    /// Allocates `count` frames. All of them are free.
    pub fn new(process: &'static Process, count: usize) -> Result<Self> {
        let memory = HostMemory::map(count * PAGE, Backing::Best).map_err(unavailable)?;
        memory.prefault().map_err(unavailable)?;
        let (base, bytes) = (memory.base(), memory.bytes());
        // SAFETY: the memory is kept in `lists`, and it is detached before `lists` is dropped.
        let attached = unsafe { process.attach(base as u64, bytes as u64) }.map_err(unavailable)?;
        let first = PhysicalFrame::containing(attached.physical);
        let lists = FramePool::new(first, memory, MOST_CPUS as u32).map_err(unavailable)?;
        let all = bytes / PAGE;
        if all > count {
            let frames: Vec<PhysicalFrame> = std::iter::from_fn(|| lists.take(0)).collect();
            for frame in frames {
                let number = (frame.number() - first.number()) as u32;
                if (number as usize) < count {
                    let _ = lists.give(number / SHARE, frame);
                }
            }
        }
        Ok(Self { lists, first, base, attached, process, rest: (all - count) as u64 })
    }

    /// The physical frame of a pool frame.
    #[inline]
    pub fn physical_frame(&self, frame: FrameId) -> PhysicalFrame {
        self.first.offset(u64::from(frame))
    }

    /// The memory of a frame. Its address never leads to another frame, in ring 0, in ring 3 or in the kernel.
    #[inline]
    pub fn memory(&self, frame: FrameId) -> *mut u8 {
        self.base.wrapping_add(frame as usize * PAGE)
    }

    /// The word of a frame.
    #[inline]
    pub fn word(&self, frame: FrameId) -> &PageState {
        // SAFETY: inside the memory and aligned. The memory is used only as a word, or written by the thread that has
        // locked it.
        unsafe { &*self.memory(frame).cast::<PageState>() }
    }

    /// Takes a free frame, first from the list of this processor. Returns none if no frame is free.
    pub fn take(&self) -> Option<FrameId> {
        let frame = self.lists.take(processor())?;
        Some((frame.number() - self.first.number()) as FrameId)
    }

    /// Frees a frame into the list of this processor.
    pub fn free(&self, frame: FrameId) {
        let given = self.lists.give(processor(), self.physical_frame(frame));
        debug_assert_eq!(given, Ok(()), "frame {frame}");
    }

    /// Number of free frames.
    pub fn free_count(&self) -> usize {
        let statistics = self.lists.statistics();
        let taken = statistics.taken.saturating_sub(statistics.given);
        statistics.frames.saturating_sub(taken.max(self.rest)) as usize
    }
}

/// The number of this thread's processor, which selects a list.
fn processor() -> u32 {
    Cpu::current().map_or(0, |cpu| cpu.number())
}

impl Drop for Frames {
    fn drop(&mut self) {
        let _ = self.process.detach(self.attached);
    }
}
