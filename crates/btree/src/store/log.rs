//! The write-ahead log: appending, and group commit.
//!
//! Records are appended to a buffer in memory. The first thread that needs a record to be durable writes the buffer to the
//! current segment and syncs it, for all threads that have appended to it. The others wait. A segment ends with the batch that
//! makes it reach [`SEGMENT_BYTES`].
//!
//! **Space.** A commit calls [`Log::reserve`] for the worst case of its records before it appends the first of them. If the
//! file system has no space for that, the commit fails and has changed nothing. The invariant, if the file system can promise
//! space: `end + promised <= allocated`, and the current segment has space up to `allocated`.
//!
//! - Only a thread that holds `writer` changes `allocated`. A new segment has at least the space that the old one had left,
//!   so all promises hold for it. If there is no space for a new segment, the log continues in the old one.
//! - Checkpoints and recovery append without a reservation. [`LOG_SLACK_BYTES`] and a share of the log since the last checkpoint
//!   are reserved for them when a commit appends.
//! - The space is behind the end of the file and survives a crash. So a store can be opened on a full disk.
//!
//! After a failed write or sync, the log refuses everything until it is opened again. The kernel may have dropped bytes that it
//! could not write, so no later bytes can be durable.
//!
//! Locks: `state` is a leaf, because threads hold pages when they take it, and no thread does I/O with it. `writer` is held by
//! the thread that has set `State::writing` during its write, by a thread that removes segments, and by a thread that reserves
//! space. A thread may take `state` while it holds `writer`, but not the other way round.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bedplate_bufpool::PageSize;
use bedplate_threads::forks;

use super::disk::{Disk, Segment, is_full};
use super::error::{Error, Result};
use super::latency::Recorder;
use super::limits::{LOG_SLACK_BYTES, LOG_SLACK_SHARE, LOG_STEP_BYTES, SEGMENT_BYTES};
use super::record::{self, Checkpoint, HEADER, Write};
use super::replay::{self, Replay};

/// The log of a store.
pub(crate) struct Log {
    disk: Arc<dyn Disk>,
    state: Mutex<State>,
    written: Condvar,
    writer: Mutex<Writer>,
    /// Whether a write has failed. It is set under `state`, and every transaction reads it.
    failed: AtomicBool,
    /// Durations of writes with their fsync.
    write_latency: Recorder,
    /// Whether the log replaces one that cannot be read, so that every LSN counts as durable.
    covers_every_lsn: bool,
    /// The process that opened the log.
    process: forks::Process,
}

#[derive(Default)]
struct State {
    /// Bytes that are appended and not yet written.
    buffer: Vec<u8>,
    /// An empty buffer with the capacity of the previous batch.
    spare: Vec<u8>,
    /// The end of the last record.
    end: u64,
    /// The LSN up to which the log is durable.
    durable: u64,
    /// The LSN up to which the current segment has space.
    allocated: u64,
    /// Bytes of all current reservations.
    promised: u64,
    /// Bytes reserved for checkpoints and recovery: [`LOG_SLACK_BYTES`], or more with larger pages.
    slack: u64,
    /// The LSN from which recovery would start.
    redo_from: u64,
    /// LSNs from which on the log is held, with the number of holds of each.
    holds: BTreeMap<u64, usize>,
    writing: bool,
}

struct Writer {
    /// Numbers and beginnings of all segments. The last one is appended to.
    segments: Vec<(u64, u64)>,
    current: Box<dyn Segment>,
    /// Bytes of the current segment.
    len: u64,
}

impl State {
    /// The LSN up to which the log needs space for all promises, checkpoints and recovery.
    fn needed(&self) -> u64 {
        let promised = self.end + self.promised;
        promised + self.slack + promised.saturating_sub(self.redo_from) / LOG_SLACK_SHARE
    }
}

impl Writer {
    /// Allocates space in the current segment up to an LSN, or further. Returns the LSN up to which it has space.
    fn allocate(&mut self, up_to: u64) -> io::Result<u64> {
        let start = self.segments.last().map_or(0, |(_, start)| *start);
        let exact = HEADER as u64 + (up_to - start);
        let bytes = in_steps(exact, |bytes| self.current.reserve(bytes).map(|()| bytes))?;
        Ok(start + bytes - HEADER as u64)
    }
}

/// Tries to reserve a multiple of a step. If there is no space for that, it reserves the exact size.
fn in_steps<T>(exact: u64, mut reserve: impl FnMut(u64) -> io::Result<T>) -> io::Result<T> {
    match reserve(exact.next_multiple_of(LOG_STEP_BYTES)) {
        Err(error) if is_full(&error) => reserve(exact),
        done => done,
    }
}

/// Space of the log that is reserved for records until this is dropped.
#[must_use = "the space is set aside only while this lives"]
pub(crate) struct Reservation<'l> {
    log: &'l Log,
    bytes: u64,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.log.lock().promised -= self.bytes;
    }
}

/// The log keeps its records from an LSN on until this is dropped.
#[must_use = "the log is held only while this lives"]
pub(crate) struct Hold<'l> {
    log: &'l Log,
    lsn: u64,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let mut state = self.log.lock();
        if let Some(count) = state.holds.get_mut(&self.lsn) {
            *count -= 1;
            if *count == 0 {
                state.holds.remove(&self.lsn);
            }
        }
    }
}

impl Log {
    /// A log that appends behind the records that [`Replay::open`] found. It can be opened on a full disk.
    pub fn new(
        disk: Arc<dyn Disk>,
        replay: &Replay,
        current: Box<dyn Segment>,
        len: u64,
    ) -> io::Result<Self> {
        let (end, redo_from) = (replay.end(), replay.checkpoint().redo_from);
        let mut state = State { end, durable: end, redo_from, slack: LOG_SLACK_BYTES, ..State::default() };
        let mut writer = Writer { segments: replay.segments().to_vec(), current, len };
        state.allocated = match writer.allocate(state.needed()) {
            Err(error) if is_full(&error) => end,
            allocated => allocated?,
        };
        if !forks::watch() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let process = forks::Process::current();
        Ok(Self {
            disk,
            state: Mutex::new(state),
            written: Condvar::new(),
            writer: Mutex::new(writer),
            failed: AtomicBool::new(false),
            write_latency: Recorder::new(),
            covers_every_lsn: false,
            process,
        })
    }

    /// From now on, the pool accepts pages with any LSN. This is for a verification without the log.
    pub fn cover_every_lsn(&mut self) {
        self.covers_every_lsn = true;
    }

    /// Sets the slack so that it has room for the same number of images with every page size. The page size is known only when the
    /// pool is open, and opening the pool needs the log.
    pub fn set_page_size(&self, size: PageSize) {
        self.lock().slack = LOG_SLACK_BYTES * (size.bytes() / PageSize::MIN.bytes()) as u64;
    }

    /// Reserves space for this number of bytes of records. An error changes nothing.
    pub fn reserve(&self, bytes: u64) -> io::Result<Reservation<'_>> {
        let reservation = Reservation { log: self, bytes };
        {
            let mut state = self.lock();
            // From here on, other threads see the promise.
            state.promised += bytes;
            if state.needed() <= state.allocated {
                return Ok(reservation);
            }
        }
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        self.allocate(&mut writer, 0)?;
        Ok(reservation)
    }

    fn add(&self, encode: impl FnOnce(&mut Vec<u8>, u64)) -> u64 {
        let mut state = self.lock();
        let State { buffer, end, .. } = &mut *state;
        let before = buffer.len();
        encode(buffer, *end);
        *end += (buffer.len() - before) as u64;
        *end
    }

    /// Appends a transaction. Returns the LSN of the record.
    pub fn commit<'w>(&self, timestamp: u64, writes: impl Iterator<Item = Write<'w>>) -> u64 {
        self.add(|buffer, start| record::encode_commit(buffer, start, timestamp, writes))
    }

    /// Appends a checkpoint.
    pub fn checkpoint(&self, checkpoint: Checkpoint) -> u64 {
        self.add(|buffer, start| record::encode_checkpoint(buffer, start, checkpoint))
    }

    /// The end of the last record.
    pub fn end(&self) -> u64 {
        self.lock().end
    }

    /// Bytes that are not durable yet.
    pub fn pending(&self) -> u64 {
        let state = self.lock();
        state.end - state.durable
    }

    /// Whether another process opened the log, and this one was forked later. It has the same segments open, with the same
    /// positions in them. It must not write, because both processes would append the same bytes.
    pub fn is_inherited(&self) -> bool {
        !self.process.is_current()
    }

    /// Whether the log refuses all operations.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Returns when the log is durable up to an LSN.
    pub fn make_durable(&self, up_to: u64) -> io::Result<()> {
        self.write_up_to(up_to, false)
    }

    /// Returns when the log is durable up to an LSN. With `ahead`, the log also allocates space for commits that are appended
    /// during this write, if the file system has it.
    fn write_up_to(&self, up_to: u64, ahead: bool) -> io::Result<()> {
        if self.is_inherited() {
            return Err(io::Error::other("the store is the parent process's: open another one"));
        }
        let mut state = self.lock();
        loop {
            if state.durable >= up_to {
                return Ok(());
            }
            if self.has_failed() {
                return Err(io::Error::other("an earlier write of the log failed"));
            }
            if !state.writing {
                break;
            }
            state = self.written.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.writing = true;
        let (from, end) = (state.durable, state.end);
        let spare = std::mem::take(&mut state.spare);
        let mut batch = std::mem::replace(&mut state.buffer, spare);
        drop(state);
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let outcome = self.write(&mut writer, from, &batch, ahead);
        drop(writer);
        batch.clear();
        // A transaction of many megabytes should not keep its memory.
        batch.shrink_to(1 << 20);
        let mut state = self.lock();
        state.writing = false;
        state.spare = batch;
        match &outcome {
            Ok(()) => state.durable = end,
            Err(_) => self.failed.store(true, Ordering::Release),
        }
        self.written.notify_all();
        outcome
    }

    /// Writes the log if at least this number of bytes is not durable. While another thread writes, the caller waits only if the
    /// same number of bytes again has been appended meanwhile. So threads that append do not wait for each fsync.
    pub fn write_if_long(&self, bytes: u64) -> io::Result<()> {
        let end = {
            let state = self.lock();
            let pending = state.end - state.durable;
            if pending < bytes || state.writing && pending < 2 * bytes {
                return Ok(());
            }
            state.end
        };
        self.write_up_to(end, true)
    }

    /// Writes a batch that begins at `from`, and makes it durable. With `ahead`, allocates space for twice as much again first.
    fn write(&self, writer: &mut Writer, from: u64, batch: &[u8], ahead: bool) -> io::Result<()> {
        if writer.len >= SEGMENT_BYTES {
            self.begin_segment(writer, from)?;
        }
        if ahead {
            // A reservation that needs space waits for `writer`, and so for this fsync. With this call, asynchronous commits have
            // the space that they need meanwhile. If there is no space, the reservations that need it fail.
            let _ = self.allocate(writer, 2 * batch.len() as u64);
        }
        let begin = Instant::now();
        writer.current.append(batch)?;
        writer.len += batch.len() as u64;
        writer.current.sync()?;
        self.write_latency.record(begin);
        Ok(())
    }

    /// Allocates the space that the log needs now, and `more` bytes.
    fn allocate(&self, writer: &mut Writer, more: u64) -> io::Result<()> {
        let (needed, allocated) = {
            let state = self.lock();
            (state.needed() + more, state.allocated)
        };
        if needed > allocated {
            let allocated = writer.allocate(needed)?;
            self.lock().allocated = allocated;
        }
        Ok(())
    }

    /// Durations of writes with their fsync.
    pub fn write_latency(&self) -> &Recorder {
        &self.write_latency
    }

    /// Keeps the records from an LSN on, which is not before the last checkpoint. The caller prevents checkpoints meanwhile.
    pub fn hold(&self, lsn: u64) -> Hold<'_> {
        *self.lock().holds.entry(lsn).or_default() += 1;
        Hold { log: self, lsn }
    }

    /// Calls the function with the content of each segment that has records between two LSNs, up to the second one, which is the
    /// durable end of a record. The caller holds the log from the first one on. The flag says whether it is the last segment.
    pub fn each_segment(
        &self,
        from: u64,
        end: u64,
        mut visit: impl FnMut(u64, Vec<u8>, bool) -> Result<()>,
    ) -> Result<()> {
        let segments = {
            let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
            writer.segments.clone()
        };
        for (index, &(number, start)) in segments.iter().enumerate() {
            let next = segments.get(index + 1).map_or(u64::MAX, |(_, next)| *next);
            // A segment that begins at the end has no records to show, unless it is the only one.
            let is_last = next >= end;
            if next > from || is_last {
                let mut segment = self.disk.read(number).map_err(Error::io("read the log"))?;
                let whole = HEADER + (next.min(end) - start) as usize;
                segment.truncate(whole);
                if record::start_of(&segment) != Some(start)
                    || replay::end_of(&segment, start) != next.min(end)
                {
                    return Err(Error::LogDamaged { segment: number, what: "is not as it was written" });
                }
                visit(number, segment, is_last)?;
            }
            if is_last {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Begins a new segment at `from`. All of the current one is durable. Without space for a new segment, the log continues in
    /// the current one.
    fn begin_segment(&self, writer: &mut Writer, from: u64) -> io::Result<()> {
        let number = writer.segments.last().map_or(0, |(number, _)| number + 1);
        let left = self.lock().allocated.saturating_sub(from).max(LOG_SLACK_BYTES);
        let header = record::header(from);
        let create = |bytes| self.disk.create(number, &header, bytes).map(|segment| (segment, bytes));
        let (segment, bytes) = match in_steps(HEADER as u64 + left, create) {
            Err(error) if is_full(&error) => return Ok(()),
            created => created?,
        };
        let mut before = std::mem::replace(&mut writer.current, segment);
        writer.segments.push((number, from));
        writer.len = HEADER as u64;
        self.lock().allocated = from + bytes - HEADER as u64;
        // If this fails, the space is free again when the segment is removed.
        let _ = before.trim();
        Ok(())
    }

    /// Removes the segments that end at or before an LSN. The caller has made a checkpoint durable from which recovery starts at
    /// this LSN. The next call tries again to remove a segment that could not be removed.
    pub fn remove_before(&self, lsn: u64) -> io::Result<()> {
        let held = {
            let mut state = self.lock();
            state.redo_from = lsn;
            state.holds.first_key_value().map(|(lsn, _)| *lsn)
        };
        let lsn = held.map_or(lsn, |held| held.min(lsn));
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        while let [(number, _), (_, next), ..] = writer.segments[..]
            && next <= lsn
        {
            self.disk.remove(number)?;
            writer.segments.remove(0);
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl crate::Journal for Log {
    fn append(&self, record: &[&[u8]]) -> u64 {
        self.add(|buffer, start| record::encode_tree(buffer, start, record))
    }

    fn covered_by(&self) -> Option<u64> {
        Some(self.end())
    }
}

impl bedplate_bufpool::Log for Log {
    fn durable_lsn(&self) -> u64 {
        if self.covers_every_lsn { u64::MAX } else { self.lock().durable }
    }

    fn make_durable(&self, up_to: u64) -> io::Result<()> {
        Log::make_durable(self, up_to)
    }
}
