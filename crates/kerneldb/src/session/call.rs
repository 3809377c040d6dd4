//! The call of a procedure by name: its arguments and its reply (`bpf/include/bedplate/procedure.h`).

use std::sync::Arc;

use super::operators::{Io, Session};
use crate::{
    Error, Result,
    engine::{Engine, Registered},
    layout::*,
    limits::{CALL_ARGUMENTS_MAX, CALL_BYTES_MAX, KEY_MAX, TX_WRITE_BYTES, VALUE_MAX},
};

/// The reply of a procedure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Nothing but that it is done.
    Ok,
    /// Nothing, as for a key that does not exist.
    Nil,
    /// A number.
    Integer(i64),
    /// A byte string.
    Value(Vec<u8>),
}

/// A procedure that was found by its name.
#[derive(Clone)]
pub struct FoundProcedure(Arc<Registered>);

impl FoundProcedure {
    /// Whether it only reads.
    pub fn is_read_only(&self) -> bool {
        self.0.read_only
    }
}

/// The call in the element of `kdb_calls` that belongs to a claimed I/O buffer.
pub(super) struct Call<'a> {
    db: &'a Engine,
    index: u32,
}

impl<'a> Call<'a> {
    /// Fills in the arguments of a call that runs in `partition`. The caller has claimed the I/O buffer `index`, and keeps it until this is dropped.
    pub fn new(db: &'a Engine, index: u32, partition: u32, arguments: &[&[u8]]) -> Result<Self> {
        let bytes: usize = arguments.iter().map(|argument| argument.len()).sum();
        if arguments.len() > CALL_ARGUMENTS_MAX || bytes > CALL_BYTES_MAX {
            return Err(Error::TooLarge("a call has at most 16 arguments, of 65536 bytes together"));
        }
        let call = Call { db, index };
        let target = call.ptr();
        // SAFETY: the element is the caller's with the I/O buffer, no program uses it at the moment, and the checks above keep
        // arguments and bytes within their arrays.
        unsafe {
            (*target).arguments = arguments.len() as u32;
            (*target).reply = KDB_REPLY_OK;
            (*target).observed_ts = 0;
            (*target).text_len = 0;
            (*target).number = 0;
            (*target).visits = KDB_VISITS_MAX;
            (*target).partition = partition;
            // An earlier call of another client may have left a key and a value.
            let io = db.ios.get(index);
            (*io).klen = 0;
            (*io).vlen = 0;
            let mut at = 0;
            for (i, argument) in arguments.iter().enumerate() {
                (*target).argument[i] = kdb_argument { at: at as u32, len: argument.len() as u32 };
                let bytes: *mut u8 = (&raw mut (*target).bytes).cast();
                std::ptr::copy_nonoverlapping(argument.as_ptr(), bytes.add(at), argument.len());
                at += argument.len();
            }
        }
        Ok(call)
    }

    fn ptr(&self) -> *mut kdb_call {
        self.db.calls.get(self.index)
    }

    /// Newest commit that the call reveals.
    pub fn observed_ts(&self) -> u64 {
        // SAFETY: as in `new`; the program has ended.
        unsafe { (*self.ptr()).observed_ts }
    }

    /// The partition of the last operator.
    pub fn partition(&self) -> u32 {
        // SAFETY: as in `observed_ts`.
        unsafe { (*self.ptr()).partition }
    }

    /// The reply, or the error, behind the program's status.
    pub fn outcome(&self, status: u32, io: &Io<'_>) -> Result<Reply> {
        let call = self.ptr();
        // SAFETY: as in `observed_ts`; the length is bounded.
        unsafe {
            match status {
                KDB_OK => Ok(match (*call).reply {
                    KDB_REPLY_NIL => Reply::Nil,
                    KDB_REPLY_INTEGER => Reply::Integer((*call).integer),
                    KDB_REPLY_VALUE => Reply::Value(io.result().data),
                    _ => Reply::Ok,
                }),
                KDB_REFUSED => {
                    let len = ((*call).text_len).min(KDB_CALL_TEXT) as usize;
                    let text = std::slice::from_raw_parts((&raw const (*call).text).cast::<u8>(), len);
                    Err(Error::Refused(String::from_utf8_lossy(text).into_owned()))
                }
                status => Err(Error::of_status(status)),
            }
        }
    }
}

impl Session {
    /// Runs a procedure in the open transaction. The transaction fails if the procedure does not succeed after it has written,
    /// because a repetition would write again.
    fn call_open(&self, procedure: &Registered, arguments: &[&[u8]]) -> Result<Reply> {
        let partition = arguments.first().map_or(0, |key| self.db.control.partition_of(key));
        if !procedure.read_only {
            // Its keys may be anywhere, and a lack of memory fails the transaction.
            (0..self.db.config().partitions).for_each(|partition| self.make_memory_available(partition));
        }
        let io = Io::claim(&self.db);
        let call = Call::new(&self.db, io.index(), partition, arguments)?;
        let committed = self.db.committed(partition);
        let before = self.bytes();
        let status = procedure.programs[partition as usize]
            .run(&mut [u64::from(self.index), u64::from(io.index())])?;
        self.observe(call.observed_ts());
        if status != KDB_OK && self.bytes() != before {
            // The reaper may be at work, for microseconds.
            while self.run_plain(KDB_OP_FAIL, 0)? == KDB_ERR_BUSY {
                std::thread::yield_now();
            }
        }
        if status == KDB_ERR_WAL_FULL {
            let ring = self.db.log_ring_bytes();
            if self.bytes() as usize + VALUE_MAX + KEY_MAX + TX_WRITE_BYTES > ring as usize {
                return Err(Error::CallTooLarge(ring));
            }
        }
        if status != KDB_ERR_NO_MEMORY {
            self.memory.end();
            self.calls_without_memory.set(0);
            return call.outcome(status, &io);
        }
        let full = call.partition();
        let committed = if full == partition { committed } else { self.db.committed(full) };
        let attempt = self.calls_without_memory.get();
        self.calls_without_memory.set(attempt + 1);
        if self.db.grow_beyond(full, committed, attempt) {
            return Err(Error::Busy);
        }
        if self.memory.goes_on(self.db.memory_pressure(full), self.db.eviction.may_help(full)) {
            return Err(Error::MemoryInLog);
        }
        self.calls_without_memory.set(0);
        Err(Error::NoMemory)
    }

    /// Bytes that the writes of the open transaction count.
    fn bytes(&self) -> u32 {
        // SAFETY: in bounds; only this session's operators write the field, and none runs.
        unsafe { (&raw const (*self.db.control.contexts.get(self.index)).bytes).read_volatile() }
    }

    /// Finds a procedure by name, for [`Session::call_found`]; [`Error::NoProcedure`] if there is none.
    pub fn find_procedure(&self, name: &str) -> Result<FoundProcedure> {
        let found = self.db.procedures.find(name);
        found.map(FoundProcedure).ok_or_else(|| Error::NoProcedure(name.to_owned()))
    }

    /// Calls a procedure by name ([`Database::load_library`](crate::Database::load_library)).
    ///
    /// Inside of a transaction the procedure is a part of it. Outside, the call is a transaction of its own, which is committed if
    /// the procedure succeeds and is rolled back otherwise. [`Session::take_observed_ts`] then includes its commit. With several
    /// partitions, the procedure runs in the partition of its first argument as a key, and may use keys of all of them.
    ///
    /// # Errors
    ///
    /// [`Error::NoProcedure`], [`Error::Refused`], [`Error::TooLarge`] for too many or too long arguments
    /// ([`crate::limits::CALL_ARGUMENTS_MAX`], [`crate::limits::CALL_BYTES_MAX`]), [`Error::TooManyVisits`],
    /// [`Error::CallTooLarge`], and those of the operators that the procedure runs. After an [`Error::is_transient`] error outside of a
    /// transaction, the caller may repeat the call. Inside of a transaction an error fails it if the procedure had written before, or
    /// if the error of an operator does. [`Session::is_failed`] tells.
    pub fn call(&mut self, name: &str, arguments: &[&[u8]]) -> Result<Reply> {
        let procedure = self.find_procedure(name)?;
        self.call_found(&procedure, arguments)
    }

    /// The same for a procedure that was found before. It is called even if it has been replaced or removed since.
    pub fn call_found(&mut self, procedure: &FoundProcedure, arguments: &[&[u8]]) -> Result<Reply> {
        let FoundProcedure(procedure) = procedure;
        if self.in_transaction() {
            if self.is_failed() {
                return Err(self.failure());
            }
            return self.call_open(procedure, arguments);
        }
        match procedure.read_only {
            true => self.begin_read_only()?,
            false => self.begin()?,
        }
        let done = self.call_open(procedure, arguments).and_then(|reply| {
            let commit_ts = self.commit()?;
            self.observed_ts.set(self.observed_ts.get().max(commit_ts));
            Ok(reply)
        });
        if done.is_err() {
            self.rollback()?;
        }
        done
    }
}
