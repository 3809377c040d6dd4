//! `htap`: transactions that write to an array while each snapshot of it is scanned (paper 7.3).
//!
//! The `ring0` engine takes part where there is ring 0, in a process of its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bedplate_snapshot::Memory;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

use super::sides::{FORK, FORK_HUGE, REMAP_THREAD, Side, UFFD, wait_for_end};
use crate::latency::Latencies;
use crate::sample::{interleave, samples};
use crate::{Benchmark, Error, Fields, Options, Report, Result, Sink, Step};

pub(crate) const BENCH: Benchmark = Benchmark {
    name: "htap",
    about: "random updates beside an analytic scan of every snapshot (paper 7.3)",
    run,
};

const SIDES: [Side; 4] = [FORK, FORK_HUGE, UFFD, REMAP_THREAD];
/// Words that a transaction updates.
const UPDATES: usize = 4;
/// Words of the array that a scan reads: one of each so many.
const SCAN_STEP: usize = 64;

/// What was seen in a window of time. Of no snapshots there are no pauses and ages.
#[derive(Serialize, Deserialize)]
pub(super) struct Window {
    pub rate_per_s: f64,
    pub latencies: Latencies,
    pub snapshots_per_s: f64,
    pause_ns: Option<f64>,
    age_ns: Option<f64>,
}

/// The side in ring 0, if there is any.
#[cfg(target_arch = "x86_64")]
type Ring0 = super::apart::Apart;
#[cfg(not(target_arch = "x86_64"))]
struct Ring0;

#[cfg(target_arch = "x86_64")]
fn ring0(bytes: usize, window: Duration) -> Result<std::result::Result<Ring0, String>> {
    Ring0::start(bytes, window)
}

#[cfg(not(target_arch = "x86_64"))]
fn ring0(_: usize, _: Duration) -> Result<std::result::Result<Ring0, String>> {
    Ok(Err("ring0 exists for x86-64 only".to_owned()))
}

#[cfg(not(target_arch = "x86_64"))]
impl Ring0 {
    fn measure(&mut self, _: Option<u64>, _: u64) -> Result<Window> {
        Err(Error::engine("there is no ring 0".to_owned()))
    }
}

fn run(options: &Options, sink: Sink<'_>) -> Result<Report> {
    let bytes: usize = options.pick(256 << 20, 4 << 30);
    let window = Duration::from_millis(options.pick(1000, 4000));
    let rounds = options.pick(3, 5);
    // None is the same load without snapshots; zero is one after the other.
    let intervals: &[Option<u64>] = &[None, Some(100), Some(20), Some(0)];
    // First, while this process has one thread.
    let ring0 = ring0(bytes, window)?;
    let config = Fields::new()
        .with("mode", options.mode.name())
        .with("ring0", ring0.as_ref().err().map_or("as a side", String::as_str))
        .with("memory_bytes", bytes)
        .with("rounds", rounds)
        .with("window_ms", window.as_millis() as u64)
        .with("updates_per_transaction", UPDATES)
        .with("writers", "one thread; a scan runs beside it");
    let mut report = Report::new(BENCH.name, config);
    let memories = SIDES.iter().map(|side| side.memory(bytes)).collect::<Result<Vec<_>>>()?;
    let mut ring0 = ring0.ok();
    let names: Vec<_> =
        SIDES.iter().map(|side| side.name).chain(ring0.is_some().then_some("ring0")).collect();
    let mut undisturbed = vec![f64::NAN; names.len()];
    for (done, &interval) in intervals.iter().enumerate() {
        sink(Step { done, total: intervals.len(), label: &format!("{interval:?} ms between snapshots") });
        let results = interleave(rounds, names.len(), |side, round| {
            let seed = round as u64 + 1;
            if let (Some(ring0), true) = (&mut ring0, side == SIDES.len()) {
                return ring0.measure(interval, seed);
            }
            let memory = &memories[side];
            SIDES[side].alone(memory, || measure(memory, window, interval.map(Duration::from_millis), seed))
        })?;
        for (index, (&side, windows)) in names.iter().zip(&results).enumerate() {
            let mut all = Latencies::default();
            windows.iter().for_each(|window| all.merge(&window.latencies));
            let mut row = Fields::new().with("side", side).with("interval_ms", interval);
            row.set("transactions_per_s", samples(windows, |w| w.rate_per_s).median());
            all.fill(&mut row);
            let snapshots_per_s = samples(windows, |w| w.snapshots_per_s).median();
            row.set("snapshots_per_s", snapshots_per_s);
            row.set("pause_ns", samples(windows, |w| w.pause_ns.unwrap_or(f64::NAN)).median());
            row.set("age_of_results_ns", samples(windows, |w| w.age_ns.unwrap_or(f64::NAN)).median());
            report.rows.push(row);
            let p999 = all.percentile(99.9) as f64;
            match interval {
                None => undisturbed[index] = p999,
                Some(20) => {
                    report
                        .ratio(&format!("{}_p999_over_no_snapshot", label(side)), p999 / undisturbed[index]);
                    if side == UFFD.name {
                        report.ratio("oltp_p999_over_no_snapshot", p999 / undisturbed[index]);
                    }
                }
                Some(0) if side == UFFD.name => report.ratio("snapshots_per_s", snapshots_per_s),
                Some(0) if side != FORK_HUGE.name => {
                    report.ratio(&format!("{}_snapshots_per_s", label(side)), snapshots_per_s);
                }
                Some(_) => {}
            }
        }
    }
    Ok(report)
}

/// A side's name, as part of a ratio's.
fn label(side: &str) -> String {
    side.replace(", ", "_").replace(' ', "_")
}

/// Transactions and, in intervals, snapshots that are scanned.
pub(super) fn measure(
    memory: &Memory,
    window: Duration,
    interval: Option<Duration>,
    seed: u64,
) -> Result<Window> {
    let over = AtomicBool::new(false);
    let begin = Instant::now();
    let (mut taken, mut pauses, mut ages) = (0u64, 0.0, 0.0);
    let (transactions, latencies) = std::thread::scope(|scope| -> Result<(u64, Latencies)> {
        let writer = scope.spawn(|| transact(memory, &over, seed));
        let mut analytics = || -> Result<()> {
            while begin.elapsed() < window {
                let Some(interval) = interval else {
                    std::thread::sleep(window.saturating_sub(begin.elapsed()));
                    continue;
                };
                let at = Instant::now();
                let snapshot = memory.spawn(|view| {
                    let sum =
                        view.words().iter().step_by(SCAN_STEP).fold(0u64, |sum, w| sum.wrapping_add(*w));
                    sum.to_le_bytes().to_vec()
                })?;
                pauses += snapshot.pause().as_nanos() as f64;
                let sum = snapshot.join()?;
                std::hint::black_box(sum);
                taken += 1;
                // A result is as old as its snapshot when it is there.
                ages += at.elapsed().as_nanos() as f64;
                std::thread::sleep(interval.saturating_sub(at.elapsed()));
            }
            Ok(())
        };
        let scanned = analytics();
        over.store(true, Ordering::Relaxed);
        let seen = writer.join().map_err(|_| Error::engine("the writer panicked".into()))?;
        scanned?;
        Ok(seen)
    })?;
    let seconds = begin.elapsed().as_secs_f64();
    wait_for_end(memory);
    Ok(Window {
        rate_per_s: transactions as f64 / seconds,
        latencies,
        snapshots_per_s: taken as f64 / seconds,
        pause_ns: (taken > 0).then(|| pauses / taken as f64),
        age_ns: (taken > 0).then(|| ages / taken as f64),
    })
}

fn transact(memory: &Memory, over: &AtomicBool, seed: u64) -> (u64, Latencies) {
    let mut random = SmallRng::seed_from_u64(seed);
    let words = memory.words();
    let (mut count, mut latencies) = (0, Latencies::default());
    while !over.load(Ordering::Relaxed) {
        let begin = Instant::now();
        for _ in 0..UPDATES {
            words[random.random_range(0..words.len())].fetch_add(1, Ordering::Relaxed);
        }
        latencies.record(begin.elapsed().as_nanos() as u64);
        count += 1;
    }
    (count, latencies)
}
