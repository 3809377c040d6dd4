//! Filling a database with recovered changes, with all processors.
//!
//! The calling thread decodes files and routes every change to a *lane*, chosen by the key's bucket. A lane collects
//! changes of one partition in a batch. A worker thread takes the full batches of its lanes and writes their changes
//! straight into the mapped arena ([`Loader`]).
//!
//! A loader reuses freed memory only for values of the same size. When it finds no memory, memory is scarce. Every
//! worker then finishes its loaders, which gives their free blocks and slabs to all, and goes on with the operators in
//! the kernel. They are slower, but sparse slabs can be emptied for them, as while the database runs. If that is not
//! enough either, recovery takes the partition's reserve: it may pack a database a little less densely than it was.
//!
//! Invariant: the changes of a key are applied in the order in which they were routed. A key has one lane, a lane has
//! one worker, and a worker takes batches in order. Changes of different keys may be applied in any order. The router,
//! one worker, or a channel between them owns each batch, so no batch needs a lock.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::ReplayTarget;
use crate::durability::wal::OpRef;
use crate::engine::{Engine, LoadKey, Loaded, Loader, unix_ms};
use crate::limits::{
    RECOVERY_BATCH_BYTES, RECOVERY_BATCH_CHANGES, RECOVERY_ROOM_ATTEMPTS, RECOVERY_WORKERS_MAX,
};
use crate::session::Replayer;
use crate::{Database, EngineKind, Error, LogTxn, Op, Result, Session};

/// A database that recovery fills. Dropping it before [`ReplayTarget::set_clock`] leaves a partly filled database.
pub(crate) struct Filler {
    // Threads and sessions must end before the database does.
    way: RefCell<Way>,
    database: Arc<Database>,
    /// Keys that expire up to this time are not loaded.
    now_ms: u64,
}

/// The way in which changes reach the database.
enum Way {
    /// The arena engine: batches and worker threads.
    Batches(Router),
    /// The hash-map engine: one call per change.
    Calls(Replayer, LogTxn),
    /// Everything is applied.
    Done,
}

impl Filler {
    /// Prepares an empty database for being filled.
    pub(crate) fn new(database: Arc<Database>) -> Result<Filler> {
        let way = match database.config().engine {
            EngineKind::Arena => {
                database.begin_replay();
                Way::Batches(Router::start(database.engine())?)
            }
            EngineKind::HashMap => Way::Calls(database.replayer()?, LogTxn { commit_ts: 0, ops: Vec::new() }),
        };
        Ok(Filler { way: RefCell::new(way), database, now_ms: unix_ms() })
    }

    /// The filled database.
    pub(crate) fn done(self) -> Arc<Database> {
        self.database
    }
}

impl ReplayTarget for Filler {
    fn begin(&self, commit_ts: u64) {
        match &mut *self.way.borrow_mut() {
            Way::Batches(router) => router.commit_ts = commit_ts,
            Way::Calls(_, txn) => txn.commit_ts = commit_ts,
            Way::Done => {}
        }
    }

    fn change(&self, change: OpRef<'_>) {
        let change = without_expired(change, self.now_ms);
        match &mut *self.way.borrow_mut() {
            Way::Batches(router) => router.pending.push(change),
            Way::Calls(_, txn) => txn.ops.push(change.into()),
            Way::Done => {}
        }
    }

    fn end(&self) -> Result<()> {
        match &mut *self.way.borrow_mut() {
            Way::Batches(router) => router.end(),
            Way::Calls(replayer, txn) => {
                // A commit that was not logged is an empty placeholder.
                let result = if txn.ops.is_empty() { Ok(()) } else { replayer.replay(txn) };
                txn.ops.clear();
                result
            }
            Way::Done => Err(Error::State),
        }
    }

    fn set_clock(&self, ts: u64) -> Result<()> {
        if let Way::Batches(router) = self.way.replace(Way::Done) {
            router.finish()?;
        }
        self.database.set_clock(ts)
    }
}

/// Replaces a write that is expired by a deletion, because the value that the write replaced must not stay either.
fn without_expired(change: OpRef<'_>, now_ms: u64) -> OpRef<'_> {
    match change {
        OpRef::Put { key, expire_at_ms: Some(at), .. } if at <= now_ms => OpRef::Delete { key },
        change => change,
    }
}

/// A change of the transaction that is being decoded.
struct Pending {
    key: Range<usize>,
    value: Range<usize>,
    expire_ms: u64,
    deletes: bool,
}

/// The changes of the transaction that is being decoded, copied.
#[derive(Default)]
struct Transaction {
    changes: Vec<Pending>,
    bytes: Vec<u8>,
}

impl Transaction {
    fn push(&mut self, change: OpRef<'_>) {
        let (key, value, expiry, deletes) = match change {
            OpRef::Put { key, value, expire_at_ms } => (key, value, expire_at_ms, false),
            OpRef::Delete { key } => (key, &[][..], None, true),
        };
        let start = self.bytes.len();
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        let middle = start + key.len();
        self.changes.push(Pending {
            key: start..middle,
            value: middle..self.bytes.len(),
            expire_ms: expiry.unwrap_or(0),
            deletes,
        });
    }

    fn clear(&mut self) {
        self.changes.clear();
        self.bytes.clear();
    }
}

/// A change of a batch.
struct Change {
    hash: u64,
    commit_ts: u64,
    expire_ms: u64,
    key: Range<usize>,
    value: Range<usize>,
    deletes: bool,
}

/// Changes of one partition.
#[derive(Default)]
struct Batch {
    changes: Vec<Change>,
    bytes: Vec<u8>,
}

impl Batch {
    fn push(&mut self, hash: u64, commit_ts: u64, change: &Pending, bytes: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&bytes[change.key.clone()]);
        let middle = self.bytes.len();
        self.bytes.extend_from_slice(&bytes[change.value.clone()]);
        self.changes.push(Change {
            hash,
            commit_ts,
            expire_ms: change.expire_ms,
            key: start..middle,
            value: middle..self.bytes.len(),
            deletes: change.deletes,
        });
    }

    fn is_full(&self) -> bool {
        self.changes.len() >= RECOVERY_BATCH_CHANGES || self.bytes.len() >= RECOVERY_BATCH_BYTES
    }
}

/// State that the router and the workers share.
#[derive(Default)]
struct Common {
    /// The first error of a worker.
    failure: Mutex<Option<Error>>,
    /// A loader has found no memory.
    scarce: AtomicBool,
    /// Workers that have loaders.
    loading: AtomicUsize,
}

/// The state of the decoding thread.
struct Router {
    db: Arc<Engine>,
    commit_ts: u64,
    pending: Transaction,
    lanes_per_partition: u32,
    /// The open batch of each lane.
    lanes: Vec<Option<Batch>>,
    /// Batches that are not in use.
    free: Receiver<Batch>,
    /// Channels to the workers: full batches and their partitions.
    full: Vec<Sender<(Batch, u32)>>,
    workers: Vec<JoinHandle<Loaded>>,
    common: Arc<Common>,
}

impl Router {
    fn start(db: &Arc<Engine>) -> Result<Router> {
        let partitions = db.config().partitions;
        let worker_count = worker_count();
        // Together the partitions have at least one lane for each worker.
        let lanes_per_partition = (worker_count as u32).div_ceil(partitions);
        let lanes = partitions * lanes_per_partition;
        let (give_back, free) = channel();
        // Each lane has one batch that is filled and one that is applied.
        for _ in 0..2 * lanes {
            let _ = give_back.send(Batch::default());
        }
        let common = Arc::new(Common::default());
        let mut router = Router {
            db: db.clone(),
            commit_ts: 0,
            pending: Transaction::default(),
            lanes_per_partition,
            lanes: (0..lanes).map(|_| None).collect(),
            free,
            full: Vec::new(),
            workers: Vec::new(),
            common: common.clone(),
        };
        for number in 0..worker_count {
            let session = match Session::open(db.clone()) {
                Ok(session) => session,
                // A database with few sessions has few workers.
                Err(Error::NoSession(_)) if number > 0 => break,
                Err(e) => return Err(e),
            };
            let (send, batches) = channel();
            let (common, give_back, db) = (common.clone(), give_back.clone(), db.clone());
            common.loading.fetch_add(1, Ordering::SeqCst);
            let builder = std::thread::Builder::new().name(format!("kdb-recover-{number}"));
            let body = move || work(&db, session, &batches, &give_back, &common);
            let thread = bedplate_threads::spawn(builder, body)
                .map_err(|e| Error::io("cannot start a thread for recovery", e))?;
            router.full.push(send);
            router.workers.push(thread);
        }
        Ok(router)
    }

    /// Routes the changes of a complete transaction.
    fn end(&mut self) -> Result<()> {
        let transaction = std::mem::take(&mut self.pending);
        let bytes = &transaction.bytes;
        let result = if let [change] = &transaction.changes[..] {
            self.route(change, bytes)
        } else {
            // All changes of a transaction have one timestamp, so only the last one of each key is applied.
            let mut seen = HashSet::new();
            let is_last: Vec<bool> = transaction
                .changes
                .iter()
                .rev()
                .map(|change| seen.insert(&bytes[change.key.clone()]))
                .collect();
            let mut changes = transaction.changes.iter().zip(is_last.iter().rev());
            changes.try_for_each(|(change, last)| if *last { self.route(change, bytes) } else { Ok(()) })
        };
        self.pending = transaction;
        self.pending.clear();
        result
    }

    /// Adds a change to the batch of its lane.
    fn route(&mut self, change: &Pending, bytes: &[u8]) -> Result<()> {
        let hash = self.db.control.hash_of(&bytes[change.key.clone()]);
        let partition = self.db.control.partition_of_hash(hash);
        let lane_in_partition = self.db.bucket_of(partition, hash) % self.lanes_per_partition;
        let lane = (partition * self.lanes_per_partition + lane_in_partition) as usize;
        let mut batch = match self.lanes[lane].take() {
            Some(batch) => batch,
            None => self.claim()?,
        };
        batch.push(hash, self.commit_ts, change, bytes);
        if batch.is_full() {
            self.submit(lane, batch)?;
        } else {
            self.lanes[lane] = Some(batch);
        }
        Ok(())
    }

    /// Waits for an unused batch.
    fn claim(&self) -> Result<Batch> {
        loop {
            self.check()?;
            match self.free.recv_timeout(POLL) {
                Ok(batch) => return Ok(batch),
                // A worker that has panicked returns no batches.
                Err(RecvTimeoutError::Timeout) if !self.workers.iter().any(JoinHandle::is_finished) => {}
                Err(_) => return Err(Error::State),
            }
        }
    }

    fn submit(&self, lane: usize, batch: Batch) -> Result<()> {
        let work = (batch, lane as u32 / self.lanes_per_partition);
        // Sending fails only if the worker has panicked.
        self.full[lane % self.full.len()].send(work).map_err(|_| Error::State)
    }

    /// Returns the first error of a worker.
    fn check(&self) -> Result<()> {
        let failure = self.common.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        failure.map_or(Ok(()), Err)
    }

    /// Waits until every change is applied.
    fn finish(mut self) -> Result<()> {
        for (lane, batch) in std::mem::take(&mut self.lanes).into_iter().enumerate() {
            if let Some(batch) = batch {
                self.submit(lane, batch)?;
            }
        }
        self.full.clear();
        let (mut loaded, mut panicked) = (Loaded::default(), false);
        for worker in self.workers.drain(..) {
            match worker.join() {
                Ok(part) => loaded.add(part),
                Err(_) => panicked = true,
            }
        }
        self.check()?;
        if panicked {
            return Err(Error::State);
        }
        self.db.control.account_loaded(loaded);
        Ok(())
    }
}

/// Number of threads that apply changes, at least 1.
fn worker_count() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get()).min(RECOVERY_WORKERS_MAX)
}

impl Drop for Router {
    fn drop(&mut self) {
        self.full.clear();
        for worker in self.workers.drain(..) {
            // After `finish` no threads are left; otherwise recovery has failed already.
            let _ = worker.join();
        }
    }
}

/// Interval at which a thread that waits for another checks for a reason to stop waiting.
const POLL: Duration = Duration::from_millis(5);

/// Changes whose keys are prefetched at a time.
const AHEAD: usize = 16;

/// A worker thread: applies batches until there are no more, and returns the additions of its loaders.
fn work(
    db: &Arc<Engine>,
    session: Session,
    batches: &Receiver<(Batch, u32)>,
    give_back: &Sender<Batch>,
    common: &Common,
) -> Loaded {
    let mut worker = Worker { db, loaders: Some(db.loaders()), loaded: Loaded::default(), session, common };
    let mut failed = false;
    loop {
        let (mut batch, partition) = match batches.recv_timeout(POLL) {
            Ok(work) => work,
            Err(RecvTimeoutError::Timeout) => {
                if common.scarce.load(Ordering::SeqCst) {
                    worker.finish_loaders();
                }
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => break,
        };
        if !failed && let Err(error) = worker.apply(&batch, partition) {
            failed = true;
            common.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
        batch.changes.clear();
        batch.bytes.clear();
        // Sending fails if recovery has failed elsewhere, because the router is gone.
        let _ = give_back.send(batch);
    }
    worker.finish_loaders();
    worker.loaded
}

struct Worker<'a> {
    db: &'a Engine,
    /// One for each partition; `None` once memory was scarce.
    loaders: Option<Vec<Loader<'a>>>,
    /// The additions of the finished loaders.
    loaded: Loaded,
    session: Session,
    common: &'a Common,
}

impl Worker<'_> {
    fn apply(&mut self, batch: &Batch, partition: u32) -> Result<()> {
        for group in batch.changes.chunks(AHEAD) {
            if let Some(loaders) = &self.loaders {
                loaders[partition as usize].look_ahead(group.iter().map(|change| change.hash));
            }
            for change in group {
                self.apply_one(change, &batch.bytes, partition)?;
            }
        }
        Ok(())
    }

    fn apply_one(&mut self, change: &Change, bytes: &[u8], partition: u32) -> Result<()> {
        if self.common.scarce.load(Ordering::Relaxed) {
            self.finish_loaders();
        }
        let (key, value) = (&bytes[change.key.clone()], &bytes[change.value.clone()]);
        if let Some(loaders) = &mut self.loaders {
            let loader = &mut loaders[partition as usize];
            let load_key = LoadKey { key, hash: change.hash, commit_ts: change.commit_ts };
            let done = if change.deletes {
                loader.delete(load_key)
            } else {
                loader.put(load_key, value, change.expire_ms)
            };
            match done {
                Err(Error::NoMemory) => {
                    tracing::debug!("memory is scarce: recovery goes on with the operators");
                    self.common.scarce.store(true, Ordering::SeqCst);
                    self.finish_loaders();
                }
                done => return done,
            }
        }
        self.operate(change, key, value, partition)
    }

    /// Applies a change by the operators.
    fn operate(&mut self, change: &Change, key: &[u8], value: &[u8], partition: u32) -> Result<()> {
        let op = if change.deletes {
            Op::Delete { key: key.to_vec() }
        } else {
            let expire_at_ms = (change.expire_ms != 0).then_some(change.expire_ms);
            Op::Put { key: key.to_vec(), value: value.to_vec(), expire_at_ms }
        };
        let mut attempts = 0;
        loop {
            // This is read before the attempt: memory that the last loader leaves is available to the next attempt.
            let others_load = self.common.loading.load(Ordering::SeqCst) > 0;
            match self.session.replay(&op, change.commit_ts) {
                Err(Error::NoMemory | Error::MemoryInLog) if others_load => std::thread::sleep(POLL),
                Err(Error::NoMemory | Error::MemoryInLog) if attempts < RECOVERY_ROOM_ATTEMPTS => {
                    attempts += 1;
                    self.db.look_for_room_again();
                    self.db.make_room(partition);
                    if attempts == RECOVERY_ROOM_ATTEMPTS {
                        tracing::warn!(partition, "recovery takes more than the memory limit");
                        self.db.open_reserve(partition);
                    }
                }
                done => return done,
            }
        }
    }

    /// Gives the memory of the loaders to all workers.
    fn finish_loaders(&mut self) {
        if let Some(loaders) = self.loaders.take() {
            for loader in loaders {
                self.loaded.add(loader.finish());
            }
            self.common.loading.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        // This also runs after a panic, so that no other worker waits for this one.
        self.finish_loaders();
    }
}

#[cfg(test)]
#[path = "fill_tests.rs"]
mod tests;
