//! A thread that writes to its blocks in bursts, with pauses in which the file is served again.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, RwLock};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rustix::fs::{FallocateFlags, fallocate};

use super::blocks::{BLOCK, Blocks};
use crate::common::{SETTLING_TIME, word};

/// A way of writing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Write,
    /// Past the page cache.
    WriteDirect,
    /// Stores to a shared mapping.
    Store,
    /// A hole is punched.
    Punch,
    /// The file is cut, and extended to its length again.
    Cut,
}

/// Maximum number of blocks of a write.
const RUN: u64 = 8;

/// Bytes in memory with the alignment that a direct write needs.
#[repr(align(4096))]
struct Aligned([u8; (RUN * BLOCK) as usize]);

/// Blocks that are cut belong to all threads.
static CUT: RwLock<()> = RwLock::new(());

/// All threads pause at the same time, so that the file settles.
static PAUSE: Mutex<()> = Mutex::new(());

struct Writer<'a> {
    blocks: &'a Blocks,
    file: File,
    direct: File,
    mapping: &'static [AtomicU64],
}

/// Writes until the end, as thread `number` of `threads`. The blocks of a thread are every `threads`-th run.
pub fn write(
    path: &Path,
    blocks: &Blocks,
    kinds: &[Kind],
    (number, threads): (usize, usize),
    seed: u64,
    is_over: &AtomicBool,
) {
    let mut random = SmallRng::seed_from_u64(seed * 1000 + number as u64);
    let writer = Writer::open(path, blocks, kinds.contains(&Kind::Store));
    let runs = blocks.count() / RUN;
    while !is_over.load(Ordering::Relaxed) {
        {
            let _writing = PAUSE.lock().unwrap();
            for _ in 0..random.random_range(1..20) {
                let run = random.random_range(0..runs / threads as u64) * threads as u64 + number as u64;
                let len = random.random_range(1..=RUN);
                let first = run * RUN + random.random_range(0..=RUN - len);
                writer.write(kinds[random.random_range(0..kinds.len())], first, len);
            }
            if random.random_range(0..3) == 0 {
                writer.file.sync_data().unwrap();
            }
            std::thread::sleep(Duration::from_millis(random.random_range(0..1500)));
        }
        std::thread::yield_now();
    }
}

impl<'a> Writer<'a> {
    fn open(path: &Path, blocks: &'a Blocks, is_mapped: bool) -> Self {
        let file = File::options().read(true).write(true).open(path).unwrap();
        let direct = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
        let mut mapping: &[AtomicU64] = &[];
        if is_mapped {
            let (bytes, access) = ((blocks.count() * BLOCK) as usize, libc::PROT_READ | libc::PROT_WRITE);
            // SAFETY: a new mapping, which is never unmapped. The file is not cut where it is mapped.
            unsafe {
                let at =
                    libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, file.as_raw_fd(), 0);
                assert_ne!(at, libc::MAP_FAILED);
                mapping = std::slice::from_raw_parts(at.cast(), bytes / 8);
            }
        }
        Self { blocks, file, direct, mapping }
    }

    fn write(&self, kind: Kind, first: u64, len: u64) {
        if kind == Kind::Cut {
            return self.cut(first);
        }
        let _uncut = CUT.read().unwrap();
        let mut bytes = Box::new(Aligned([0; (RUN * BLOCK) as usize]));
        for block in first..first + len {
            let Some(generation) = self.blocks.begin(block, kind == Kind::Punch) else { return };
            for at in (0..BLOCK).step_by(8) {
                let to = ((block - first) * BLOCK + at) as usize;
                bytes.0[to..to + 8].copy_from_slice(&word(block * BLOCK + at, generation).to_le_bytes());
            }
        }
        let bytes = &bytes.0[..(len * BLOCK) as usize];
        let begin = Instant::now();
        match kind {
            Kind::Write => self.file.write_all_at(bytes, first * BLOCK).unwrap(),
            Kind::WriteDirect => self.direct.write_all_at(bytes, first * BLOCK).unwrap(),
            Kind::Store => {
                let words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
                let to = &self.mapping[(first * BLOCK / 8) as usize..];
                to.iter().zip(words).for_each(|(to, word)| to.store(word, Ordering::SeqCst));
            }
            Kind::Punch => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(&self.file, flags, first * BLOCK, len * BLOCK).unwrap();
            }
            Kind::Cut => unreachable!("it is done above"),
        }
        // A write past the page cache, or to a mapped page, may take as long as a file needs to settle. Then readers may miss its
        // end, and may see the old content until the next write.
        if begin.elapsed() < SETTLING_TIME / 2 {
            (first..first + len).for_each(|block| self.blocks.end(block));
        }
    }

    /// Cuts the file at a block, and extends it to its length again.
    fn cut(&self, first: u64) {
        let _cut = CUT.write().unwrap();
        let all = first..self.blocks.count();
        if !all.clone().all(|block| self.blocks.begin(block, true).is_some()) {
            return;
        }
        self.blocks.cut(false);
        self.file.set_len(first * BLOCK).unwrap();
        self.file.set_len(self.blocks.count() * BLOCK).unwrap();
        self.blocks.cut(true);
        all.for_each(|block| self.blocks.end(block));
    }
}
