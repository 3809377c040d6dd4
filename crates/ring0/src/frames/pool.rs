//! A pool of frames: memory, its place in the guest, and free lists.

use crate::paging::{LinearMemory, TableSource};
use crate::word::Native;

use super::lists::{Lists, Shape, Statistics, WrongFrame};
use super::memory::HostMemory;
use super::{Frame, MemoryError};

/// How many frames a run has: 2 MiB.
pub const RUN_FRAMES: u64 = 512;

/// How many frames go from a global list to a vCPU's at once, and back.
const BATCH: u32 = 64;

/// Why a pool could not be made.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// Not on a boundary of 2 MiB.
    #[error("the pool's first frame, {0:?}, is not on a boundary of 2 MiB")]
    Unaligned(Frame),
    /// More frames than the lists can number.
    #[error("a pool has at most {most} runs of 2 MiB, not {runs}")]
    TooLarge {
        /// How many were asked for.
        runs: u64,
        /// How many there can be.
        most: u64,
    },
    /// No memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// Frames of preallocated memory, to be taken and given back by every vCPU in constant time.
///
/// Everything but [`reassemble`](Self::reassemble) may be called from any thread, in ring 0 with interrupts on or
/// off, and from a handler that has interrupted a call: nothing waits, allocates, panics, or makes a system call.
/// The memory of the free lists ([`spans`](Self::spans)) must be mapped where handlers run.
///
/// Frames are never zeroed: they have the contents that their last user left.
pub struct FramePool {
    first: Frame,
    memory: HostMemory,
    lists: Lists<Native>,
}

impl FramePool {
    /// A pool of all of `memory`, which the guest has at `first` and behind it, for the vCPUs 0 up to `cpus`.
    ///
    /// The global lists are in as many parts as there are vCPUs, up to 16.
    pub fn new(first: Frame, memory: HostMemory, cpus: u32) -> Result<FramePool, PoolError> {
        let runs = memory.bytes() as u64 / (RUN_FRAMES * 4096);
        let most = u64::from(super::stack::LIMIT) / RUN_FRAMES;
        if runs > most {
            return Err(PoolError::TooLarge { runs, most });
        }
        if !first.number().is_multiple_of(RUN_FRAMES) {
            return Err(PoolError::Unaligned(first));
        }
        let shape = Shape {
            runs: runs as u32,
            run_frames: RUN_FRAMES as u32,
            caches: cpus,
            stacks: cpus.clamp(1, 16),
            batch: BATCH,
        };
        Ok(FramePool { first, memory, lists: Lists::new(shape) })
    }

    /// A frame, from the list of vCPU `cpu`, or `None` if there is none left.
    ///
    /// Any number will do for `cpu`, and two threads with the same one do no harm but to speed.
    #[inline]
    pub fn take(&self, cpu: u32) -> Option<Frame> {
        self.lists.take(cpu).map(|number| self.first.offset(u64::from(number)))
    }

    /// Takes a frame back, to the list of vCPU `cpu`.
    #[inline]
    pub fn give(&self, cpu: u32, frame: Frame) -> Result<(), WrongFrame> {
        self.lists.give(cpu, self.number(frame)?)
    }

    /// A run: 512 frames of 2 MiB together, on a boundary of 2 MiB; the first of them.
    ///
    /// Runs that were broken up into single frames are runs again only after [`reassemble`](Self::reassemble):
    /// take runs before frames.
    pub fn take_run(&self) -> Option<Frame> {
        self.lists.take_run().map(|number| self.first.offset(u64::from(number)))
    }

    /// Takes a run back.
    pub fn give_run(&self, first: Frame) -> Result<(), WrongFrame> {
        self.lists.give_run(self.number(first)?)
    }

    /// Makes single frames of a run that is handed out (after its huge page was split): each is given back with
    /// [`give`](Self::give) then.
    pub fn scatter_run(&self, first: Frame) -> Result<(), WrongFrame> {
        self.lists.scatter_run(self.number(first)?)
    }

    /// Makes whole runs of the frames that are free, as far as they are together; returns how many. Takes time in
    /// proportion to the pool's size.
    pub fn reassemble(&mut self) -> u32 {
        self.lists.reassemble()
    }

    /// Frames for, and from, one vCPU; also a source of page tables.
    #[inline]
    pub fn cpu(&self, cpu: u32) -> CpuFrames<'_> {
        CpuFrames { pool: self, cpu }
    }

    /// Where the process sees a frame: for input and output, and for handlers. `None` if it is not of this pool.
    #[inline]
    pub fn address(&self, frame: Frame) -> Option<*mut u8> {
        let number = self.number(frame).ok()?;
        Some(self.memory.base().wrapping_add((number as usize) << 12))
    }

    /// The frame that the process sees at an address: the reverse of [`address`](Self::address).
    #[inline]
    pub fn frame_at(&self, address: *const u8) -> Option<Frame> {
        let offset = (address as usize).checked_sub(self.memory.base() as usize)?;
        (offset < self.memory.bytes()).then(|| self.first.offset((offset >> 12) as u64))
    }

    /// The first frame.
    pub const fn first(&self) -> Frame {
        self.first
    }

    /// The memory.
    pub const fn memory(&self) -> &HostMemory {
        &self.memory
    }

    /// The pool's memory as one that holds page tables.
    ///
    /// # Safety
    /// The pool outlives what is made of this, and frames that are used as tables are used for nothing else.
    pub const unsafe fn table_memory(&self) -> LinearMemory {
        // SAFETY: the pool's frames are at these addresses; the rest is the caller's promise.
        unsafe { LinearMemory::new(self.first, self.memory.bytes() as u64 >> 12, self.memory.base()) }
    }

    /// What the pool has done so far.
    pub fn statistics(&self) -> Statistics {
        self.lists.statistics()
    }

    /// Address and length of all memory that taking and giving frames touches, besides the pool itself (the frames
    /// are not touched).
    pub fn spans(&self) -> [(usize, usize); 4] {
        self.lists.spans()
    }

    #[inline]
    fn number(&self, frame: Frame) -> Result<u32, WrongFrame> {
        let number = frame.number().wrapping_sub(self.first.number());
        if number < u64::from(self.lists.frames()) { Ok(number as u32) } else { Err(WrongFrame::Foreign) }
    }
}

impl std::fmt::Debug for FramePool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shape = self.lists.shape();
        f.debug_struct("FramePool").field("first", &self.first).field("shape", &shape).finish_non_exhaustive()
    }
}

/// A pool, as one vCPU uses it.
#[derive(Debug, Clone, Copy)]
pub struct CpuFrames<'p> {
    pool: &'p FramePool,
    cpu: u32,
}

impl TableSource for CpuFrames<'_> {
    fn take(&mut self) -> Option<Frame> {
        self.pool.take(self.cpu)
    }

    fn give(&mut self, frame: Frame) {
        let given = self.pool.give(self.cpu, frame);
        debug_assert_eq!(given, Ok(()), "{frame:?} is not a table's frame of this pool");
    }
}
