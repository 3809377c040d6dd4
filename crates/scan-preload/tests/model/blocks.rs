//! The generations of each block that a read may return.
//!
//! A block is written by one thread at a time. Its words have their offset and their generation (`common::word`), and each write
//! of it has the next generation. Every [`ZEROS`]th generation is zeros.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::word;

/// Bytes of a block.
pub const BLOCK: u64 = 4096;

/// Generations that are multiples of this are zeros, except the first generation, 0.
pub const ZEROS: u64 = 16;

/// The last generation, because a word has 16 bits for it.
pub const LAST: u64 = 0xffff;

/// The model, which processes share. For each block, it has the generation of the latest write that has begun, and of the latest
/// write that has ended.
pub struct Blocks {
    words: &'static [AtomicU64],
}

/// Number of words before those of the blocks. They count the cuts of the file, and the times that it was whole again.
const HEAD: usize = 2;

impl Blocks {
    pub fn create(path: &Path, blocks: u64) -> Self {
        let file = File::create(path).unwrap();
        file.set_len((HEAD as u64 + 2 * blocks) * 8).unwrap();
        Self::open(path)
    }

    pub fn open(path: &Path) -> Self {
        let file = File::options().read(true).write(true).open(path).unwrap();
        let bytes = file.metadata().unwrap().len() as usize;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, which is never unmapped.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED);
        // SAFETY: the mapping has this number of words, which are only used as atomics.
        Self { words: unsafe { std::slice::from_raw_parts(at.cast(), bytes / 8) } }
    }

    pub fn count(&self) -> u64 {
        ((self.words.len() - HEAD) / 2) as u64
    }

    fn begun(&self, block: u64) -> &AtomicU64 {
        &self.words[HEAD + 2 * block as usize]
    }

    fn ended(&self, block: u64) -> &AtomicU64 {
        &self.words[HEAD + 2 * block as usize + 1]
    }

    /// Begins a write of a block, of zeros or of words, and returns its generation. `None`: there are no more.
    pub fn begin(&self, block: u64, zeros: bool) -> Option<u64> {
        let latest = self.begun(block).load(Ordering::Relaxed);
        let next = match zeros {
            true => (latest / ZEROS + 1) * ZEROS,
            false if (latest + 1).is_multiple_of(ZEROS) => latest + 2,
            false => latest + 1,
        };
        (next <= LAST).then(|| {
            self.begun(block).store(next, Ordering::SeqCst);
            next
        })
    }

    /// Records that the write has ended.
    pub fn end(&self, block: u64) {
        self.ended(block).store(self.begun(block).load(Ordering::Relaxed), Ordering::SeqCst);
    }

    /// Records that the file is cut from now on, or is whole again.
    pub fn cut(&self, is_whole: bool) {
        self.words[usize::from(is_whole)].fetch_add(1, Ordering::SeqCst);
    }

    /// The state before a read of some blocks.
    pub fn before(&self, blocks: std::ops::Range<u64>) -> Before {
        let whole = self.words[1].load(Ordering::SeqCst);
        Before { whole, ended: blocks.map(|block| self.ended(block).load(Ordering::SeqCst)).collect() }
    }

    /// Whether a read that began in a state may be short.
    pub fn may_be_short(&self, before: &Before) -> bool {
        self.words[0].load(Ordering::SeqCst) > before.whole
    }

    /// The error in a whole word that a read returned, if there is one. The read began in a state at a block.
    pub fn wrong(&self, before: &Before, first: u64, offset: u64, seen: u64) -> Option<String> {
        let block = offset / BLOCK;
        let from = before.ended[(block - first) as usize];
        let to = self.begun(block).load(Ordering::SeqCst);
        let generation = seen >> 48;
        let is_zeros = seen == 0 && to / ZEROS > 0 && to / ZEROS * ZEROS >= from;
        let is_words = seen == word(offset, generation) && (from..=to).contains(&generation);
        (!is_zeros && !is_words).then(|| {
            format!("{seen:#018x} at {offset}, which is generation {generation}, instead of {from} to {to}")
        })
    }
}

/// The knowledge of a reader before it reads.
pub struct Before {
    whole: u64,
    ended: Vec<u64>,
}
