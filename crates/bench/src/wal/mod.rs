//! `kv-wal`: the costs of logging (paper 6.3, Figure 9) and of durability. Four kinds of rows:
//!
//! - `cost`: the same operations on a database without a log and on one with a log. The log's consumer
//!   discards the records, as in the paper, so that the disk is not in the result. The operations come
//!   in bursts that the rings can hold, and the next burst waits until the consumer has caught up. So
//!   this is the cost of log records without that of a full ring: the writer's CPU time and the
//!   consumer's. `async_cost_*` is the share of operations per CPU second that is lost at 90 % SET.
//! - `sustained`: the same without waiting. If the consumer is slower than the writers, the rings fill
//!   and operations are refused: `refused_per_s`. The measure here is time, not CPU time.
//! - `paced`: a real log on disk, asynchronous, writers below the disk's rate: nothing may be refused.
//! - `sync`: threads that wait until each of their commits is on disk. Commits per fsync show the group
//!   commit, beside the fsync rate of the bare disk in the same directory and minute.

mod cost;
mod disk;

use std::time::Duration;

use bedplate_kerneldb::{Config, Database};

use crate::keys::Distribution;
use crate::local::run::{fill, memory_need, require_memory};
use crate::local::trace::Workload;
use crate::{Benchmark, Fields, Options, Report, Result, Sink, Step};

pub(crate) const BENCH: Benchmark = Benchmark {
    name: "kv-wal",
    about: "cost of logging, back pressure, group commit (paper 6.3, Figure 9)",
    run,
};

/// Ring bytes per processor: more than one burst of 1 KB values.
const RING_BYTES: u32 = 16 << 20;
/// Longest wait for the log before the benchmark gives up.
const PATIENCE: Duration = Duration::from_secs(20);

fn run(options: &Options, progress: Sink<'_>) -> Result<Report> {
    let keys: u64 = options.pick(100_000, 500_000);
    // Turns are short, so that other work of the machine hits both sides.
    let rounds = options.pick(25, 45);
    let window = Duration::from_millis(options.pick(40, 200));
    let long = window * 5;
    let config = Fields::new()
        .with("mode", options.mode.name())
        .with("keys", keys)
        .with("rounds", rounds)
        .with("window_ms", window.as_millis() as u64)
        .with("ring_bytes", RING_BYTES)
        .with("distribution", Distribution::Uniform.name())
        .with("directory", options.directory.display().to_string());
    let mut report = Report::new(BENCH.name, config);
    for (done, (value_len, size)) in [(16, "16b"), (1024, "1k")].into_iter().enumerate() {
        let base = Workload { keys, value_len, set_percent: 90, distribution: Distribution::Uniform };
        require_memory(2 * memory_need(&base, Config::default().versions) + 4 * u64::from(RING_BYTES))?;
        progress(Step { done, total: 3, label: &format!("{value_len} B: loading") });
        let plain = database(&base, 0)?;
        let logged = database(&base, RING_BYTES)?;
        cost::with_consumer(&logged, |consumer| {
            fill(&plain, &base)?;
            cost::fill_logged(&logged, &base, consumer)?;
            for set_percent in [10, 50, 90] {
                let workload = Workload { set_percent, ..base };
                progress(Step { done, total: 3, label: &format!("{value_len} B, {set_percent} % SET") });
                let sides = cost::measure(&plain, &logged, consumer, &workload, rounds, window)?;
                let lost = cost::record(&mut report, &workload, &sides);
                if set_percent == 90 {
                    report.ratio(&format!("async_cost_{size}"), lost);
                }
                cost::sustained(&plain, &logged, &workload, rounds / 5, long, &mut report)?;
            }
            Ok(())
        })?;
        drop((plain, logged));
        progress(Step { done, total: 3, label: &format!("{value_len} B: log on disk, paced") });
        let refused = disk::paced(&base, long * 5, options, &mut report)?;
        report.ratio(&format!("paced_refused_{size}"), refused as f64);
    }
    progress(Step { done: 2, total: 3, label: "synchronous commits" });
    disk::sync(long * 5, options, &mut report)?;
    Ok(report)
}

fn database(workload: &Workload, wal_ring_bytes: u32) -> Result<Database> {
    let memory_bytes = memory_need(workload, Config::default().versions) + 4 * u64::from(wal_ring_bytes);
    Ok(Database::create(Config { memory_bytes, wal_ring_bytes, ..Config::default() })?)
}
