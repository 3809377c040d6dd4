//! Makes the end of the log durable after recovery.
//!
//! Frames that were read may exist in the page cache only. If the previous process died after an fsync
//! had failed, another fsync of the same file would succeed without writing anything. So the frames that
//! are not known to be durable are copied into a new segment, which replaces them. It gets its name after
//! its contents are synced. Until then the old frames are valid, which *may* be durable and acknowledged.
//!
//! The reverse also holds. Bytes that the previous process has removed or cut off must not come back
//! after a later crash, so removals and cuts are made durable, too.

use std::io::{self, ErrorKind};

use super::files::segment_name;
use super::frame::{FrameHeader, SEGMENT_HEADER, SegmentHeader, salt};
use super::segment::{Next, SegmentReader};
use crate::durability::disk::{Dir, now_ms};

/// Name of the copy until it is complete.
const TEMPORARY: &str = "recovery.tmp";

/// The end of the log.
pub(crate) struct End<'a> {
    /// The last segment.
    pub(crate) name: &'a str,
    /// Its first commit.
    pub(crate) first_ts: u64,
    /// The newest intact commit in it; `first_ts - 1` if there is none.
    pub(crate) last_ts: u64,
    /// Commits up to here are durable for certain.
    pub(crate) durable_ts: u64,
    /// The log ends here because of damage: the file stays as it is, so that it can be examined.
    pub(crate) damage: bool,
}

/// See the module's comment. `next_seq` is the number for a new segment.
pub(crate) fn settle(
    dir: &dyn Dir,
    database_id: &[u8; 16],
    mut reader: SegmentReader,
    end: &End<'_>,
    next_seq: &mut u64,
) -> io::Result<()> {
    let valid = reader.offset();
    if dir.list()?.iter().any(|name| name == TEMPORARY) {
        dir.remove(TEMPORARY)?;
    }
    if !end.damage && valid < reader.file_len() {
        // This also gives back the reserved space, which the copy may need.
        reader.truncate(valid)?;
    }
    let mut copied = end.last_ts > end.durable_ts;
    if copied {
        match copy(dir, database_id, &mut reader, end, *next_seq) {
            Ok(()) => *next_seq += 1,
            Err(e) if matches!(e.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
                // Opening the database for reading is better than not opening it. The sync below is
                // reliable unless an earlier one of this file had failed; in that case the writer has cut
                // the file.
                tracing::warn!(segment = end.name, "the disk is full: the log's end stays where it is");
                copied = false;
                dir.remove(TEMPORARY)?;
                reader.seek(valid);
            }
            Err(e) => return Err(e),
        }
    }
    if !copied && !end.damage {
        // Bytes behind the end must not come back after the next crash. A segment stays even if it is
        // empty, because it may hide an older one's abandoned end.
        reader.sync()?;
    } else if copied && end.durable_ts < end.first_ts && !end.damage {
        // The copy replaces the whole segment.
        if let Err(e) = dir.remove(end.name) {
            tracing::debug!(segment = end.name, error = %e, "could not remove the copied segment");
        }
    }
    Ok(())
}

fn copy(
    dir: &dyn Dir,
    database_id: &[u8; 16],
    reader: &mut SegmentReader,
    end: &End<'_>,
    seq: u64,
) -> io::Result<()> {
    let valid = reader.offset();
    let mut file = dir.create(TEMPORARY)?;
    let mut first_ts = None;
    let mut at = SEGMENT_HEADER as u64;
    reader.seek(at);
    while reader.offset() < valid {
        let Next::Frame(header) = reader.next()? else {
            // A checkpoint makes this damage harmless; the valid frames are behind it.
            let rest = reader.rest()?;
            let Some((place, _)) = rest.frame else { break };
            reader.seek(place);
            continue;
        };
        if header.last_ts() <= end.durable_ts {
            continue;
        }
        first_ts.get_or_insert(header.first_ts);
        let header = FrameHeader { seq, durable_ts: end.durable_ts, ..header };
        let mut bytes = header.encode(salt(database_id)).to_vec();
        bytes.extend_from_slice(reader.payload());
        bytes.resize(header.frame_len() as usize, 0);
        file.write_at(at, &bytes)?;
        at += bytes.len() as u64;
    }
    let Some(first_ts) = first_ts else { return Ok(()) };
    let header = SegmentHeader { database_id: *database_id, first_ts, seq, created_ms: now_ms() };
    file.write_at(0, &header.encode())?;
    file.sync()?;
    dir.rename(TEMPORARY, &segment_name(first_ts, seq))?;
    dir.sync()
}
