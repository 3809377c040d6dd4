//! Runs a command on the data: its context, its errors, and the transaction in which it runs.

use super::operators::Operators;
use super::services::{Counters, Services};
use super::spec::Cmd;
use crate::limits::LONG_TRANSACTION_BYTES;
use crate::resp::{Args, Writer, parse_i64};
use bedplate_kerneldb::{Error, KEY_MAX, Result, SetOptions, VALUE_MAX, Value, Written};

/// The reason why a command failed.
#[derive(Debug)]
pub(super) enum Fail {
    /// The client's mistake: the reply without its `-`. Nothing was written.
    Reply(Vec<u8>),
    /// The store's error. Its transaction has failed, unless the log ring was full.
    Store(Error),
}

impl From<Error> for Fail {
    fn from(error: Error) -> Self {
        Fail::Store(error)
    }
}

impl From<&str> for Fail {
    fn from(message: &str) -> Self {
        Fail::Reply(message.as_bytes().to_vec())
    }
}

impl From<String> for Fail {
    fn from(message: String) -> Self {
        Fail::Reply(message.into_bytes())
    }
}

/// Outcome of a command. If it succeeded, it has written its reply.
pub(super) type Run<T = ()> = std::result::Result<T, Fail>;

pub(super) const SYNTAX: &str = "ERR syntax error";
pub(super) const NOT_INTEGER: &str = "ERR value is not an integer or out of range";
pub(super) const VALUE_TOO_LONG: &str = "ERR value exceeds the limit of 65536 bytes";
/// The error of commands that make an existing value longer, with Redis's words.
pub(super) const STRING_TOO_LONG: &str = "ERR string exceeds maximum allowed size of 65536 bytes";
pub(super) const KEY_TOO_LONG: &str = "ERR key exceeds the limit of 255 bytes";
pub(super) const KEY_EMPTY: &str = "ERR empty keys are not supported";

/// The context of a running command.
pub(super) struct Ctx<'a, S, V> {
    pub store: &'a mut S,
    pub services: &'a V,
    pub out: Writer<'a>,
    /// Time of the command, milliseconds since the Unix epoch.
    pub now_ms: u64,
    /// Newest commit that the command made, or that it revealed by other means than the session's operators.
    pub commit_ts: u64,
    /// The work of earlier attempts of the same request, which must not be done again.
    pub unfinished: &'a mut Unfinished,
    /// Products of lengths that LCS has worked through so far, for all commands of the request; see
    /// [`LCS_CELLS_MAX`](crate::limits::LCS_CELLS_MAX).
    pub lcs_cells: u64,
}

impl<S: Operators, V: Services> Ctx<'_, S, V> {
    /// Reads a key for a command that reads. INFO counts it as a hit or a miss.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Value>> {
        let value = self.store.get(key)?;
        self.count_lookup(value.is_some());
        Ok(value)
    }

    /// Reads a key for a command that replies about the key and not with its value. As in Redis, this is a hit or a miss, and
    /// no use of the key.
    pub fn inspect(&mut self, key: &[u8]) -> Result<Option<Value>> {
        let value = self.store.peek(key)?;
        self.count_lookup(value.is_some());
        Ok(value)
    }

    /// Counts a hit or a miss.
    pub fn count_lookup(&self, found: bool) {
        let counters = &self.services.server().counters;
        Counters::add(if found { &counters.hits } else { &counters.misses });
    }

    /// Reads a key for a command that writes, or that does not reply with what it finds. As in Redis, this is neither a hit
    /// nor a miss.
    pub fn peek(&mut self, key: &[u8]) -> Result<Option<Value>> {
        self.store.peek(key)
    }

    /// Writes; true if the condition held.
    pub fn set(&mut self, key: &[u8], value: &[u8], options: SetOptions) -> Run<bool> {
        if value.len() > VALUE_MAX {
            return Err(VALUE_TOO_LONG.into());
        }
        Ok(self.write(key.len() + value.len(), |store| store.set(key, value, options))?)
    }

    /// Deletes; true if the key existed.
    pub fn delete(&mut self, key: &[u8]) -> Result<bool> {
        self.write(key.len(), |store| store.delete(key))
    }

    pub fn compare_and_set(&mut self, key: &[u8], expected: &[u8], new: &[u8]) -> Run<bool> {
        if expected.len().max(new.len()) > VALUE_MAX {
            return Err(VALUE_TOO_LONG.into());
        }
        Ok(self.write(key.len() + new.len(), |store| store.compare_and_set(key, expected, new))?)
    }

    /// Runs a write unless an earlier attempt has made it; true if its condition held. `bytes`: of key and value.
    fn write(&mut self, bytes: usize, write: impl FnOnce(&mut S) -> Result<Written>) -> Result<bool> {
        if let Some(done) = self.unfinished.next_made() {
            return Ok(done);
        }
        let done = match write(self.store)? {
            Written::Done { commit_ts } => {
                self.commit_ts = self.commit_ts.max(commit_ts);
                true
            }
            Written::ConditionFailed => false,
        };
        if self.store.in_transaction() {
            self.unfinished.made(done, bytes);
        }
        Ok(done)
    }

    /// Whether a retry of the request after this error continues in the open transaction. It does so if it waits for
    /// memory to be freed. It also does so if a latch was held or the log ring is full, and the transaction is the
    /// client's. A full ring does not end a long transaction of the request's own either.
    pub fn stays_open(&self, error: &Error) -> bool {
        let goes_on = match error {
            Error::MemoryInLog => true,
            Error::Busy => !self.unfinished.own,
            Error::WalFull => !self.unfinished.own || self.unfinished.bytes >= LONG_TRANSACTION_BYTES,
            _ => false,
        };
        goes_on && self.store.in_transaction() && !self.store.is_failed()
    }

    /// Runs `f` in a transaction of its own, all or nothing. If the transaction stays open after an error
    /// ([`Ctx::stays_open`]), the next call continues in it.
    pub fn transaction(&mut self, read_only: bool, f: impl FnOnce(&mut Self) -> Run) -> Run {
        let goes_on = std::mem::replace(&mut self.unfinished.own, true);
        let mark = self.out.len();
        let done = match self.unfinished.reply.take() {
            // Only the commit is missing.
            Some(reply) => {
                self.out.replies(&reply);
                Ok(())
            }
            None => {
                let begun = match (goes_on, read_only) {
                    (true, _) => Ok(()),
                    (false, true) => self.store.begin_read_only(),
                    (false, false) => self.store.begin(),
                };
                begun.map_err(Fail::from).and_then(|()| f(self))
            }
        };
        let complete = done.is_ok();
        match done.and_then(|()| Ok(self.store.commit()?)) {
            Ok(commit_ts) => {
                self.commit_ts = self.commit_ts.max(commit_ts);
                *self.unfinished = Unfinished::default();
                Ok(())
            }
            Err(Fail::Store(error)) if self.stays_open(&error) => {
                self.unfinished.reply = complete.then(|| self.out.since(mark).to_vec());
                Err(Fail::Store(error))
            }
            Err(fail) => {
                *self.unfinished = Unfinished::default();
                self.store.rollback()?;
                match fail {
                    // The transaction was open too long because it waited for the log, so it starts again.
                    Fail::Store(Error::TimedOut) if goes_on => Err(Fail::Store(Error::WalFull)),
                    fail => Err(fail),
                }
            }
        }
    }
}

/// The work of a request that has to wait for the log in the middle of an open transaction. The next attempt does not
/// repeat it.
#[derive(Debug, Default)]
pub(super) struct Unfinished {
    /// The open transaction is the request's own, not the client's.
    own: bool,
    /// Bytes of keys and values that the request's own transaction has written.
    bytes: usize,
    /// The reply, if all is done but the commit.
    reply: Option<Vec<u8>>,
    /// Outcomes of the writes that the command has made: whether their conditions held.
    writes: Vec<bool>,
    /// Number of writes that the current attempt has come to.
    next: usize,
}

impl Unfinished {
    /// Whether the open transaction is the request's own, not the client's.
    pub fn owns_transaction(&self) -> bool {
        self.own
    }

    /// Whether an earlier attempt of the command has made a write: its reads are done, too, and would see that write.
    pub fn has_writes(&self) -> bool {
        !self.writes.is_empty()
    }

    /// Begins an attempt of a command.
    pub fn start(&mut self) {
        self.next = 0;
    }

    /// Ends a command that will not be tried again in this transaction.
    pub fn finish_command(&mut self) {
        self.writes.clear();
        self.next = 0;
    }

    /// Outcome of the next write, if an earlier attempt has made it.
    fn next_made(&mut self) -> Option<bool> {
        let done = self.writes.get(self.next).copied()?;
        self.next += 1;
        Some(done)
    }

    fn made(&mut self, done: bool, bytes: usize) {
        self.writes.push(done);
        self.next += 1;
        if self.own {
            self.bytes += bytes;
        }
    }
}

/// The kind of transaction in which a command runs when the client has none open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// One operation at most, which is a transaction of its own.
    Single,
    /// Several reads on a snapshot, so that they never conflict.
    Snapshot,
    /// Reads and writes.
    ReadWrite,
    /// Does not use the session's operators.
    Nothing,
}

pub(super) fn access(cmd: Cmd, args: Args<'_>) -> Access {
    use Cmd::*;
    match cmd {
        Get | Strlen | Getrange | Substr | Ttl | Pttl | Expiretime | Pexpiretime | Type | Object | Memory
        | Setnx | Setex | Psetex | Cas | Getbit | Bitcount | Bitpos | BitfieldRo | Dump => Access::Single,
        Exists | Touch | Mget if args.len() == 2 => Access::Single,
        Exists | Touch | Mget | Lcs => Access::Snapshot,
        Set if args.from(3).any(|arg| arg.eq_ignore_ascii_case(b"get")) => Access::ReadWrite,
        Set => Access::Single,
        Del | Unlink if args.len() == 2 => Access::Single,
        Mset if args.len() == 3 => Access::Single,
        Getex if args.len() == 2 => Access::Single,
        Del | Unlink | Mset | Msetnx | Incr | Decr | Incrby | Decrby | Incrbyfloat | Append | Setrange
        | Getset | Getdel | Getex | Expire | Pexpire | Expireat | Pexpireat | Persist | Rename | Renamenx
        | Copy | Restore | Setbit | Bitop | Bitfield => Access::ReadWrite,
        _ => Access::Nothing,
    }
}

/// Runs a command on strings or keys in the open transaction, if there is one.
pub(super) fn data<S: Operators, V: Services>(cmd: Cmd, ctx: &mut Ctx<'_, S, V>, args: Args<'_>) -> Run {
    use Cmd::*;
    match cmd {
        Getbit | Setbit | Bitcount | Bitpos | Bitop => super::bits::run(cmd, ctx, args),
        Bitfield | BitfieldRo => super::bitfield::run(cmd, ctx, args),
        Incr | Decr | Incrby | Decrby | Incrbyfloat => super::counter::run(cmd, ctx, args),
        Expire | Pexpire | Expireat | Pexpireat | Ttl | Pttl | Expiretime | Pexpiretime | Persist => {
            super::expire::run(cmd, ctx, args)
        }
        Del | Unlink | Exists | Touch | Rename | Renamenx | Copy | Type | Object | Memory => {
            super::generic::run(cmd, ctx, args)
        }
        Dump | Restore => super::dump::run(cmd, ctx, args),
        Lcs => super::lcs::run(ctx, args),
        _ => super::string::run(cmd, ctx, args),
    }
}

/// Runs a command on strings or keys outside of a client's transaction, once.
pub(super) fn auto_commit<S: Operators, V: Services>(
    cmd: Cmd,
    ctx: &mut Ctx<'_, S, V>,
    args: Args<'_>,
) -> Run {
    match access(cmd, args) {
        Access::Single | Access::Nothing => data(cmd, ctx, args),
        Access::Snapshot => ctx.transaction(true, |ctx| data(cmd, ctx, args)),
        Access::ReadWrite => match ctx.transaction(false, |ctx| data(cmd, ctx, args)) {
            Err(Fail::Store(Error::NoMemory)) => without_memory(cmd, ctx, args),
            done => done,
        },
    }
}

/// Runs a command of more than one step for which there was no memory. Locking an absent key takes memory. A command
/// that writes nothing, or only deletes, can run without these locks.
fn without_memory<S: Operators, V: Services>(cmd: Cmd, ctx: &mut Ctx<'_, S, V>, args: Args<'_>) -> Run {
    if !matches!(cmd, Cmd::Del | Cmd::Unlink) {
        // In a snapshot every write is an error.
        return ctx.transaction(true, |ctx| data(cmd, ctx, args)).map_err(|fail| match fail {
            Fail::Store(_) => Fail::Store(Error::NoMemory),
            reply => reply,
        });
    }
    let mut existing = Vec::new();
    ctx.transaction(true, |ctx| {
        for key in args.from(1) {
            if ctx.store.get(key)?.is_some() {
                existing.push(key);
            }
        }
        Ok(())
    })?;
    ctx.transaction(false, |ctx| {
        let mut count = 0;
        for key in existing {
            count += i64::from(ctx.delete(key)?);
        }
        ctx.out.integer(count);
        Ok(())
    })
}

/// The reply to a client about an error of the store.
pub(super) fn error_reply(error: &Error) -> Vec<u8> {
    let code = match error {
        Error::Conflict => "CONFLICT",
        // After the retries, `MemoryInLog` is the same to the client.
        Error::NoMemory | Error::MemoryInLog => {
            return b"OOM command not allowed when used memory > 'maxmemory'.".to_vec();
        }
        // Its reason begins with a code.
        Error::Refused(reason) => return reason.clone().into_bytes(),
        Error::NoVersion | Error::WalFull | Error::Busy => "TRYAGAIN",
        Error::WalFailed => "MISCONF",
        Error::Aborted | Error::TimedOut | Error::SnapshotTooOld => "TXFAILED",
        _ => "ERR",
    };
    format!("{code} {error}").into_bytes()
}

/// Whether a key can be stored; the error is the reply.
pub(super) fn check_key(key: &[u8]) -> std::result::Result<(), &'static str> {
    match key.len() {
        0 => Err(KEY_EMPTY),
        len if len > KEY_MAX => Err(KEY_TOO_LONG),
        _ => Ok(()),
    }
}

/// Options of a write that replaces a value and keeps its expiry. The expiry may pass between the read and the write. Then the
/// new value has expired, too. [`SetOptions::keep_ttl`] would make it permanent in that case.
pub(super) fn same_expiry(old: Option<&Value>) -> SetOptions {
    SetOptions { expire_at_ms: old.and_then(|old| old.expire_at_ms), ..Default::default() }
}

pub(super) fn integer(arg: &[u8]) -> Run<i64> {
    parse_i64(arg).ok_or_else(|| NOT_INTEGER.into())
}

/// Whether an argument is this option; options are not case sensitive.
pub(super) fn is(arg: &[u8], option: &str) -> bool {
    arg.eq_ignore_ascii_case(option.as_bytes())
}
