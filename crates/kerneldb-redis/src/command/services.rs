//! What commands need of the server around them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::clients::Clients;
use super::settings::{Settings, Startup};
use bedplate_kerneldb::{Result, SnapshotItem};

/// State that all connections of a server share. `Send + Sync`.
#[derive(Debug)]
pub struct Shared {
    /// The connections.
    pub clients: Clients,
    /// The configuration.
    pub settings: Settings,
    /// Counters for INFO.
    pub counters: Counters,
    /// When the server started, milliseconds since the Unix epoch.
    pub started_ms: u64,
    /// 40 hexadecimal digits that identify this run of the server.
    pub run_id: String,
}

impl Shared {
    /// The state of a server that starts now.
    pub fn new(startup: Startup) -> Arc<Shared> {
        let now = unix_time();
        // Only has to differ between runs.
        let seed = now.as_nanos().to_le_bytes();
        let pid = u64::from(std::process::id());
        let word = |n| xxhash_rust::xxh64::xxh64(&seed, pid.wrapping_add(n));
        let run_id = format!("{:016x}{:016x}{:08x}", word(0), word(1 << 40), word(2 << 40) as u32);
        Arc::new(Shared {
            clients: Clients::default(),
            settings: Settings::new(startup),
            counters: Counters::default(),
            started_ms: now.as_millis() as u64,
            run_id,
        })
    }
}

/// Counters since the start, or since CONFIG RESETSTAT.
#[derive(Debug, Default)]
#[allow(missing_docs, reason = "named as in INFO")]
pub struct Counters {
    pub connections: AtomicU64,
    pub rejected_connections: AtomicU64,
    pub commands: AtomicU64,
    pub errors: AtomicU64,
    pub input_bytes: AtomicU64,
    pub output_bytes: AtomicU64,
    pub hits: AtomicU64,
    pub misses: AtomicU64,
    pub expired: AtomicU64,
    pub retries: AtomicU64,
    pub conflicts: AtomicU64,
}

impl Counters {
    pub(super) fn all(&self) -> [(&'static str, &AtomicU64); 11] {
        [
            ("total_connections_received", &self.connections),
            ("total_commands_processed", &self.commands),
            ("total_net_input_bytes", &self.input_bytes),
            ("total_net_output_bytes", &self.output_bytes),
            ("rejected_connections", &self.rejected_connections),
            ("expired_keys", &self.expired),
            ("keyspace_hits", &self.hits),
            ("keyspace_misses", &self.misses),
            ("total_error_replies", &self.errors),
            ("bedplate_retries", &self.retries),
            ("bedplate_conflicts", &self.conflicts),
        ]
    }

    pub(super) fn reset(&self) {
        self.all().into_iter().for_each(|(_, counter)| counter.store(0, Relaxed));
    }

    pub(super) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Relaxed);
    }
}

/// Time since the Unix epoch.
pub(super) fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Long work that a command starts and whose end it waits for without blocking its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// SAVE, BEDPLATE CHECKPOINT: a checkpoint that has everything committed before.
    Checkpoint,
    /// BEDPLATE VERIFY: checks every invariant.
    Verify,
}

/// Memory of the database in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// In use.
    pub used: u64,
    /// Most that may be used; 0 = not limited.
    pub limit: u64,
}

/// What the server around a connection offers. No method blocks for long: they are called in event loops.
pub trait Services {
    /// State shared by all connections.
    fn shared(&self) -> &Arc<Shared>;

    /// Time since the Unix epoch.
    fn now(&self) -> Duration {
        unix_time()
    }

    /// Number of keys, expired ones that are not collected yet included.
    fn len(&self) -> u64;

    /// Whether there is no key.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of scan positions; constant. A key's position does not change while it exists.
    fn positions(&self) -> u64;

    /// A position that may have keys, drawn with a random number.
    fn draw_position(&self, random: u64) -> Result<u64>;

    /// Calls `f` for every key at positions `from..to` that a snapshot taken now has, expired ones included.
    fn scan(&self, from: u64, to: u64, f: &mut dyn FnMut(SnapshotItem<'_>)) -> Result<()>;

    /// Commit timestamp of the newest commit.
    fn clock(&self) -> u64;

    /// Every commit up to this timestamp is on disk.
    fn durable_ts(&self) -> u64;

    /// Whether there is a log, so that commits become durable at all.
    fn logged(&self) -> bool;

    /// Whether the log cannot be written at the moment.
    fn log_failed(&self) -> bool;

    /// Asks that `ts` becomes durable soon.
    fn request_durable(&self, ts: u64);

    /// Starts a job; the number is for [`Services::job_result`]. This error and those of the next two are
    /// what the client is told, with the code in front: `ERR the disk is full`.
    fn start_job(&self, job: Job) -> std::result::Result<u64, String>;

    /// The outcome of a job, once; `None` while it runs. `Ok` is a text about what was done.
    fn job_result(&self, id: u64) -> Option<std::result::Result<String, String>>;

    /// Asks for a checkpoint in the background. `Ok(false)` if one is running.
    fn save_in_background(&self) -> std::result::Result<bool, String>;

    /// Whether a checkpoint is being written.
    fn saving(&self) -> bool;

    /// Unix time in seconds of the last successful checkpoint, or of the start; and whether the last
    /// attempt succeeded.
    fn last_save(&self) -> (u64, bool);

    /// Memory of the database.
    fn memory(&self) -> Memory;

    /// Engine statistics for BEDPLATE STATS and INFO: names and values.
    fn statistics(&self) -> Vec<(&'static str, u64)>;
}
