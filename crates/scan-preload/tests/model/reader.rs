//! A process that reads with one or several threads, in every way, and checks the result.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::blocks::{BLOCK, Blocks};

pub const FILE: &str = "BEDPLATE_MODEL_FILE";
pub const MODEL: &str = "BEDPLATE_MODEL";
pub const TIME: &str = "BEDPLATE_MODEL_MILLISECONDS";
pub const SEED: &str = "BEDPLATE_MODEL_SEED";

/// Runs the task in its environment.
pub fn run() {
    let value = |name: &str| std::env::var(name).unwrap();
    let (path, model) = (PathBuf::from(value(FILE)), PathBuf::from(value(MODEL)));
    let end = Instant::now() + Duration::from_millis(value(TIME).parse().unwrap());
    let seed: u64 = value(SEED).parse().unwrap();
    let blocks = Blocks::open(&model);
    std::thread::scope(|scope| {
        for thread in 0..1 + seed % 3 {
            let (path, blocks) = (&path, &blocks);
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(seed * 100 + thread);
                while Instant::now() < end {
                    pass(path, blocks, &mut random, end);
                }
            });
        }
    });
}

/// Reads a part of the file in one way.
fn pass(path: &Path, blocks: &Blocks, random: &mut SmallRng, end: Instant) {
    let file = File::open(path).unwrap();
    let size = blocks.count() * BLOCK;
    let mut at = random.random_range(0..size / 2);
    let until = size.min(at + random.random_range(0..size));
    let largest = [1000, 8 << 10, 100_000, 1 << 20, 5 << 20][random.random_range(0..5)];
    let by_position = random.random_range(0..2) == 0;
    let is_fixed = random.random_range(0..2) == 0;
    let mut buffer = vec![0; largest];
    if by_position {
        // SAFETY: the system call accesses no memory.
        assert_eq!(unsafe { libc::lseek(file.as_raw_fd(), at as i64, libc::SEEK_SET) }, at as i64);
    }
    while at < until && Instant::now() < end {
        let len = if is_fixed { largest } else { random.random_range(1..=largest) };
        let len = len.min((size - at) as usize);
        let first = at / BLOCK;
        let before = blocks.before(first..(at + len as u64).div_ceil(BLOCK));
        let read = match by_position {
            true => std::io::Read::read(&mut { &file }, &mut buffer[..len]),
            false => file.read_at(&mut buffer[..len], at),
        };
        let read = read.unwrap();
        if read < len {
            assert!(blocks.may_be_short(&before), "{read} of {len} bytes at {at}");
            if by_position && read == 0 {
                return;
            }
        }
        check(blocks, &before, first, at, &buffer[..read]);
        at += read.max(usize::from(!by_position)) as u64;
    }
}

/// Checks the whole words of a read at an offset.
fn check(blocks: &Blocks, before: &super::blocks::Before, first: u64, at: u64, bytes: &[u8]) {
    let skipped = (at.next_multiple_of(8) - at) as usize;
    let Some(bytes) = bytes.get(skipped..) else { return };
    for (word, offset) in bytes.chunks_exact(8).zip((at.next_multiple_of(8)..).step_by(8)) {
        let seen = u64::from_le_bytes(word.try_into().unwrap());
        if let Some(wrong) = blocks.wrong(before, first, offset, seen) {
            panic!("{wrong}; read {} bytes at {at}", bytes.len());
        }
    }
}
