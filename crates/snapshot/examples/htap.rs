//! Transactions and analytics on the same memory (paper 7.3): threads move amounts between the words of an array, and every
//! snapshot of it is summed up while they continue. Whatever they did before the snapshot, the sum is zero.
//!
//! `cargo run --release -p bedplate-snapshot --example htap -- --engine uffd --mib 1024 --every-ms 20`; with `--engine
//! ring0` where there is ring 0, or by `bedplate vm run -- target/release/examples/htap --engine ring0`.

use std::collections::VecDeque;
use std::error::Error as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bedplate_snapshot::{Choice, Error, Kind, Memory, PAGE, Task, View};
use clap::Parser;

/// Updates an array by transactions and scans every snapshot of it.
#[derive(Parser)]
struct Options {
    /// The engine: remap, uffd, fork or ring0. Default: the best one that works here.
    #[arg(long)]
    engine: Option<Kind>,
    /// The array's size in MiB (the paper's: 4096).
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..1 << 24))]
    mib: u32,
    /// The time between two snapshots in milliseconds; 0: no pause between snapshots.
    #[arg(long, default_value_t = 20)]
    every_ms: u64,
    /// Threads that update.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    threads: u16,
    /// Maximum number of concurrent scans. If they take longer than the time between snapshots, the next snapshot waits.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=8))]
    scans: u16,
    /// Duration of the run.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Let the kernel back the array with huge pages, if it can.
    #[arg(long)]
    huge_pages: bool,
    /// Scan in a child process, at the array's own address (uffd).
    #[arg(long)]
    in_child: bool,
}

/// The counts since the previous line.
#[derive(Default)]
struct Seen {
    snapshots: u32,
    scans: u32,
    /// Time from a snapshot to the end of its scan, which is the age of a result.
    ages: Duration,
    oldest: Duration,
    pauses: Duration,
    longest: Duration,
}

fn main() -> std::process::ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("htap: {error}");
            let mut cause = error.source();
            while let Some(error) = cause {
                eprintln!("  {error}");
                cause = error.source();
            }
            std::process::ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Error> {
    let builder = Memory::builder((options.mib as usize) << 20)
        .engine(options.engine.map_or(Choice::Auto, Choice::Only))
        .huge_pages(options.huge_pages)
        .in_child(options.in_child)
        .snapshots_at_once(options.scans.into());
    let memory = builder.build()?;
    // Memory that a machine touches for the first time is slow.
    memory.words().iter().step_by(PAGE / 8).for_each(|word| word.store(0, Ordering::Relaxed));
    memory.settle();
    println!(
        "engine {}, {} MiB, {} threads that update, a snapshot every {} ms",
        memory.kind(),
        options.mib,
        options.threads,
        options.every_ms
    );
    println!("second   updates/s   scans/s   freshness ms: mean, worst   pause us: mean, worst");
    let (over, updates) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for seed in 1..=u64::from(options.threads) {
            let (memory, over, updates) = (&memory, &over, &updates);
            scope.spawn(move || update(memory, over, updates, seed));
        }
        let result = analyze(&memory, options, &updates);
        over.store(true, Ordering::Relaxed);
        result
    })
}

/// Repeatedly moves an amount from one word to another.
fn update(memory: &Memory, over: &AtomicBool, updates: &AtomicU64, seed: u64) {
    const BATCH: u64 = 256;
    let words = memory.words();
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 16) as usize % words.len()
    };
    while !over.load(Ordering::Relaxed) {
        for _ in 0..BATCH / 2 {
            words[next()].fetch_sub(1, Ordering::Relaxed);
            words[next()].fetch_add(1, Ordering::Relaxed);
        }
        updates.fetch_add(BATCH, Ordering::Relaxed);
    }
}

/// A scan's result: the sum, and the time from `taken` to the end of the scan.
fn scan(view: &View<'_>, taken: Instant) -> Vec<u8> {
    let sum = view.words().iter().fold(0u64, |sum, word| sum.wrapping_add(*word));
    let age = taken.elapsed().as_nanos() as u64;
    [sum, age].iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn analyze(memory: &Memory, options: &Options, updates: &AtomicU64) -> Result<(), Error> {
    let every = Duration::from_millis(options.every_ms);
    let mut running = VecDeque::new();
    for second in 1..=options.seconds {
        let (begin, before) = (Instant::now(), updates.load(Ordering::Relaxed));
        let mut seen = Seen::default();
        while begin.elapsed() < Duration::from_secs(1) {
            let taken = Instant::now();
            match memory.spawn(move |view| scan(view, taken)) {
                Ok(task) => {
                    seen.snapshots += 1;
                    seen.pauses += task.pause();
                    seen.longest = seen.longest.max(task.pause());
                    running.push_back(task);
                }
                // Children whose end has not been noticed yet.
                Err(Error::TooManySnapshots { .. }) => std::thread::sleep(Duration::from_millis(1)),
                Err(error) => return Err(error),
            }
            std::thread::sleep(every.saturating_sub(taken.elapsed()));
            while running.len() >= usize::from(options.scans)
                || running.front().is_some_and(Task::is_finished)
            {
                end_one(&mut running, options, &mut seen)?;
            }
        }
        let seconds = begin.elapsed().as_secs_f64();
        let updates = updates.load(Ordering::Relaxed) - before;
        println!(
            "{second:>6} {:>11.0} {:>9.1} {:>18.1} {:>8.1} {:>17.0} {:>8.0}",
            updates as f64 / seconds,
            f64::from(seen.scans) / seconds,
            (seen.ages / seen.scans.max(1)).as_secs_f64() * 1e3,
            seen.oldest.as_secs_f64() * 1e3,
            (seen.pauses / seen.snapshots.max(1)).as_secs_f64() * 1e6,
            seen.longest.as_secs_f64() * 1e6,
        );
    }
    let mut rest = Seen::default();
    while !running.is_empty() {
        end_one(&mut running, options, &mut rest)?;
    }
    Ok(())
}

/// Waits for the oldest scan's result, and checks it.
fn end_one(running: &mut VecDeque<Task>, options: &Options, seen: &mut Seen) -> Result<(), Error> {
    let Some(task) = running.pop_front() else { return Ok(()) };
    let bytes = task.join()?;
    let [sum, age] = [0, 8].map(|at| bytes[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word)));
    // Each thread may have been half way through an update.
    if (sum as i64).unsigned_abs() > u64::from(options.threads) {
        return Err(Error::Task(format!(
            "the sum of a snapshot is {}, not zero: it is incomplete",
            sum as i64
        )));
    }
    seen.scans += 1;
    seen.ages += Duration::from_nanos(age);
    seen.oldest = seen.oldest.max(Duration::from_nanos(age));
    Ok(())
}
