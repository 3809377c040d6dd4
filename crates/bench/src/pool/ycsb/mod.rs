//! `pool-ycsb`: YCSB (paper 7.4, Figures 17 and 18) over the bare B+tree on the pool's engines, over the transactional
//! store, and over LMDB, RocksDB and redb.
//!
//! Records have keys of 8 bytes and values of 120, loaded in random order. In memory, a side may use several times the
//! size of the records; out of memory, an eighth of the bytes of keys and values. Every side is a separate process,
//! which uses the same files for both. With durability, an update returns when it is on disk.
//!
//! `default` in the name of a ratio is the engine that a pool chooses. A ratio compares operations per second or, with
//! `..._per_core`, operations per second of CPU time. It is the smaller one of both distributions. Out of memory, engines of
//! the pool are compared by CPU time, as in the paper.

pub(super) mod run;
pub(super) mod trace;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use self::run::{Plan, VALUE, Window};
use self::trace::{Mix, Popularity, SKEW};
use super::apart::{Apart, Serve};
use super::budget::forget;
use super::peers::Setting;
use super::side::{ARRAY, HASHTABLE, LMDB, LMDB_LONG, STOCK, STORE, Side, VMCACHE, With};
use super::store::Store;
use crate::sample::{Samples, interleave, samples};
use crate::{Benchmark, Error, Fields, Options, Report, Result, Sink, Step};

pub(crate) const BENCH: Benchmark = Benchmark {
    name: "pool-ycsb",
    about: "YCSB over the B+tree on each pool engine, the store, LMDB, RocksDB and redb (paper 7.4, Figures 17 and 18)",
    run,
};

/// Number of clients. With fewer, a side would be idle while it reads a page.
const THREADS: u32 = 2;

/// A task for a side's process.
#[derive(Serialize, Deserialize)]
enum Question {
    Load(u32),
    /// Reads the records into memory, if they fit.
    Warm(u32),
    Measure(Plan),
}

struct Server;

impl With for Server {
    type Result = Serve<Question, Window>;

    fn with<S: Store + 'static>(self, store: S) -> Self::Result {
        Box::new(move |question| match question {
            Question::Load(records) => run::load(&store, records),
            Question::Warm(records) => run::warm(&store, records),
            Question::Measure(plan) => run::measure(&store, &plan),
        })
    }
}

/// Sides that run together, on the same settings.
struct Stage {
    name: &'static str,
    sides: Vec<Side>,
    budget: u64,
    durable: bool,
    cells: Vec<(Mix, Popularity)>,
}

/// Windows of a side in a cell.
type Results = HashMap<(&'static str, Side, Mix, Popularity), Vec<Window>>;

/// The extent of the measurement.
struct Size {
    records: u32,
    rounds: usize,
    window_ms: u64,
    cells: Vec<(Mix, Popularity)>,
}

impl Size {
    fn of(options: &Options) -> Self {
        use {Mix::*, Popularity::*};
        let reads = [(C, Uniform), (C, Zipf), (C16, Uniform)];
        let changes = [(A, Uniform), (A, Zipf), (A16, Uniform), (B, Zipf), (E, Zipf)];
        let quick = [&reads[..], &changes].concat();
        let full = Mix::ALL.iter().flat_map(|&mix| [(mix, Uniform), (mix, Zipf)]).collect();
        Self {
            records: options.pick(600_000, 8_000_000),
            rounds: options.pick(3, 7),
            window_ms: options.pick(200, 2000),
            cells: options.pick(quick, full),
        }
    }
}

fn stages(size: &Size) -> Vec<Stage> {
    let bytes = u64::from(size.records) * (8 + VALUE as u64);
    // Every store needs a few pages.
    let eighth = (bytes / 8).max(2 << 20);
    let all = vec![ARRAY, STOCK, VMCACHE, HASHTABLE, STORE, LMDB, Side::RocksDb, Side::Redb];
    let with_long = all.iter().copied().chain([LMDB_LONG]).collect();
    let durable = all.iter().copied().filter(|side| side.can_be_durable()).collect();
    let stage = |name, sides, budget, durable, cells| Stage { name, sides, budget, durable, cells };
    vec![
        stage("memory", with_long, bytes * 4, false, size.cells.clone()),
        stage("oom", all, eighth, false, size.cells.clone()),
        stage("durable", durable, bytes * 4, true, vec![(Mix::A, Popularity::Zipf)]),
    ]
}

fn run(options: &Options, sink: Sink<'_>) -> Result<Report> {
    run_sized(options, &Size::of(options), sink)
}

fn run_sized(options: &Options, size: &Size, sink: Sink<'_>) -> Result<Report> {
    let &Size { records, rounds, window_ms, .. } = size;
    let stages = stages(size);
    let config = Fields::new()
        .with("mode", options.mode.name())
        .with("records", records)
        .with("key_bytes", 8)
        .with("value_bytes", VALUE)
        .with("zipf", SKEW)
        .with("threads", THREADS)
        .with("rounds", rounds)
        .with("window_ms", window_ms)
        .with("directory", options.directory.display().to_string());
    let mut report = Report::new(BENCH.name, config);
    let directory = tempfile::Builder::new()
        .prefix("bedplate-ycsb-")
        .tempdir_in(&options.directory)
        .map_err(Error::io("create a directory"))?;
    let mut results = Results::new();
    let total = stages.iter().map(|stage| stage.cells.len() + 1).sum();
    let mut done = 0;
    for stage in &stages {
        sink(Step { done, total, label: &format!("{}: opening and loading", stage.name) });
        let mut running = start(stage, directory.path(), records, &mut report)?;
        done += 1;
        for &(mix, popularity) in &stage.cells {
            sink(Step { done, total, label: &format!("{}: {mix:?}, {}", stage.name, popularity.name()) });
            let sides = running.len();
            // The first round brings every side to its steady state.
            let windows = interleave(rounds + 1, sides, |side, round| {
                let plan = Plan { mix, popularity, records, threads: THREADS, window_ms, seed: round as u64 };
                let (side, apart) = &mut running[side];
                side.tolerate(apart.as_mut().map(|apart| apart.ask(&Question::Measure(plan))))
            })?;
            for ((side, apart), windows) in running.iter_mut().zip(windows) {
                let windows: std::result::Result<Vec<Window>, String> = windows.into_iter().skip(1).collect();
                let windows = match windows {
                    Ok(windows) => windows,
                    Err(reason) => {
                        // The side has failed and is left out from here.
                        if apart.take().is_some() {
                            report.config.set(&format!("without_{}_{}", stage.name, side.name()), reason);
                        }
                        continue;
                    }
                };
                report.rows.push(row(stage, *side, mix, popularity, &windows));
                results.insert((stage.name, *side, mix, popularity), windows);
            }
            done += 1;
        }
    }
    ratios(&results, &mut report);
    Ok(report)
}

type Running = Vec<(Side, Option<Apart<Question, Window>>)>;

/// Starts a stage's sides, and loads those that have no files. A side that cannot start is left out, with the reason.
fn start(stage: &Stage, directory: &Path, records: u32, report: &mut Report) -> Result<Running> {
    let mut running = Running::new();
    for &side in &stage.sides {
        let files: PathBuf = directory.join(side.name().split(',').next().unwrap_or_default());
        // In memory, nothing is limited, because all records fit.
        let limit = if stage.name == "oom" { side.limit(stage.budget) } else { Ok(None) };
        let limit = match limit {
            Ok(limit) => limit,
            Err(reason) => {
                report.config.set(&format!("without_{}_{}", stage.name, side.name()), reason);
                continue;
            }
        };
        // The second LMDB has the first one's files, and later stages have the first stage's.
        let is_new = !files.exists();
        std::fs::create_dir_all(&files).map_err(Error::io("create a directory"))?;
        if limit.is_some() {
            forget(&files)?;
        }
        let setting = Setting { budget: stage.budget, durable: stage.durable };
        let begin = {
            let files = files.clone();
            move || side.open(&files, setting, Server)
        };
        let mut apart = match Apart::start(side.name(), limit, begin)? {
            Ok(apart) => apart,
            Err(reason) => {
                report.config.set(&format!("without_{}_{}", stage.name, side.name()), reason);
                continue;
            }
        };
        if is_new {
            let window = apart.ask(&Question::Load(records))?;
            report.rows.push(
                Fields::new()
                    .with("stage", "load")
                    .with("side", side.name())
                    .with("records_per_s", window.rate())
                    .with("records_per_cpu_s", window.per_core())
                    .with("file_bytes", bytes_of(&files)),
            );
        }
        if stage.name != "oom" {
            // RocksDB does not cache its writes, and a pool is empty after it is opened again.
            apart.ask(&Question::Warm(records))?;
        }
        running.push((side, Some(apart)));
    }
    Ok(running)
}

/// The space that the files in a directory take on the disk, in bytes.
fn bytes_of(directory: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(data) if data.is_dir() => bytes_of(&entry.path()),
            Ok(data) => data.blocks() * 512,
            Err(_) => 0,
        })
        .sum()
}

fn row(stage: &Stage, side: Side, mix: Mix, popularity: Popularity, windows: &[Window]) -> Fields {
    let rates = samples(windows, Window::rate);
    Fields::new()
        .with("stage", stage.name)
        .with("budget_bytes", stage.budget)
        .with("workload", format!("{mix:?}"))
        .with("distribution", popularity.name())
        .with("side", side.name())
        .with("ops_per_s", rates.median())
        .with("spread", rates.spread())
        .with("ops_per_cpu_s", samples(windows, Window::per_core).median())
}

/// A comparison of a side with the best one of others.
struct Comparison {
    name: &'static str,
    stage: &'static str,
    side: Side,
    others: &'static [Side],
    quantity: fn(&Window) -> f64,
}

const PEERS: &[Side] = &[LMDB, Side::RocksDb, Side::Redb];

const COMPARISONS: &[Comparison] = &[
    Comparison::new("default_over_vmcache_mem", "memory", ARRAY, &[VMCACHE], Window::rate),
    Comparison::new("default_over_vmcache_oom", "oom", ARRAY, &[VMCACHE], Window::per_core),
    Comparison::new("default_over_stock_mem", "memory", ARRAY, &[STOCK], Window::rate),
    Comparison::new("default_over_stock_oom", "oom", ARRAY, &[STOCK], Window::per_core),
    Comparison::new("default_over_hashtable_mem", "memory", ARRAY, &[HASHTABLE], Window::rate),
    Comparison::new("default_over_hashtable_oom", "oom", ARRAY, &[HASHTABLE], Window::per_core),
    Comparison::new("stock_over_vmcache_mem", "memory", STOCK, &[VMCACHE], Window::rate),
    Comparison::new("stock_over_vmcache_oom", "oom", STOCK, &[VMCACHE], Window::per_core),
    Comparison::new("store_over_default_mem", "memory", STORE, &[ARRAY], Window::rate),
    Comparison::new("store_over_default_oom", "oom", STORE, &[ARRAY], Window::per_core),
    Comparison::new("default_over_lmdb_mem", "memory", ARRAY, &[LMDB], Window::rate),
    Comparison::new("default_over_lmdb_long_mem", "memory", ARRAY, &[LMDB_LONG], Window::rate),
    Comparison::new("default_over_best_peer_oom", "oom", ARRAY, PEERS, Window::rate),
    Comparison::new("default_over_best_peer_oom_per_core", "oom", ARRAY, PEERS, Window::per_core),
    Comparison::new("store_over_best_peer_durable", "durable", STORE, PEERS, Window::rate),
    Comparison::new("store_over_best_peer_durable_per_core", "durable", STORE, PEERS, Window::per_core),
];

impl Comparison {
    const fn new(
        name: &'static str,
        stage: &'static str,
        side: Side,
        others: &'static [Side],
        quantity: fn(&Window) -> f64,
    ) -> Self {
        Self { name, stage, side, others, quantity }
    }

    fn samples(&self, results: &Results, side: Side, mix: Mix, popularity: Popularity) -> Option<Samples> {
        results.get(&(self.stage, side, mix, popularity)).map(|windows| samples(windows, self.quantity))
    }

    /// The ratio in a workload; NaN if it was not measured. The best one of the others has the smallest ratio.
    fn ratio(&self, results: &Results, mix: Mix) -> f64 {
        let over = |popularity| {
            let side = self.samples(results, self.side, mix, popularity)?;
            let others =
                self.others.iter().filter_map(|&other| self.samples(results, other, mix, popularity));
            Some(others.map(|other| side.over(&other)).fold(f64::NAN, f64::min))
        };
        [Popularity::Uniform, Popularity::Zipf].into_iter().filter_map(over).fold(f64::NAN, f64::min)
    }
}

fn ratios(results: &Results, report: &mut Report) {
    for comparison in COMPARISONS {
        for mix in Mix::ALL {
            let name = format!("{}_{}", comparison.name, format!("{mix:?}").to_lowercase());
            report.ratio(&name, comparison.ratio(results, mix));
        }
    }
}

#[cfg(test)]
mod tests {
    use rusty_fork::rusty_fork_test;

    use super::*;
    use crate::Mode;

    // The test has its own process, because sides are forked, and threads of other tests would interfere.
    rusty_fork_test! {
    #[test]
    fn a_small_run_measures_every_side_and_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let options = Options { directory: directory.path().to_owned(), ..Options::new(Mode::Quick) };
        let of = |mix| (mix, Popularity::Uniform);
        let cells = vec![of(Mix::C16), of(Mix::A16), (Mix::E, Popularity::Zipf)];
        let size = Size { records: 20_000, rounds: 1, window_ms: 20, cells };
        let report = run_sized(&options, &size, &mut |_| {}).unwrap();
        // Every side has a row for each cell, or a reason; a side of the pool must have its rows.
        let peers = ["lmdb", "rocksdb", "redb"];
        for (stage, cells) in [("memory", 3), ("oom", 3), ("durable", 1)] {
            let trees: &[&str] =
                if stage == "durable" { &[] } else { &["array", "stock", "vmcache", "hashtable"] };
            for side in trees.iter().copied().chain(["store"]).chain(peers) {
                let is = |row: &&Fields, key, name| row.get(key).is_some_and(|value| value == name);
                let rows =
                    report.rows.iter().filter(|row| is(row, "stage", stage) && is(row, "side", side)).count();
                let skipped = report.config.get(&format!("without_{stage}_{side}")).is_some();
                let excused = skipped && peers.contains(&side);
                assert!(rows == cells || excused, "{stage}, {side}: {}", report.to_table(None));
            }
        }
        assert!(report.rows.iter().all(|row| row.number("ops_per_s").unwrap_or(1.0) > 0.0));
        for name in ["default_over_vmcache_mem_c16", "default_over_lmdb_mem_e", "store_over_best_peer_durable_a"] {
            assert!(report.ratios[name] > 0.0, "{name}");
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
    }

    #[test]
    fn ratios_are_the_smaller_of_both_distributions_and_against_the_best_peer() {
        let mut results = Results::new();
        let mut put = |stage, side, popularity, operations| {
            let window = Window { operations, seconds: 1.0, cpu_seconds: 2.0 };
            results.insert((stage, side, Mix::C, popularity), vec![window; 3]);
        };
        for (popularity, array, vmcache, lmdb, rocksdb) in
            [(Popularity::Uniform, 100, 50, 20, 80), (Popularity::Zipf, 300, 200, 30, 10)]
        {
            put("oom", ARRAY, popularity, array);
            put("oom", VMCACHE, popularity, vmcache);
            put("oom", LMDB, popularity, lmdb);
            put("oom", Side::RocksDb, popularity, rocksdb);
        }
        let mut report = Report::new("x", Fields::new());
        ratios(&results, &mut report);
        assert_eq!(report.ratios["default_over_vmcache_oom_c"], 1.5);
        assert_eq!(report.ratios["default_over_best_peer_oom_c"], 1.25);
        assert!(!report.ratios.contains_key("default_over_lmdb_mem_c"));
    }
}
