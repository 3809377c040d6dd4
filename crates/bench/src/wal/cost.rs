//! The cost of writing log records, and what happens when the consumer is too slow.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bedplate_kerneldb::wal::{OpRef, TxnSink};
use bedplate_kerneldb::{Database, SetOptions};

use super::PATIENCE;
use crate::cpu::thread_cpu_ns;
use crate::local::driver::{Driver, Driving, Outcome};
use crate::local::run::{CHUNK, Refused, Window, drive};
use crate::local::trace::{Workload, draw, key};
use crate::sample::{Samples, interleave, samples};
use crate::{Error, Fields, Report, Result};

/// Discards everything except the newest timestamp.
struct Newest(u64);

impl TxnSink for Newest {
    fn begin(&mut self, commit_ts: u64) {
        self.0 = commit_ts;
    }

    fn op(&mut self, _: OpRef<'_>) {}

    fn end(&mut self) {}
}

/// The state that the thread that consumes the log shares with others.
#[derive(Default)]
pub struct Consumer {
    /// The newest commit timestamp that it has taken.
    taken: AtomicU64,
    /// Its CPU time up to then, in nanoseconds.
    cpu_ns: AtomicU64,
}

/// Runs `f` while a thread takes all records out of the log rings and discards them.
pub fn with_consumer<T>(database: &Database, f: impl FnOnce(&Consumer) -> Result<T>) -> Result<T> {
    let mut reader = database.log_reader().ok_or_else(|| Error::Missing {
        what: "the database has no log".to_owned(),
        hint: "create it with log rings",
    })?;
    let (consumer, stop) = (Consumer::default(), AtomicBool::new(false));
    consumer.taken.store(database.clock(), Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let mut newest = Newest(0);
                let taken = reader.drain_into(4 << 20, &mut newest);
                if taken > 0 {
                    database.set_durable(newest.0, false);
                }
                consumer.cpu_ns.store(thread_cpu_ns(), Ordering::Relaxed);
                if taken == 0 {
                    std::thread::sleep(Duration::from_micros(50));
                } else {
                    consumer.taken.store(newest.0, Ordering::Release);
                }
            }
        });
        let result = f(&consumer);
        stop.store(true, Ordering::Relaxed);
        result
    })
}

/// Waits until the consumer has taken every commit.
fn caught_up(database: &Database, consumer: &Consumer) -> Result<()> {
    let start = Instant::now();
    while consumer.taken.load(Ordering::Acquire) < database.clock() {
        if start.elapsed() > PATIENCE {
            return Err(Error::engine("the log's consumer does not catch up".to_owned()));
        }
        std::thread::sleep(Duration::from_micros(20));
    }
    Ok(())
}

/// Writes all keys. Waits for the consumer after each `CHUNK` keys, so that the ring does not fill.
pub fn fill_logged(database: &Database, workload: &Workload, consumer: &Consumer) -> Result<()> {
    let mut session = database.session()?;
    let value = vec![b'v'; workload.value_len];
    for number in 0..workload.keys {
        if number % CHUNK as u64 == 0 {
            caught_up(database, consumer)?;
        }
        session.set(&key(number), &value, SetOptions::default())?;
    }
    caught_up(database, consumer)
}

/// Windows without and with a log, in bursts; see the module's documentation. The CPU time of a window with a log contains
/// the consumer's.
pub fn measure(
    plain: &Database,
    logged: &Database,
    consumer: &Consumer,
    workload: &Workload,
    rounds: usize,
    window: Duration,
) -> Result<Vec<Vec<Window>>> {
    let trace = draw(workload, 1 << 20, 17);
    let mut sides = [Driving::Batch.driver(plain, workload)?, Driving::Batch.driver(logged, workload)?];
    interleave(rounds, sides.len(), |side, round| {
        let start = Instant::now();
        let mut outcome = Outcome::default();
        let consumer_cpu = || consumer.cpu_ns.load(Ordering::Relaxed);
        let consumer_before = consumer_cpu();
        let bursts = trace.chunks(CHUNK).cycle().skip(round * trace.len() / CHUNK / rounds);
        let ((), refused) = Refused::during([plain, logged][side], || {
            for burst in bursts {
                if start.elapsed() >= window {
                    break;
                }
                outcome.add(sides[side].run(burst)?);
                if side == 1 {
                    caught_up(logged, consumer)?;
                }
            }
            Ok(())
        })?;
        if side == 1 {
            outcome.cpu_ns += consumer_cpu() - consumer_before;
        }
        Ok(Window { outcome, refused, wall_ns: start.elapsed().as_nanos() as u64 })
    })
}

/// Adds the rows of [`measure`]; returns the share of operations per CPU second that logging loses.
pub fn record(report: &mut Report, workload: &Workload, sides: &[Vec<Window>]) -> f64 {
    let per_op = |w: &[Window]| samples(w, |w| 1e9 / w.per_cpu_s());
    let (plain, logged) = (per_op(&sides[0]), per_op(&sides[1]));
    let added: Samples = logged.values().iter().zip(plain.values()).map(|(l, p)| l - p).collect();
    let writes = f64::from(workload.set_percent) / 100.0;
    let lost = 1.0 - plain.over(&logged);
    report.rows.push(
        Fields::new()
            .with("kind", "cost")
            .with("value_bytes", workload.value_len)
            .with("set_pct", workload.set_percent)
            .with("plain_cpu_ns_per_op", plain.median())
            .with("logged_cpu_ns_per_op", logged.median())
            .with("spread", logged.spread())
            .with("per_logged_write_ns", added.median() / writes)
            .with("lost_share", lost)
            .with("refused", sides[1].iter().map(|w| w.refused.wal_full).sum::<u64>()),
    );
    lost
}

pub fn sustained(
    plain: &Database,
    logged: &Database,
    workload: &Workload,
    rounds: usize,
    window: Duration,
    report: &mut Report,
) -> Result<()> {
    let traces = [draw(workload, 1 << 20, 19)];
    let driver = |d| -> Result<[Box<dyn Driver>; 1]> { Ok([Driving::Batch.driver(d, workload)?]) };
    let mut sides = [driver(plain)?, driver(logged)?];
    let windows =
        interleave(rounds, 2, |side, _| drive([plain, logged][side], &mut sides[side], &traces, 0, window))?;
    for (log, windows) in [("none", &windows[0]), ("thrown away", &windows[1])] {
        let refused = samples(windows, |w| w.refused.wal_full as f64 * 1e9 / w.wall_ns as f64);
        report.rows.push(
            Fields::new()
                .with("kind", "sustained")
                .with("value_bytes", workload.value_len)
                .with("set_pct", workload.set_percent)
                .with("log", log)
                .with("ops_per_s", samples(windows, Window::per_s).median())
                .with("refused_per_s", refused.median()),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Distribution;

    #[test]
    fn the_lost_share_is_what_logging_adds() {
        let workload =
            Workload { keys: 1, value_len: 16, set_percent: 90, distribution: Distribution::Uniform };
        let window = |cpu_ns| Window {
            outcome: Outcome { done: 1000, cpu_ns, ..Outcome::default() },
            refused: Refused::default(),
            wall_ns: 1,
        };
        let mut report = Report::new("kv-wal", Fields::new());
        let lost = record(&mut report, &workload, &[vec![window(90_000); 3], vec![window(100_000); 3]]);
        assert!((lost - 0.1).abs() < 1e-9, "{lost}");
        let per_write = report.rows[0].number("per_logged_write_ns").unwrap();
        assert!((per_write - 10.0 / 0.9).abs() < 1e-3, "{per_write}");
    }
}
