//! The call of a procedure by name: its arguments and its reply (`bpf/include/bedplate/procedure.h`).

use super::operators::{Io, Session, error};
use crate::{
    Error, Result,
    engine::{Engine, Registered},
    layout::*,
    limits::{CALL_ARGUMENTS_MAX, CALL_BYTES_MAX},
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

/// The call in the element of `kdb_calls` that belongs to a claimed I/O buffer.
pub(super) struct Call<'a> {
    db: &'a Engine,
    index: u32,
}

impl<'a> Call<'a> {
    /// Fills in the arguments. The caller has claimed the I/O buffer `index`, and keeps it until this is dropped.
    pub fn new(db: &'a Engine, index: u32, arguments: &[&[u8]]) -> Result<Self> {
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
                status => Err(error(status)),
            }
        }
    }
}

impl Session {
    /// Runs the body of a procedure in the open transaction. If it needs memory or has to wait for something, the transaction
    /// has failed, and the caller begins anew.
    fn call_open(&self, procedure: &Registered, arguments: &[&[u8]]) -> Result<Reply> {
        let partition = arguments.first().map_or(0, |key| self.db.control.partition_of(key));
        if self.db.wants_memory(partition) {
            self.db.grow(partition);
        }
        if self.db.lacks_slabs(partition) {
            self.db.make_room(partition);
        }
        let io = Io::claim(&self.db);
        let call = Call::new(&self.db, io.index(), arguments)?;
        let committed = self.db.committed(partition);
        let status = procedure.programs[partition as usize]
            .run(&mut [u64::from(self.index), u64::from(io.index())])?;
        self.observed_ts.set(self.observed_ts.get().max(call.observed_ts()));
        if status != KDB_ERR_NO_MEMORY {
            self.memory.end();
            self.calls_without_memory.set(0);
            return call.outcome(status, &io);
        }
        let attempt = self.calls_without_memory.get();
        self.calls_without_memory.set(attempt + 1);
        if self.db.grow_beyond(partition, committed, attempt) {
            return Err(Error::Busy);
        }
        if self.memory.goes_on(self.db.memory_pressure(partition)) {
            return Err(Error::MemoryInLog);
        }
        self.calls_without_memory.set(0);
        Err(Error::NoMemory)
    }

    /// Calls a procedure by name ([`Database::load_library`](crate::Database::load_library)).
    ///
    /// Inside of a transaction the procedure is a part of it. Outside, the call is a transaction of its own, which is committed if
    /// the procedure succeeds and is rolled back otherwise. With several partitions, the procedure works on the partition of its
    /// first argument as a key.
    ///
    /// # Errors
    ///
    /// [`Error::NoProcedure`], [`Error::Refused`], [`Error::TooLarge`] for too many or too long arguments
    /// ([`crate::limits::CALL_ARGUMENTS_MAX`], [`crate::limits::CALL_BYTES_MAX`]), [`Error::OtherPartition`], and those of the
    /// operators that the procedure runs. After an [`Error::is_transient`] error outside of a transaction, the caller may repeat the
    /// call. Inside of a transaction each error fails it, with two exceptions: [`Error::NoProcedure`], and [`Error::Refused`] by a
    /// procedure that has not written. [`Session::is_failed`] tells which.
    pub fn call(&mut self, name: &str, arguments: &[&[u8]]) -> Result<Reply> {
        let procedure = self.db.procedures.find(name);
        let procedure = procedure.ok_or_else(|| Error::NoProcedure(name.to_owned()))?;
        if self.in_transaction() {
            if self.is_failed() {
                return Err(self.failure());
            }
            return self.call_open(&procedure, arguments);
        }
        match procedure.read_only {
            true => self.begin_read_only()?,
            false => self.begin()?,
        }
        let done = self.call_open(&procedure, arguments).and_then(|reply| self.commit().map(|_| reply));
        if done.is_err() {
            self.rollback()?;
        }
        done
    }

    /// Whether a procedure only reads; [`Error::NoProcedure`] if there is none of this name.
    pub fn is_read_only_procedure(&self, name: &str) -> Result<bool> {
        let procedure = self.db.procedures.find(name);
        procedure.map(|procedure| procedure.read_only).ok_or_else(|| Error::NoProcedure(name.to_owned()))
    }
}
