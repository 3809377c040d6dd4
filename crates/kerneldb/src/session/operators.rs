//! A session: the user-space handle that runs operators, one `bpf()` call each.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::{
    EngineKind, Error, KEY_MAX, Op, Result, SetCondition, SetOptions, VALUE_MAX, Value, Written,
    engine::{Engine, MemoryWait},
    eviction::KeyUsage,
    layout::*,
};

/// A session of the database: one transaction at a time, used by one thread at a time (`Send`, not
/// `Sync`). Dropping it rolls back its transaction.
///
/// Outside of a transaction every operation is its own transaction (auto-commit).
///
/// An error inside of a transaction fails the transaction: it can only be rolled back. Three errors do not
/// ([`Error::keeps_transaction`]). After these the operation had no effect, the transaction stays open, and the same
/// call may be repeated.
pub struct Session {
    pub(super) db: Arc<Engine>,
    pub(super) index: u32,
    /// This makes the type not `Sync`, as a session must not be.
    pub(super) memory: MemoryWait,
    /// Calls of procedures without memory, since the last one that had enough.
    pub(super) calls_without_memory: Cell<u32>,
    /// Newest commit that results revealed since the last [`Session::take_observed_ts`].
    pub(super) observed_ts: Cell<u64>,
}

/// An I/O buffer for the time of one operator.
pub(crate) struct Io<'a> {
    db: &'a Engine,
    index: u32,
}

impl<'a> Io<'a> {
    pub(crate) fn claim(db: &'a Engine) -> Self {
        Io { db, index: db.claim_io() }
    }

    /// Index of the buffer.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    fn ptr(&self) -> *mut kdb_io {
        self.db.ios.get(self.index)
    }

    /// Sets whether a lack of memory leaves the transaction as it was.
    fn set_repeats(&self, repeats: bool) {
        // SAFETY: the buffer is claimed, and no operator uses it at the moment.
        let flags = unsafe { &mut (*self.ptr()).flags };
        *flags = if repeats { *flags | KDB_IO_REPEATS } else { *flags & !KDB_IO_REPEATS };
    }

    /// Fills in the key.
    fn key(&mut self, key: &[u8]) -> Result<()> {
        if key.is_empty() || key.len() > KEY_MAX {
            return Err(Error::TooLarge("a key has 1 to 255 bytes"));
        }
        let io = self.ptr();
        // SAFETY: the buffer is claimed, so nothing else touches it; the key and its padding fit.
        unsafe {
            (*io).klen = key.len() as u32;
            (*io).flags = 0;
            (*io).expire_ms = 0;
            (*io).vlen = 0;
            let buffer: *mut u8 = (&raw mut (*io).key).cast();
            buffer.add(key.len() & !7).cast::<u64>().write_unaligned(0);
            std::ptr::copy_nonoverlapping(key.as_ptr(), buffer, key.len());
        }
        Ok(())
    }

    /// Fills in the value to write.
    pub(crate) fn value(&mut self, value: &[u8]) -> Result<()> {
        if value.len() > VALUE_MAX {
            return Err(Error::TooLarge("a value has at most 65536 bytes"));
        }
        let io = self.ptr();
        // SAFETY: as in `key`; the length was checked.
        unsafe {
            (*io).vlen = value.len() as u32;
            std::ptr::copy_nonoverlapping(value.as_ptr(), (&raw mut (*io).val).cast(), value.len());
        }
        Ok(())
    }

    /// Fills in the expected value of a compare-and-set.
    fn expect(&mut self, expected: &[u8]) {
        let io = self.ptr();
        // SAFETY: as in `value`; the caller has checked the length.
        unsafe {
            (*io).elen = expected.len() as u32;
            std::ptr::copy_nonoverlapping(expected.as_ptr(), (&raw mut (*io).expect).cast(), expected.len());
        }
    }

    /// The value that GET read.
    pub(crate) fn result(&self) -> Value {
        let io = self.ptr();
        // SAFETY: the buffer is claimed and the operator is done; the operator keeps vlen in bounds.
        unsafe {
            let len = ((*io).vlen as usize).min(VALUE_MAX);
            Value {
                data: std::slice::from_raw_parts((&raw const (*io).val).cast::<u8>(), len).to_vec(),
                expire_at_ms: ((*io).expire_ms != 0).then_some((*io).expire_ms),
                commit_ts: (*io).commit_ts,
            }
        }
    }

    fn observed_ts(&self) -> u64 {
        // SAFETY: as in `result`.
        unsafe { (*self.ptr()).observed_ts }
    }

    /// The usage of the key that was read.
    fn usage(&self) -> u8 {
        // SAFETY: as in `result`.
        unsafe { (*self.ptr()).usage as u8 }
    }

    fn commit_ts(&self) -> u64 {
        // SAFETY: as in `result`.
        unsafe { (*self.ptr()).commit_ts }
    }
}

impl Drop for Io<'_> {
    fn drop(&mut self) {
        self.db.release_io(self.index);
    }
}

impl Session {
    pub(crate) fn open(db: Arc<Engine>) -> Result<Self> {
        let index = db.claim_session()?;
        Ok(Session::with_index(db, index))
    }

    /// The session of an index that no other session uses.
    pub(crate) fn with_index(db: Arc<Engine>, index: u32) -> Self {
        let mut session = Session {
            db,
            index,
            memory: MemoryWait::default(),
            calls_without_memory: Cell::new(0),
            observed_ts: Cell::new(0),
        };
        // The index may have served a session that was not logged.
        session.set_logged(true);
        // SAFETY: in bounds; the index is this session's, so no program uses its context.
        unsafe { (*session.ctx()).app = [0; 8] };
        session
    }

    /// Index of the session's context, by which further programs on the same data ([`crate::attach`]) run its operators.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Whether this is a session of that database.
    pub(crate) fn belongs_to(&self, db: &Arc<Engine>) -> bool {
        Arc::ptr_eq(&self.db, db)
    }

    fn ctx(&self) -> *mut kdb_ctx {
        self.db.control.contexts.get(self.index)
    }

    fn state(&self) -> u32 {
        // SAFETY: in bounds; the operators and the reaper store the state as a whole.
        unsafe { (&raw const (*self.ctx()).state).read_volatile() }
    }

    /// Runs one operator in a partition.
    fn run(&self, op: u32, partition: u32, io: u32) -> Result<u32> {
        let mut args = [u64::from(op), u64::from(self.index), u64::from(io)];
        let failed = self.db.programs(partition).call.run(&mut args)?;
        if failed != 0 {
            return Ok(failed);
        }
        // SAFETY: in bounds; the operator is done.
        Ok(unsafe { (&raw const (*self.db.ios.get(io)).status).read_volatile() } as u32)
    }

    /// For [`crate::Replayer`].
    pub(crate) fn end_replay(&self) {
        self.db.control.end_replay();
    }

    /// Makes memory available in a partition before a transaction needs it, because a transaction holds locks meanwhile.
    pub(super) fn make_memory_available(&self, partition: u32) {
        if self.db.wants_memory(partition) {
            self.db.grow(partition);
        }
        if self.db.lacks_slabs(partition) {
            self.db.make_room(partition);
        }
    }

    /// Runs an operator on a key; grows the partition and tries again if it is out of memory. In a transaction only the last
    /// attempt fails it.
    fn run_keyed(&self, op: u32, key: &[u8], io: &Io<'_>) -> Result<u32> {
        let partition = self.db.control.partition_of(key);
        let is_active = self.state() == KDB_TX_ACTIVE;
        if is_active {
            self.make_memory_available(partition);
        }
        let mut is_last = self.in_transaction() && !is_active;
        for attempt in 0.. {
            let committed = self.db.committed(partition);
            io.set_repeats(is_active && !is_last);
            let status = self.run(op, partition, io.index)?;
            if status != KDB_ERR_NO_MEMORY {
                self.memory.end();
                self.observe(io.observed_ts());
                return Ok(status);
            }
            if is_last {
                return Ok(status);
            }
            if !self.db.grow_beyond(partition, committed, attempt) {
                // Perhaps the log is too slow; unlike the limit, that passes.
                if self
                    .memory
                    .goes_on(self.db.memory_pressure(partition), self.db.eviction.may_help(partition))
                {
                    return Ok(KDB_ERR_MEMORY_IN_LOG);
                }
                // Memory may have come back between this attempt and the check for waiting blocks.
                is_last = true;
            }
        }
        unreachable!("grow_beyond() gives up at the limit, and one attempt is the last")
    }

    /// Notes the commits that the outcome of operators reveals. `reported` is the newest one that the arena engine has reported.
    pub(super) fn observe(&self, reported: u64) {
        // The hash-map engine does not report that, but its results are not newer than the clock.
        let newest = match self.db.config().engine {
            EngineKind::HashMap => self.db.state().clock.load(Ordering::Acquire),
            EngineKind::Arena => reported,
        };
        self.observed_ts.set(self.observed_ts.get().max(newest));
    }

    /// Timestamp of the newest commit that results of this session's operations reveal; 0 if there is none. The session
    /// then forgets it. Absence and failed conditions reveal commits as well as values do.
    ///
    /// A crash of the machine can take back a commit until the log has it on disk. A program that must not pass on such
    /// a commit waits for this timestamp first:
    ///
    /// ```no_run
    /// # fn example(store: &bedplate_kerneldb::Store) -> bedplate_kerneldb::Result<()> {
    /// let mut session = store.database().session()?;
    /// let balance = session.get(b"balance")?;
    /// let durable = store.wait_durable(session.take_observed_ts(), std::time::Duration::from_secs(10))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn take_observed_ts(&mut self) -> u64 {
        self.observed_ts.take()
    }

    /// Runs an operator without a key.
    pub(super) fn run_plain(&self, op: u32, partition: u32) -> Result<u32> {
        let io = Io::claim(&self.db);
        self.run(op, partition, io.index)
    }

    /// Starts a read-write transaction (strict two-phase locking, no-wait).
    pub fn begin(&mut self) -> Result<()> {
        check(self.run_plain(KDB_OP_BEGIN, 0)?)
    }

    /// Starts a read-only transaction on a snapshot. It never blocks, aborts or locks (in single-version mode it locks
    /// the keys that it reads). [`Error::Busy`] when 1024 snapshots are active.
    pub fn begin_read_only(&mut self) -> Result<()> {
        check(self.run_plain(KDB_OP_BEGIN_RO, 0)?)
    }

    /// Whether a transaction (also a failed one) is open.
    pub fn in_transaction(&self) -> bool {
        self.state() != KDB_TX_NONE
    }

    /// Whether the open transaction is read-only.
    pub fn is_read_only(&self) -> bool {
        self.state() == KDB_TX_READ_ONLY
    }

    /// Whether the open transaction met an error and can only be rolled back.
    pub fn is_failed(&self) -> bool {
        self.state() == KDB_TX_FAILED
    }

    /// The reason why the open transaction can only be rolled back: [`Error::TimedOut`], else [`Error::Aborted`].
    pub fn failure(&self) -> Error {
        // SAFETY: in bounds; written before the state that the caller has seen.
        match unsafe { (&raw const (*self.ctx()).error).read_volatile() } {
            KDB_ERR_TX_TIMED_OUT => Error::TimedOut,
            _ => Error::Aborted,
        }
    }

    /// Begins a transaction that has failed already, in the place of one of another session. `failure` is that one's
    /// [`Session::failure`].
    pub fn begin_failed(&mut self, failure: &Error) -> Result<()> {
        self.begin()?;
        let error = if matches!(failure, Error::TimedOut) { KDB_ERR_TX_TIMED_OUT } else { KDB_ERR_ABORTED };
        // SAFETY: in bounds. No operator of this session runs, and the reaper leaves a transaction alone that has just begun.
        unsafe {
            (&raw mut (*self.ctx()).error).write_volatile(error);
            (&raw mut (*self.ctx()).state).write_volatile(KDB_TX_FAILED);
        }
        Ok(())
    }

    /// Whether this session's writes are logged (only matters for a database with a log).
    pub fn set_logged(&mut self, logged: bool) {
        // SAFETY: in bounds; only this session's operators read the flags.
        unsafe { (&raw mut (*self.ctx()).flags).write_volatile(if logged { 0 } else { KDB_CTX_NO_WAL }) };
    }

    /// Reads a key into an I/O buffer, with `KDB_IO_*`; `None` if it does not exist.
    fn read(&self, key: &[u8], flags: u32) -> Result<Option<Io<'_>>> {
        let op = match self.state() {
            KDB_TX_NONE => KDB_OP_GET_AUTO,
            KDB_TX_READ_ONLY => KDB_OP_GET_RO,
            _ => KDB_OP_GET,
        };
        let mut io = Io::claim(&self.db);
        io.key(key)?;
        // SAFETY: the buffer is claimed.
        unsafe {
            (*io.ptr()).flags = flags;
            (*io.ptr()).usage = 0;
        }
        match self.run_keyed(op, key, &io)? {
            KDB_OK => Ok(Some(io)),
            KDB_NOT_FOUND => Ok(None),
            status => Err(Error::of_status(status)),
        }
    }

    /// Reads a key; an expired key does not exist.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Value>> {
        Ok(self.read(key, 0)?.map(|io| io.result()))
    }

    /// Reads a key as [`Session::get`] does. It does not count as a use of the key, which matters for eviction.
    pub fn peek(&mut self, key: &[u8]) -> Result<Option<Value>> {
        Ok(self.read(key, KDB_IO_NO_USE)?.map(|io| io.result()))
    }

    /// How a key is used, if it exists. The call does not count as a use.
    pub fn key_usage(&mut self, key: &[u8]) -> Result<Option<KeyUsage>> {
        let io = self.read(key, KDB_IO_NO_USE)?;
        Ok(io.map(|io| KeyUsage::of(self.db.eviction.policy(), io.usage())))
    }

    fn write(&self, op: u32, key: &[u8], io: &Io<'_>) -> Result<Written> {
        match self.run_keyed(op, key, io)? {
            KDB_OK => Ok(Written::Done { commit_ts: io.commit_ts() }),
            KDB_NOT_FOUND | KDB_MISMATCH => Ok(Written::ConditionFailed),
            status => Err(Error::of_status(status)),
        }
    }

    fn pick(&self, auto: u32, transactional: u32) -> u32 {
        if self.state() == KDB_TX_NONE { auto } else { transactional }
    }

    /// Writes a key.
    pub fn set(&mut self, key: &[u8], value: &[u8], options: SetOptions) -> Result<Written> {
        let mut io = Io::claim(&self.db);
        io.key(key)?;
        io.value(value)?;
        let flags = match options.condition {
            SetCondition::Always => 0,
            SetCondition::IfAbsent => KDB_IO_IF_ABSENT,
            SetCondition::IfPresent => KDB_IO_IF_PRESENT,
        };
        // SAFETY: the buffer is claimed.
        unsafe {
            (*io.ptr()).flags = flags | if options.keep_ttl { KDB_IO_KEEP_TTL } else { 0 };
            (*io.ptr()).expire_ms = options.expire_at_ms.unwrap_or(0);
        }
        self.write(self.pick(KDB_OP_SET_AUTO, KDB_OP_SET), key, &io)
    }

    /// Deletes a key; [`Written::ConditionFailed`] if it did not exist.
    pub fn delete(&mut self, key: &[u8]) -> Result<Written> {
        let mut io = Io::claim(&self.db);
        io.key(key)?;
        self.write(self.pick(KDB_OP_DEL_AUTO, KDB_OP_DEL), key, &io)
    }

    /// Deletes a key whose expiry has passed, as a transaction of its own; [`Written::ConditionFailed`] if
    /// the key does not exist, or exists and is not expired. It takes no memory. [`Error::State`] inside a
    /// transaction.
    pub fn delete_expired(&mut self, key: &[u8]) -> Result<Written> {
        if self.in_transaction() {
            return Err(Error::State);
        }
        let mut io = Io::claim(&self.db);
        io.key(key)?;
        // SAFETY: the buffer is claimed.
        unsafe { (*io.ptr()).flags = KDB_IO_IF_EXPIRED };
        self.write(KDB_OP_DEL_AUTO, key, &io)
    }

    /// The same for the active expiry: one attempt, which does not wait for memory. Older versions that a snapshot needs can make the
    /// deletion take some.
    pub(crate) fn try_delete_expired(&self, key: &[u8]) -> Result<Written> {
        self.try_delete(key, KDB_IO_IF_EXPIRED, 0)
    }

    /// Deletes a key in order to free memory, as a transaction of its own, if its newest commit is that of `commit_ts`. It does not
    /// wait for memory, because that may wait for the caller.
    pub(crate) fn evict(&self, key: &[u8], commit_ts: u64) -> Result<Written> {
        self.try_delete(key, KDB_IO_UNCHANGED, commit_ts)
    }

    /// One attempt at deleting a key under a condition, `KDB_IO_*`.
    fn try_delete(&self, key: &[u8], flags: u32, commit_ts: u64) -> Result<Written> {
        let mut io = Io::claim(&self.db);
        io.key(key)?;
        // SAFETY: the buffer is claimed.
        unsafe {
            (*io.ptr()).flags = flags;
            (*io.ptr()).commit_ts = commit_ts;
        }
        match self.run(KDB_OP_DEL_AUTO, self.db.control.partition_of(key), io.index)? {
            KDB_OK => Ok(Written::Done { commit_ts: io.commit_ts() }),
            KDB_NOT_FOUND | KDB_MISMATCH => Ok(Written::ConditionFailed),
            status => Err(Error::of_status(status)),
        }
    }

    /// Writes `new` if the key's value is `expected`; keeps the key's expiry.
    pub fn compare_and_set(&mut self, key: &[u8], expected: &[u8], new: &[u8]) -> Result<Written> {
        if expected.len() > VALUE_MAX {
            return Ok(Written::ConditionFailed);
        }
        let mut io = Io::claim(&self.db);
        io.key(key)?;
        io.value(new)?;
        io.expect(expected);
        self.write(self.pick(KDB_OP_CAS_AUTO, KDB_OP_CAS), key, &io)
    }

    /// Commits; returns the commit timestamp (0 if nothing was written or the transaction was read-only). After an
    /// error that [keeps the transaction](Error::keeps_transaction) the caller may commit again or roll back. After any
    /// other error the transaction has been rolled back.
    pub fn commit(&mut self) -> Result<u64> {
        if self.state() == KDB_TX_READ_ONLY {
            self.end(KDB_OP_COMMIT_RO)?;
            self.finish()?;
            return Ok(0);
        }
        self.end(KDB_OP_COMMIT)?;
        // SAFETY: in bounds; the context is this session's.
        let ts = unsafe { (&raw const (*self.ctx()).commit_ts).read_volatile() };
        self.finish()?;
        Ok(ts)
    }

    /// Runs a commit. A transaction that cannot commit is rolled back.
    fn end(&mut self, operator: u32) -> Result<()> {
        let ended = check(self.run_plain(operator, self.home())?);
        if ended.as_ref().is_err_and(|error| !error.keeps_transaction()) {
            self.rollback()?;
        }
        ended
    }

    /// Rolls back; a no-op without a transaction.
    pub fn rollback(&mut self) -> Result<()> {
        // The reaper may hold the context, for microseconds.
        while self.run_plain(KDB_OP_ROLLBACK, self.home())? == KDB_ERR_BUSY {
            std::thread::yield_now();
        }
        self.finish()
    }

    /// A partition in which the transaction holds locks, if there is any.
    fn home(&self) -> u32 {
        // SAFETY: in bounds; the context is this session's.
        let held = unsafe { (&raw const (*self.ctx()).partitions).read_volatile() };
        if held == 0 { 0 } else { held.trailing_zeros() }
    }

    /// Makes the other partitions release their locks.
    fn finish(&self) -> Result<()> {
        while matches!(self.state(), KDB_TX_COMMITTED | KDB_TX_ROLLING_BACK) {
            check(self.run_plain(KDB_OP_RELEASE, self.home())?)?;
        }
        Ok(())
    }

    /// Recovery: applies a logged change with its own timestamp.
    pub(crate) fn replay(&mut self, op: &Op, commit_ts: u64) -> Result<()> {
        let mut io = Io::claim(&self.db);
        let (key, code) = match op {
            Op::Put { key, value, expire_at_ms } => {
                io.key(key)?;
                io.value(value)?;
                // SAFETY: the buffer is claimed.
                unsafe { (*io.ptr()).expire_ms = expire_at_ms.unwrap_or(0) };
                (key, KDB_OP_SET_AUTO)
            }
            Op::Delete { key } => {
                io.key(key)?;
                (key, KDB_OP_DEL_AUTO)
            }
        };
        // SAFETY: the buffer is claimed.
        unsafe {
            (*io.ptr()).flags = KDB_IO_REPLAY;
            (*io.ptr()).commit_ts = commit_ts;
        }
        loop {
            match self.run_keyed(code, key, &io)? {
                KDB_OK | KDB_NOT_FOUND | KDB_MISMATCH => return Ok(()),
                // Only the collector runs besides this session, for a moment.
                KDB_ERR_CONFLICT => std::thread::yield_now(),
                status => return Err(Error::of_status(status)),
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        match self.rollback() {
            Ok(()) => self.db.release_session(self.index),
            // The session still holds its locks, so the index must not serve another session.
            Err(e) => tracing::error!("session {} could not be rolled back: {e}", self.index),
        }
    }
}

fn check(status: u32) -> Result<()> {
    if status == KDB_OK { Ok(()) } else { Err(Error::of_status(status)) }
}
