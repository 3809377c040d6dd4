//! Filling a database and driving it from threads for a window of time.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use bedplate_kerneldb::{Config, Database, EngineKind, SetOptions, TRACE_OPS, available_memory};

use super::driver::{Driver, Outcome};
use super::trace::{TraceOp, Workload, key};
use crate::{Error, Result};

/// Operations passed to a driver at once, between two readings of the clock.
pub const CHUNK: usize = TRACE_OPS;

/// Numbers of operations that were rolled back, by reason, from the database's own counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// Another transaction held the lock.
    pub conflicts: u64,
    /// All versions were in use by snapshots.
    pub no_version: u64,
    /// The log ring was full.
    pub wal_full: u64,
}

impl Refused {
    /// Runs `f` and counts the operations that were refused meanwhile.
    pub fn during<T>(database: &Database, f: impl FnOnce() -> Result<T>) -> Result<(T, Refused)> {
        let before = database.stats();
        let result = f()?;
        let after = database.stats();
        let refused = Refused {
            conflicts: after.conflicts - before.conflicts,
            no_version: after.no_version - before.no_version,
            wal_full: after.wal_full - before.wal_full,
        };
        Ok((result, refused))
    }
}

/// The operations of the threads within a window.
#[derive(Clone, Copy, Debug, Default)]
pub struct Window {
    /// All threads' operations.
    pub outcome: Outcome,
    /// Operations rolled back, by reason.
    pub refused: Refused,
    /// Length in nanoseconds.
    pub wall_ns: u64,
}

impl Window {
    /// Operations done per second of CPU time.
    pub fn per_cpu_s(&self) -> f64 {
        self.outcome.done as f64 * 1e9 / self.outcome.cpu_ns as f64
    }

    /// Operations done per second.
    pub fn per_s(&self) -> f64 {
        self.outcome.done as f64 * 1e9 / self.wall_ns as f64
    }

    /// Operations rolled back per second.
    pub fn rolled_back_per_s(&self) -> f64 {
        self.outcome.rolled_back as f64 * 1e9 / self.wall_ns as f64
    }
}

/// Runs each driver with its trace (cyclically, from `from` on) in its own thread until `window` has
/// passed. `database` is the database of the drivers.
pub fn drive(
    database: &Database,
    drivers: &mut [Box<dyn Driver>],
    traces: &[Vec<TraceOp>],
    from: usize,
    window: Duration,
) -> Result<Window> {
    let (mut sum, refused) = Refused::during(database, || drive_all(drivers, traces, from, window))?;
    sum.refused = refused;
    Ok(sum)
}

fn drive_all(
    drivers: &mut [Box<dyn Driver>],
    traces: &[Vec<TraceOp>],
    from: usize,
    window: Duration,
) -> Result<Window> {
    let barrier = Barrier::new(drivers.len());
    let results: Vec<Result<Window>> = std::thread::scope(|scope| {
        let running: Vec<_> = drivers
            .iter_mut()
            .zip(traces)
            .map(|(driver, trace)| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    drive_one(driver.as_mut(), trace, from, window)
                })
            })
            .collect();
        running.into_iter().map(|t| t.join().expect("a driving thread does not panic")).collect()
    });
    let mut sum = Window::default();
    for result in results {
        let one = result?;
        sum.outcome.add(one.outcome);
        sum.wall_ns = sum.wall_ns.max(one.wall_ns);
    }
    Ok(sum)
}

fn drive_one(driver: &mut dyn Driver, trace: &[TraceOp], from: usize, window: Duration) -> Result<Window> {
    let start = Instant::now();
    let mut outcome = Outcome::default();
    let mut at = from % trace.len();
    while start.elapsed() < window {
        let end = (at + CHUNK).min(trace.len());
        outcome.add(driver.run(&trace[at..end])?);
        at = if end == trace.len() { 0 } else { end };
    }
    Ok(Window { outcome, refused: Refused::default(), wall_ns: start.elapsed().as_nanos() as u64 })
}

/// A database for a workload, filled with its keys. `base` is its configuration, except for the memory
/// and the minimum of partitions.
pub fn filled(workload: &Workload, base: Config) -> Result<Database> {
    let need = memory_need(workload, base.versions);
    let partitions = base.partitions.max(need.div_ceil(1 << 32) as u32);
    let database = Database::create(Config { partitions, memory_bytes: need, ..base })?;
    fill(&database, workload)?;
    Ok(database)
}

/// Writes all keys of the workload.
pub fn fill(database: &Database, workload: &Workload) -> Result<()> {
    let mut session = database.session()?;
    let value = vec![b'v'; workload.value_len];
    for number in 0..workload.keys {
        session.set(&key(number), &value, SetOptions::default())?;
    }
    Ok(())
}

/// Bytes that a database needs when every version slot of every key is in use. A quarter is added for
/// rounding to size classes and for per-processor caches.
pub fn memory_need(workload: &Workload, versions: u32) -> u64 {
    let versions = u64::from(versions);
    let entry = 96 + 16 * versions;
    let value = (workload.value_len as u64 + 16) * versions;
    let bytes = workload.keys * (entry + value);
    (bytes + bytes / 4 + (64 << 20)).next_multiple_of(1 << 20)
}

/// Fails if less than `bytes` of memory is available.
pub fn require_memory(bytes: u64) -> Result<()> {
    let available = available_memory().unwrap_or(0);
    if bytes > available {
        return Err(Error::Missing {
            what: format!("{bytes} bytes of memory are needed and {available} are available"),
            hint: "run it in quick mode, or on a larger machine",
        });
    }
    Ok(())
}

/// The name of an engine in reports.
pub fn engine_name(kind: EngineKind) -> &'static str {
    match kind {
        EngineKind::Arena => "arena",
        EngineKind::HashMap => "hashmap",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Distribution;

    struct Counting {
        seen: Vec<TraceOp>,
        fail_after: usize,
    }

    impl Driver for Counting {
        fn run(&mut self, ops: &[TraceOp]) -> Result<Outcome> {
            self.seen.extend_from_slice(ops);
            if self.seen.len() > self.fail_after {
                return Err(Error::Unknown("full".to_owned()));
            }
            Ok(Outcome { done: ops.len() as u64, cpu_ns: 1, ..Outcome::default() })
        }
    }

    fn trace(len: u64) -> Vec<TraceOp> {
        (0..len).map(|k| TraceOp::new(k, false)).collect()
    }

    #[test]
    fn a_trace_is_driven_in_order_and_cyclically() {
        let mut driver = Counting { seen: Vec::new(), fail_after: 5000 };
        let trace = trace(1500);
        assert!(drive_one(&mut driver, &trace, 1400, Duration::from_secs(60)).is_err());
        let expected: Vec<u64> = (1400..1500).chain(0..1500).cycle().take(driver.seen.len()).collect();
        let seen: Vec<u64> = driver.seen.iter().map(|o| o.key()).collect();
        assert_eq!(seen[..1600], expected[..1600]);
        assert_eq!(seen[1600], 0);
    }

    #[test]
    fn windows_sum_over_threads() {
        let mut drivers: Vec<Box<dyn Driver>> = (0..2)
            .map(|_| Box::new(Counting { seen: Vec::new(), fail_after: usize::MAX }) as Box<dyn Driver>)
            .collect();
        let traces = vec![trace(2000), trace(2000)];
        let w = drive_all(&mut drivers, &traces, 0, Duration::from_millis(2)).unwrap();
        assert!(w.outcome.done > 0 && w.wall_ns >= 2_000_000 && w.outcome.cpu_ns > 0);
        assert!(w.per_s() > 0.0 && w.rolled_back_per_s() == 0.0);
    }

    #[test]
    fn memory_grows_with_what_is_stored() {
        let w = |keys, value_len| Workload {
            keys,
            value_len,
            set_percent: 0,
            distribution: Distribution::Uniform,
        };
        assert!(memory_need(&w(1_000_000, 1024), 4) > 4 * 1024 * 1_000_000);
        assert!(memory_need(&w(100_000, 16), 8) > memory_need(&w(100_000, 16), 1));
        assert!(require_memory(u64::MAX).is_err());
        assert!(require_memory(1).is_ok());
    }
}
