//! Checkpoint files in their directory: writing one so that it appears complete or not at all, finding
//! them, reading them, removing old ones.

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::format::{Decoder, Encoder, Header};
use super::source::SnapshotSource;
use super::{CheckpointInfo, Progress};
use crate::durability::disk::{Dir, Reader, now_ms};
use crate::durability::wal::OpRef;
use crate::{Error, Result, SnapshotItem};

/// Name of a checkpoint until it is complete.
const TEMPORARY: &str = "checkpoint.tmp";
/// Scan positions between two checks of errors, progress and the rate.
const CHUNK: u64 = 4096;
/// The file is synced after this many bytes. Few dirty pages then remain, so that the final sync (and
/// the log's, which may have to wait for the same device) is short.
const SYNC_BYTES: u64 = 32 << 20;

/// Name of a checkpoint file.
pub(crate) fn checkpoint_name(ts: u64) -> String {
    format!("{ts:020}.kdb")
}

/// Timestamp of a checkpoint file's name.
fn parse_checkpoint_name(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".kdb")?;
    (digits.len() == 20 && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok())?
}

/// Timestamps of the checkpoints in a directory, newest first.
pub(crate) fn list(dir: &dyn Dir) -> io::Result<Vec<u64>> {
    let mut found: Vec<u64> = dir.list()?.iter().filter_map(|n| parse_checkpoint_name(n)).collect();
    found.sort_unstable_by(|a, b| b.cmp(a));
    Ok(found)
}

/// Called between chunks; `Break` cancels the work.
pub(crate) type OnProgress<'a> = &'a mut dyn FnMut(Progress) -> ControlFlow<()>;

/// Streams an image of `source` to `write`, in pieces of about 256 KiB.
pub(crate) fn stream(
    source: &mut dyn SnapshotSource,
    database_id: [u8; 16],
    rate_limit: Option<u64>,
    write: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    progress: OnProgress<'_>,
) -> Result<CheckpointInfo> {
    let started = Instant::now();
    let header = Header {
        database_id,
        ts: source.timestamp(),
        created_ms: now_ms(),
        entries_expected: source.expected(),
    };
    let total = source.positions();
    let mut bytes = 0u64;
    let mut counted = |data: &[u8]| {
        write(data)?;
        bytes += data.len() as u64;
        if let Some(rate) = rate_limit.filter(|&r| r > 0) {
            let due = Duration::from_secs_f64(bytes as f64 / rate as f64);
            std::thread::sleep(due.saturating_sub(started.elapsed()));
        }
        Ok(())
    };
    let failed = |e| Error::io("writing the checkpoint", e);
    let mut encoder = Encoder::new(&header);
    let mut at = 0;
    while at < total {
        let mut error = None;
        let next = source.scan(at, (at + CHUNK).min(total), &mut |item| {
            if encoder.push(&item)
                && error.is_none()
                && let Err(e) = encoder.take_block(&mut counted)
            {
                error = Some(e);
            }
        })?;
        if let Some(e) = error {
            return Err(failed(e));
        }
        at = next;
        let now = Progress { done: at, total, entries: encoder.entries(), bytes: encoder.bytes() };
        if progress(now).is_break() {
            return Err(failed(io::Error::from(io::ErrorKind::Interrupted)));
        }
    }
    let totals = encoder.finish(&mut counted).map_err(failed)?;
    Ok(CheckpointInfo {
        path: PathBuf::new(),
        ts: header.ts,
        entries: totals.entries,
        bytes,
        blocks: totals.blocks,
        database_id,
        created_ms: header.created_ms,
        took: started.elapsed(),
    })
}

/// Writes a checkpoint under a temporary name; [`publish`] gives it its own. After an error no part of
/// it is left.
pub(crate) fn write(
    dir: &dyn Dir,
    source: Box<dyn SnapshotSource + '_>,
    database_id: [u8; 16],
    rate_limit: Option<u64>,
    progress: OnProgress<'_>,
) -> Result<CheckpointInfo> {
    let result = write_temporary(dir, source, database_id, rate_limit, progress);
    if result.is_err()
        && let Err(e) = dir.remove(TEMPORARY)
    {
        tracing::debug!(error = %e, "could not remove the unfinished checkpoint");
    }
    result
}

fn write_temporary(
    dir: &dyn Dir,
    mut source: Box<dyn SnapshotSource + '_>,
    database_id: [u8; 16],
    rate_limit: Option<u64>,
    progress: OnProgress<'_>,
) -> Result<CheckpointInfo> {
    let path = dir.path(&checkpoint_name(source.timestamp()));
    let io = |e| Error::io(format!("writing {}", path.display()), e);
    // A process that was killed may have left this file.
    let _ = dir.remove(TEMPORARY);
    let mut file = dir.create(TEMPORARY).map_err(io)?;
    let (mut at, mut synced) = (0u64, 0u64);
    let mut info = stream(
        &mut *source,
        database_id,
        rate_limit,
        &mut |data| {
            file.write_at(at, data)?;
            at += data.len() as u64;
            if at - synced >= SYNC_BYTES {
                file.sync()?;
                synced = at;
            }
            Ok(())
        },
        progress,
    )?;
    // Old versions need not be kept during the sync.
    drop(source);
    // A failed sync fails the checkpoint as a whole, so no sync is ever repeated.
    file.sync().map_err(io)?;
    info.path = path;
    Ok(info)
}

/// Writes a copy of a checkpoint or dump for another database, as [`write()`] does.
pub(crate) fn import(
    dir: &dyn Dir,
    input: impl io::Read,
    total: u64,
    database_id: [u8; 16],
    progress: &mut dyn FnMut(Progress),
) -> Result<CheckpointInfo> {
    let started = Instant::now();
    let mut decoder = Decoder::new(input)?;
    let header = Header { database_id, ..*decoder.header() };
    let path = dir.path(&checkpoint_name(header.ts));
    let failed = |e| Error::io(format!("writing {}", path.display()), e);
    let _ = dir.remove(TEMPORARY);
    let mut file = dir.create(TEMPORARY).map_err(failed)?;
    let mut at = 0u64;
    let mut write = |data: &[u8]| {
        file.write_at(at, data)?;
        at += data.len() as u64;
        Ok(())
    };
    let mut encoder = Encoder::new(&header);
    while decoder.next_block(&mut |op| match op {
        OpRef::Put { key, value, expire_at_ms } => {
            let item = SnapshotItem { key, value, expire_at_ms, commit_ts: header.ts };
            match encoder.push(&item) {
                true => encoder.take_block(&mut write).map_err(failed),
                false => Ok(()),
            }
        }
        OpRef::Delete { .. } => Ok(()),
    })? {
        let entries = decoder.totals().entries;
        progress(Progress { done: decoder.bytes(), total, entries, bytes: decoder.bytes() });
    }
    let totals = encoder.finish(&mut write).map_err(failed)?;
    file.sync().map_err(failed)?;
    Ok(CheckpointInfo {
        path: path.clone(),
        ts: header.ts,
        entries: totals.entries,
        bytes: at,
        blocks: totals.blocks,
        database_id,
        created_ms: header.created_ms,
        took: started.elapsed(),
    })
}

/// Gives the written checkpoint its name, durably, and removes all but the newest `keep`. Returns the
/// timestamp of the oldest remaining one.
pub(crate) fn publish(dir: &dyn Dir, ts: u64, keep: usize) -> Result<u64> {
    let io = |e| Error::io(format!("naming {}", dir.path(&checkpoint_name(ts)).display()), e);
    dir.rename(TEMPORARY, &checkpoint_name(ts)).map_err(io)?;
    dir.sync().map_err(io)?;
    let mut all = list(dir).map_err(io)?;
    for &old in all.iter().skip(keep.max(1)) {
        if let Err(e) = dir.remove(&checkpoint_name(old)) {
            tracing::warn!(checkpoint = old, error = %e, "could not remove an old checkpoint");
        }
    }
    all.truncate(keep.max(1));
    // The log is cut next. It must not be gone if the old checkpoint comes back after a crash.
    dir.sync().map_err(io)?;
    Ok(all.last().copied().unwrap_or(ts))
}

/// Renames the checkpoints newer than `ts`, which are damaged. They are then neither read again nor
/// counted among those that are kept.
pub(crate) fn set_damaged_aside(dir: &dyn Dir, ts: u64) {
    for newer in list(dir).unwrap_or_default().into_iter().filter(|&t| t > ts) {
        let name = checkpoint_name(newer);
        if let Err(e) = dir.rename(&name, &format!("{name}.damaged")) {
            tracing::warn!(checkpoint = newer, error = %e, "could not rename the damaged checkpoint");
        }
    }
}

/// Removes the file that [`write()`] has left if [`publish`] did not follow.
pub(crate) fn discard(dir: &dyn Dir) {
    let _ = dir.remove(TEMPORARY);
}

/// Reads a checkpoint from its beginning to its end and hands every key to `apply`.
pub(crate) fn read(
    input: impl io::Read,
    path: &Path,
    total: u64,
    apply: &mut dyn FnMut(&Header, OpRef<'_>) -> Result<()>,
    progress: &mut dyn FnMut(Progress),
) -> Result<CheckpointInfo> {
    let started = Instant::now();
    let named = |e| match e {
        Error::Corrupt(text) if !path.as_os_str().is_empty() => {
            Error::Corrupt(format!("{}: {text}", path.display()))
        }
        e => e,
    };
    let mut decoder = Decoder::new(input).map_err(named)?;
    let header = *decoder.header();
    while decoder.next_block(&mut |op| apply(&header, op)).map_err(named)? {
        let (done, entries) = (decoder.bytes(), decoder.totals().entries);
        progress(Progress { done, total, entries, bytes: done });
    }
    Ok(CheckpointInfo {
        path: path.to_path_buf(),
        ts: header.ts,
        entries: decoder.totals().entries,
        bytes: decoder.bytes(),
        blocks: decoder.totals().blocks,
        database_id: header.database_id,
        created_ms: header.created_ms,
        took: started.elapsed(),
    })
}

/// [`read`] of a file in a directory.
pub(crate) fn read_file(
    dir: &dyn Dir,
    ts: u64,
    apply: &mut dyn FnMut(&Header, OpRef<'_>) -> Result<()>,
    progress: &mut dyn FnMut(Progress),
) -> Result<CheckpointInfo> {
    let name = checkpoint_name(ts);
    let path = dir.path(&name);
    let io = |e| Error::io(format!("reading {}", path.display()), e);
    let file = dir.open(&name).map_err(io)?;
    let total = file.len().map_err(io)?;
    let info = read(io::BufReader::with_capacity(1 << 20, Reader::new(file)), &path, total, apply, progress)?;
    if info.ts != ts {
        return Err(Error::Corrupt(format!("{} holds the checkpoint of commit {}", path.display(), info.ts)));
    }
    Ok(info)
}
