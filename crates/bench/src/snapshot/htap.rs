//! `htap`: transactions that write to an array while each snapshot of it is scanned (paper 7.3).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bedplate_snapshot::Memory;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::sides::{FORK, FORK_HUGE, Side, UFFD, wait_for_end};
use crate::latency::Latencies;
use crate::sample::{interleave, samples};
use crate::{Benchmark, Error, Fields, Options, Report, Result, Sink, Step};

pub(crate) const BENCH: Benchmark = Benchmark {
    name: "htap",
    about: "random updates beside an analytic scan of every snapshot (paper 7.3)",
    run,
};

const SIDES: [Side; 3] = [FORK, FORK_HUGE, UFFD];
/// Words that a transaction updates.
const UPDATES: usize = 4;
/// Words of the array that a scan reads: one of each so many.
const SCAN_STEP: usize = 64;

struct Window {
    rate_per_s: f64,
    latencies: Latencies,
    snapshots_per_s: f64,
    pause_ns: f64,
    age_ns: f64,
}

fn run(options: &Options, sink: Sink<'_>) -> Result<Report> {
    let bytes: usize = options.pick(256 << 20, 4 << 30);
    let window = Duration::from_millis(options.pick(1000, 4000));
    let rounds = options.pick(3, 5);
    // None is the same load without snapshots; zero is one after the other.
    let intervals: &[Option<u64>] = &[None, Some(100), Some(20), Some(0)];
    let config = Fields::new()
        .with("mode", options.mode.name())
        .with("memory_bytes", bytes)
        .with("rounds", rounds)
        .with("window_ms", window.as_millis() as u64)
        .with("updates_per_transaction", UPDATES)
        .with("writers", "one thread; a scan runs beside it");
    let mut report = Report::new(BENCH.name, config);
    let memories = SIDES.iter().map(|side| side.memory(bytes)).collect::<Result<Vec<_>>>()?;
    let mut undisturbed = vec![f64::NAN; SIDES.len()];
    for (done, &interval) in intervals.iter().enumerate() {
        sink(Step { done, total: intervals.len(), label: &format!("{interval:?} ms between snapshots") });
        let results = interleave(rounds, SIDES.len(), |side, round| {
            let memory = &memories[side];
            SIDES[side].alone(memory, || {
                let interval = interval.map(Duration::from_millis);
                measure(memory, window, interval, round as u64 + 1)
            })
        })?;
        for (index, (side, windows)) in SIDES.iter().zip(&results).enumerate() {
            let mut all = Latencies::default();
            windows.iter().for_each(|window| all.merge(&window.latencies));
            let mut row = Fields::new().with("side", side.name).with("interval_ms", interval);
            row.set("transactions_per_s", samples(windows, |w| w.rate_per_s).median());
            all.fill(&mut row);
            let snapshots_per_s = samples(windows, |w| w.snapshots_per_s).median();
            row.set("snapshots_per_s", snapshots_per_s);
            row.set("pause_ns", samples(windows, |w| w.pause_ns).median());
            row.set("age_of_results_ns", samples(windows, |w| w.age_ns).median());
            report.rows.push(row);
            let p999 = all.percentile(99.9) as f64;
            match interval {
                None => undisturbed[index] = p999,
                Some(20) => {
                    let name = side.name.replace(", ", "_").replace(' ', "_");
                    report.ratio(&format!("{name}_p999_over_no_snapshot"), p999 / undisturbed[index]);
                    if *side == UFFD {
                        report.ratio("oltp_p999_over_no_snapshot", p999 / undisturbed[index]);
                    }
                }
                Some(0) if *side == UFFD => report.ratio("snapshots_per_s", snapshots_per_s),
                Some(0) if *side == FORK => report.ratio("fork_snapshots_per_s", snapshots_per_s),
                Some(_) => {}
            }
        }
    }
    Ok(report)
}

fn measure(memory: &Memory, window: Duration, interval: Option<Duration>, seed: u64) -> Result<Window> {
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
        pause_ns: pauses / taken as f64,
        age_ns: ages / taken as f64,
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
