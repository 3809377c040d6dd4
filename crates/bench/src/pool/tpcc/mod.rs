//! `pool-tpcc`: TPC-C (revision 5.11; paper 7.4, Figure 20) over an ordered store, complete except for terminals' screens
//! and think times. It has five transactions, the specification's mix, population and random values, deferred deliveries,
//! and its consistency conditions. They are checked after the run; a run after which they do not hold has no result.
//!
//! All sides have the same memory budget, about an eighth of the population. Durability is off at first, as in the paper. Then
//! every side that can be durable is opened again, and its commits return when they are on disk. Transactions are serializable.
//! Some stores do this by themselves (Bedplate's store validates, LMDB and redb have one writer at a time). For the others, the
//! driver takes locks (`locks`). Sides run in turns of one window each. A row's `at_s` is the time for which its side has run
//! so far.

pub(super) mod consistency;
mod input;
mod keys;
pub(super) mod load;
mod locks;
mod random;
mod rows;
pub(super) mod run;
pub(super) mod scale;
mod transactions;

#[cfg(test)]
pub mod tests;

use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use self::input::KINDS;
use self::run::{Done, Until};
use self::scale::{Database, Scale};
use super::apart::{Apart, Serve};
use super::budget::forget;
use super::peers::Setting;
use super::side::{
    ARRAY, HASHTABLE, LMDB, STOCK, STORE, STORE_ON_STOCK, STORE_ON_VMCACHE, Side, VMCACHE, With,
};
use super::store::Store;
use crate::cpu::CpuTime;
use crate::sample::{interleave, samples};
use crate::{Benchmark, Error, Fields, Options, Report, Result, Sink, Step};

pub(crate) const BENCH: Benchmark = Benchmark {
    name: "pool-tpcc",
    about: "TPC-C larger than memory over the B+tree on the pool's engines and over peers (paper 7.4, Figure 20)",
    run,
};

const THREADS: u32 = 2;
/// The seed of the population and of the constants.
const SEED: u64 = 42;
/// Average size of a warehouse's rows and keys. The items, which all warehouses share, have 9 MB.
const WAREHOUSE_BYTES: u64 = 70 << 20;

#[derive(Serialize, Deserialize)]
enum Question {
    Load,
    Run { window_ms: u64, round: u64 },
    Check,
}

/// The transactions of a side in a window.
#[derive(Clone, Serialize, Deserialize)]
struct Window {
    done: Done,
    seconds: f64,
    cpu_seconds: f64,
}

impl Window {
    fn rate(&self) -> f64 {
        self.done.total() as f64 / self.seconds
    }

    fn per_core(&self) -> f64 {
        self.done.total() as f64 / self.cpu_seconds
    }
}

struct Server {
    scale: Scale,
    /// The database has been run before.
    again: bool,
}

impl With for Server {
    type Result = Serve<Question, Window>;

    fn with<S: Store + 'static>(self, store: S) -> Self::Result {
        let database = Database::new(self.scale, SEED);
        let database = if self.again { database.again() } else { database };
        Box::new(move |question| {
            let (start, cpu) = (Instant::now(), CpuTime::of_process());
            let done = match question {
                Question::Load => {
                    load::load(&mut store.session()?, &database, SEED)?;
                    store.settle()?;
                    Done::default()
                }
                Question::Run { window_ms, round } => {
                    let until = Until::elapsed(Duration::from_millis(window_ms));
                    run::run(&store, &database, THREADS, until, SEED + 1 + round)?
                }
                Question::Check => {
                    consistency::check(&mut store.session()?, database.scale)?;
                    Done::default()
                }
            };
            let cpu_seconds = CpuTime::of_process().since(cpu).total_ns() as f64 / 1e9;
            Ok(Window { done, seconds: start.elapsed().as_secs_f64(), cpu_seconds })
        })
    }
}

/// The extent of the measurement.
struct Size {
    scale: Scale,
    budget: u64,
    window_ms: u64,
    rounds: usize,
    durable_rounds: usize,
    sides: Vec<Side>,
}

/// The runs of all sides, and their results.
struct Stage {
    durable: bool,
    windows: Vec<(Side, Vec<Window>)>,
}

impl Stage {
    fn name(durable: bool) -> &'static str {
        if durable { "on" } else { "off" }
    }
}

impl Size {
    fn of(options: &Options) -> Self {
        let scale = Scale::of(options.pick(2, 16));
        let quick = vec![STORE, STORE_ON_VMCACHE, ARRAY, LMDB, Side::RocksDb];
        let more = [STORE_ON_STOCK, STOCK, VMCACHE, HASHTABLE, Side::Redb];
        let full = quick.iter().copied().chain(more).collect();
        Self {
            scale,
            budget: (u64::from(scale.warehouses) * WAREHOUSE_BYTES + (9 << 20)) / 8,
            window_ms: options.pick(1000, 5000),
            rounds: options.pick(5, 24),
            durable_rounds: options.pick(3, 12),
            sides: options.pick(quick, full),
        }
    }
}

fn run(options: &Options, sink: Sink<'_>) -> Result<Report> {
    run_sized(options, &Size::of(options), sink)
}

fn run_sized(options: &Options, size: &Size, sink: Sink<'_>) -> Result<Report> {
    let &Size { scale, budget, window_ms, rounds, durable_rounds, ref sides } = size;
    let config = Fields::new()
        .with("mode", options.mode.name())
        .with("warehouses", scale.warehouses)
        .with("budget_bytes", budget)
        .with("threads", THREADS)
        .with("rounds", rounds)
        .with("durable_rounds", durable_rounds)
        .with("window_ms", window_ms)
        .with("directory", options.directory.display().to_string());
    let mut report = Report::new(BENCH.name, config);
    let directory = tempfile::Builder::new()
        .prefix("bedplate-tpcc-")
        .tempdir_in(&options.directory)
        .map_err(Error::io("create a directory"))?;
    let mut sides = sides.clone();
    for durable in [false, true] {
        sides.retain(|side| !durable || side.can_be_durable());
        let stage = run_stage(size, durable, &sides, directory.path(), &mut report, sink)?;
        for (side, windows) in &stage.windows {
            rows(*side, durable, windows, &mut report);
        }
        ratios(&stage, &mut report);
        // The files of a side that has failed are in an unknown state.
        sides.retain(|side| stage.windows.iter().any(|(other, _)| other == side));
    }
    Ok(report)
}

/// Runs sides in turns. Without durability, they load the population first; with durability, they go on with its files.
fn run_stage(
    size: &Size,
    durable: bool,
    sides: &[Side],
    directory: &Path,
    report: &mut Report,
    sink: Sink<'_>,
) -> Result<Stage> {
    let rounds = if durable { size.durable_rounds } else { size.rounds };
    let steps = size.sides.len() * 2 + 1;
    let (before, total) = (if durable { steps } else { 0 }, 2 * steps);
    let name = Stage::name(durable);
    let without = |side: Side| format!("without_{}_durability_{name}", side.name());
    let mut running = Vec::new();
    for (done, &side) in sides.iter().enumerate() {
        let label = format!("durability {name}: opening {}", side.name());
        sink(Step { done: before + done, total, label: &label });
        let begun = match start(side, &directory.join(side.name()), size, durable)? {
            Ok(mut apart) if !durable => side.tolerate(Some(apart.ask(&Question::Load)))?.map(|_| apart),
            begun => begun,
        };
        match begun {
            Ok(apart) => running.push((side, apart)),
            Err(reason) => report.config.set(&without(side), reason),
        }
    }
    let opened = before + sides.len();
    sink(Step { done: opened, total, label: &format!("durability {name}: transactions") });
    let results = interleave(rounds, running.len(), |side, round| {
        let (side, apart) = &mut running[side];
        // Each stage has its own rounds, and so its own seeds.
        let round = round as u64 + if durable { 1 << 16 } else { 0 };
        side.tolerate(Some(apart.ask(&Question::Run { window_ms: size.window_ms, round })))
    })?;
    let mut windows = Vec::new();
    for (done, ((side, apart), results)) in running.iter_mut().zip(results).enumerate() {
        match results.into_iter().collect::<std::result::Result<Vec<Window>, String>>() {
            Ok(results) => {
                let label = format!("durability {name}: {}: the consistency conditions", side.name());
                sink(Step { done: opened + 1 + done, total, label: &label });
                apart.ask(&Question::Check)?;
                windows.push((*side, results));
            }
            Err(reason) => report.config.set(&without(*side), reason),
        }
    }
    Ok(Stage { durable, windows })
}

fn start(
    side: Side,
    files: &Path,
    size: &Size,
    durable: bool,
) -> Result<std::result::Result<Apart<Question, Window>, String>> {
    let limit = match side.limit(size.budget) {
        Ok(limit) => limit,
        Err(reason) => return Ok(Err(reason)),
    };
    std::fs::create_dir_all(files).map_err(Error::io("create a directory"))?;
    forget(files)?;
    let files = files.to_owned();
    let setting = Setting { budget: size.budget, durable };
    let server = Server { scale: size.scale, again: durable };
    Apart::start(side.name(), limit, move || side.open(&files, setting, server))
}

/// A row for each window, over time, and one for all of them.
fn rows(side: Side, durable: bool, windows: &[Window], report: &mut Report) {
    let (mut at, mut all) = (0.0, Done::default());
    for window in windows {
        at += window.seconds;
        all.add(&window.done);
        report.rows.push(
            Fields::new()
                .with("durability", Stage::name(durable))
                .with("side", side.name())
                .with("at_s", at)
                .with("transactions_per_s", window.rate())
                .with("transactions_per_cpu_s", window.per_core()),
        );
    }
    let mut row = Fields::new()
        .with("durability", Stage::name(durable))
        .with("side", side.name())
        .with("consistency", "conditions 1 to 12 hold")
        .with("transactions_per_s", samples(windows, Window::rate).median())
        .with("transactions_per_cpu_s", samples(windows, Window::per_core).median())
        .with("new_orders_per_minute", all.committed[0] as f64 / at * 60.0);
    for (kind, count) in KINDS.iter().zip(all.committed) {
        row.set(kind, count);
    }
    row.set("rolled_back", all.rolled_back);
    // Rate and latencies are those of new orders.
    all.new_orders.fill(&mut row);
    report.rows.push(row);
}

fn ratios(stage: &Stage, report: &mut Report) {
    let of = |side: Side| {
        stage.windows.iter().find(|(other, _)| *other == side).map(|(_, windows)| windows.as_slice())
    };
    let Some(store) = of(STORE) else { return };
    let over = |others: &mut dyn Iterator<Item = &[Window]>, quantity: fn(&Window) -> f64| {
        let store = samples(store, quantity);
        others.map(|other| store.over(&samples(other, quantity))).fold(f64::NAN, f64::min)
    };
    let peers =
        || stage.windows.iter().filter(|(side, _)| side.is_peer()).map(|(_, windows)| windows.as_slice());
    let mut ratio = |name: &str, value| {
        let durable = if stage.durable { "durable_" } else { "" };
        report.ratio(&format!("{durable}{name}"), value);
    };
    let vmcache = || of(STORE_ON_VMCACHE).into_iter();
    ratio("default_over_vmcache", over(&mut vmcache(), Window::rate));
    ratio("default_over_vmcache_per_core", over(&mut vmcache(), Window::per_core));
    ratio("default_over_best_peer", over(&mut peers(), Window::rate));
    ratio("default_over_best_peer_per_core", over(&mut peers(), Window::per_core));
    ratio("store_over_tree_per_core", over(&mut of(ARRAY).into_iter(), Window::per_core));
}

#[cfg(test)]
mod smoke {
    use rusty_fork::rusty_fork_test;

    use super::*;
    use crate::Mode;

    // The test has its own process, because sides are forked, and threads of other tests would interfere.
    rusty_fork_test! {
    #[test]
    fn a_small_run_has_rows_over_time_and_conditions_that_hold() {
        let directory = tempfile::tempdir().unwrap();
        let options = Options { directory: directory.path().to_owned(), ..Options::new(Mode::Quick) };
        let scale = Scale { warehouses: 2, customers: 90, items: 300 };
        let sides = vec![STORE, STORE_ON_VMCACHE, ARRAY, Side::RocksDb];
        let size = Size { scale, budget: 2 << 20, window_ms: 100, rounds: 2, durable_rounds: 1, sides };
        let report = run_sized(&options, &size, &mut |_| {}).unwrap();
        let of = |side: &str| -> Vec<&Fields> {
            report.rows.iter().filter(|row| row.get("side").is_some_and(|name| name == side)).collect()
        };
        for (side, durable) in [("store", 2), ("store on vmcache", 2), ("array", 0)] {
            let rows = of(side);
            // Two windows and all of them; if it is durable, one more window and all of those.
            assert_eq!(rows.len(), 3 + durable, "{}", report.to_table(None));
            assert!(rows[0].number("at_s") < rows[1].number("at_s"));
            assert!(rows.iter().all(|row| row.number("transactions_per_s") > Some(0.0)));
            assert!(rows[2].number("new_order") > Some(0.0));
        }
        for name in ["default_over_vmcache", "durable_default_over_vmcache", "store_over_tree_per_core"] {
            assert!(report.ratios[name] > 0.0, "{name}");
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
    }
}
