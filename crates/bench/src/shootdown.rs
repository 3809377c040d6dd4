//! `pool-shootdown`: the loss of a thread whose pages are all in memory, while another thread replaces pages (paper
//! 7.4, Figure 19).
//!
//! The neighbour reads a word of one page after the other, skewed, from a pool that has all of them. The other thread walks
//! through a pool that has room for an eighth of its pages. The pool's storage keeps no data, so the benchmark measures
//! unmapping and not a disk. The thread unmaps pages one by one (`madvise`), in batches (`batched`), or not at all (`array`
//! and `none`, which reuse frames of the translation array or of a hash table). These two show the costs for neighbours
//! beyond shootdowns, from caches and memory that both use.
//!
//! A faster side replaces more pages, so rows have the rates of both threads, and the neighbour's loss per replaced
//! page.
//!
//! The neighbour's rate is per second of its own CPU time, because two busy threads may have less than two processors
//! on a virtual machine. The interrupts of a thread are in its CPU time.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bedplate_bufpool::{Choice, Kind, PAGE, PageId, Pool};

use crate::cpu::thread_cpu_ns;
use crate::keys::{Distribution, KeyStream};
use crate::nothing::Nothing;
use crate::sample::{interleave, samples};
use crate::{Benchmark, Error, Fields, Options, Report, Result, Sink, Step};

pub(crate) const BENCH: Benchmark = Benchmark {
    name: "pool-shootdown",
    about: "what a thread in memory loses while another one replaces pages (paper 7.4, Figure 19)",
    run,
};

/// Pages of the neighbour: more than a first-level TLB has entries, fewer than the second level.
const HOT: usize = 1024;
/// Pages in memory of the pool that replaces them, and number of its pages.
const FRAMES: usize = 4096;
const PAGES: u64 = 8 * FRAMES as u64;
/// Reads between two readings of the clock.
const STRIDE: usize = 4096;

/// The work of the other thread.
struct Side {
    name: &'static str,
    /// The pool whose pages it replaces, and the first of them; `None` if it does nothing.
    cold: Option<(Pool, PageId)>,
}

struct Round {
    reads_per_cpu_s: f64,
    replaced_per_s: f64,
    calls_per_s: f64,
}

/// A pool, and the first of its pages, which have consecutive numbers.
fn pool(kind: Kind, frames: usize, pages: u64) -> Result<(Pool, PageId)> {
    let capacity = (pages + 1024) * PAGE as u64;
    let pool =
        Pool::builder("").storage(Box::new(Nothing::default())).memory(frames * PAGE).capacity(capacity);
    // The thread that replaces pages evicts by itself.
    let pool = pool.engine(Choice::Only(kind)).provider_threads(0).open()?;
    let mut first = PageId::NONE;
    for number in 0..pages {
        let page = pool.allocate()?.page();
        if number == 0 {
            first = page;
        }
    }
    pool.sync()?;
    Ok((pool, first))
}

fn run(options: &Options, sink: Sink<'_>) -> Result<Report> {
    let (rounds, time) = options.pick((60, Duration::from_millis(60)), (200, Duration::from_millis(200)));
    let config = Fields::new()
        .with("mode", options.mode.name())
        .with("rounds", rounds)
        .with("window_ms", time.as_millis() as u64)
        .with("hot_pages", HOT)
        .with("frames", FRAMES)
        .with("pages", PAGES)
        .with("batch", FRAMES / 32)
        .with("threads", "one reads pages in memory, one replaces pages of another pool");
    let mut report = Report::new(BENCH.name, config);
    let hot = pool(Kind::Stock, 2 * HOT, HOT as u64)?;
    let side = |name, kind| -> Result<Side> { Ok(Side { name, cold: Some(pool(kind, FRAMES, PAGES)?) }) };
    let sides = [
        Side { name: "alone", cold: None },
        side("madvise", Kind::Vmcache)?,
        side("batched", Kind::Stock)?,
        side("array", Kind::Array)?,
        side("none", Kind::Hashtable)?,
    ];
    let total = (rounds + 1) * sides.len();
    let mut done = 0;
    let mut results = interleave(rounds + 1, sides.len(), |index, round| {
        sink(Step { done, total, label: sides[index].name });
        done += 1;
        measure(&hot, &sides[index], time, round as u64)
    })?;
    // The first round touches memory for the first time.
    results.iter_mut().for_each(|rounds| _ = rounds.remove(0));
    let rates = |index: usize| samples(&results[index], |round| round.reads_per_cpu_s);
    for (index, (side, rounds)) in sides.iter().zip(&results).enumerate() {
        let median = |quantity: fn(&Round) -> f64| samples(rounds, quantity).median();
        report.rows.push(
            Fields::new()
                .with("side", side.name)
                .with("neighbour_reads_per_cpu_s", rates(index).median())
                .with("neighbour_spread", rates(index).spread())
                .with("replaced_per_s", median(|round| round.replaced_per_s))
                .with("release_calls_per_s", median(|round| round.calls_per_s)),
        );
        if side.cold.is_some() {
            // The neighbour's loss in a second, over the pages that are replaced in a second.
            let lost = 1e9 * (1.0 - rates(index).over(&rates(0)));
            let replaced = median(|round| round.replaced_per_s);
            let row = report.rows.last_mut().expect("it was just added");
            row.set("neighbour_loses_ns_per_page", lost / replaced);
        }
    }
    for (index, side) in sides.iter().enumerate().skip(1) {
        report.ratio(&format!("neighbour_rate_{}", side.name), rates(index).over(&rates(0)));
    }
    Ok(report)
}

/// Runs both threads for a time.
fn measure(hot: &(Pool, PageId), side: &Side, time: Duration, seed: u64) -> Result<Round> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let replacing = side.cold.as_ref().map(|cold| scope.spawn(|| replace(cold, &stop)));
        let neighbour = scope.spawn(|| read(hot, time, seed));
        let reads_per_cpu_s = neighbour.join().map_err(|_| Error::engine("a reader panicked".into()));
        stop.store(true, Ordering::Relaxed);
        let replaced = replacing.map(|thread| thread.join());
        let (replaced_per_s, calls_per_s) = match replaced {
            None => (0.0, 0.0),
            Some(result) => result.map_err(|_| Error::engine("a replacing thread panicked".into()))??,
        };
        Ok(Round { reads_per_cpu_s: reads_per_cpu_s??, replaced_per_s, calls_per_s })
    })
}

/// Reads of pages in memory per second of this thread's CPU time.
fn read((pool, first): &(Pool, PageId), time: Duration, seed: u64) -> Result<f64> {
    let mut keys = KeyStream::new(Distribution::Zipf, HOT as u64, seed);
    let order: Vec<PageId> = (0..STRIDE).map(|_| PageId(first.0 + keys.next_key())).collect();
    let (begin, cpu) = (Instant::now(), thread_cpu_ns());
    let mut reads = 0;
    loop {
        for page in &order {
            black_box(pool.optimistic_read(*page, |page| page.read::<8>(64))?);
        }
        reads += order.len();
        if begin.elapsed() >= time {
            return Ok(reads as f64 / (thread_cpu_ns() - cpu) as f64 * 1e9);
        }
    }
}

/// Walks through all pages until it is to stop. Returns the pages replaced per second, and the system calls for that
/// per second.
fn replace((pool, first): &(Pool, PageId), stop: &AtomicBool) -> Result<(f64, f64)> {
    let before = pool.statistics();
    let begin = Instant::now();
    let mut pages = (0..PAGES).cycle().map(|page| PageId(first.0 + page));
    while !stop.load(Ordering::Relaxed) {
        for page in pages.by_ref().take(64) {
            black_box(pool.optimistic_read(page, |page| page.read::<8>(64))?);
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    let after = pool.statistics();
    let per_second = |count: u64| count as f64 / seconds;
    Ok((per_second(after.evicted - before.evicted), per_second(after.release_calls - before.release_calls)))
}
