//! A redo log with group commit, for stores that have none of their own.
//!
//! What a record holds are keys and values (not pages): with the state that the store had when the log began, which for
//! a benchmark is what was loaded, the records give the state at the end of the log (`replay`). The store's own file
//! is not needed for that, so nothing has to be known about which of its pages reached the disk. Recovery therefore
//! takes as long as the log is; what is measured is what commits cost, which is what they cost everywhere: their records
//! written and one fsync for all that wait.
//!
//! A record on disk: its length and crc32c, then its changes. A torn one fails its checksum and is the log's end.
//!
//! Lock: `state`. The file is written without it, by the one thread that has set `writing`.

use std::fs::File;
#[cfg(test)]
use std::io::Read as _;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::{Error, Result};

/// A change of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'c> {
    /// A key has this value now.
    Put(&'c [u8], &'c [u8]),
    /// A key has no value any more.
    Remove(&'c [u8]),
}

/// Length of a value that says that there is none.
const REMOVED: u32 = u32::MAX;
/// Bytes before a record: length and checksum.
const HEAD: usize = 8;

/// The changes of one transaction.
#[derive(Default)]
pub struct Record(Vec<u8>);

impl Record {
    /// Forgets them.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds one.
    pub fn push(&mut self, change: Change<'_>) {
        let (key, value) = match change {
            Change::Put(key, value) => (key, Some(value)),
            Change::Remove(key) => (key, None),
        };
        let value_len = value.map_or(REMOVED, |value| value.len() as u32);
        self.0.extend_from_slice(&(key.len() as u32).to_le_bytes());
        self.0.extend_from_slice(&value_len.to_le_bytes());
        self.0.extend_from_slice(key);
        self.0.extend_from_slice(value.unwrap_or_default());
    }
}

/// The log.
pub struct Log {
    file: File,
    state: Mutex<State>,
    written: Condvar,
}

#[derive(Default)]
struct State {
    /// Appended and not yet written.
    waiting: Vec<u8>,
    /// Bytes appended since the log was made.
    end: u64,
    /// Bytes on disk.
    durable: u64,
    /// A thread writes.
    writing: bool,
    /// What was appended after a failed write may not be on disk ever: nothing is durable any more.
    failed: bool,
}

impl Log {
    /// A new, empty log.
    pub fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).map_err(Error::io("create a log"))?;
        Ok(Self { file, state: Mutex::default(), written: Condvar::new() })
    }

    /// Adds a record; [`Self::make_durable`] of what this returns puts it on disk.
    pub fn append(&self, record: &Record) -> u64 {
        let mut state = self.lock();
        state.waiting.extend_from_slice(&(record.0.len() as u32).to_le_bytes());
        state.waiting.extend_from_slice(&crc32c::crc32c(&record.0).to_le_bytes());
        state.waiting.extend_from_slice(&record.0);
        state.end += (HEAD + record.0.len()) as u64;
        state.end
    }

    /// Returns when the log is on disk up to there. The first that comes writes for all that have appended.
    pub fn make_durable(&self, up_to: u64) -> Result<()> {
        let mut state = self.lock();
        loop {
            if state.durable >= up_to {
                return Ok(());
            }
            if state.failed {
                return Err(Error::io("write the log")(std::io::Error::other("an earlier write failed")));
            }
            if state.writing {
                state = self.written.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.writing = true;
            let (batch, end) = (std::mem::take(&mut state.waiting), state.end);
            drop(state);
            let outcome = (&self.file).write_all(&batch).and_then(|()| self.file.sync_data());
            state = self.lock();
            state.writing = false;
            state.failed |= outcome.is_err();
            self.written.notify_all();
            outcome.map_err(Error::io("write the log"))?;
            state.durable = end;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Gives the changes of every whole record of a log, in their order; returns how many records there were.
#[cfg(test)]
pub fn replay(path: &Path, mut apply: impl FnMut(Change<'_>)) -> Result<u64> {
    let mut bytes = Vec::new();
    File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)).map_err(Error::io("read a log"))?;
    let mut rest = bytes.as_slice();
    let mut records = 0;
    while let Some(record) = take_record(&mut rest) {
        let mut changes = record;
        while let Some(change) = take_change(&mut changes) {
            apply(change);
        }
        records += 1;
    }
    Ok(records)
}

#[cfg(test)]
fn take_record<'b>(rest: &mut &'b [u8]) -> Option<&'b [u8]> {
    let (len, crc) = (take_u32(rest)?, take_u32(rest)?);
    let record = rest.split_off(..len as usize)?;
    (crc32c::crc32c(record) == crc).then_some(record)
}

#[cfg(test)]
fn take_change<'b>(rest: &mut &'b [u8]) -> Option<Change<'b>> {
    let (key_len, value_len) = (take_u32(rest)?, take_u32(rest)?);
    let key = rest.split_off(..key_len as usize)?;
    match value_len {
        REMOVED => Some(Change::Remove(key)),
        _ => Some(Change::Put(key, rest.split_off(..value_len as usize)?)),
    }
}

#[cfg(test)]
fn take_u32(rest: &mut &[u8]) -> Option<u32> {
    rest.split_off(..4).map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}
