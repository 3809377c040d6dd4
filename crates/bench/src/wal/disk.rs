//! A log on a disk: no refusal while the disk keeps up, and group commit.

use std::fs::File;
use std::io::{Seek, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use bedplate_kerneldb::wal::WalConfig;
use bedplate_kerneldb::{Config, Durability, SetOptions, Store, StoreConfig, Written};

use super::{PATIENCE, RING_BYTES};
use crate::latency::Latencies;
use crate::local::driver::{OnePerCall, Outcome};
use crate::local::run::{CHUNK, memory_need};
use crate::local::trace::{TraceOp, Workload, draw, key};
use crate::{Error, Fields, Options, Report, Result};

/// A store with a log in a new directory. Dropping the guard removes the directory.
fn store(durability: Durability, memory: u64, options: &Options) -> Result<(Store, tempfile::TempDir)> {
    let directory = tempfile::Builder::new()
        .prefix("bedplate-bench-")
        .tempdir_in(&options.directory)
        .map_err(Error::io("create a data directory"))?;
    let config = StoreConfig {
        database: Config { memory_bytes: memory, wal_ring_bytes: RING_BYTES, ..Config::default() },
        wal: Some(WalConfig { durability, ..WalConfig::default() }),
        ..StoreConfig::default()
    };
    let (store, _) = Store::open(config, directory.path(), &mut |_| {})?;
    Ok((store, directory))
}

/// Fastest pace: well below what one call per operation can do, so that the writer keeps it.
const PACED_MAX: u64 = 50_000;

/// Runs a writer at a quarter of the disk's write rate, with an asynchronous log. Returns the number of operations
/// refused. Latency counts from when an operation was due.
pub fn paced(workload: &Workload, window: Duration, options: &Options, report: &mut Report) -> Result<u64> {
    let disk = disk_bytes_per_s(&options.directory)?;
    let record = 64 + workload.value_len as u64;
    let rate = (disk / 4 / record * 100 / u64::from(workload.set_percent)).clamp(1, PACED_MAX);
    let need = memory_need(workload, Config::default().versions) + 4 * u64::from(RING_BYTES);
    let (store, _directory) = store(Durability::Async, need, options)?;
    let mut driver = OnePerCall::new(store.database(), &Workload { set_percent: 100, ..*workload })?;
    let (mut outcome, mut latencies) = (Outcome::default(), Latencies::default());
    for number in 0..workload.keys {
        driver.one(TraceOp::new(number, true), &mut outcome)?;
        if number % CHUNK as u64 == 0 {
            store.wait_durable(store.database().clock(), PATIENCE)?;
        }
    }
    let (before, trace, start) = (outcome, draw(workload, 1 << 18, 23), Instant::now());
    for (i, op) in trace.iter().cycle().enumerate() {
        let due = Duration::from_nanos(i as u64 * 1_000_000_000 / rate);
        if due >= window {
            break;
        }
        while start.elapsed() < due {
            std::thread::sleep(Duration::from_micros(200).min(due.saturating_sub(start.elapsed())));
        }
        driver.one(*op, &mut outcome)?;
        latencies.record((start.elapsed() - due).as_nanos() as u64);
    }
    let stats = store.wal().map(|w| w.stats()).unwrap_or_default();
    let refused = outcome.rolled_back - before.rolled_back;
    let mut row = Fields::new()
        .with("kind", "paced")
        .with("value_bytes", workload.value_len)
        .with("set_pct", workload.set_percent)
        .with("log", "async")
        .with("offered_per_s", rate)
        .with("ops_per_s", (outcome.done - before.done) as f64 / start.elapsed().as_secs_f64())
        .with("refused", refused)
        .with("log_bytes", stats.bytes)
        .with("fsyncs", stats.syncs)
        .with("disk_bytes_per_s", disk);
    latencies.fill(&mut row);
    report.rows.push(row);
    Ok(refused)
}

/// Measures threads that wait for their commits, and the disk's own fsync rate.
pub fn sync(window: Duration, options: &Options, report: &mut Report) -> Result<()> {
    let mut best = f64::NAN;
    for threads in [1usize, 8, 32] {
        let bare = bare_fsyncs_per_s(&options.directory, window / 4)?;
        let (store, _directory) = store(Durability::Sync, 256 << 20, options)?;
        let before = store.wal().map(|w| w.stats()).unwrap_or_default();
        let start = Instant::now();
        let results: Vec<Result<Latencies>> = std::thread::scope(|scope| {
            let running: Vec<_> = (0..threads as u64)
                .map(|t| {
                    let store = &store;
                    scope.spawn(move || commit_and_wait(store, t, window))
                })
                .collect();
            running.into_iter().map(|t| t.join().expect("a committing thread does not panic")).collect()
        });
        let took = start.elapsed().as_secs_f64();
        let after = store.wal().map(|w| w.stats()).unwrap_or_default();
        let mut latencies = Latencies::default();
        for r in results {
            latencies.merge(&r?);
        }
        let commits = latencies.count() as f64;
        let fsyncs = (after.syncs - before.syncs) as f64;
        let mut row = Fields::new()
            .with("kind", "sync")
            .with("value_bytes", 16)
            .with("threads", threads)
            .with("commits_per_s", commits / took)
            .with("fsyncs_per_s", fsyncs / took)
            .with("commits_per_fsync", commits / fsyncs)
            .with("bare_fsyncs_per_s", bare);
        latencies.fill(&mut row);
        report.rows.push(row);
        best = best.max(commits / took / bare);
    }
    report.ratio("sync_commits_over_bare_fsyncs", best);
    Ok(())
}

fn commit_and_wait(store: &Store, thread: u64, window: Duration) -> Result<Latencies> {
    let mut session = store.database().session()?;
    let mut latencies = Latencies::default();
    let start = Instant::now();
    for i in 0u64.. {
        if start.elapsed() >= window {
            break;
        }
        let at = Instant::now();
        match session.set(&key((thread << 16) | (i % 1000)), &[b'v'; 16], SetOptions::default()) {
            Ok(Written::Done { commit_ts }) => {
                if !store.wait_durable(commit_ts, PATIENCE)? {
                    return Err(Error::engine(format!("commit {commit_ts} is not durable")));
                }
                latencies.record(at.elapsed().as_nanos() as u64);
            }
            Ok(Written::ConditionFailed) => {}
            Err(e) if e.is_transient() => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(latencies)
}

/// Repeatedly overwrites and syncs 4 KiB, in a file that has its blocks already. This is the least
/// cost of a synchronous commit on this disk, and the baseline of group commit.
fn bare_fsyncs_per_s(directory: &Path, window: Duration) -> Result<f64> {
    const BLOCKS: u64 = 256;
    let mut file = tempfile::tempfile_in(directory).map_err(Error::io("create a file"))?;
    let block = [0x5au8; 4096];
    for _ in 0..BLOCKS {
        file.write_all(&block).map_err(Error::io("write"))?;
    }
    file.sync_all().map_err(Error::io("sync"))?;
    let (start, mut n) = (Instant::now(), 0u64);
    while start.elapsed() < window || n == 0 {
        if n.is_multiple_of(BLOCKS) {
            file.rewind().map_err(Error::io("rewind"))?;
        }
        file.write_all(&block).and_then(|()| file.sync_data()).map_err(Error::io("write and sync"))?;
        n += 1;
    }
    Ok(n as f64 / start.elapsed().as_secs_f64())
}

/// Sequential writes of 1 MiB with a sync at the end.
fn disk_bytes_per_s(directory: &Path) -> Result<u64> {
    const MIB: usize = 16;
    let mut file: File = tempfile::tempfile_in(directory).map_err(Error::io("create a file"))?;
    let block = vec![0xa5u8; 1 << 20];
    let mut rate = 0.0f64;
    // The first pass may find cold memory in the page cache; the second overwrites it.
    for _ in 0..2 {
        file.rewind().map_err(Error::io("rewind"))?;
        let start = Instant::now();
        for _ in 0..MIB {
            file.write_all(&block).map_err(Error::io("write"))?;
        }
        file.sync_data().map_err(Error::io("sync"))?;
        rate = (MIB << 20) as f64 / start.elapsed().as_secs_f64();
    }
    Ok(rate as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disk_has_rates() {
        let directory = tempfile::tempdir().unwrap();
        assert!(bare_fsyncs_per_s(directory.path(), Duration::from_millis(5)).unwrap() > 0.0);
        assert!(disk_bytes_per_s(directory.path()).unwrap() > 0);
    }
}
