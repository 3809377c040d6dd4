//! Writing of segments: the file and position of each frame, the beginning and end of files, and the
//! handling of errors. Single-threaded; the flusher owns it.
//!
//! Invariants:
//! - Frames stay in memory until a sync of the file that holds them has succeeded. Only then
//!   `durable_ts` advances.
//! - A segment is created only after everything before its first timestamp is durable. It gets its name
//!   when its header is durable, and a frame is written to it when the name is.
//! - After any error the current segment is never written again. The frames that are not durable go into
//!   a new segment, which replaces them. A failed fsync forgets data, and a second one would report
//!   success.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use super::frame::{Frame, SEGMENT_HEADER, SegmentHeader, salt};
use crate::durability::disk::{Dir, DiskFile};

/// Space is reserved in steps of this many bytes.
const RESERVE: u64 = 4 << 20;
/// Name of a segment until its header is durable.
const TEMPORARY: &str = "segment.tmp";
/// Buffers kept for reuse, at each place where they are kept.
pub(crate) const SPARE_BUFFERS: usize = 16;
/// Larger buffers than this are not kept.
const SPARE_BYTES: usize = 4 << 20;

/// Name of a segment file.
pub(crate) fn segment_name(first_ts: u64, seq: u64) -> String {
    format!("{first_ts:020}-{seq:08}.log")
}

/// First timestamp and sequence number of a segment's name.
pub(crate) fn parse_segment_name(name: &str) -> Option<(u64, u64)> {
    let (ts, seq) = name.strip_suffix(".log")?.split_once('-')?;
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    (ts.len() == 20 && seq.len() >= 8 && digits(ts) && digits(seq)).then_some(())?;
    Some((ts.parse().ok()?, seq.parse().ok()?))
}

struct Segment {
    file: Box<dyn DiskFile>,
    name: String,
    seq: u64,
    /// Offset of the next frame.
    end: u64,
    /// Everything below this offset is synced.
    synced: u64,
    /// Space is reserved up to this offset.
    reserved: u64,
    reserve: bool,
}

/// See the module's comment.
pub(crate) struct LogFiles {
    dir: Arc<dyn Dir>,
    database_id: [u8; 16],
    segment_bytes: u64,
    next_seq: u64,
    durable_ts: u64,
    current: Option<Segment>,
    /// Frames that are not durable, in order; the first `written` of them are in `current`.
    pending: VecDeque<Frame>,
    written: usize,
    pending_bytes: usize,
    spare: Vec<Vec<u8>>,
    pub(crate) bytes_written: u64,
    pub(crate) syncs: u64,
}

impl LogFiles {
    /// Everything up to `durable_ts` is durable already; segments get numbers from `next_seq`.
    pub(crate) fn new(
        dir: Arc<dyn Dir>,
        database_id: [u8; 16],
        segment_bytes: u64,
        next_seq: u64,
        durable_ts: u64,
    ) -> LogFiles {
        LogFiles {
            dir,
            database_id,
            segment_bytes,
            next_seq,
            durable_ts,
            current: None,
            pending: VecDeque::new(),
            written: 0,
            pending_bytes: 0,
            spare: Vec::new(),
            bytes_written: 0,
            syncs: 0,
        }
    }

    pub(crate) fn durable_ts(&self) -> u64 {
        self.durable_ts
    }

    /// Bytes of the frames that are not durable.
    pub(crate) fn pending_bytes(&self) -> usize {
        self.pending_bytes
    }

    /// Takes a closed frame that continues the previous one.
    pub(crate) fn push(&mut self, frame: Frame) {
        debug_assert_eq!(frame.first_ts, self.pending.back().map_or(self.durable_ts, Frame::last_ts) + 1);
        self.pending_bytes += frame.len();
        self.pending.push_back(frame);
    }

    /// A buffer for the next frame.
    pub(crate) fn take_spare(&mut self) -> Option<Vec<u8>> {
        self.spare.pop()
    }

    /// Writes all frames to the operating system. After an error the frames are still pending, and the
    /// next call begins a new segment with them.
    pub(crate) fn write(&mut self) -> io::Result<()> {
        let result = self.try_write();
        if result.is_err() {
            self.abandon();
        }
        result
    }

    /// Writes all frames and makes them durable. After an error as [`LogFiles::write`].
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        let result = self.try_write().and_then(|()| self.try_sync());
        if result.is_err() {
            self.abandon();
        }
        result
    }

    fn try_write(&mut self) -> io::Result<()> {
        while self.written < self.pending.len() {
            if self.current.as_ref().is_some_and(|s| s.end >= self.segment_bytes) {
                self.try_sync()?;
                self.finish_segment();
                continue;
            }
            if self.current.is_none() {
                self.create_segment(self.pending[self.written].first_ts)?;
            }
            let segment = self.current.as_mut().expect("created above");
            let bytes =
                self.pending[self.written].finish(self.durable_ts, segment.seq, salt(&self.database_id));
            let end = segment.end + bytes.len() as u64;
            if segment.reserve && end > segment.reserved {
                let want = end.next_multiple_of(RESERVE).min(self.segment_bytes.max(end));
                match segment.file.allocate(segment.reserved, want - segment.reserved) {
                    Ok(()) => segment.reserved = want,
                    Err(_) => {
                        // The file then grows without reservation. A part may have been reserved, which
                        // on a full disk would be the last space.
                        segment.reserve = false;
                        segment.file.truncate(segment.end)?;
                    }
                }
            }
            segment.file.write_at(segment.end, bytes)?;
            segment.end = end;
            self.bytes_written += bytes.len() as u64;
            self.written += 1;
        }
        Ok(())
    }

    /// Syncs the current segment: everything written is durable then.
    fn try_sync(&mut self) -> io::Result<()> {
        if self.written == 0 {
            return Ok(());
        }
        let segment = self.current.as_mut().expect("frames were written to it");
        self.syncs += 1;
        segment.file.sync()?;
        segment.synced = segment.end;
        for frame in self.pending.drain(..self.written) {
            self.durable_ts = frame.last_ts();
            self.pending_bytes -= frame.len();
            let buffer = frame.into_buffer();
            if self.spare.len() < SPARE_BUFFERS && buffer.capacity() <= SPARE_BYTES {
                self.spare.push(buffer);
            }
        }
        self.written = 0;
        Ok(())
    }

    /// Called when no more frames come: gives the reserved space back if everything is durable.
    pub(crate) fn close(&mut self) {
        if self.pending.is_empty() {
            self.finish_segment();
        }
    }

    /// Closes a full segment, all of which is synced. The space reserved beyond its end is given back.
    fn finish_segment(&mut self) {
        if let Some(mut segment) = self.current.take()
            && let Err(e) = segment.file.truncate(segment.end)
        {
            tracing::debug!(segment = segment.name, error = %e, "reserved space not given back");
        }
    }

    fn create_segment(&mut self, first_ts: u64) -> io::Result<()> {
        let seq = self.next_seq;
        let name = segment_name(first_ts, seq);
        let header = SegmentHeader {
            database_id: self.database_id,
            first_ts,
            seq,
            created_ms: crate::durability::disk::now_ms(),
        };
        self.next_seq += 1;
        // The last attempt may have left this file.
        let _ = self.dir.remove(TEMPORARY);
        let file = self.dir.create(TEMPORARY)?;
        let mut segment = Segment { file, name, seq, end: 0, synced: 0, reserved: 0, reserve: true };
        let result = (|| {
            segment.file.write_at(0, &header.encode())?;
            segment.end = SEGMENT_HEADER as u64;
            segment.reserved = segment.end;
            segment.file.sync()?;
            self.dir.rename(TEMPORARY, &segment.name)?;
            self.dir.sync()
        })();
        self.syncs += 1;
        if let Err(e) = result {
            self.remove(TEMPORARY);
            self.remove(&segment.name);
            return Err(e);
        }
        segment.synced = segment.end;
        self.current = Some(segment);
        Ok(())
    }

    /// Gives up the current segment after an error. The next segment replaces its unsynced part.
    fn abandon(&mut self) {
        self.written = 0;
        let Some(mut segment) = self.current.take() else { return };
        if segment.synced <= SEGMENT_HEADER as u64 {
            drop(segment.file);
            self.remove(&segment.name);
        } else if let Err(e) = segment.file.truncate(segment.synced) {
            // This does no harm, because the next segment begins at the same timestamp and replaces the
            // rest.
            tracing::debug!(segment = segment.name, error = %e, "could not cut the abandoned segment");
        }
    }

    fn remove(&self, name: &str) {
        if let Err(e) = self.dir.remove(name) {
            tracing::debug!(segment = name, error = %e, "could not remove the segment");
        }
    }
}

/// Segments in a directory: (first timestamp, sequence number), by sequence number.
pub(crate) fn list_segments(dir: &dyn Dir) -> io::Result<Vec<(u64, u64)>> {
    let mut segments: Vec<_> = dir.list()?.iter().filter_map(|n| parse_segment_name(n)).collect();
    segments.sort_unstable_by_key(|&(_, seq)| seq);
    Ok(segments)
}

/// Removes the segments whose valid commits are all at or before `ts`: those followed by a later segment
/// with a first timestamp of at most `ts + 1`. Returns the number of removed segments.
pub(crate) fn remove_segments(dir: &dyn Dir, ts: u64) -> io::Result<usize> {
    let segments = list_segments(dir)?;
    let Some(last) = segments.iter().rposition(|&(first, _)| first <= ts.saturating_add(1)) else {
        return Ok(0);
    };
    // The oldest one is removed first, so that an interruption leaves a log without holes.
    for &(first_ts, seq) in &segments[..last] {
        dir.remove(&segment_name(first_ts, seq))?;
    }
    Ok(last)
}
