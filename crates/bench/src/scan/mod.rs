//! Table scans (zicIO, paper 5.2 and 5.4): `bedplate-scan` and its alternatives.
//!
//! All sides read one file and consume a word of every cache line. Their sums are compared with the sum of the written
//! data. A side is a process of its own. Where there are control groups, its memory is limited, so that the file is
//! larger than its page cache. Before every pass, the file is dropped from the cache, like a table that was not read
//! lately.

mod calls;
mod compare;
mod data;
mod device;
mod loops;
mod meter;
pub(crate) mod pace;
mod pacer;
pub(crate) mod pool;
pub(crate) mod ranges;
pub(crate) mod seq;
pub(crate) mod share;
mod sides;
mod uring;

use std::path::PathBuf;

use rustix::fs::statfs;

use crate::{Benchmark, Error, Fields, Options, Report, Result};
use data::{Data, forget};

/// The directory of the file: the one that was chosen, or the current one if that is in memory.
pub(crate) fn directory(options: &Options) -> Result<PathBuf> {
    const TMPFS: i64 = 0x0102_1994;
    let in_memory = |path: &PathBuf| statfs(path).is_ok_and(|found| i64::from(found.f_type as u32) == TMPFS);
    let here = PathBuf::from(".");
    [&options.directory, &here].into_iter().find(|path| !in_memory(path)).cloned().ok_or(Error::Missing {
        what: "the file to scan would be in memory".to_owned(),
        hint: "choose a directory on a disk: --directory DIR",
    })
}

/// A report on passes over a file of `size` bytes.
fn report(bench: &Benchmark, options: &Options, rounds: usize, size: u64) -> Report {
    let config = Fields::new().with("mode", options.mode.name()).with("rounds", rounds);
    Report::new(bench.name, config.with("file_bytes", size))
}

/// Writes the file, and drops it from the page cache.
fn write(options: &Options, size: u64) -> Result<Data> {
    let data = Data::write(&directory(options)?, size)?;
    forget(&data.path())?;
    Ok(data)
}

/// The short form of a size.
fn short(bytes: u64) -> String {
    if bytes >= 1 << 20 { format!("{}m", bytes >> 20) } else { format!("{}k", bytes >> 10) }
}

const GIB: f64 = (1u64 << 30) as f64;
