//! The data of each processor for its system calls: a staging buffer (section 4.3), copies of lists of buffers, and
//! the addresses to which Linux is writing. They are in memory that Linux and ring 0 see at the same addresses.
//!
//! Only the processor's own system-call handler uses its part. The exception is [`Writing`], which a thread that
//! takes a snapshot also reads.

use std::cell::UnsafeCell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bedplate_ring0::Process;
use bedplate_ring0::shootdown::MOST_CPUS;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use super::frames::unavailable;
use crate::Error;

/// Size of the staging buffer in bytes.
pub const STAGING: usize = 1 << 20;
/// Limit of buffers that Linux accepts in one call.
pub const MOST_PIECES: usize = 1024;
/// Limit of further buffers of one call.
const MORE: usize = 8;

/// The part of one processor.
#[repr(C, align(4096))]
pub struct Scratch {
    pub writing: Writing,
    /// A set of signals.
    pub signals: UnsafeCell<u64>,
    /// A `msghdr`.
    pub message: UnsafeCell<[u64; 7]>,
    pub pieces: UnsafeCell<[Piece; MOST_PIECES]>,
    pub staging: UnsafeCell<[u8; STAGING]>,
}

/// An `iovec`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Piece {
    pub address: u64,
    pub bytes: u64,
}

/// The ranges of a memory to which Linux may be writing for main.
pub struct Writing {
    count: AtomicU32,
    ranges: [(AtomicU64, AtomicU64); MOST_PIECES + MORE],
}

impl Writing {
    /// Adds a range. Must be called before the range's pages are made writable. Returns whether there was room.
    pub fn add(&self, address: u64, bytes: u64) -> bool {
        let count = self.count.load(Ordering::Relaxed);
        let Some(range) = self.ranges.get(count as usize) else { return false };
        range.0.store(address, Ordering::Relaxed);
        range.1.store(bytes, Ordering::Relaxed);
        self.count.store(count + 1, Ordering::Release);
        true
    }

    /// Removes all ranges, after Linux has written.
    pub fn clear(&self) {
        self.count.store(0, Ordering::Release);
    }

    /// The ranges, as address and length in bytes.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        let count = self.count.load(Ordering::Acquire) as usize;
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        self.ranges.iter().take(count).map(move |(address, bytes)| (load(address), load(bytes)))
    }
}

struct All(*const Scratch);

// SAFETY: only its own processor's handler uses a part, except for atomics.
unsafe impl Send for All {}
// SAFETY: as above.
unsafe impl Sync for All {}

static ALL: OnceLock<All> = OnceLock::new();

/// Maps the parts of all processors. They use no memory until they are used.
pub fn prepare(process: &Process) -> Result<(), Error> {
    let bytes = size_of::<Scratch>() * MOST_CPUS;
    if ALL.get().is_none() {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping that exists as long as the process. Zeros are valid values of all fields of a part.
        let at =
            unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags) };
        let at = at.map_err(Error::system("mapping staging buffers"))?;
        let _ = ALL.set(All(at.cast()));
    }
    let at = ALL.get().map_or(0, |all| all.0 as u64);
    process.add_windows(at, bytes as u64).map_err(unavailable)
}

/// The part of a processor.
pub fn of(cpu: u32) -> Option<&'static Scratch> {
    let all = ALL.get()?;
    // SAFETY: the mapping has this many parts, and is never unmapped.
    ((cpu as usize) < MOST_CPUS).then(|| unsafe { &*all.0.add(cpu as usize) })
}
