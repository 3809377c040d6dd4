//! A pool of frames: its memory, its position in guest-physical memory, and its free lists.

use crate::paging::{LinearMemory, TableSource};
use crate::word::Native;

use super::lists::{Lists, Shape, Statistics, WrongFrame};
use super::memory::HostMemory;
use super::{Frame, MemoryError};

/// Number of frames in a run (2 MiB).
pub const RUN_FRAMES: u64 = 512;

/// Number of frames that move between a global list and a vCPU's list at once.
const BATCH: u32 = 64;

/// The reason why a pool could not be made.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The first frame is not on a boundary of 2 MiB.
    #[error("the pool's first frame, {0:?}, is not on a boundary of 2 MiB")]
    Unaligned(Frame),
    /// The memory has more frames than the lists can number.
    #[error("a pool has at most {most} runs of 2 MiB, not {runs}")]
    TooLarge {
        /// Number of runs in the memory.
        runs: u64,
        /// Largest possible number of runs.
        most: u64,
    },
    /// The memory could not be mapped.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// A pool of frames in preallocated memory. Every vCPU takes and gives frames in constant time.
///
/// Every method but [`reassemble`](Self::reassemble) may be called from any thread, in ring 0 with interrupts on or
/// off, and from a handler that has interrupted such a call. These methods do not wait, allocate, panic, or make
/// system calls. The memory of the free lists ([`spans`](Self::spans)) must be mapped where handlers run.
///
/// Frames are never zeroed: a frame has the contents that its last user left.
pub struct FramePool {
    first: Frame,
    memory: HostMemory,
    lists: Lists<Native>,
}

impl FramePool {
    /// Creates a pool of all of `memory` for the vCPUs from 0 up to, but not including, `cpus`. The memory begins
    /// at frame `first` of guest-physical memory, which must be on a boundary of 2 MiB.
    ///
    /// There are as many global lists as vCPUs, but at most 16.
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

    /// Takes a frame from the list of vCPU `cpu`. Returns `None` if the pool has no free frame.
    ///
    /// Any value of `cpu` is valid. Two threads may use the same one; this costs only speed.
    #[inline]
    pub fn take(&self, cpu: u32) -> Option<Frame> {
        self.lists.take(cpu).map(|number| self.first.offset(u64::from(number)))
    }

    /// Gives a frame back, to the list of vCPU `cpu`.
    #[inline]
    pub fn give(&self, cpu: u32, frame: Frame) -> Result<(), WrongFrame> {
        self.lists.give(cpu, self.number(frame)?)
    }

    /// Takes a run of 512 contiguous frames (2 MiB) on a boundary of 2 MiB. Returns the first frame.
    ///
    /// A run that was broken up into single frames is a run again only after [`reassemble`](Self::reassemble). Runs
    /// should therefore be taken before frames.
    pub fn take_run(&self) -> Option<Frame> {
        self.lists.take_run().map(|number| self.first.offset(u64::from(number)))
    }

    /// Gives a run back.
    pub fn give_run(&self, first: Frame) -> Result<(), WrongFrame> {
        self.lists.give_run(self.number(first)?)
    }

    /// Turns a run that is handed out into single frames, for example after its huge page was split. Each frame
    /// must then be given back with [`give`](Self::give).
    pub fn scatter_run(&self, first: Frame) -> Result<(), WrongFrame> {
        self.lists.scatter_run(self.number(first)?)
    }

    /// Makes whole runs of contiguous free frames. Returns the number of runs made. Takes time in proportion to the
    /// size of the pool.
    pub fn reassemble(&mut self) -> u32 {
        self.lists.reassemble()
    }

    /// The pool as used by one vCPU. The value is also a source of page tables.
    #[inline]
    pub fn cpu(&self, cpu: u32) -> CpuFrames<'_> {
        CpuFrames { pool: self, cpu }
    }

    /// The address of a frame in the process, for I/O and for handlers. `None` if the frame is not of this pool.
    #[inline]
    pub fn address(&self, frame: Frame) -> Option<*mut u8> {
        let number = self.number(frame).ok()?;
        Some(self.memory.base().wrapping_add((number as usize) << 12))
    }

    /// The frame at an address of the process: the inverse of [`address`](Self::address). `None` if the address is
    /// not in the pool's memory.
    #[inline]
    pub fn frame_at(&self, address: *const u8) -> Option<Frame> {
        let offset = (address as usize).checked_sub(self.memory.base() as usize)?;
        (offset < self.memory.bytes()).then(|| self.first.offset((offset >> 12) as u64))
    }

    /// The first frame of the pool.
    pub const fn first(&self) -> Frame {
        self.first
    }

    /// The memory of the pool.
    pub const fn memory(&self) -> &HostMemory {
        &self.memory
    }

    /// The pool's memory as memory that contains page tables.
    ///
    /// # Safety
    /// The pool must outlive the returned value. Frames that are used as tables must not be used for anything else.
    pub const unsafe fn table_memory(&self) -> LinearMemory {
        // SAFETY: the pool's frames are at these addresses; the rest is the caller's promise.
        unsafe { LinearMemory::new(self.first, self.memory.bytes() as u64 >> 12, self.memory.base()) }
    }

    /// The statistics of the pool.
    pub fn statistics(&self) -> Statistics {
        self.lists.statistics()
    }

    /// Address and length of all memory that taking and giving frames touches, except for the pool structure
    /// itself. The frames are not touched.
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

/// A pool as used by one vCPU.
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
