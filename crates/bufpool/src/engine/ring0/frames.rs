//! The frames: in one piece of memory, so that the clock finds their words without another structure, with huge pages behind
//! it if there are any; provided by the host once, and never cleared.
//!
//! A slot's number is its frame's. Free frames are in lists of the processors, and global ones behind them.

use bedplate_ring0::frames::{Backing, Frame, FramePool, HostMemory};
use bedplate_ring0::shootdown::MOST_CPUS;
use bedplate_ring0::{Attached, Cpu, Process};

use super::unavailable;
use crate::error::Result;
use crate::page::PAGE;
use crate::protocol::slots::Slot;
use crate::protocol::word::Word;

/// How many neighbouring frames go to one processor's list at the beginning.
const SHARE: u32 = 64;

/// See the module.
pub struct Frames {
    lists: FramePool,
    first: Frame,
    base: *mut u8,
    attached: Attached,
    process: &'static Process,
    /// Frames of the memory that are no slots: it comes in pieces of 2 MiB.
    rest: u64,
}

// SAFETY: the pointer is to the memory, which is owned; who may use what of it is what the words say.
unsafe impl Send for Frames {}
// SAFETY: as above.
unsafe impl Sync for Frames {}

impl Frames {
    /// That many, all of them free.
    pub fn new(process: &'static Process, count: usize) -> Result<Self> {
        let memory = HostMemory::map(count * PAGE, Backing::Best).map_err(unavailable)?;
        memory.prefault().map_err(unavailable)?;
        let (base, bytes) = (memory.base(), memory.bytes());
        // SAFETY: the memory is kept in the lists, and detached before they are dropped.
        let attached = unsafe { process.attach(base as u64, bytes as u64) }.map_err(unavailable)?;
        let first = Frame::containing(attached.physical);
        let lists = FramePool::new(first, memory, MOST_CPUS as u32).map_err(unavailable)?;
        let all = bytes / PAGE;
        if all > count {
            let frames: Vec<Frame> = std::iter::from_fn(|| lists.take(0)).collect();
            for frame in frames {
                let number = (frame.number() - first.number()) as u32;
                if (number as usize) < count {
                    let _ = lists.give(number / SHARE, frame);
                }
            }
        }
        Ok(Self { lists, first, base, attached, process, rest: (all - count) as u64 })
    }

    /// The frame of a slot.
    #[inline]
    pub fn frame(&self, slot: Slot) -> Frame {
        self.first.offset(u64::from(slot))
    }

    /// Its memory, at an address that never means another frame, natively and for Linux, too.
    #[inline]
    pub fn memory(&self, slot: Slot) -> *mut u8 {
        self.base.wrapping_add(slot as usize * PAGE)
    }

    /// Its word.
    #[inline]
    pub fn word(&self, slot: Slot) -> &Word {
        // SAFETY: in the memory, aligned, and only used as a word, or written by whoever has it locked.
        unsafe { &*self.memory(slot).cast::<Word>() }
    }

    /// A free one, from the list of this processor.
    pub fn take(&self) -> Option<Slot> {
        let frame = self.lists.take(processor())?;
        Some((frame.number() - self.first.number()) as Slot)
    }

    /// Takes one back, into the list of this processor.
    pub fn give(&self, slot: Slot) {
        let given = self.lists.give(processor(), self.frame(slot));
        debug_assert_eq!(given, Ok(()), "slot {slot}");
    }

    /// How many are free.
    pub fn free_count(&self) -> usize {
        let statistics = self.lists.statistics();
        let taken = statistics.taken.saturating_sub(statistics.given);
        statistics.frames.saturating_sub(taken.max(self.rest)) as usize
    }
}

/// Which list is this thread's.
fn processor() -> u32 {
    Cpu::current().map_or(0, |cpu| cpu.number())
}

impl Drop for Frames {
    fn drop(&mut self) {
        let _ = self.process.detach(self.attached);
    }
}
