//! `htap`: transactions at a fixed rate, beside a scan of all of every snapshot (paper 7.3).
//!
//! The writers are an open loop: a transaction is due whether the machine keeps up or not, and its latency counts from
//! then. So a pause is charged to every transaction that was due in it. Two baselines have no snapshots: the writers
//! alone, and the writers beside a scan of the live memory, whose results are not consistent. The first shows the
//! latencies of an otherwise idle machine, the second the part of the scan's use of a processor.
//!
//! The `ring0` engine takes part where there is ring 0. It has a process of its own, because Linux notifies KVM of
//! every page of a virtual machine that it protects or unmaps, which makes it slower.

mod cost;
mod schedule;
mod window;

use std::sync::atomic::Ordering;
use std::time::Duration;

use bedplate_snapshot::Memory;
use serde::{Deserialize, Serialize};

use self::cost::Costs;
use self::window::{Load, Scan, UPDATES, Window};
use super::sides::{FORK, FORK_HUGE, REMAP_THREAD, RING0, Side, UFFD, WORDS_OF_A_PAGE};
use crate::latency::Latencies;
use crate::pool::apart::{Apart, Serve};
use crate::sample::{Samples, interleave, samples};
use crate::{Benchmark, Error, Fields, Options, Report, Result, Sink, Step};

pub(crate) const BENCH: Benchmark = Benchmark {
    name: "htap",
    about: "transactions at a fixed rate beside a scan of all of every snapshot (paper 7.3)",
    run,
};

/// Sides in this process, each with its memory and its scan. The first is the baseline of all ratios of latencies.
/// [`RING0`] comes after them.
const SIDES: [(&str, Side, Scan); 6] = [
    (NO_SNAPSHOT, FORK, Scan::Nothing),
    ("scan without snapshots", FORK, Scan::Live),
    (FORK.name, FORK, Scan::Snapshots),
    (FORK_HUGE.name, FORK_HUGE, Scan::Snapshots),
    (UFFD.name, UFFD, Scan::Snapshots),
    (REMAP_THREAD.name, REMAP_THREAD, Scan::Snapshots),
];
const NO_SNAPSHOT: &str = "no snapshot";
/// The engine that a memory gets by default.
const DEFAULT: Side = REMAP_THREAD;
/// The engine that every machine has. Its capacity determines the rate.
const STOCK: Side = FORK;
const MEMORIES: [Side; 4] = [FORK, FORK_HUGE, UFFD, REMAP_THREAD];

/// Numbers of writers. The names of the first one's ratios have no suffix.
const WRITERS_QUICK: &[usize] = &[2];
const WRITERS_FULL: &[usize] = &[2, 1, 4];

/// A measurement that the side in ring 0 is asked for.
#[derive(Serialize, Deserialize)]
enum Question {
    Window(Load),
    Costs,
}

#[derive(Serialize, Deserialize)]
enum Answer {
    Window(Box<Window>),
    Costs(Costs),
}

/// The sides and their memories.
struct Sides {
    memories: Vec<(Side, Memory)>,
    ring0: Option<Apart<Question, Answer>>,
}

impl Sides {
    fn names(&self) -> Vec<&'static str> {
        SIDES.iter().map(|(name, ..)| *name).chain(self.ring0.as_ref().map(|_| RING0.name)).collect()
    }

    fn memory(&self, side: Side) -> Result<&Memory> {
        let found = self.memories.iter().find(|(of, _)| *of == side);
        found.map(|(_, memory)| memory).ok_or_else(|| Error::engine(format!("{} has no memory", side.name)))
    }

    /// Measures a window of a side; `load` has everything except the scan.
    fn window(&mut self, index: usize, load: Load) -> Result<Window> {
        let Some(&(_, side, scan)) = SIDES.get(index) else {
            let load = Load { scan: Scan::Snapshots, ..load };
            return match self.ask_ring0(&Question::Window(load))? {
                Answer::Window(window) => Ok(*window),
                Answer::Costs(_) => Err(wrong_answer()),
            };
        };
        self.window_of(side, Load { scan, ..load })
    }

    fn window_of(&self, side: Side, load: Load) -> Result<Window> {
        let memory = self.memory(side)?;
        make_writable(side, memory);
        side.alone(memory, || window::measure(memory, load))
    }

    /// Counts a round of a side: of a memory in this process, or of ring 0's after them.
    fn costs(&mut self, index: usize) -> Result<Costs> {
        let Some((side, memory)) = self.memories.get(index) else {
            return match self.ask_ring0(&Question::Costs)? {
                Answer::Costs(costs) => Ok(costs),
                Answer::Window(_) => Err(wrong_answer()),
            };
        };
        make_writable(*side, memory);
        side.alone(memory, || cost::round(memory))
    }

    fn ask_ring0(&mut self, question: &Question) -> Result<Answer> {
        let ring0 = self.ring0.as_mut().ok_or_else(|| Error::engine("there is no ring 0".to_owned()))?;
        ring0.ask(question)
    }
}

fn wrong_answer() -> Error {
    Error::engine("the side in ring 0 answered another question".to_owned())
}

/// Writes to every page of a forking side. After a child has ended, the first write to each page still faults, which is
/// no part of the next window.
fn make_writable(side: Side, memory: &Memory) {
    if matches!(side, FORK | FORK_HUGE) {
        memory.words().iter().step_by(WORDS_OF_A_PAGE).for_each(|word| {
            word.fetch_add(0, Ordering::Relaxed);
        });
    }
}

/// The process of the side in ring 0, or the reason why there is none.
fn start_ring0(bytes: usize) -> Result<std::result::Result<Apart<Question, Answer>, String>> {
    Apart::start(RING0.name, None, move || {
        let memory = RING0.memory(bytes)?;
        let serve: Serve<Question, Answer> = Box::new(move |question| match question {
            Question::Window(load) => Ok(Answer::Window(Box::new(window::measure(&memory, load)?))),
            Question::Costs => Ok(Answer::Costs(cost::round(&memory)?)),
        });
        Ok(serve)
    })
}

/// The extent of the measurement.
struct Scale {
    bytes: usize,
    window: Duration,
    rounds: usize,
}

const QUICK: Scale = Scale { bytes: 256 << 20, window: Duration::from_millis(1500), rounds: 3 };
const FULL: Scale = Scale { bytes: 4 << 30, window: Duration::from_millis(4000), rounds: 5 };

fn run(options: &Options, sink: Sink<'_>) -> Result<Report> {
    run_at(options.pick(QUICK, FULL), options, sink)
}

fn run_at(Scale { bytes, window, rounds }: Scale, options: &Options, sink: Sink<'_>) -> Result<Report> {
    let writers = options.threads(options.pick(WRITERS_QUICK, WRITERS_FULL))?;
    // The side in ring 0 starts first, while this process has one thread.
    let ring0 = start_ring0(bytes)?;
    let config = Fields::new()
        .with("mode", options.mode.name())
        .with("ring0", ring0.as_ref().err().map_or("as a side", String::as_str))
        .with("memory_bytes", bytes)
        .with("rounds", rounds)
        .with("window_ms", window.as_millis() as u64)
        .with("updates_per_transaction", UPDATES)
        .with("loop", "open: latencies count from when a transaction was due")
        .with("scan", "all of every snapshot, one after the other, on one thread or child")
        .with("checked", "the sum of every snapshot, and of the memory after each window")
        .with("extra_bytes", "anonymous and shared memory of the machine, so it has to be quiet");
    let mut report = Report::new(BENCH.name, config);
    let memories = MEMORIES.iter().map(|side| Ok((*side, side.memory(bytes)?))).collect::<Result<_>>()?;
    let mut sides = Sides { memories, ring0: ring0.ok() };
    if cost::are_counted() {
        // On one processor whose clock counts instructions, latencies are meaningless.
        count(&mut report, &mut sides, rounds, sink)?;
        return Ok(report);
    }
    report.rows.push(cost::not_counted());
    let total = writers.len();
    for (done, writers) in writers.into_iter().enumerate() {
        sink(Step { done, total, label: &format!("{writers} writers") });
        let load = Load { writers, due_per_s: None, scan: Scan::Snapshots, window, seed: 1 };
        let capacity = sides.window_of(STOCK, load)?.rate_per_s;
        let due_per_s = schedule::rate_for(capacity, writers)
            .ok_or_else(|| Error::engine("no transaction ended while the rate was chosen".to_owned()))?;
        report.rows.push(
            Fields::new()
                .with("writers", writers)
                .with("calibration", "stock fork, closed loop, beside the scans; at most half of it is due, and 10,000 per writer")
                .with("closed_loop_per_s", capacity)
                .with("due_per_s", due_per_s),
        );
        let names = sides.names();
        let results = interleave(rounds, names.len(), |side, round| {
            let seed = round as u64 + 1;
            sides.window(side, Load { due_per_s: Some(due_per_s), seed, ..load })
        })?;
        add_rows(&mut report, writers, due_per_s, &names, &results);
        let suffix = if done == 0 { String::new() } else { format!("_{writers}_writers") };
        add_ratios(&mut report, &suffix, &names, &results);
    }
    Ok(report)
}

fn add_rows(report: &mut Report, writers: usize, due_per_s: f64, names: &[&str], results: &[Vec<Window>]) {
    for (side, windows) in names.iter().zip(results) {
        let mut all = Latencies::default();
        windows.iter().for_each(|window| all.merge(&window.latencies));
        let of = |of: &dyn Fn(&Window) -> f64| samples(windows, of).median();
        let mut row = Fields::new()
            .with("writers", writers)
            .with("side", *side)
            .with("due_per_s", due_per_s)
            .with("rate_per_s", of(&|w| w.rate_per_s));
        all.fill(&mut row);
        row.set("scans_per_s", of(&|w| w.scans_per_s));
        row.set("pause_ns", of(&|w| w.pause_ns.unwrap_or(f64::NAN)));
        row.set("age_ns", of(&|w| w.age_ns.unwrap_or(f64::NAN)));
        row.set("oldest_ns", of(&|w| w.oldest_ns.unwrap_or(f64::NAN)));
        row.set("cpu_pct", of(&|w| w.cpu_ns / w.settled_ns * 100.0));
        row.set("extra_bytes", of(&|w| w.extra_bytes));
        report.rows.push(row);
    }
}

/// Adds the ratios of one number of writers. The headline is the default engine's.
fn add_ratios(report: &mut Report, suffix: &str, names: &[&str], results: &[Vec<Window>]) {
    let p999 = |side: usize| samples(&results[side], |w| w.latencies.percentile(99.9) as f64);
    let find = |wanted: &str| names.iter().position(|name| *name == wanted);
    let (Some(idle), Some(stock)) = (find(NO_SNAPSHOT), find(STOCK.name)) else { return };
    for (side, name) in names.iter().enumerate().filter(|(side, _)| *side != idle) {
        let over_idle = p999(side).over(&p999(idle));
        report.ratio(&format!("{}_p999_over_no_snapshot{suffix}", label(name)), over_idle);
        if results[side].iter().all(|window| window.age_ns.is_none()) {
            continue;
        }
        let snapshots = samples(&results[side], |w| w.scans_per_s);
        report.ratio(&format!("{}_snapshots_per_s{suffix}", label(name)), snapshots.median());
        if side != stock {
            report.ratio(&format!("fork_p999_over_{}{suffix}", label(name)), p999(stock).over(&p999(side)));
            let of_stock = samples(&results[stock], |w| w.scans_per_s);
            report.ratio(&format!("{}_snapshots_over_fork{suffix}", label(name)), snapshots.over(&of_stock));
        }
        if *name == DEFAULT.name {
            report.ratio(&format!("oltp_p999_over_no_snapshot{suffix}"), over_idle);
            report.ratio(&format!("snapshots_per_s{suffix}"), snapshots.median());
        }
    }
}

/// A side's name, as part of a ratio's.
fn label(side: &str) -> String {
    side.replace(", ", "_").replace(' ', "_")
}

/// Counts instructions, and reports them.
fn count(report: &mut Report, sides: &mut Sides, rounds: usize, sink: Sink<'_>) -> Result<()> {
    let mut names: Vec<_> = sides.memories.iter().map(|(side, _)| side.name).collect();
    names.extend(sides.ring0.as_ref().map(|_| RING0.name));
    let results = interleave(rounds, names.len(), |side, round| {
        sink(Step { done: round, total: rounds, label: names[side] });
        sides.costs(side)
    })?;
    let cost = |side: &str, of: fn(&Costs) -> f64| {
        let rounds = names.iter().position(|name| *name == side).map_or(&[][..], |side| &results[side]);
        rounds.iter().map(of).collect::<Samples>()
    };
    for &side in &names {
        for (operation, of) in [cost::SNAPSHOT, cost::FIRST_WRITE] {
            let cost = cost(side, of);
            let row = Fields::new().with("side", side).with("operation", operation);
            report.rows.push(row.with("cost_insns", cost.median()).with("spread", cost.spread()));
        }
    }
    for (name, (_, of)) in [
        ("fork_over_ring0_snapshot_insns", cost::SNAPSHOT),
        ("fork_over_ring0_fault_insns", cost::FIRST_WRITE),
    ] {
        report.ratio(name, cost(STOCK.name, of).over(&cost(RING0.name, of)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_side_in_ring_0_measures_or_says_why_there_is_none() {
        match start_ring0(1 << 20).unwrap() {
            Ok(ring0) => {
                let mut sides = Sides { memories: Vec::new(), ring0: Some(ring0) };
                let window = Duration::from_millis(50);
                let load = Load { writers: 2, due_per_s: Some(1000.0), scan: Scan::Nothing, window, seed: 1 };
                let seen = sides.window(SIDES.len(), load).unwrap();
                assert!(seen.scans_per_s > 0.0 && seen.latencies.count() > 0 && seen.age_ns.is_some());
                assert!(sides.costs(0).unwrap().snapshot > 0.0);
            }
            Err(reason) => {
                println!("skipped: {reason}");
                assert!(reason.contains("ring0"), "{reason}");
            }
        }
    }

    #[test]
    fn every_number_of_writers_has_a_row_for_each_side_and_the_headline() {
        let scale = || Scale { bytes: 4 << 20, window: Duration::from_millis(50), rounds: 1 };
        let mut options = Options::new(crate::Mode::Full);
        let report = match run_at(scale(), &options, &mut |_| {}) {
            Err(Error::Snapshot(error @ bedplate_snapshot::Error::Unavailable { .. })) => {
                return println!("skipped: {error}");
            }
            report => report.unwrap(),
        };
        let of =
            |row: &Fields| Some((row.number("writers")? as usize, row.get("side")?.as_str()?.to_owned()));
        let rows: Vec<_> = report.rows.iter().filter_map(of).collect();
        for writers in WRITERS_FULL {
            for (side, ..) in SIDES {
                assert!(rows.contains(&(*writers, side.to_owned())), "{writers} {side}: {rows:?}");
            }
        }
        for name in ["snapshots_per_s", "oltp_p999_over_no_snapshot", "fork_p999_over_remap_thread"] {
            for suffix in ["", "_1_writers", "_4_writers"] {
                assert!(report.ratios[&format!("{name}{suffix}")] > 0.0, "{name}{suffix}");
            }
        }
        for row in report.rows.iter().filter(|row| row.get("side").is_some()) {
            for key in ["due_per_s", "rate_per_s", "p50_ns", "p99_ns", "p999_ns", "max_ns", "cpu_pct"] {
                assert!(row.number(key).is_some_and(|value| value > 0.0), "{key} of {row:?}");
            }
        }
        // The number that a user asks for replaces the benchmark's own numbers.
        options.writers = Some(3);
        let report = run_at(scale(), &options, &mut |_| {}).unwrap();
        let writers: Vec<_> = report.rows.iter().filter_map(|row| row.number("writers")).collect();
        assert!(!writers.is_empty() && writers.iter().all(|writers| *writers == 3.0), "{writers:?}");
        assert!(report.ratios.contains_key("snapshots_per_s"));
    }

    /// A window with one latency and `scans_per_s` scans per second.
    fn window(p999_ns: u64, scans_per_s: f64, snapshots: bool) -> Window {
        let mut latencies = Latencies::default();
        latencies.record(p999_ns);
        let age = snapshots.then_some(1.0);
        Window {
            latencies,
            rate_per_s: 1.0,
            scans_per_s,
            pause_ns: age,
            age_ns: age,
            oldest_ns: age,
            cpu_ns: 1.0,
            settled_ns: 2.0,
            extra_bytes: 0.0,
        }
    }

    #[test]
    fn the_headline_is_the_default_engine_s_against_the_idle_baseline_of_its_round() {
        let mut report = Report::new(BENCH.name, Fields::new());
        let names = [NO_SNAPSHOT, "scan without snapshots", STOCK.name, DEFAULT.name];
        let results = [
            // The machine was ten times slower in the second round.
            vec![window(100, 0.0, false), window(1000, 0.0, false)],
            vec![window(200, 7.0, false), window(2000, 7.0, false)],
            vec![window(800, 2.0, true), window(8000, 2.0, true)],
            vec![window(400, 4.0, true), window(4000, 6.0, true)],
        ];
        add_rows(&mut report, 2, 50.0, &names, &results);
        add_ratios(&mut report, "", &names, &results);
        add_ratios(&mut report, "_4_writers", &names, &results);
        let near = |name: &str, value: f64| {
            let found = report.ratios[name];
            assert!((found / value - 1.0).abs() < 0.01, "{name} is {found}, not {value}");
        };
        near("oltp_p999_over_no_snapshot", 4.0);
        near("oltp_p999_over_no_snapshot_4_writers", 4.0);
        near("snapshots_per_s", 5.0);
        near("fork_p999_over_remap_thread", 2.0);
        near("remap_thread_snapshots_over_fork", 2.5);
        near("scan_without_snapshots_p999_over_no_snapshot", 2.0);
        assert!(!report.ratios.contains_key("scan_without_snapshots_snapshots_per_s"));
        assert_eq!(report.rows.len(), names.len());
        assert_eq!(report.rows[0].get("age_ns"), Some(&serde_json::Value::Null));
        assert_eq!(report.rows[3].number("cpu_pct"), Some(50.0));
    }
}
