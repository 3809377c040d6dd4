//! A checkpoint file that is updated with the changed pages only.
//!
//! Threads move amounts between the words of an array. Each checkpoint is a snapshot. The first one is written completely. Each
//! later one overwrites the parts that changed since the previous one. The file is then the array as it was at the snapshot. The
//! example verifies this: the words' sum is zero, and the file equals the snapshot.
//!
//! A real database writes to a journal or to a second file first, because a crash in the middle leaves the file between two
//! checkpoints.
//!
//! `cargo run --release -p bedplate-snapshot --example incremental -- --mib 256 --checkpoints 5`

use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bedplate_snapshot::{Bookmark, Memory, PAGE, Snapshot};
use clap::Parser;

/// Writes checkpoints of an array that threads update.
#[derive(Parser)]
struct Options {
    /// The array's size in MiB.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..1 << 24))]
    mib: u32,
    /// Number of checkpoints.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    checkpoints: u32,
    /// The time between two checkpoints in milliseconds.
    #[arg(long, default_value_t = 200)]
    every_ms: u64,
    /// The part of the array, in percent, that the threads write to.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=100))]
    percent: u64,
    /// The checkpoint file. Default: a temporary one.
    #[arg(long)]
    file: Option<PathBuf>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let memory = Memory::builder((options.mib as usize) << 20).track_changes(true).build()?;
    let file = match &options.file {
        Some(path) => File::options().read(true).write(true).create(true).truncate(true).open(path)?,
        None => tempfile::tempfile()?,
    };
    // Memory that a machine touches for the first time is slow.
    memory.words().iter().step_by(PAGE / 8).for_each(|word| word.store(0, Ordering::Relaxed));
    println!("checkpoint   MiB written   of all   milliseconds   pause us");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| update(&memory, &over, options.percent));
        let result = checkpoints(&memory, &file, &options);
        over.store(true, Ordering::Relaxed);
        result
    })
}

/// Moves amounts between words of a part of the array.
fn update(memory: &Memory, over: &AtomicBool, percent: u64) {
    let words = memory.words();
    let part = (words.len() as u64 * percent / 100).max(1);
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 16) % part
    };
    while !over.load(Ordering::Relaxed) {
        words[next() as usize].fetch_sub(1, Ordering::Relaxed);
        words[next() as usize].fetch_add(1, Ordering::Relaxed);
    }
}

fn checkpoints(memory: &Memory, file: &File, options: &Options) -> Result<(), Box<dyn Error>> {
    let mut latest = None;
    for number in 1..=options.checkpoints {
        std::thread::sleep(Duration::from_millis(options.every_ms));
        let begin = Instant::now();
        let snapshot = memory.snapshot()?;
        let written = write(&snapshot, file, latest.as_ref())?;
        match snapshot.check() {
            Ok(()) => {}
            // The file may have wrong pages now. All of them changed since the previous checkpoint. The next one is compared with
            // the same checkpoint, so it writes them again.
            Err(bedplate_snapshot::Error::Incomplete) => {
                println!("{number:>10} was given up for lack of memory");
                continue;
            }
            Err(error) => return Err(error.into()),
        }
        let took = begin.elapsed();
        verify(&snapshot, file)?;
        latest = Some(snapshot.bookmark()?);
        println!(
            "{number:>10} {:>13.1} {:>6.1} % {:>14.1} {:>10.0}",
            written as f64 / f64::from(1 << 20),
            written as f64 / memory.len() as f64 * 100.0,
            took.as_secs_f64() * 1e3,
            snapshot.pause().as_secs_f64() * 1e6,
        );
    }
    Ok(())
}

/// Updates the file from the previous checkpoint, if there is one. Returns the number of bytes written.
fn write(snapshot: &Snapshot, file: &File, latest: Option<&Bookmark>) -> Result<usize, Box<dyn Error>> {
    let Some(latest) = latest else {
        file.write_all_at(snapshot.bytes(), 0)?;
        return Ok(snapshot.bytes().len());
    };
    let mut written = 0;
    for changed in snapshot.changed_since(latest)? {
        written += changed.len();
        file.write_all_at(&snapshot.bytes()[changed.clone()], changed.start as u64)?;
    }
    Ok(written)
}

/// Compares the file with the snapshot, and checks the sum.
fn verify(snapshot: &Snapshot, file: &File) -> Result<(), Box<dyn Error>> {
    let mut sum = 0u64;
    let mut read = vec![0; 1 << 20];
    for (number, part) in snapshot.bytes().chunks(1 << 20).enumerate() {
        let read = &mut read[..part.len()];
        file.read_exact_at(read, (number as u64) << 20)?;
        if *read != *part {
            return Err(format!("MiB {number} of the file is not what the snapshot has").into());
        }
        let words = read.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
        sum = words.fold(sum, u64::wrapping_add);
    }
    // The thread may have been half way through an update.
    if (sum as i64).unsigned_abs() > 1 {
        return Err(format!("the sum of the file is {}, not zero", sum as i64).into());
    }
    Ok(())
}
