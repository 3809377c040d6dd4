//! A database in memory with the semantics of the engine: strict two-phase locking without waiting,
//! snapshots, commit timestamps, expiry. For tests only: it keeps every version for ever.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::command::{AdminTask, AdminTaskTicket, Memory, Operators, ServerState, Services, Startup};
use bedplate_kerneldb::{
    Durability, Error, Result, SetCondition, SetOptions, SnapshotItem, TX_KEYS_MAX, Value, Written,
};

#[derive(Clone, Debug)]
struct Version {
    ts: u64,
    value: Option<(Vec<u8>, Option<u64>)>,
}

#[derive(Default)]
struct Inner {
    keys: BTreeMap<Vec<u8>, Vec<Version>>,
    readers: BTreeMap<Vec<u8>, BTreeSet<u64>>,
    writers: BTreeMap<Vec<u8>, u64>,
    clock: u64,
    sessions: u64,
    /// The errors with which the next operations fail, the last one first.
    faults: Vec<Error>,
    ring: Option<Ring>,
}

/// The log ring, in numbers of records.
struct Ring {
    size: u32,
    room: u32,
    /// Number of writes that were refused since the ring became full.
    refused: u32,
}

/// Refused writes until the log's reader has emptied the ring: more than a request tries at once.
const REFUSED: u32 = 6;

impl Ring {
    fn take(&mut self) -> Result<()> {
        if self.room > 0 {
            self.room -= 1;
            return Ok(());
        }
        self.refused += 1;
        if self.refused == REFUSED {
            *self = Ring { room: self.size, refused: 0, ..*self };
        }
        Err(Error::WalFull)
    }
}

impl Inner {
    fn read(&self, key: &[u8], at: u64, now_ms: u64) -> Option<(&Version, &Vec<u8>, Option<u64>)> {
        let version = self.keys.get(key)?.iter().rev().find(|v| v.ts <= at)?;
        let (data, expire) = version.value.as_ref()?;
        expire.is_none_or(|e| e > now_ms).then_some((version, data, *expire))
    }
}

/// The database; also the server around it.
pub struct Model {
    inner: Mutex<Inner>,
    server: Arc<ServerState>,
    /// Added to the real time.
    pub skew_ms: AtomicU64,
    /// Time that passes after the next scan.
    pub pause_after_scan_ms: AtomicU64,
    pub durable_ts: AtomicU64,
    pub logged: AtomicBool,
    /// The ticket that every administrative task gets.
    pub task: Mutex<Arc<AdminTaskTicket>>,
}

impl Model {
    pub fn new(startup: Startup) -> Arc<Model> {
        Arc::new(Model {
            inner: Mutex::default(),
            server: ServerState::new(startup),
            skew_ms: AtomicU64::new(0),
            pause_after_scan_ms: AtomicU64::new(0),
            durable_ts: AtomicU64::new(u64::MAX),
            logged: AtomicBool::new(true),
            task: Mutex::new(AdminTaskTicket::finished(Ok("done".into()))),
        })
    }

    pub fn session(self: &Arc<Self>) -> ModelSession {
        let mut inner = self.lock();
        inner.sessions += 1;
        ModelSession {
            id: inner.sessions,
            model: Arc::clone(self),
            tx: None,
            durability: None,
            observed_ts: Cell::new(0),
        }
    }

    /// Lets operations fail with these errors, the last one first.
    pub fn inject(&self, faults: Vec<Error>) {
        self.lock().faults = faults;
    }

    /// Makes later writes and commits take records of a log ring, which is emptied some time after it is full.
    pub fn limit_ring(&self, size: u32, room: u32) {
        self.lock().ring = Some(Ring { size, room, refused: 0 });
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    fn now_ms(&self) -> u64 {
        (crate::command::services::unix_time().as_millis() as u64) + self.skew_ms.load(Relaxed)
    }

    /// Number of keys that any session has locked.
    pub fn locks(&self) -> usize {
        let inner = self.lock();
        inner.readers.len() + inner.writers.len()
    }
}

const POSITIONS: u64 = 64;

impl Services for Arc<Model> {
    fn server(&self) -> &Arc<ServerState> {
        &self.server
    }

    fn now(&self) -> Duration {
        Duration::from_millis(self.now_ms())
    }

    fn len(&self) -> u64 {
        let live = |v: &Vec<Version>| v.last().is_some_and(|v| v.value.is_some());
        self.lock().keys.values().filter(|v| live(v)).count() as u64
    }

    fn positions(&self) -> u64 {
        POSITIONS
    }

    fn draw_position(&self, random: u64) -> Result<u64> {
        Ok(random % POSITIONS)
    }

    fn scan(&self, from: u64, to: u64, f: &mut dyn FnMut(SnapshotItem<'_>)) -> Result<u64> {
        let inner = self.lock();
        for (key, versions) in &inner.keys {
            let position = xxhash_rust::xxh64::xxh64(key, 0) % POSITIONS;
            if let Some(Version { ts, value: Some((value, expire)) }) = versions.last()
                && (from..to).contains(&position)
            {
                f(SnapshotItem { key, value, expire_at_ms: *expire, commit_ts: *ts });
            }
        }
        self.skew_ms.fetch_add(self.pause_after_scan_ms.swap(0, Relaxed), Relaxed);
        Ok(to)
    }

    fn clock(&self) -> u64 {
        self.lock().clock
    }

    fn durable_ts(&self) -> u64 {
        self.durable_ts.load(Relaxed)
    }

    fn logged(&self) -> bool {
        self.logged.load(Relaxed)
    }

    fn log_failed(&self) -> bool {
        false
    }

    fn request_durable(&self, _ts: u64) {}

    fn start_admin_task(&self, task: AdminTask) -> std::result::Result<Arc<AdminTaskTicket>, String> {
        if let AdminTask::ChangeFunctions(change) = task {
            return Ok(AdminTaskTicket::finished(Ok(self.server.functions.publish(&change))));
        }
        let ticket = self.task.lock().unwrap();
        Ok(Arc::clone(&ticket))
    }

    fn save_in_background(&self) -> std::result::Result<bool, String> {
        Ok(true)
    }

    fn saving(&self) -> bool {
        false
    }

    fn last_save(&self) -> (u64, bool) {
        (1, true)
    }

    fn memory(&self) -> Memory {
        Memory::default()
    }

    fn statistics(&self) -> Vec<(&'static str, u64)> {
        vec![("keys", self.len())]
    }
}

type Write = Option<(Vec<u8>, Option<u64>)>;

#[derive(Default)]
struct Tx {
    snapshot: Option<u64>,
    locked: BTreeSet<Vec<u8>>,
    writes: BTreeMap<Vec<u8>, Write>,
    failed: bool,
}

pub struct ModelSession {
    id: u64,
    model: Arc<Model>,
    tx: Option<Tx>,
    pub durability: Option<Durability>,
    observed_ts: Cell<u64>,
}

impl ModelSession {
    /// Locks a key for the open transaction, or checks that an auto-commit operation could.
    fn lock_key(&mut self, key: &[u8], exclusive: bool) -> Result<()> {
        let mut inner = self.model.lock();
        if let Some(error) = inner.faults.pop() {
            return Err(error);
        }
        let others_write = inner.writers.get(key).is_some_and(|w| *w != self.id);
        let others_read = inner.readers.get(key).is_some_and(|r| r.iter().any(|r| *r != self.id));
        if others_write || exclusive && others_read {
            return Err(Error::Conflict);
        }
        let Some(tx) = &mut self.tx else { return Ok(()) };
        if tx.locked.insert(key.to_vec()) && tx.locked.len() > TX_KEYS_MAX {
            tx.locked.remove(key);
            return Err(Error::TooManyLocks);
        }
        if exclusive {
            inner.writers.insert(key.to_vec(), self.id);
        } else {
            inner.readers.entry(key.to_vec()).or_default().insert(self.id);
        }
        Ok(())
    }

    fn read(&self, key: &[u8]) -> Option<Value> {
        let now_ms = self.model.now_ms();
        let tx = self.tx.as_ref();
        if let Some(write) = tx.and_then(|tx| tx.writes.get(key)) {
            let (data, expire_at_ms) = write.clone()?;
            let live = expire_at_ms.is_none_or(|e| e > now_ms);
            return live.then_some(Value { data, expire_at_ms, commit_ts: 0 });
        }
        let at = tx.and_then(|tx| tx.snapshot).unwrap_or(u64::MAX);
        let inner = self.model.lock();
        let newest = inner.keys.get(key).and_then(|versions| versions.iter().rev().find(|v| v.ts <= at));
        self.observed_ts.set(self.observed_ts.get().max(newest.map_or(0, |v| v.ts)));
        let (version, data, expire_at_ms) = inner.read(key, at, now_ms)?;
        Some(Value { data: data.clone(), expire_at_ms, commit_ts: version.ts })
    }

    fn write(&mut self, key: &[u8], write: Write) -> Written {
        if let Some(tx) = &mut self.tx {
            tx.writes.insert(key.to_vec(), write);
            return Written::Done { commit_ts: 0 };
        }
        Written::Done { commit_ts: self.apply([(key.to_vec(), write)]) }
    }

    fn apply(&self, writes: impl IntoIterator<Item = (Vec<u8>, Write)>) -> u64 {
        let mut inner = self.model.lock();
        inner.clock += 1;
        let ts = inner.clock;
        for (key, value) in writes {
            inner.keys.entry(key).or_default().push(Version { ts, value });
        }
        ts
    }

    /// Runs an operation; an error makes the transaction fail, unless the operation may be repeated.
    fn operator<T>(&mut self, f: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.tx.as_ref().is_some_and(|tx| tx.failed) {
            return Err(Error::Aborted);
        }
        let result = f(self);
        if let (Err(error), Some(tx)) = (&result, &mut self.tx)
            && !error.keeps_transaction()
        {
            tx.failed = true;
        }
        result
    }

    fn writing<T>(&mut self, key: &[u8], f: impl FnOnce(&mut Self) -> T) -> Result<T> {
        self.operator(|s| {
            if s.tx.as_ref().is_some_and(|tx| tx.snapshot.is_some()) {
                return Err(Error::State);
            }
            s.lock_key(key, true)?;
            s.take_record()?;
            Ok(f(s))
        })
    }

    fn take_record(&self) -> Result<()> {
        self.model.lock().ring.as_mut().map_or(Ok(()), Ring::take)
    }

    fn start(&mut self, snapshot: Option<u64>) -> Result<()> {
        if self.tx.is_some() {
            return Err(Error::State);
        }
        self.tx = Some(Tx { snapshot, ..Default::default() });
        Ok(())
    }

    fn end(&mut self) -> Option<Tx> {
        let tx = self.tx.take()?;
        let mut inner = self.model.lock();
        inner.writers.retain(|_, w| *w != self.id);
        inner.readers.retain(|_, readers| {
            readers.remove(&self.id);
            !readers.is_empty()
        });
        Some(tx)
    }
}

impl Drop for ModelSession {
    fn drop(&mut self) {
        self.end();
    }
}

impl Operators for ModelSession {
    fn begin(&mut self) -> Result<()> {
        self.start(None)
    }

    fn begin_read_only(&mut self) -> Result<()> {
        let clock = self.model.lock().clock;
        self.start(Some(clock))
    }

    fn in_transaction(&self) -> bool {
        self.tx.is_some()
    }

    fn is_failed(&self) -> bool {
        self.tx.as_ref().is_some_and(|tx| tx.failed)
    }

    fn get(&mut self, key: &[u8]) -> Result<Option<Value>> {
        self.operator(|s| {
            if s.tx.as_ref().is_some_and(|tx| tx.snapshot.is_none()) {
                s.lock_key(key, false)?;
            }
            Ok(s.read(key))
        })
    }

    fn set(&mut self, key: &[u8], value: &[u8], options: SetOptions) -> Result<Written> {
        self.writing(key, |s| {
            let old = s.read(key);
            let holds = match options.condition {
                SetCondition::Always => true,
                SetCondition::IfAbsent => old.is_none(),
                SetCondition::IfPresent => old.is_some(),
            };
            if !holds {
                return Written::ConditionFailed;
            }
            let kept = old.and_then(|v| v.expire_at_ms);
            let expire = if options.keep_ttl { kept } else { options.expire_at_ms };
            s.write(key, Some((value.to_vec(), expire)))
        })
    }

    fn delete(&mut self, key: &[u8]) -> Result<Written> {
        self.writing(key, |s| match s.read(key) {
            Some(_) => s.write(key, None),
            None => Written::ConditionFailed,
        })
    }

    fn delete_expired(&mut self, key: &[u8]) -> Result<Written> {
        let written =
            self.model.lock().keys.get(key).is_some_and(|v| v.last().is_some_and(|v| v.value.is_some()));
        self.writing(key, |s| match s.read(key) {
            None if written => s.write(key, None),
            _ => Written::ConditionFailed,
        })
    }

    fn compare_and_set(&mut self, key: &[u8], expected: &[u8], new: &[u8]) -> Result<Written> {
        self.writing(key, |s| match s.read(key) {
            Some(old) if old.data == expected => s.write(key, Some((new.to_vec(), old.expire_at_ms))),
            _ => Written::ConditionFailed,
        })
    }

    fn commit(&mut self) -> Result<u64> {
        if self.tx.as_ref().is_some_and(|tx| !tx.failed && !tx.writes.is_empty()) {
            self.take_record()?;
        }
        let tx = self.end().ok_or(Error::State)?;
        if tx.failed {
            return Err(Error::Aborted);
        }
        Ok(if tx.writes.is_empty() { 0 } else { self.apply(tx.writes) })
    }

    fn rollback(&mut self) -> Result<()> {
        self.end();
        Ok(())
    }

    fn take_observed_ts(&mut self) -> u64 {
        self.observed_ts.take()
    }

    fn set_durability(&mut self, durability: Durability) {
        self.durability = Some(durability);
    }
}
