//! `kv-voter`: the Voter benchmark of H-Store and VoltDB: serializable transactions of several reads and writes that run
//! beside the data (paper 5.2, 6.4, 6.5, Figure 10).
//!
//! - *Local* ([`local`]): threads call the procedure by system calls, on the arena engine and on the hash-map engine, which is
//!   the paper's. The unit is votes per second of processor time. Both engines run the same sources in the same two styles.
//! - *Networked* ([`networked`]): clients call the procedure on kerneldb's server, and the same as a Redis Function.
//!
//! A vote is accepted if the contestant exists and the phone number has not reached its limit. After every turn, the benchmark
//! compares the votes in the database with the outcomes that its clients have counted ([`tally`]), and fails if they differ.

mod calls;
mod local;
mod networked;
mod tables;
mod tally;

use std::time::Duration;

use bedplate_kerneldb::EngineKind;

use crate::local::run::engine_name;
use crate::sample::{Samples, interleave, samples};
use crate::{Benchmark, Fields, Options, Report, Result, Sink, Step, Target};
use local::{Hall, Way, Window};
use tally::Tally;

pub(crate) const BENCH: Benchmark = Benchmark {
    name: "kv-voter",
    about: "Voter's procedure on both engines, and over the network against a Redis Function (paper 6.4, 6.5)",
    run,
};

/// The local sides. The indices below are those of their comparisons.
const SIDES: [(EngineKind, Way); 6] = [
    (EngineKind::Arena, Way::TailCalls),
    (EngineKind::Arena, Way::Direct),
    (EngineKind::Arena, Way::UserSpace),
    (EngineKind::Arena, Way::ByName),
    (EngineKind::HashMap, Way::TailCalls),
    (EngineKind::HashMap, Way::Direct),
];

/// Name of a ratio, its numerator and its denominator.
const RATIOS: [(&str, usize, usize); 5] = [
    ("tail_calls_over_hashmap", 0, 4),
    ("direct_over_hashmap", 1, 5),
    ("tail_calls_over_user_space", 0, 2),
    ("direct_over_user_space", 1, 2),
    ("by_name_over_user_space", 3, 2),
];

/// Number of the [`RATIOS`] that compare the engines.
const ENGINES: usize = 2;

const THREADS: [usize; 2] = [1, 2];

fn run(options: &Options, progress: Sink<'_>) -> Result<Report> {
    let plan = networked::Plan::new(options);
    let rounds = options.pick(5, 9);
    let window = Duration::from_millis(options.pick(200, 1000));
    let config = Fields::new()
        .with("mode", options.mode.name())
        .with("area_codes", tables::areas().count())
        .with("contestants", tables::CONTESTANTS)
        .with("limit", tables::LIMIT)
        .with("local_rounds", rounds)
        .with("local_window_ms", window.as_millis() as u64)
        .with("networked_rounds", plan.rounds)
        .with("networked_window_ms", plan.window.as_millis() as u64)
        .with("persistence", "none")
        .with("transport", "loopback TCP");
    let mut report = Report::new(BENCH.name, config);
    let total = THREADS.len() + plan.cells.len();
    let prefault = options.pick(256 << 20, 768 << 20);
    run_local(&mut report, rounds, window, prefault, |done, label| progress(Step { done, total, label }))?;
    let sides = networked::sides(options)?;
    let mut done = THREADS.len();
    networked::compare(&plan, &sides, &mut report, |label| {
        progress(Step { done, total, label });
        done += 1;
    })?;
    Ok(report)
}

/// Measures the local sides.
fn run_local(
    report: &mut Report,
    rounds: usize,
    window: Duration,
    prefault: u64,
    mut progress: impl FnMut(usize, &str),
) -> Result<()> {
    progress(0, "loading the tables");
    let halls =
        SIDES.iter().map(|(engine, way)| Hall::open(*engine, *way, prefault)).collect::<Result<Vec<_>>>()?;
    let turn = |side: usize, threads: usize, round: usize| -> Result<Window> {
        let hall: &Hall = &halls[side];
        let window = hall.vote_in_threads(threads, round, window)?;
        hall.check(window.tally)?;
        hall.clear()?;
        Ok(window)
    };
    let mut over_hashmap = Vec::new();
    for (done, threads) in THREADS.into_iter().enumerate() {
        progress(done, &format!("local, {threads} threads"));
        // Touches the memory that the measured turns use.
        (0..halls.len()).try_for_each(|side| turn(side, threads, rounds).map(|_| ()))?;
        let windows = interleave(rounds, halls.len(), |side, round| turn(side, threads, round))?;
        for ((engine, way), windows) in SIDES.iter().zip(&windows) {
            report.rows.push(row(threads, *engine, *way, windows));
        }
        for (index, (name, a, b)) in RATIOS.into_iter().enumerate() {
            let per_cpu = |side: usize| samples(&windows[side], Window::per_cpu_s);
            let over = per_cpu(a).over(&per_cpu(b));
            report.ratio(&format!("{name}_{threads}t"), over);
            if index < ENGINES {
                over_hashmap.push(over);
            }
        }
    }
    let worst = over_hashmap.into_iter().collect::<Samples>().min();
    report.target("local_over_hashmap_per_core", worst, Target::AtLeast(2.0));
    Ok(())
}

fn row(threads: usize, engine: EngineKind, way: Way, windows: &[Window]) -> Fields {
    let per_cpu = samples(windows, Window::per_cpu_s);
    let all: Tally = windows.iter().map(|window| window.tally).collect();
    Fields::new()
        .with("threads", threads)
        .with("engine", engine_name(engine))
        .with("way", way.name())
        .with("votes_per_cpu_s", per_cpu.median())
        .with("spread", per_cpu.spread())
        .with("cpu_ns_per_vote", 1e9 / per_cpu.median())
        .with("votes_per_s", samples(windows, Window::per_s).median())
        .with("accepted", all.accepted)
        .with("no_contestant", all.no_contestant)
        .with("over_limit", all.over_limit)
        .with("failed", all.failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_local_report_has_every_side_and_the_engines_comparison() {
        let mut report = Report::new(BENCH.name, Fields::new());
        run_local(&mut report, 1, Duration::from_millis(30), 16 << 20, |_, _| {}).unwrap();
        assert_eq!(report.rows.len(), THREADS.len() * SIDES.len() + 1);
        for row in &report.rows[..THREADS.len() * SIDES.len()] {
            assert!(row.number("votes_per_cpu_s").unwrap() > 0.0, "{row:?}");
        }
        for (name, a, b) in RATIOS {
            assert_ne!(SIDES[a], SIDES[b]);
            assert!(report.ratios[&format!("{name}_1t")] > 0.0, "{name}");
        }
        for (_, a, b) in &RATIOS[..ENGINES] {
            assert_eq!((SIDES[*a].0, SIDES[*b].0), (EngineKind::Arena, EngineKind::HashMap));
            assert_eq!(SIDES[*a].1, SIDES[*b].1, "the same code");
        }
        assert!(report.ratios["local_over_hashmap_per_core"] > 0.0);
    }
}
