//! Filling a database with recovered changes, with all processors.
//!
//! The calling thread decodes files and routes every change to a *lane*, chosen by the key's bucket. A lane collects
//! changes of one partition in a batch. A worker thread takes the full batches of its lanes and writes their changes
//! straight into the mapped arena ([`Loader`]).
//! It may take the partition's reserve, so that the slabs which a loader leaves half empty do not make a database too
//! large for the memory that it was in.
//!
//! Invariant: the changes of a key are applied in the order in which they were routed, because a key has one lane, a
//! lane has one worker, and a worker takes batches in order. Changes of different keys may be applied in any order.
//! Every batch is owned by the router, by one worker, or by a channel between them, so no batch needs a lock.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::ReplayTarget;
use crate::durability::wal::OpRef;
use crate::engine::{Engine, LoadKey, Loaded, Loader, lanes_per_partition, unix_ms, worker_count};
use crate::limits::{RECOVERY_BATCH_BYTES, RECOVERY_BATCH_CHANGES};
use crate::session::Replayer;
use crate::{Database, EngineKind, Error, LogTxn, Result};

/// A database that recovery fills. Dropping it before [`ReplayTarget::set_clock`] leaves a partly filled database.
pub(crate) struct Filler {
    // Threads and sessions end before the database goes.
    way: RefCell<Way>,
    database: Arc<Database>,
    /// Keys whose expiry this time has reached are not loaded.
    now_ms: u64,
}

/// How changes reach the database.
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

/// Replaces a write that is expired by a deletion, because what the write replaced must not stay either.
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

/// The decoding thread's side.
struct Router {
    db: Arc<Engine>,
    commit_ts: u64,
    pending: Transaction,
    lanes_per_partition: u32,
    /// The open batch of each lane.
    lanes: Vec<Option<Batch>>,
    /// Batches that nobody uses.
    free: Receiver<Batch>,
    /// To each worker: full batches and their partitions.
    full: Vec<Sender<(Batch, u32)>>,
    workers: Vec<JoinHandle<Loaded>>,
    /// The first error of a worker.
    failure: Arc<Mutex<Option<Error>>>,
}

impl Router {
    fn start(db: &Arc<Engine>) -> Result<Router> {
        let partitions = db.config().partitions;
        let lanes_per_partition = lanes_per_partition(partitions).min(db.loaders_max());
        let lanes = partitions * lanes_per_partition;
        let (give_back, free) = channel();
        // For each lane, one that is filled and one that is applied.
        for _ in 0..2 * lanes {
            let _ = give_back.send(Batch::default());
        }
        let failure = Arc::default();
        let mut router = Router {
            db: db.clone(),
            commit_ts: 0,
            pending: Transaction::default(),
            lanes_per_partition,
            lanes: (0..lanes).map(|_| None).collect(),
            free,
            full: Vec::new(),
            workers: Vec::new(),
            failure: Arc::clone(&failure),
        };
        for number in 0..worker_count().min(lanes as usize) {
            let (send, batches) = channel();
            let (failure, give_back, db) = (failure.clone(), give_back.clone(), db.clone());
            let thread = std::thread::Builder::new()
                .name(format!("kdb-recover-{number}"))
                .spawn(move || work(&db, &batches, &give_back, &failure))
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
            self.submit(lane, batch);
        } else {
            self.lanes[lane] = Some(batch);
        }
        Ok(())
    }

    /// Waits for an unused batch.
    fn claim(&self) -> Result<Batch> {
        self.check()?;
        // The workers give back what they apply; they end only when `full` is dropped.
        self.free.recv().map_err(|_| Error::State)
    }

    fn submit(&self, lane: usize, batch: Batch) {
        // It fails only if the worker has panicked, which `finish` reports.
        let _ = self.full[lane % self.full.len()].send((batch, lane as u32 / self.lanes_per_partition));
    }

    /// The first error of a worker.
    fn check(&self) -> Result<()> {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        failure.map_or(Ok(()), Err)
    }

    /// Waits until every change is applied.
    fn finish(mut self) -> Result<()> {
        for (lane, batch) in std::mem::take(&mut self.lanes).into_iter().enumerate() {
            if let Some(batch) = batch {
                self.submit(lane, batch);
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

impl Drop for Router {
    fn drop(&mut self) {
        self.full.clear();
        for worker in self.workers.drain(..) {
            // After `finish` there are none; otherwise recovery has failed already.
            let _ = worker.join();
        }
    }
}

/// A worker thread: applies batches until there are no more, and returns what its loaders have added.
fn work(
    db: &Engine,
    batches: &Receiver<(Batch, u32)>,
    give_back: &Sender<Batch>,
    failure: &Mutex<Option<Error>>,
) -> Loaded {
    let mut loaders = db.loaders();
    let mut failed = false;
    while let Ok((mut batch, partition)) = batches.recv() {
        if !failed && let Err(error) = apply(&batch, &mut loaders[partition as usize]) {
            failed = true;
            failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
        batch.changes.clear();
        batch.bytes.clear();
        // The router is gone if recovery has failed elsewhere.
        let _ = give_back.send(batch);
    }
    let mut loaded = Loaded::default();
    loaders.into_iter().for_each(|loader| loaded.add(loader.finish()));
    loaded
}

/// Changes whose keys are looked for at a time.
const AHEAD: usize = 16;

fn apply(batch: &Batch, loader: &mut Loader<'_>) -> Result<()> {
    for group in batch.changes.chunks(AHEAD) {
        loader.look_ahead(group.iter().map(|change| change.hash));
        for change in group {
            let key = LoadKey {
                key: &batch.bytes[change.key.clone()],
                hash: change.hash,
                commit_ts: change.commit_ts,
            };
            if change.deletes {
                loader.delete(key)?;
            } else {
                loader.put(key, &batch.bytes[change.value.clone()], change.expire_ms)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "fill_tests.rs"]
mod tests;
