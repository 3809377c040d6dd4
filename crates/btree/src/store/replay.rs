//! Reads the log when the store is opened.
//!
//! [`Replay::read`] checks that the segments follow each other. [`Unopened::open`] cuts off a torn end, which only the last
//! segment can have: each segment was durable before the next one was created. It then writes the last segment again in its
//! place. After a failed fsync, the page cache may have bytes that are not on the disk, and recovery must not build on them.

use std::sync::Arc;

use super::disk::Disk;
use super::error::{Error, Result};
use super::limits::LOG_SLACK_BYTES;
use super::log::Log;
use super::record::{self, Checkpoint, HEADER, Record};
use super::verify::LogSummary;

/// The content of a log when it was opened.
pub(crate) struct Replay {
    disk: Arc<dyn Disk>,
    /// Numbers of segments, with the beginning of each.
    segments: Vec<(u64, u64)>,
    end: u64,
    checkpoint: Option<Checkpoint>,
    is_new: bool,
}

/// A log that was read, and whose files are unchanged so far.
pub(crate) struct Unopened {
    replay: Replay,
    /// The whole records of the last segment.
    last: Vec<u8>,
}

impl Unopened {
    /// The end of the last complete record.
    pub fn end(&self) -> u64 {
        self.replay.end
    }

    /// Whether there is no log yet.
    pub fn is_new(&self) -> bool {
        self.replay.is_new
    }

    /// Makes the log ready to be appended to, and creates it if there is none. Cuts off a torn end.
    pub fn open(self) -> Result<(Arc<Log>, Replay)> {
        let Self { replay, last } = self;
        let number = replay.segments[replay.segments.len() - 1].0;
        let disk = Arc::clone(&replay.disk);
        let current = if replay.is_new {
            disk.create(number, &last, LOG_SLACK_BYTES).map_err(Error::io("create the log"))?
        } else {
            disk.reopen(number, &last).map_err(Error::io("write the log's end again"))?
        };
        let log = Log::new(disk, &replay, current, last.len() as u64)
            .map_err(Error::io("reserve space for the log"))?;
        Ok((Arc::new(log), replay))
    }
}

impl Replay {
    /// Opens the log, and creates it if there is none.
    pub fn open(disk: Arc<dyn Disk>) -> Result<(Arc<Log>, Self)> {
        Self::read(disk)?.open()
    }

    /// Reads the log, and changes nothing.
    pub fn read(disk: Arc<dyn Disk>) -> Result<Unopened> {
        let failed = Error::io("read the log");
        let numbers = disk.list().map_err(failed)?;
        let mut replay =
            Self { disk: Arc::clone(&disk), segments: Vec::new(), end: 0, checkpoint: None, is_new: false };
        let mut last = record::header(0).to_vec();
        for (index, &number) in numbers.iter().enumerate() {
            last = disk.read(number).map_err(Error::io("read the log"))?;
            let damaged = |what| Error::LogDamaged { segment: number, what };
            let start = record::start_of(&last).ok_or(damaged("has no valid header"))?;
            let expected = replay.segments.last().map(|(number, _)| (number + 1, replay.end));
            if expected.is_some_and(|expected| expected != (number, start)) {
                return Err(damaged("does not continue the segment before it"));
            }
            replay.segments.push((number, start));
            let checkpoint = &mut replay.checkpoint;
            replay.end = each(&last, start, |_, record| {
                if let Record::Checkpoint(found) = record {
                    *checkpoint = Some(found);
                }
                Ok(())
            })?;
            let whole = HEADER + (replay.end - start) as usize;
            if whole < last.len() && index + 1 < numbers.len() {
                return Err(damaged("has bytes that are no record"));
            }
            last.truncate(whole);
        }
        if replay.segments.is_empty() {
            replay.segments.push((0, 0));
            replay.is_new = true;
        }
        let (first, start) = replay.segments[0];
        if start > replay.redo_from() {
            return Err(Error::LogDamaged { segment: first, what: "is not where recovery starts" });
        }
        Ok(Unopened { replay, last })
    }

    /// Numbers of segments, with the beginning of each.
    pub fn segments(&self) -> &[(u64, u64)] {
        &self.segments
    }

    /// The end of the last complete record.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// The LSN up to which records are not needed.
    fn redo_from(&self) -> u64 {
        self.checkpoint().redo_from
    }

    /// The last checkpoint.
    pub fn checkpoint(&self) -> Checkpoint {
        self.checkpoint.unwrap_or_default()
    }

    /// Whether a checkpoint was ever made, which ends the creation of a store.
    pub fn has_checkpoint(&self) -> bool {
        self.checkpoint.is_some()
    }

    /// Whether there was no log.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Calls `visit` with each record that the last checkpoint does not cover, and with its LSN, in order. Records that were
    /// appended after the log was opened are not shown.
    pub fn records(&self, mut visit: impl FnMut(u64, Record<'_>) -> Result<()>) -> Result<()> {
        for (index, &(number, start)) in self.segments.iter().enumerate() {
            let end = self.segments.get(index + 1).map_or(self.end, |(_, next)| *next);
            if end <= self.redo_from() {
                continue;
            }
            let mut bytes = self.disk.read(number).map_err(Error::io("read the log"))?;
            bytes.truncate(HEADER + (end - start) as usize);
            let found =
                each(
                    &bytes,
                    start,
                    |lsn, record| {
                        if lsn > self.redo_from() { visit(lsn, record) } else { Ok(()) }
                    },
                )?;
            if found != end {
                return Err(Error::LogDamaged { segment: number, what: "changed while it was read" });
            }
        }
        Ok(())
    }
}

/// The result of [`scan`].
#[derive(Default)]
pub(crate) struct Scanned {
    pub summary: LogSummary,
    /// The last segment.
    pub last: Option<u64>,
    /// Damaged segments and their damages. Incomplete bytes at the end of the last segment are not damage here.
    pub damages: Vec<(u64, &'static str)>,
}

/// Reads all segments, including those after a damaged one.
pub(crate) fn scan(disk: &dyn Disk) -> Result<Scanned> {
    let numbers = disk.list().map_err(Error::io("read the log"))?;
    let mut scanned = Scanned { last: numbers.last().copied(), ..Scanned::default() };
    let mut expected = None;
    for number in numbers {
        let segment = disk.read(number).map_err(Error::io("read the log"))?;
        let summary = &mut scanned.summary;
        summary.segments += 1;
        let Some(start) = record::start_of(&segment) else {
            scanned.damages.push((number, "has no valid header"));
            expected = None;
            continue;
        };
        if expected.is_some_and(|expected| expected != (number, start)) {
            scanned.damages.push((number, "does not continue the segment before it"));
        }
        let end = each(&segment, start, |_, record| {
            summary.records += 1;
            summary.commits += u64::from(matches!(record, Record::Commit(_)));
            Ok(())
        })?;
        expected = Some((number + 1, end));
        summary.bytes += end - start;
        let rest = segment.len() as u64 - HEADER as u64 - (end - start);
        if Some(number) == scanned.last {
            summary.torn_bytes = rest;
        } else if rest > 0 {
            scanned.damages.push((number, "has bytes that are no record"));
            expected = None;
        }
    }
    Ok(scanned)
}

/// The end of the last complete record of a segment.
pub(crate) fn end_of(segment: &[u8], start: u64) -> u64 {
    let mut at = HEADER;
    while let Some((_, len)) = record::decode(&segment[at..], start + (at - HEADER) as u64) {
        at += len;
    }
    start + (at - HEADER) as u64
}

/// Calls `visit` with each record of a segment and its LSN. Returns the end of the last complete one.
fn each(segment: &[u8], start: u64, mut visit: impl FnMut(u64, Record<'_>) -> Result<()>) -> Result<u64> {
    let mut at = HEADER;
    loop {
        let lsn = start + (at - HEADER) as u64;
        let Some((record, len)) = record::decode(&segment[at..], lsn) else { return Ok(lsn) };
        at += len;
        visit(lsn + len as u64, record)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Journal as _;
    use crate::store::disk::Directory;
    use crate::store::limits::SEGMENT_BYTES;

    fn open(path: &std::path::Path) -> (Arc<Log>, Vec<(u64, Vec<u8>)>) {
        let (log, replay) = Replay::open(Arc::new(Directory(path.to_owned()))).unwrap();
        let mut found = Vec::new();
        let visit = |lsn, record: Record<'_>| {
            if let Record::Tree(body) = record {
                found.push((lsn, body.to_vec()));
            }
            Ok(())
        };
        replay.records(visit).unwrap();
        (log, found)
    }

    #[test]
    fn records_come_back_and_a_torn_end_is_cut_off() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let (log, found) = open(path);
        assert!(found.is_empty());
        let first = log.append(&[b"a", b"b"]);
        let second = log.append(&[b"c"]);
        log.make_durable(second).unwrap();
        let third = log.append(&[b"never written"]);
        assert_eq!(log.pending(), third - second);
        drop(log);
        assert_eq!(open(path).1, [(first, b"ab".to_vec()), (second, b"c".to_vec())]);
        let file = path.join("log.00000000");
        let bytes = std::fs::read(&file).unwrap();
        std::fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
        let (log, found) = open(path);
        assert_eq!(found, [(first, b"ab".to_vec())]);
        let again = log.append(&[b"again"]);
        log.make_durable(again).unwrap();
        assert_eq!(open(path).1.last().unwrap(), &(again, b"again".to_vec()));
    }

    #[test]
    fn segments_are_removed_behind_a_checkpoint_and_no_gap_goes_unnoticed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let (log, _) = open(path);
        let body = vec![7; SEGMENT_BYTES as usize / 2];
        let mut ends = Vec::new();
        for _ in 0..7 {
            ends.push(log.append(&[&body]));
            log.make_durable(ends[ends.len() - 1]).unwrap();
        }
        let names = || Directory(path.to_owned()).list().unwrap();
        assert_eq!(names(), [0, 1, 2, 3]);
        assert_eq!(open(path).1.len(), 7);
        let reopened = Replay::open(Arc::new(Directory(path.to_owned()))).unwrap().0;
        let checkpoint = Checkpoint { redo_from: ends[4], timestamp: 3 };
        reopened.make_durable(reopened.checkpoint(checkpoint)).unwrap();
        reopened.remove_before(ends[4]).unwrap();
        assert_eq!(names(), [2, 3], "segment 2 has the records of ends 4 and 5");
        let (_, found) = open(path);
        assert_eq!(found.iter().map(|(lsn, _)| *lsn).collect::<Vec<_>>(), ends[5..]);
        std::fs::remove_file(path.join("log.00000002")).unwrap();
        let opened = Replay::open(Arc::new(Directory(path.to_owned())));
        assert!(matches!(opened, Err(Error::LogDamaged { segment: 3, .. })));
    }
}
