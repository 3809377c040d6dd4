//! Moving whole databases: dump, load, restore, and verification of a data directory.

use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use super::checkpoint::source::DatabaseSnapshot;
use super::checkpoint::{CheckpointInfo, Progress, files, verify};
use super::datadir::DataDir;
use super::recovery::{Nothing, RecoveryOptions, RecoveryProgress, RecoveryReport, Sources, recover};
use super::wal::OpRef;
use crate::{Database, Error, Result, SetOptions};

/// Longest time for which [`load`] retries a key that is in use.
const PATIENCE: Duration = Duration::from_secs(10);

/// Writes a consistent image of `database` to `out`, in the format of checkpoint files. Writers are
/// not stopped.
pub fn dump(
    database: &Database,
    out: &mut dyn Write,
    progress: &mut dyn FnMut(Progress),
) -> Result<CheckpointInfo> {
    let mut source = DatabaseSnapshot::take(database)?;
    // A dump is an image for others, not a checkpoint of this database.
    let info = files::stream(&mut source, [0; 16], None, &mut |data| out.write_all(data), &mut |p| {
        progress(p);
        ControlFlow::Continue(())
    })?;
    out.flush().map_err(|e| Error::io("writing the dump", e))?;
    Ok(info)
}

/// Reads a dump or checkpoint file and SETs every key of it in `database` (logged like any write). Keys
/// that are not in the dump stay as they are. If the input is damaged, the keys before the damage have
/// been loaded; [`verify`] a file first.
pub fn load(
    database: &Database,
    input: &mut dyn Read,
    progress: &mut dyn FnMut(Progress),
) -> Result<CheckpointInfo> {
    let mut session = database.session()?;
    let mut set = |op: OpRef<'_>| {
        let OpRef::Put { key, value, expire_at_ms } = op else { return Ok(()) };
        let options = SetOptions { expire_at_ms, ..SetOptions::default() };
        let mut started = None;
        loop {
            match session.set(key, value, options) {
                Ok(_) => return Ok(()),
                Err(e) if e.is_transient() => {
                    // Another client holds the key, or the log is behind.
                    if started.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                        return Err(e);
                    }
                    std::thread::sleep(Duration::from_micros(200));
                }
                Err(e) => return Err(e),
            }
        }
    };
    files::read(input, Path::new(""), 0, &mut |_, op| set(op), progress)
}

/// Checks a data directory that no server uses, without changing it: every checksum of every checkpoint
/// and log segment, and that the log continues the newest checkpoint without a gap.
/// [`crate::Store::verify`] checks the directory of an open store.
pub fn verify_data_dir(data: &Path, progress: &mut dyn FnMut(RecoveryProgress)) -> Result<RecoveryReport> {
    verify_files(&DataDir::open_existing(data)?, progress)
}

pub(crate) fn verify_files(
    data: &DataDir,
    progress: &mut dyn FnMut(RecoveryProgress),
) -> Result<RecoveryReport> {
    let sources =
        Sources { database_id: &data.id, checkpoint: &*data.checkpoint, wal: &*data.wal, repair: false };
    let report = recover(&sources, RecoveryOptions::default(), &mut || Ok(Nothing), progress)?.report;
    // Recovery has checked the newest one; the older ones must be good, too.
    let all = files::list(&*data.checkpoint).map_err(|e| Error::io("listing checkpoints", e))?;
    for ts in all.into_iter().filter(|&ts| ts < report.checkpoint_ts) {
        verify(&data.checkpoint.path(&files::checkpoint_name(ts)), &mut |_| ())?;
    }
    match report.checkpoints_skipped.first() {
        Some(damage) => Err(Error::Corrupt(damage.clone())),
        None => Ok(report),
    }
}

/// Makes a new data directory that starts with the contents of a checkpoint or dump file. It is a
/// database of its own, with an identity of its own. The directory must not hold a database.
pub fn restore(checkpoint: &Path, data: &Path, progress: &mut dyn FnMut(Progress)) -> Result<CheckpointInfo> {
    let source = verify(checkpoint, &mut |_| ())?;
    let data = DataDir::create(data)?;
    let io = |e| Error::io(format!("reading {}", checkpoint.display()), e);
    let input = std::io::BufReader::with_capacity(1 << 20, std::fs::File::open(checkpoint).map_err(io)?);
    let info = files::import(&*data.checkpoint, input, source.bytes, data.id, progress)?;
    files::publish(&*data.checkpoint, info.ts, 1)?;
    Ok(info)
}
