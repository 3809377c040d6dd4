//! Traces: many auto-commit operations in one call into the kernel.
//!
//! In the paper's local experiments (figure 6b) the system call costs more than the operation. A trace runs a
//! prepared sequence of operations in one call, so a benchmark measures the engine, and a loader writes many small
//! keys at once. Keys have 16 bytes.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use super::{Session, TraceProgram, operators::Io};
use crate::{
    Error, Result, VALUE_MAX,
    engine::Engine,
    layout::{KDB_TRACE_GET, KDB_TRACE_KEY, kdb_trace, kdb_trace_op},
    limits::TRACE_OPS,
};

/// Bytes in a key of a trace.
pub const TRACE_KEY: usize = KDB_TRACE_KEY as usize;

/// A sequence of auto-commit operations. There are as many traces as CPUs, and two more.
pub struct Trace {
    db: Arc<Engine>,
    program: Arc<TraceProgram>,
    index: u32,
    len: usize,
    /// Bytes in the longest SET.
    longest: usize,
}

/// The results of a run of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceOutcome {
    /// GETs that found their key.
    pub found: u64,
    /// Number of operations that failed.
    pub errors: u64,
}

impl Trace {
    /// Claims a trace; [`Error::Busy`] if all are in use.
    pub(crate) fn claim(db: Arc<Engine>, program: Arc<TraceProgram>) -> Result<Self> {
        for index in 0..program.traces.len() {
            let trace = program.traces.get(index);
            // SAFETY: in bounds; `claimed` is only accessed atomically.
            let claimed = unsafe { AtomicU32::from_ptr(&raw mut (*trace).claimed) };
            if claimed.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Ok(Trace { db, program, index, len: 0, longest: 0 });
            }
        }
        Err(Error::Busy)
    }

    fn ptr(&self) -> *mut kdb_trace {
        self.program.traces.get(self.index)
    }

    /// Removes the operations.
    pub fn clear(&mut self) {
        self.len = 0;
        self.longest = 0;
    }

    /// Appends a GET. Panics when the trace is full.
    pub fn get(&mut self, key: &[u8; TRACE_KEY]) {
        self.push(key, KDB_TRACE_GET);
    }

    /// Appends a SET of `len` bytes of the value given to [`Trace::run`]. Panics when the trace is full.
    pub fn set(&mut self, key: &[u8; TRACE_KEY], len: usize) {
        assert!(len <= VALUE_MAX);
        self.longest = self.longest.max(len);
        self.push(key, len as u32);
    }

    fn push(&mut self, key: &[u8; TRACE_KEY], vlen: u32) {
        assert!(self.len < TRACE_OPS, "a trace has at most {TRACE_OPS} operations");
        let (low, high) = key.split_at(8);
        let word = |half: &[u8]| u64::from_ne_bytes(half.try_into().expect("eight bytes"));
        let op = kdb_trace_op { key: [word(low), word(high)], hash: 0, vlen, _pad: 0 };
        // SAFETY: the trace is claimed, and the index was checked.
        unsafe { (&raw mut (*self.ptr()).ops[self.len]).write(op) };
        self.len += 1;
    }

    /// Runs the operations in order on the current CPU, as auto-commit operations of `session`, which must
    /// belong to the same database and have no transaction open. SETs write prefixes of `value`.
    pub fn run(&self, session: &mut Session, value: &[u8]) -> Result<TraceOutcome> {
        if !session.belongs_to(&self.db) || session.in_transaction() {
            return Err(Error::State);
        }
        if self.longest > value.len() {
            return Err(Error::TooLarge("a SET of the trace is longer than the value given"));
        }
        let mut io = Io::claim(&self.db);
        io.value(value)?;
        let trace = self.ptr();
        // SAFETY: the trace is claimed.
        unsafe {
            (*trace).count = self.len as u32;
            (*trace).found = 0;
            (*trace).errors = 0;
        }
        let result = Io::claim(&self.db);
        let mut args = [self.index, session.index(), io.index(), result.index()].map(u64::from);
        let status = self.program.program.run(&mut args)?;
        if status != 0 {
            return Err(Error::of_status(status));
        }
        // SAFETY: as above; the program is done.
        Ok(unsafe { TraceOutcome { found: (*trace).found, errors: (*trace).errors } })
    }

    /// Runs an empty program, which measures the cost of the call alone.
    pub fn noop(&self) -> Result<()> {
        self.db.programs(0).noop.run(&mut [0, 0, 0]).map(drop)
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // SAFETY: in bounds; `claimed` is only accessed atomically.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.ptr()).claimed) }.store(0, Ordering::Release);
    }
}
