//! `pool-scaling`: the number of times that threads wait for each other in the buffer pool and in the store, with 1 to
//! 16 threads.
//!
//! The workloads are those of YCSB. Counts of waits do not depend on the number of processors as rates do. A machine with two
//! processors shows the locks that would limit more processors. A rate with more threads than processors shows little. Every
//! side is a process of its own.
//!
//! A ratio is the number of waits per 1000 operations, the largest over the cells with the most threads.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::apart::{Apart, Serve};
use super::peers::Setting;
use super::side::{ARRAY, STORE, Side, VMCACHE, With};
use super::store::{Store, Waits};
use super::ycsb::run::{self, Plan, VALUE, Window};
use super::ycsb::trace::{Mix, Popularity};
use crate::sample::{interleave, samples};
use crate::{Benchmark, Error, Fields, Options, Report, Result, Sink, Step};

pub(crate) const BENCH: Benchmark = Benchmark {
    name: "pool-scaling",
    about: "waits for pages, locks and commits with 1 to 16 threads, in the buffer pool and the store",
    run,
};

const SIDES: [Side; 3] = [ARRAY, VMCACHE, STORE];
/// Updates of popular records meet at pages, reads of all records need frames, and inserts need pages.
const CELLS: [(Mix, Popularity); 3] =
    [(Mix::A, Popularity::Zipf), (Mix::C, Popularity::Uniform), (Mix::E, Popularity::Zipf)];

#[derive(Serialize, Deserialize)]
enum Question {
    Load(u32),
    Measure(Plan),
}

/// The operations and the waits of a window.
#[derive(Clone, Serialize, Deserialize)]
struct Measured {
    window: Window,
    waits: Waits,
}

struct Server;

impl With for Server {
    type Result = Serve<Question, Measured>;

    fn with<S: Store + 'static>(self, store: S) -> Self::Result {
        Box::new(move |question| {
            let before = store.waits().unwrap_or_default();
            let window = match question {
                Question::Load(records) => run::load(&store, records)?,
                Question::Measure(plan) => run::measure(&store, &plan)?,
            };
            Ok(Measured { window, waits: store.waits().unwrap_or_default().since(&before) })
        })
    }
}

struct Size {
    records: u32,
    rounds: usize,
    window_ms: u64,
    threads: &'static [u32],
}

fn run(options: &Options, sink: Sink<'_>) -> Result<Report> {
    let size = Size {
        records: options.pick(300_000, 4_000_000),
        rounds: options.pick(2, 5),
        window_ms: options.pick(200, 1000),
        threads: &[1, 2, 4, 8, 16],
    };
    run_sized(options, &size, sink)
}

fn run_sized(options: &Options, size: &Size, sink: Sink<'_>) -> Result<Report> {
    let &Size { records, rounds, window_ms, threads } = size;
    let config = Fields::new()
        .with("mode", options.mode.name())
        .with("records", records)
        .with("rounds", rounds)
        .with("window_ms", window_ms)
        .with("directory", options.directory.display().to_string());
    let mut report = Report::new(BENCH.name, config);
    let folder = tempfile::Builder::new().prefix("bedplate-scaling-").tempdir_in(&options.directory);
    let folder = folder.map_err(Error::io("create a directory"))?;
    let bytes = u64::from(records) * (8 + VALUE as u64);
    let stages = [("memory", 4 * bytes), ("oom", (bytes / 8).max(2 << 20))];
    let total = stages.len() * (1 + CELLS.len() * threads.len());
    let mut done = 0;
    let mut worst: HashMap<String, f64> = HashMap::new();
    for (stage, budget) in stages {
        sink(Step { done, total, label: &format!("{stage}: loading") });
        let mut sides = Vec::new();
        for side in SIDES {
            let files = folder.path().join(stage).join(side.name());
            std::fs::create_dir_all(&files).map_err(Error::io("create a directory"))?;
            let setting = Setting { budget, durable: false };
            let started = Apart::start(side.name(), None, move || side.open(&files, setting, Server))?;
            let problem = |problem| Error::Store { store: side.name(), problem };
            let mut apart: Apart<Question, Measured> = started.map_err(problem)?;
            apart.ask(&Question::Load(records))?;
            sides.push((side, apart));
        }
        done += 1;
        for (mix, popularity) in CELLS {
            for &threads in threads {
                sink(Step { done, total, label: &format!("{stage}: {mix:?}, {threads} threads") });
                let passes = interleave(rounds, sides.len(), |side, round| {
                    let seed = round as u64 * 100 + u64::from(threads);
                    let plan = Plan { mix, popularity, records, threads, window_ms, seed };
                    sides[side].1.ask(&Question::Measure(plan))
                })?;
                for ((side, _), passes) in sides.iter().zip(&passes) {
                    let (row, waits) = row(stage, *side, mix, popularity, threads, passes);
                    report.rows.push(row);
                    if Some(&threads) == size.threads.last() {
                        for (name, waits) in waits {
                            let name = format!("{}_{name}_waits_{stage}", side.name());
                            let known = worst.entry(name).or_default();
                            *known = known.max(waits);
                        }
                    }
                }
                done += 1;
            }
        }
    }
    let mut worst: Vec<_> = worst.into_iter().collect();
    worst.sort_by(|(left, _), (right, _)| left.cmp(right));
    worst.iter().for_each(|(name, waits)| report.ratio(name, *waits));
    Ok(report)
}

/// The row of a cell, and the waits of each kind per 1000 operations.
fn row(
    stage: &str,
    side: Side,
    mix: Mix,
    popularity: Popularity,
    threads: u32,
    passes: &[Measured],
) -> (Fields, [(&'static str, f64); 5]) {
    let rates = samples(passes, |pass| pass.window.rate());
    let operations: u64 = passes.iter().map(|pass| pass.window.operations).sum();
    let per_thousand = |count: fn(&Waits) -> u64| {
        let waits: u64 = passes.iter().map(|pass| count(&pass.waits)).sum();
        waits as f64 * 1000.0 / operations as f64
    };
    let waits = [
        ("page", per_thousand(|waits| waits.page)),
        ("allocator", per_thousand(|waits| waits.allocator)),
        ("free_list", per_thousand(|waits| waits.free_list)),
        ("frame", per_thousand(|waits| waits.frame)),
        ("commit", per_thousand(|waits| waits.commit)),
    ];
    let row = Fields::new()
        .with("stage", stage)
        .with("workload", format!("{mix:?}"))
        .with("distribution", popularity.name())
        .with("side", side.name())
        .with("threads", threads)
        .with("ops_per_s", rates.median())
        .with("ops_per_cpu_s", samples(passes, |pass| pass.window.per_core()).median());
    let add = |row: Fields, (name, waits): &(&str, f64)| row.with(&format!("{name}_waits_per_1000"), *waits);
    (waits.iter().fold(row, add), waits)
}

#[cfg(test)]
mod tests {
    use rusty_fork::rusty_fork_test;

    use super::*;
    use crate::Mode;

    // The test has its own process, because sides are forked, and threads of other tests would interfere.
    rusty_fork_test! {
    #[test]
    fn a_small_run_has_a_row_for_each_cell_and_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let options = Options { directory: directory.path().to_owned(), ..Options::new(Mode::Quick) };
        let size = Size { records: 20_000, rounds: 1, window_ms: 20, threads: &[1, 4] };
        let report = run_sized(&options, &size, &mut |_| {}).unwrap();
        assert_eq!(report.rows.len(), 2 * CELLS.len() * 2 * SIDES.len());
        for row in &report.rows {
            assert!(row.number("ops_per_s").unwrap() > 0.0 && row.number("page_waits_per_1000").unwrap() >= 0.0);
        }
        // A thread alone does not wait for the allocator.
        let alone = report.rows.iter().filter(|row| row.number("threads") == Some(1.0));
        assert!(alone.clone().count() > 0);
        for row in alone {
            assert_eq!(row.number("allocator_waits_per_1000"), Some(0.0), "{}", report.to_table(None));
        }
        assert!(report.ratios.contains_key("store_commit_waits_memory"));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
    }
}
