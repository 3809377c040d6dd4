//! Filling a database with recovered changes, with all processors.
//!
//! The calling thread decodes files and routes every change to a *lane*, chosen by the key's hash. A lane collects
//! changes of one partition in a batch, which is memory that the programs share. A worker thread takes full batches of its
//! lanes and applies each in one call into the kernel.
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
use crate::engine::{Engine, lanes_per_partition, unix_ms, worker_count};
use crate::layout::{
    KDB_ERR_BUSY, KDB_ERR_CONFLICT, KDB_ERR_NO_MEMORY, KDB_OK, KDB_REPLAY_BYTES, KDB_REPLAY_CHANGES,
    kdb_change, kdb_replay,
};
use crate::session::{Io, error};
use crate::{Database, EngineKind, Error, LogTxn, Replayer, Result, Session};

/// A database that recovery fills. Dropping it before [`ReplayTarget::set_clock`] leaves a partly filled database.
pub(crate) struct Filler {
    // Threads and sessions end before the database goes.
    way: RefCell<Way>,
    database: Database,
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
    pub(crate) fn new(database: Database) -> Result<Filler> {
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
    pub(crate) fn done(self) -> Database {
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

/// A batch that is being filled.
struct Batch {
    index: u32,
    changes: u32,
    bytes: usize,
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
    free: Receiver<u32>,
    /// To each worker: full batches and their partitions.
    full: Vec<Sender<(u32, u32)>>,
    workers: Vec<JoinHandle<()>>,
    failure: Arc<Mutex<Option<Error>>>,
}

impl Router {
    fn start(db: &Arc<Engine>) -> Result<Router> {
        let partitions = db.config().partitions;
        let lanes_per_partition = lanes_per_partition(partitions);
        let (give_back, free) = channel();
        for index in 0..db.replay_batches() {
            let _ = give_back.send(index);
        }
        let failure = Arc::new(Mutex::new(None));
        let mut router = Router {
            db: db.clone(),
            commit_ts: 0,
            pending: Transaction::default(),
            lanes_per_partition,
            lanes: (0..partitions * lanes_per_partition).map(|_| None).collect(),
            free,
            full: Vec::new(),
            workers: Vec::new(),
            failure: failure.clone(),
        };
        for number in 0..worker_count() {
            let session = match Session::open(db.clone()) {
                Ok(session) => session,
                // A database with few sessions has few workers.
                Err(Error::NoSession(_)) if number > 0 => break,
                Err(e) => return Err(e),
            };
            let (send, batches) = channel();
            let worker = Worker {
                session,
                db: db.clone(),
                batches,
                give_back: give_back.clone(),
                failure: failure.clone(),
            };
            let thread = std::thread::Builder::new()
                .name(format!("kdb-recover-{number}"))
                .spawn(move || worker.run())
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
        let (key, value) = (&bytes[change.key.clone()], &bytes[change.value.clone()]);
        let hash = self.db.control.hash_of(key);
        let partition = self.db.control.partition_of_hash(hash);
        // The partition is chosen by the upper bits, the bucket by the lower ones.
        let lane = partition * self.lanes_per_partition + (hash >> 32) as u32 % self.lanes_per_partition;
        let (padded_key, padded_value) = (key.len().next_multiple_of(8), value.len().next_multiple_of(8));
        let mut batch = match self.lanes[lane as usize].take() {
            Some(batch) => batch,
            None => self.claim()?,
        };
        let replay: *mut kdb_replay = self.db.replay_batch(batch.index);
        let start = batch.bytes;
        debug_assert!(start < KDB_REPLAY_BYTES as usize && batch.changes < KDB_REPLAY_CHANGES);
        let header = kdb_change {
            commit_ts: self.commit_ts,
            expire_ms: change.expire_ms,
            hash,
            vlen: value.len() as u32,
            klen: key.len() as u16,
            deletes: change.deletes.into(),
            _pad: 0,
        };
        // SAFETY: the router owns the batch. A change begins below KDB_REPLAY_BYTES, and behind that is room for the
        // longest one, whose key and value the decoders have checked; offsets are multiples of 8.
        unsafe {
            let to = (&raw mut (*replay).bytes).cast::<u8>().add(start);
            to.cast::<kdb_change>().write(header);
            let to = to.add(size_of::<kdb_change>());
            to.add(padded_key - 8).cast::<u64>().write(0);
            std::ptr::copy_nonoverlapping(key.as_ptr(), to, key.len());
            std::ptr::copy_nonoverlapping(value.as_ptr(), to.add(padded_key), value.len());
            (&raw mut (*replay).at[batch.changes as usize]).write(start as u32);
        }
        batch.changes += 1;
        batch.bytes += size_of::<kdb_change>() + padded_key + padded_value;
        if batch.changes == KDB_REPLAY_CHANGES || batch.bytes >= KDB_REPLAY_BYTES as usize {
            self.submit(lane, batch);
        } else {
            self.lanes[lane as usize] = Some(batch);
        }
        Ok(())
    }

    /// Waits for an unused batch.
    fn claim(&self) -> Result<Batch> {
        self.check()?;
        // The workers give back what they apply; they end only when `full` is dropped.
        let index = self.free.recv().map_err(|_| Error::State)?;
        Ok(Batch { index, changes: 0, bytes: 0 })
    }

    fn submit(&self, lane: u32, batch: Batch) {
        let replay: *mut kdb_replay = self.db.replay_batch(batch.index);
        // SAFETY: the router owns the batch until it is sent.
        unsafe { (&raw mut (*replay).count).write(batch.changes) };
        let worker = lane as usize % self.full.len();
        // It fails only if the worker has panicked, which `finish` reports.
        let _ = self.full[worker].send((batch.index, lane / self.lanes_per_partition));
    }

    /// The first error of a worker.
    fn check(&self) -> Result<()> {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        failure.map_or(Ok(()), Err)
    }

    /// Waits until every change is applied.
    fn finish(mut self) -> Result<()> {
        for (lane, batch) in (0..).zip(std::mem::take(&mut self.lanes)) {
            if let Some(batch) = batch {
                self.submit(lane, batch);
            }
        }
        self.full.clear();
        let mut panicked = false;
        for worker in self.workers.drain(..) {
            panicked |= worker.join().is_err();
        }
        self.check()?;
        if panicked { Err(Error::State) } else { Ok(()) }
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

/// A thread that applies batches.
struct Worker {
    session: Session,
    db: Arc<Engine>,
    batches: Receiver<(u32, u32)>,
    give_back: Sender<u32>,
    failure: Arc<Mutex<Option<Error>>>,
}

impl Worker {
    fn run(self) {
        let io = Io::claim(&self.db);
        let mut failed = false;
        while let Ok((batch, partition)) = self.batches.recv() {
            if !failed && let Err(error) = self.apply(batch, partition, &io) {
                failed = true;
                self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
            // The router is gone if recovery has failed elsewhere.
            let _ = self.give_back.send(batch);
        }
    }

    fn apply(&self, batch: u32, partition: u32, io: &Io<'_>) -> Result<()> {
        let replay: *mut kdb_replay = self.db.replay_batch(batch);
        let mut attempt = 0;
        let mut reached = 0;
        // SAFETY: this worker owns the batch; the programs that it runs are done when they return.
        let count = unsafe {
            (&raw mut (*replay).done).write(0);
            (&raw const (*replay).count).read()
        };
        loop {
            let committed = self.db.committed(partition);
            let mut args = [batch, self.session.index(), io.index()].map(u64::from);
            let refused = self.db.replay_program(partition)?.run(&mut args)?;
            if refused != KDB_OK {
                return Err(error(refused));
            }
            // SAFETY: as above.
            let (done, status) = unsafe {
                ((&raw const (*replay).done).read_volatile(), (&raw const (*replay).status).read_volatile())
            };
            if done >= count {
                return Ok(());
            }
            if done > reached {
                (reached, attempt) = (done, 0);
            }
            match status as u32 {
                KDB_ERR_NO_MEMORY if self.db.grow_beyond(partition, committed, attempt) => attempt += 1,
                // The collector, or another worker on the same bucket, is in the way for a moment.
                KDB_ERR_CONFLICT | KDB_ERR_BUSY => std::thread::yield_now(),
                status => return Err(error(status)),
            }
        }
    }
}
