//! Addresses and frames: the memory in ring 0, and the frames behind it in the process.

use bedplate_ring0::frames::{Backing, Frame, FramePool, HostMemory};
use bedplate_ring0::paging::VirtRange;
use bedplate_ring0::shootdown::MOST_CPUS;
use bedplate_ring0::{Attached, Process, Reserved};

use super::registry::FIRST_ENTRY;
use crate::{Error, Kind};

/// Makes an error of an error of ring 0.
pub fn unavailable(error: impl std::fmt::Display) -> Error {
    Error::Unavailable { engine: Kind::Ring0, reason: error.to_string() }
}

/// This process in ring 0. It is built if there is none.
pub fn process() -> Result<&'static Process, Error> {
    Process::this().map_err(unavailable)
}

/// Reserves the entry of the topmost page table for the memory with this number. Fails if anything is mapped there.
pub fn reserve(process: &'static Process, number: usize) -> Result<Reserved, Error> {
    let range = VirtRange::top_level_slot(FIRST_ENTRY + number).map_err(unavailable)?;
    Reserved::new(process, range).map_err(unavailable)
}

/// Main's frames: contiguous, and in the order of the pages.
#[derive(Debug)]
pub struct Home {
    process: &'static Process,
    memory: HostMemory,
    attached: Attached,
}

impl Home {
    pub fn new(process: &'static Process, bytes: usize, backing: Backing) -> Result<Self, Error> {
        let (memory, attached) = attach(process, bytes, backing)?;
        Ok(Self { process, memory, attached })
    }

    /// The frame of a page.
    #[inline]
    pub fn frame(&self, page: usize) -> Frame {
        Frame::containing(self.attached.physical).offset(page as u64)
    }

    /// The address of an offset in the process. It is valid in ring 3 too, and thus for Linux.
    #[inline]
    pub fn address(&self, offset: usize) -> *mut u8 {
        self.memory.base().wrapping_add(offset)
    }

    /// The address of a frame in the process, or `None` if it is not one of these frames.
    #[inline]
    pub fn address_of(&self, frame: Frame) -> Option<*mut u8> {
        let offset = frame.address().wrapping_sub(self.attached.physical);
        (offset < self.attached.bytes).then(|| self.address(offset as usize))
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = self.process.detach(self.attached);
    }
}

/// Frames for tables and for copies of pages.
#[derive(Debug)]
pub struct Pool {
    process: &'static Process,
    pub frames: FramePool,
    attached: Attached,
}

impl Pool {
    pub fn new(process: &'static Process, bytes: usize, backing: Backing) -> Result<Self, Error> {
        let (memory, attached) = attach(process, bytes, backing)?;
        let first = Frame::containing(attached.physical);
        let frames = FramePool::new(first, memory, MOST_CPUS as u32).map_err(unavailable)?;
        let pool = Self { process, frames, attached };
        for (address, bytes) in pool.frames.spans() {
            process.add_windows(address as u64, bytes as u64).map_err(unavailable)?;
        }
        Ok(pool)
    }

    /// Number of frames that are handed out.
    pub fn in_use(&self) -> u64 {
        let statistics = self.frames.statistics();
        statistics.taken - statistics.given
    }

    /// Number of free frames.
    pub fn free(&self) -> usize {
        self.count() - self.in_use() as usize
    }

    /// The number of a frame in the pool, from 0.
    #[inline]
    pub fn number(&self, frame: Frame) -> u32 {
        (frame.number() - self.frames.first().number()) as u32
    }

    /// Number of frames in the pool.
    pub fn count(&self) -> usize {
        self.frames.memory().bytes() / crate::PAGE
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = self.process.detach(self.attached);
    }
}

fn attach(
    process: &'static Process,
    bytes: usize,
    backing: Backing,
) -> Result<(HostMemory, Attached), Error> {
    let memory = HostMemory::map(bytes.next_multiple_of(2 << 20), backing).map_err(unavailable)?;
    // SAFETY: the memory is kept together with the returned value, and unmapped after it was detached.
    let attached =
        unsafe { process.attach(memory.base() as u64, memory.bytes() as u64) }.map_err(unavailable)?;
    Ok((memory, attached))
}
