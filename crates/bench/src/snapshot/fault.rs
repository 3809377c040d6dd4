//! `snapshot-fault`: the first write to a page after a snapshot, by one thread and by several at once (paper 7.3, Figure 14).
//!
//! The threads write to pages of their own. The number of writes is the same for any number of threads. The snapshot's
//! task waits meanwhile, and sums up its words afterwards: the sum must be that of the memory before the snapshot.
//!
//! The `ring0` engine takes part where there is ring 0, in a process of its own ([`super::htap`] says why).

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic;
use std::time::Instant;

use bedplate_snapshot::{Memory, PAGE};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::index;
use serde::{Deserialize, Serialize};

use super::held::Held;
use super::sides::{FORK, REMAP, REMAP_SMALL, RING0, Side, UFFD, UFFD_CHILD, wait_for_end, word_of, write};
use crate::latency::Latencies;
use crate::pool::apart::{Apart, Serve};
use crate::sample::{interleave, samples};
use crate::{Benchmark, Error, Fields, Options, Report, Result, Sink, Step};

pub(crate) const BENCH: Benchmark = Benchmark {
    name: "snapshot-fault",
    about: "the first write to a page after a snapshot, by one thread and by several at once (paper 7.3, Figure 14)",
    run,
};

/// Sides in this process. [`RING0`] comes after them.
const SIDES: [Side; 5] = [FORK, UFFD, UFFD_CHILD, REMAP, REMAP_SMALL];
/// Sides whose ratios to the first one are reported, and the prefixes of their names.
const RATIOS: [(Side, &str); 4] =
    [(UFFD, "uffd"), (UFFD_CHILD, "uffd_child"), (REMAP, "remap"), (RING0, "ring0")];

const THREADS_QUICK: &[usize] = &[1, 2, 4];
const THREADS_FULL: &[usize] = &[1, 2, 4, 8];

/// The order in which pages are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Order {
    Scattered,
    Ascending,
}

impl Order {
    fn name(self) -> &'static str {
        match self {
            Self::Scattered => "scattered",
            Self::Ascending => "ascending",
        }
    }

    /// The pages that each thread writes, `count` in all: no page twice. In ascending order, each thread walks through a
    /// part of its own.
    fn pages(self, pages: usize, count: usize, threads: usize, seed: u64) -> Vec<Vec<usize>> {
        let each = count / threads;
        match self {
            Self::Scattered => {
                let chosen =
                    index::sample(&mut SmallRng::seed_from_u64(seed), pages, each * threads).into_vec();
                chosen.chunks(each).map(<[usize]>::to_vec).collect()
            }
            Self::Ascending => (0..threads)
                .map(|thread| thread * pages / threads)
                .map(|at| (at..at + each).collect())
                .collect(),
        }
    }
}

/// A measurement that a side is asked for.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Question {
    order: Order,
    threads: usize,
    /// Writes of all threads.
    writes: usize,
    round: u64,
}

#[derive(Serialize, Deserialize)]
struct Round {
    mean_ns: f64,
    faults_per_s: f64,
    latencies: Latencies,
}

/// The process of the side in ring 0, or the reason why there is none.
fn start_ring0(bytes: usize) -> Result<std::result::Result<Apart<Question, Round>, String>> {
    Apart::start(RING0.name, None, move || {
        let memory = RING0.memory(bytes)?;
        let serve: Serve<Question, Round> = Box::new(move |question| measure(&memory, question));
        Ok(serve)
    })
}

/// The extent of the measurement.
struct Scale {
    bytes: usize,
    rounds: usize,
    /// Writes of all threads in a round.
    writes: usize,
}

const QUICK: Scale = Scale { bytes: 256 << 20, rounds: 5, writes: 4000 };
const FULL: Scale = Scale { rounds: 15, writes: 20_000, ..QUICK };

fn run(options: &Options, sink: Sink<'_>) -> Result<Report> {
    run_at(options.pick(QUICK, FULL), options, sink)
}

fn run_at(Scale { bytes, rounds, writes }: Scale, options: &Options, sink: Sink<'_>) -> Result<Report> {
    let threads = options.threads(options.pick(THREADS_QUICK, THREADS_FULL))?;
    // The side in ring 0 starts first, while this process has one thread.
    let ring0 = start_ring0(bytes)?;
    let config = Fields::new()
        .with("mode", options.mode.name())
        .with("ring0", ring0.as_ref().err().map_or("as a side", String::as_str))
        .with("memory_bytes", bytes)
        .with("rounds", rounds)
        .with("writes", writes)
        .with("threads", "so many write at once, each to pages of its own; the snapshot's task waits")
        .with("checked", "the sum of every snapshot, and every page that was written");
    let mut report = Report::new(BENCH.name, config);
    let memories = SIDES.iter().map(|side| side.memory(bytes)).collect::<Result<Vec<_>>>()?;
    let mut ring0 = ring0.ok();
    let sides: Vec<Side> = SIDES.into_iter().chain(ring0.as_ref().map(|_| RING0)).collect();
    let orders = [Order::Scattered, Order::Ascending];
    let cells: Vec<_> =
        threads.into_iter().flat_map(|threads| orders.map(|order| (threads, order))).collect();
    let total = cells.len();
    for (done, (threads, order)) in cells.into_iter().enumerate() {
        sink(Step { done, total, label: &format!("{} pages, {threads} threads", order.name()) });
        let results = interleave(rounds, sides.len(), |side, round| {
            let question = Question { order, threads, writes, round: round as u64 + 1 };
            match (memories.get(side), &mut ring0) {
                (Some(memory), _) => sides[side].alone(memory, || measure(memory, question)),
                (None, Some(ring0)) => ring0.ask(&question),
                (None, None) => Err(Error::engine(format!("{} has no memory", sides[side].name))),
            }
        })?;
        for (side, rounds) in sides.iter().zip(&results) {
            let mut all = Latencies::default();
            rounds.iter().for_each(|round| all.merge(&round.latencies));
            let mut row =
                Fields::new().with("order", order.name()).with("threads", threads).with("side", side.name);
            row.set("write_ns", samples(rounds, |round| round.mean_ns).median());
            all.fill(&mut row);
            row.set("faults_per_s", samples(rounds, |round| round.faults_per_s).median());
            report.rows.push(row);
        }
        let means = |side: usize| samples(&results[side], |round| round.mean_ns);
        let p99 = |side: usize| samples(&results[side], |round| round.latencies.percentile(99.0) as f64);
        let suffix = suffix(order, threads);
        for (side, name) in RATIOS {
            if let Some(side) = sides.iter().position(|of| *of == side) {
                report.ratio(&format!("{name}_fault_over_fork_fault{suffix}"), means(side).over(&means(0)));
                report
                    .ratio(&format!("{name}_fault_p99_over_fork_fault_p99{suffix}"), p99(side).over(&p99(0)));
            }
        }
    }
    Ok(report)
}

/// The suffix of the names of a cell's ratios. Ratios of one thread that writes pages in random order have none.
fn suffix(order: Order, threads: usize) -> String {
    let order = if order == Order::Scattered { "" } else { "_ascending" };
    if threads == 1 { order.to_owned() } else { format!("{order}_{threads}_threads") }
}

/// The measurements of one writing thread.
struct Written {
    latencies: Latencies,
    begin: Instant,
    end: Instant,
}

fn measure(memory: &Memory, question: Question) -> Result<Round> {
    let Question { order, threads, writes, round } = question;
    memory.settle();
    let lists = order.pages(memory.len() / PAGE, writes, threads, round);
    // No page has this value yet.
    let value = round.wrapping_mul(2) + u64::from(order == Order::Ascending) + 1000 * threads as u64;
    let held = Held::take(memory, |task| Ok(memory.spawn(task)?))?;
    let ready = Barrier::new(threads);
    let written = std::thread::scope(|scope| {
        let threads: Vec<_> = lists
            .iter()
            .map(|pages| {
                let ready = &ready;
                scope.spawn(move || {
                    // The first access of a thread may take it to ring 0.
                    black_box(memory.words()[0].load(atomic::Ordering::Relaxed));
                    ready.wait();
                    write_all(memory, pages, value)
                })
            })
            .collect();
        let panicked = |_| Error::engine("a thread that writes panicked".to_owned());
        threads.into_iter().map(|thread| thread.join().map_err(panicked)).collect::<Result<Vec<_>>>()
    })?;
    held.end()?;
    wait_for_end(memory);
    if let Some(page) = lists.iter().flatten().find(|page| word_of(memory, **page) != value) {
        return Err(Error::engine(format!("what was written to page {page} after a snapshot is lost")));
    }
    Ok(round_of(&written))
}

/// Writes to each page, and times each write.
fn write_all(memory: &Memory, pages: &[usize], value: u64) -> Written {
    let mut latencies = Latencies::default();
    let begin = Instant::now();
    let mut end = begin;
    for &page in pages {
        write(memory, page, value);
        let now = Instant::now();
        latencies.record((now - end).as_nanos() as u64);
        end = now;
    }
    Written { latencies, begin, end }
}

/// The mean over all writes, and the rate of all threads from the first one's beginning to the last one's end.
fn round_of(written: &[Written]) -> Round {
    let mut latencies = Latencies::default();
    written.iter().for_each(|written| latencies.merge(&written.latencies));
    let writes = latencies.count() as f64;
    let total_ns: f64 = written.iter().map(|written| (written.end - written.begin).as_nanos() as f64).sum();
    let begin = written.iter().map(|written| written.begin).min();
    let end = written.iter().map(|written| written.end).max();
    let wall_s = begin.zip(end).map_or(f64::NAN, |(begin, end)| (end - begin).as_secs_f64());
    Round { mean_ns: total_ns / writes, faults_per_s: writes / wall_s, latencies }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;

    #[test]
    fn threads_share_the_writes_and_no_page() {
        for order in [Order::Scattered, Order::Ascending] {
            for threads in [1, 2, 4, 8] {
                let lists = order.pages(1000, 800, threads, 3);
                assert_eq!(lists.len(), threads);
                assert!(lists.iter().all(|list| list.len() == 800 / threads));
                let all: BTreeSet<_> = lists.iter().flatten().collect();
                assert_eq!(all.len(), 800, "{order:?} {threads}");
                assert!(**all.last().unwrap() < 1000);
                if order == Order::Ascending {
                    assert!(lists.iter().all(|list| list.is_sorted()));
                }
            }
        }
    }

    #[test]
    fn names_of_one_thread_s_ratios_stay() {
        assert_eq!(suffix(Order::Scattered, 1), "");
        assert_eq!(suffix(Order::Ascending, 1), "_ascending");
        assert_eq!(suffix(Order::Ascending, 4), "_ascending_4_threads");
    }

    #[test]
    fn a_rate_is_of_all_threads_and_a_mean_of_each_write() {
        let begin = Instant::now();
        let of = |from_ms: u64, to_ms: u64| {
            let mut latencies = Latencies::default();
            (0..5).for_each(|_| latencies.record((to_ms - from_ms) * 200_000));
            let at = |ms| begin + Duration::from_millis(ms);
            Written { latencies, begin: at(from_ms), end: at(to_ms) }
        };
        let round = round_of(&[of(0, 10), of(5, 20)]);
        assert_eq!(round.mean_ns, 2_500_000.0);
        assert!((round.faults_per_s - 500.0).abs() < 1e-6, "{}", round.faults_per_s);
        assert_eq!(round.latencies.count(), 10);
    }

    #[test]
    fn every_number_of_threads_has_a_row_for_each_side_and_order() {
        let scale = || Scale { bytes: 4 << 20, rounds: 1, writes: 160 };
        let mut options = Options::new(crate::Mode::Full);
        let report = match run_at(scale(), &options, &mut |_| {}) {
            Err(Error::Snapshot(error @ bedplate_snapshot::Error::Unavailable { .. })) => {
                return println!("skipped: {error}");
            }
            report => report.unwrap(),
        };
        for threads in THREADS_FULL {
            for order in [Order::Scattered, Order::Ascending] {
                let of_cell = |row: &&Fields| {
                    row.number("threads") == Some(*threads as f64)
                        && row.get("order").is_some_and(|of| of == order.name())
                };
                let rows: Vec<_> = report.rows.iter().filter(of_cell).collect();
                assert!(rows.len() >= SIDES.len(), "{threads} {order:?}");
                for key in ["write_ns", "p50_ns", "p99_ns", "faults_per_s"] {
                    assert!(rows.iter().all(|row| row.number(key).is_some_and(|value| value > 0.0)), "{key}");
                }
                let ratio = format!("remap_fault_over_fork_fault{}", suffix(order, *threads));
                assert!(report.ratios[&ratio] > 0.0, "{ratio}");
            }
        }
        options.writers = Some(3);
        let report = run_at(scale(), &options, &mut |_| {}).unwrap();
        assert!(report.rows.iter().all(|row| row.number("threads") == Some(3.0)));
    }

    #[test]
    fn several_threads_are_measured_in_each_order() {
        let memory = FORK.memory(4 << 20).unwrap();
        for (round, order) in [Order::Scattered, Order::Ascending].into_iter().enumerate() {
            let question = Question { order, threads: 3, writes: 300, round: round as u64 };
            let seen = FORK.alone(&memory, || measure(&memory, question)).unwrap();
            assert_eq!(seen.latencies.count(), 300);
            assert!(seen.mean_ns > 0.0 && seen.faults_per_s > 0.0);
        }
    }
}
