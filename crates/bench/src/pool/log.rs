//! A write-ahead log with group commit, for a store that has none of its own: the B+tree.
//!
//! It is the pool's log and the tree's journal: every change of a page is in it before the page is written, so a crash
//! leaves the tree as its records have it ([`super::recover`]). What transactions would have to take back is in it, too.
//!
//! A record on disk: the length of its content, crc32c of all that follows, what it is, the content. Its number is where
//! it ends in the file, which only grows; a record that is torn fails its checksum and is the log's end.
//!
//! | what | content |
//! |---|---|
//! | a tree's | what the tree gave its journal |
//! | undo | transaction (8), length of the key (4), key, 1 and the value that it had, or 0 if it was not there |
//! | end | transaction (8): it has committed, or has taken everything back |
//! | clean | nothing: storage had everything that is before this |
//!
//! Lock: `state`, a leaf: pages are held when it is taken. The file is written without it, by the one thread that has
//! set `writing`.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use bedplate_btree::Journal;

use crate::{Error, Result};

const TREE: u8 = 1;
const UNDO: u8 = 2;
const END: u8 = 3;
const CLEAN: u8 = 4;
/// Bytes before a record's content: length, checksum, and what it is.
const HEAD: usize = 9;

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said<'r> {
    /// Something to repeat.
    Tree(&'r [u8]),
    /// A transaction is about to change a key, which has this value, or none.
    Undo(u64, &'r [u8], Option<&'r [u8]>),
    /// There is nothing more to take back of a transaction.
    End(u64),
}

/// What a log had when it was opened, from where storage has not everything.
pub struct Records {
    bytes: Vec<u8>,
    from: usize,
}

impl Records {
    /// Each with its number.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Said<'_>)> {
        let mut at = self.from;
        std::iter::from_fn(move || {
            let (kind, content, end) = record(&self.bytes, at)?;
            at = end;
            Some((end as u64, said(kind, content)?))
        })
    }
}

/// The record that begins there: what it is, its content, and where it ends.
fn record(bytes: &[u8], at: usize) -> Option<(u8, &[u8], usize)> {
    let (head, rest) = bytes.get(at..)?.split_first_chunk::<HEAD>()?;
    let len = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
    let content = rest.get(..len)?;
    (head[4..8] == checksum(head[8], &[content]).to_le_bytes()).then_some((head[8], content, at + HEAD + len))
}

fn checksum(kind: u8, parts: &[&[u8]]) -> u32 {
    parts.iter().fold(crc32c::crc32c(&[kind]), |sum, part| crc32c::crc32c_append(sum, part))
}

/// None if it makes no sense, or tells nothing to recovery.
fn said(kind: u8, content: &[u8]) -> Option<Said<'_>> {
    if kind == TREE {
        return Some(Said::Tree(content));
    }
    let (transaction, rest) = content.split_first_chunk::<8>()?;
    let transaction = u64::from_le_bytes(*transaction);
    if kind == END {
        return Some(Said::End(transaction));
    }
    let (len, rest) = rest.split_first_chunk::<4>()?;
    let (key, old) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    let (&was_there, old) = old.split_first()?;
    (kind == UNDO).then_some(Said::Undo(transaction, key, (was_there == 1).then_some(old)))
}

/// The log.
pub struct Log {
    file: File,
    state: Mutex<State>,
    written: Condvar,
    transactions: AtomicU64,
}

#[derive(Default)]
struct State {
    /// Appended and not yet written.
    waiting: Vec<u8>,
    /// Where the last record ends.
    end: u64,
    /// Up to where it is on disk.
    durable: u64,
    /// A thread writes.
    writing: bool,
    /// What was appended after a failed write may not be on disk ever: nothing is durable any more.
    failed: bool,
}

thread_local! {
    /// The last record of this thread.
    static LAST: Cell<u64> = const { Cell::new(0) };
}

impl Log {
    /// Opens a log, or makes an empty one. A torn end is cut off.
    pub fn open(path: &Path) -> Result<(Self, Records)> {
        let failed = Error::io("open the log");
        let open = || -> io::Result<(File, Records, usize)> {
            let mut options = OpenOptions::new();
            let mut file = options.read(true).append(true).create(true).open(path)?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            let (mut from, mut end) = (0, 0);
            while let Some((kind, _, next)) = record(&bytes, end) {
                end = next;
                if kind == CLEAN {
                    from = end;
                }
            }
            bytes.truncate(end);
            file.set_len(end as u64)?;
            file.sync_all()?;
            Ok((file, Records { bytes, from }, end))
        };
        let (file, records, end) = open().map_err(failed)?;
        let state = State { end: end as u64, durable: end as u64, ..State::default() };
        let transactions = AtomicU64::new(end as u64);
        Ok((Self { file, state: Mutex::new(state), written: Condvar::new(), transactions }, records))
    }

    fn add(&self, kind: u8, parts: &[&[u8]]) -> u64 {
        let len = parts.iter().map(|part| part.len()).sum::<usize>();
        let sum = checksum(kind, parts);
        let mut state = self.lock();
        state.waiting.extend_from_slice(&(len as u32).to_le_bytes());
        state.waiting.extend_from_slice(&sum.to_le_bytes());
        state.waiting.push(kind);
        parts.iter().for_each(|part| state.waiting.extend_from_slice(part));
        state.end += (HEAD + len) as u64;
        LAST.set(state.end);
        state.end
    }

    /// Storage has everything so far.
    pub fn clean(&self) -> u64 {
        self.add(CLEAN, &[])
    }

    /// A number for a transaction.
    pub fn begin(&self) -> u64 {
        self.transactions.fetch_add(1, Ordering::Relaxed)
    }

    /// Before a transaction changes a key that has this value.
    pub fn undo(&self, transaction: u64, key: &[u8], old: Option<&[u8]>) {
        let len = (key.len() as u32).to_le_bytes();
        let was_there = [u8::from(old.is_some())];
        self.add(UNDO, &[&transaction.to_le_bytes(), &len, key, &was_there, old.unwrap_or_default()]);
    }

    /// A transaction commits when this is durable, or has taken everything back.
    pub fn end(&self, transaction: u64) -> u64 {
        self.add(END, &[&transaction.to_le_bytes()])
    }

    /// The last record that the calling thread has appended, to whichever log.
    pub fn last_of_thread(&self) -> u64 {
        LAST.get()
    }

    /// Returns when the log is on disk up to a record. The first that comes writes for all that have appended.
    pub fn make_durable(&self, up_to: u64) -> io::Result<()> {
        let mut state = self.lock();
        loop {
            if state.durable >= up_to {
                return Ok(());
            }
            if state.failed {
                return Err(io::Error::other("an earlier write failed"));
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
            outcome?;
            state.durable = end;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Journal for Log {
    fn append(&self, record: &[&[u8]]) -> u64 {
        self.add(TREE, record)
    }
}

impl bedplate_bufpool::Log for Log {
    fn durable_lsn(&self) -> u64 {
        self.lock().durable
    }

    fn make_durable(&self, up_to: u64) -> io::Result<()> {
        Log::make_durable(self, up_to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_from_the_last_clean_one_and_a_torn_end_is_cut_off() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let (log, records) = Log::open(&path).unwrap();
        assert_eq!(records.iter().count(), 0);
        log.append(&[b"before"]);
        log.clean();
        let first = log.append(&[b"a", b"b"]);
        let transaction = log.begin();
        log.undo(transaction, b"key", Some(b""));
        log.undo(transaction, b"kez", None);
        let last = log.end(transaction);
        assert_eq!(log.last_of_thread(), last);
        log.make_durable(last).unwrap();
        drop(log);
        let (log, records) = Log::open(&path).unwrap();
        let all: Vec<_> = records.iter().collect();
        let said: Vec<_> = all.iter().map(|(_, said)| *said).collect();
        let undo = |key, old| Said::Undo(transaction, key, old);
        let expected =
            [Said::Tree(b"ab"), undo(b"key", Some(b"")), undo(b"kez", None), Said::End(transaction)];
        assert_eq!(said, expected);
        assert!(all[0].0 == first && all[3].0 == last && log.begin() != transaction);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        let (log, records) = Log::open(&path).unwrap();
        assert_eq!(records.iter().map(|(_, said)| said).collect::<Vec<_>>(), expected[..3]);
        // What comes now is behind a whole record.
        let next = log.append(&[b"next"]);
        log.make_durable(next).unwrap();
        let (_, records) = Log::open(&path).unwrap();
        assert_eq!(records.iter().last(), Some((next, Said::Tree(b"next"))));
    }
}
