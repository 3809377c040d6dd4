//! What commands need of the server around them, on the database and its store.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::programs::Programs;
use super::stats::{Counters, ServerStats};
use super::verify;
use crate::command::{Job, Memory, Services, Shared};
use bedplate_kerneldb::{Database, Error, Result, SnapshotItem, Store};

/// Outcome of a job: what was done, or why it was not.
type JobResult = std::result::Result<String, String>;

/// The database behind a server, with or without a store that makes it durable. `Send + Sync`.
pub(super) struct Backend {
    database: Arc<Database>,
    store: Option<Arc<Store>>,
    programs: Arc<Programs>,
    shared: Arc<Shared>,
    positions: u64,
    next_job: AtomicU64,
    /// Finished jobs until they are asked for. Held for a few instructions.
    jobs: Arc<Mutex<HashMap<u64, JobResult>>>,
}

impl Backend {
    pub(super) fn new(
        database: Arc<Database>,
        store: Option<Arc<Store>>,
        programs: Arc<Programs>,
        shared: Arc<Shared>,
    ) -> Result<Self> {
        let positions = database.snapshot()?.positions();
        let next_job = AtomicU64::new(1);
        Ok(Backend { database, store, programs, shared, positions, next_job, jobs: Arc::default() })
    }

    pub(super) fn database(&self) -> &Arc<Database> {
        &self.database
    }

    pub(super) fn store(&self) -> Option<&Arc<Store>> {
        self.store.as_ref()
    }

    fn no_data_dir() -> String {
        "ERR there is no data directory".into()
    }
}

fn lock(jobs: &Mutex<HashMap<u64, JobResult>>) -> MutexGuard<'_, HashMap<u64, JobResult>> {
    jobs.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Services for Backend {
    fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn len(&self) -> u64 {
        self.database.len()
    }

    fn positions(&self) -> u64 {
        self.positions
    }

    fn draw_position(&self, random: u64) -> Result<u64> {
        Ok(self.database.snapshot()?.draw_position(random))
    }

    fn scan(&self, from: u64, to: u64, f: &mut dyn FnMut(SnapshotItem<'_>)) -> Result<()> {
        self.database.snapshot()?.scan(from, to, f);
        Ok(())
    }

    fn clock(&self) -> u64 {
        self.database.clock()
    }

    fn durable_ts(&self) -> u64 {
        self.database.durable_ts()
    }

    fn logged(&self) -> bool {
        self.store.as_ref().is_some_and(|store| store.wal().is_some())
    }

    fn log_failed(&self) -> bool {
        self.database.stats().log_failed
    }

    fn request_durable(&self, ts: u64) {
        if let Some(wal) = self.store.as_ref().and_then(|store| store.wal()) {
            wal.request(ts);
        }
    }

    fn start_job(&self, job: Job) -> std::result::Result<u64, String> {
        let id = self.next_job.fetch_add(1, Ordering::Relaxed);
        let (database, store, jobs) = (self.database.clone(), self.store.clone(), self.jobs.clone());
        if store.is_none() && job == Job::Checkpoint {
            return Err(Self::no_data_dir());
        }
        let work = move || {
            let done = match (job, store.as_deref()) {
                (Job::Checkpoint, Some(store)) => {
                    store.checkpoint().map(|info| format!("{} keys at timestamp {}", info.entries, info.ts))
                }
                (Job::Checkpoint, None) => Err(Error::State),
                (Job::Verify, store) => verify::running(&database, store),
            };
            lock(&jobs).insert(id, done.map_err(|e| format!("ERR {e}")));
        };
        std::thread::Builder::new()
            .name("kerneldb-job".into())
            .spawn(work)
            .map_err(|e| format!("ERR cannot start a thread: {e}"))?;
        Ok(id)
    }

    fn job_result(&self, id: u64) -> Option<JobResult> {
        lock(&self.jobs).remove(&id)
    }

    fn save_in_background(&self) -> std::result::Result<bool, String> {
        let store = self.store.as_ref().ok_or_else(Self::no_data_dir)?;
        store.request_checkpoint().map_err(|e| format!("ERR {e}"))
    }

    fn saving(&self) -> bool {
        self.store.as_ref().is_some_and(|store| store.checkpoint_status().running.is_some())
    }

    fn last_save(&self) -> (u64, bool) {
        let status = self.store.as_ref().map(|store| store.checkpoint_status()).unwrap_or_default();
        let ended = status.last.map(|info| (info.created_ms + info.took.as_millis() as u64) / 1000);
        (ended.unwrap_or(self.shared.started_ms / 1000), status.last_error.is_none())
    }

    fn memory(&self) -> Memory {
        let stats = self.database.stats();
        Memory { used: stats.memory_used, limit: stats.memory_limit }
    }

    fn statistics(&self) -> Vec<(&'static str, u64)> {
        let s = self.database.stats();
        // Counters that cannot be read are shown as zeros, as if nothing had happened in the kernel.
        let kernel = self.programs.stats().inspect_err(|e| tracing::warn!(error = %e, "statistics"));
        let kernel =
            kernel.map_or_else(|_| ServerStats::default(), |k| ServerStats::new(&k, &Counters::default()));
        vec![
            ("kernel_commands", kernel.kernel_commands),
            ("kernel_packets", kernel.packets),
            ("kernel_input_bytes", kernel.request_bytes),
            ("kernel_output_bytes", kernel.kernel_reply_bytes),
            ("kernel_handed_up", kernel.handed),
            ("kernel_back_pressure", kernel.back_pressure),
            ("gets", s.gets),
            ("get_misses", s.get_misses),
            ("sets", s.sets),
            ("deletes", s.deletes),
            ("begins", s.begins),
            ("begins_read_only", s.begins_read_only),
            ("commits", s.commits),
            ("commits_read_only", s.commits_read_only),
            ("rollbacks", s.rollbacks),
            ("conflicts", s.conflicts),
            ("no_memory", s.no_memory),
            ("no_version", s.no_version),
            ("wal_full", s.wal_full),
            ("versions_pruned", s.versions_pruned),
            ("entries_collected", s.entries_collected),
            ("read_retries", s.read_retries),
            ("keys", s.keys),
            ("bytes", s.bytes),
            ("memory_used", s.memory_used),
            ("memory_committed", s.memory_committed),
            ("memory_limit", s.memory_limit),
            ("entries", s.entries),
            ("clock", s.clock),
            ("durable_ts", s.durable_ts),
            ("active_snapshots", s.active_snapshots),
        ]
    }
}
