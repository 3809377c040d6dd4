//! Durability with all real parts: programs in the kernel, log, checkpoints, files, killed processes,
//! full disks. Needs root.

mod durability {
    pub mod disks;
    pub mod kill;
    pub mod lifecycle;
    pub mod memory;
    pub mod restart;
    pub mod transfers;
}

use std::path::Path;
use std::time::{Duration, Instant};

use bedplate_kerneldb::checkpoint::CheckpointConfig;
use bedplate_kerneldb::recovery::RecoveryReport;
use bedplate_kerneldb::wal::WalConfig;
use bedplate_kerneldb::{
    Config, Database, Durability, Result, Session, SetOptions, Store, StoreConfig, Written,
};

const LONG: Duration = Duration::from_secs(30);

/// A small database with a log; automatic checkpoints are off.
fn config(durability: Durability) -> StoreConfig {
    StoreConfig {
        database: Config {
            memory_bytes: 64 << 20,
            max_sessions: 64,
            wal_ring_bytes: 1 << 20,
            ..Config::default()
        },
        wal: Some(WalConfig {
            durability,
            retry_interval: Duration::from_millis(20),
            ..WalConfig::default()
        }),
        checkpoint: CheckpointConfig { interval: None, log_bytes: None, ..CheckpointConfig::default() },
        ..StoreConfig::default()
    }
}

fn open(config: StoreConfig, data: &Path) -> (Store, RecoveryReport) {
    Store::open(config, data, &mut |_| ()).unwrap()
}

/// Repeats a write while its error is transient; returns the commit timestamp.
fn set(session: &mut Session, key: &[u8], value: &[u8]) -> Result<u64> {
    let started = Instant::now();
    loop {
        match session.set(key, value, SetOptions::default()) {
            Ok(Written::Done { commit_ts }) => return Ok(commit_ts),
            Ok(Written::ConditionFailed) => unreachable!("there is no condition"),
            Err(e) if e.is_transient() && started.elapsed() < LONG => {
                std::thread::sleep(Duration::from_micros(100));
            }
            Err(e) => return Err(e),
        }
    }
}

/// All keys and values, sorted.
fn contents(database: &Database) -> Vec<(Vec<u8>, Vec<u8>, Option<u64>)> {
    let snapshot = database.snapshot().unwrap();
    let mut all = Vec::new();
    snapshot
        .scan(0, snapshot.positions(), &mut |item| {
            all.push((item.key.to_vec(), item.value.to_vec(), item.expire_at_ms));
        })
        .unwrap();
    all.sort();
    all
}
