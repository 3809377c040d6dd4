//! Recovery: loads the newest valid checkpoint, then replays the log after it.
//!
//! Memory is bounded: recovery holds one block of the checkpoint or one frame of the log, and the batches of `fill`.
//! Recovery skips a damaged checkpoint and takes an older one. No commit is lost, because the log is kept back to the
//! oldest checkpoint. If the log does not reach as far as a skipped checkpoint, commits would be missing; that is an
//! error.

mod fill;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::checkpoint::files;
use super::disk::Dir;
use super::wal::{OpRef, TxnSink, replay};
use crate::{Error, Result};
pub(crate) use fill::Filler;

/// Options of recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryOptions {
    /// Recover everything before the first damage although data in the middle is damaged. Without this option such
    /// damage is [`crate::Error::Corrupt`].
    pub force: bool,
}

/// Results of recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Checkpoint that was loaded.
    pub checkpoint: Option<PathBuf>,
    /// Its timestamp, 0 if there was none.
    pub checkpoint_ts: u64,
    /// Keys loaded from it.
    pub checkpoint_entries: u64,
    /// Newer checkpoints that were skipped because they are damaged, with the reason.
    pub checkpoints_skipped: Vec<String>,
    /// Log segments read.
    pub segments: u64,
    /// Transactions replayed from the log.
    pub txns: u64,
    /// Changes in them.
    pub ops: u64,
    /// Bytes of log read.
    pub log_bytes: u64,
    /// Bytes cut off the end of the log because the last write was incomplete.
    pub torn_bytes: u64,
    /// Timestamp of the newest recovered commit.
    pub recovered_ts: u64,
    /// The data that was given up under [`RecoveryOptions::force`].
    pub damage: Option<String>,
    /// Duration of recovery.
    pub took: Duration,
}

/// Progress of recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryProgress {
    /// The phase that is running.
    pub phase: RecoveryPhase,
    /// Bytes of the phase read.
    pub done_bytes: u64,
    /// Bytes of the phase in all.
    pub total_bytes: u64,
    /// Keys or transactions applied in the phase.
    pub applied: u64,
}

/// Phases of recovery, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryPhase {
    /// Loading the checkpoint.
    Checkpoint,
    /// Replaying the log.
    Log,
}

/// The target of recovery. It receives one committed transaction after the other: `begin`, its changes, `end`.
/// [`Filler`] is the production implementation.
pub(crate) trait ReplayTarget {
    /// The changes of a transaction with this commit timestamp follow. The keys of a checkpoint follow as changes of one
    /// transaction each, all with the checkpoint's timestamp.
    fn begin(&self, commit_ts: u64);
    /// The next change of the transaction.
    fn change(&self, change: OpRef<'_>);
    /// The transaction is complete. It may be applied later; an error may be that of an earlier transaction.
    fn end(&self) -> Result<()>;
    /// Waits until everything is applied; then the clock continues after `ts`, and everything up to it counts as durable.
    fn set_clock(&self, ts: u64) -> Result<()>;
}

/// Discards everything: for verification.
pub(crate) struct Nothing;

impl ReplayTarget for Nothing {
    fn begin(&self, _: u64) {}

    fn change(&self, _: OpRef<'_>) {}

    fn end(&self) -> Result<()> {
        Ok(())
    }

    fn set_clock(&self, _: u64) -> Result<()> {
        Ok(())
    }
}

/// The files to recover from.
pub(crate) struct Sources<'a> {
    pub(crate) database_id: &'a [u8; 16],
    pub(crate) checkpoint: &'a dyn Dir,
    pub(crate) wal: &'a dyn Dir,
    /// Whether to prepare the directories for a new run (not for verification).
    pub(crate) repair: bool,
}

/// The result: the filled target, the report, and the sequence number of the next log segment.
pub(crate) struct Recovered<T> {
    pub(crate) target: T,
    pub(crate) report: RecoveryReport,
    pub(crate) next_seq: u64,
    /// The checkpoint that was loaded.
    pub(crate) checkpoint: Option<super::checkpoint::CheckpointInfo>,
}

/// Recovers. `make` makes an empty target. It is called again if a checkpoint turns out to be damaged after a part of
/// it was loaded.
pub(crate) fn recover<T: ReplayTarget>(
    sources: &Sources<'_>,
    options: RecoveryOptions,
    make: &mut dyn FnMut() -> Result<T>,
    progress: &mut dyn FnMut(RecoveryProgress),
) -> Result<Recovered<T>> {
    let started = Instant::now();
    let mut report = RecoveryReport::default();
    let mut target = make()?;
    let mut passed_over = 0;
    let mut loaded = None;
    if sources.repair {
        // A checkpoint that was just renamed must not lose its name in the next crash.
        sources.checkpoint.sync().map_err(|e| Error::io("syncing the checkpoints' directory", e))?;
    }
    let found = files::list(sources.checkpoint).map_err(|e| Error::io("listing checkpoints", e))?;
    for ts in found {
        match load(sources, ts, &target, progress) {
            Ok(info) => {
                report.checkpoint = Some(info.path.clone());
                report.checkpoint_ts = info.ts;
                report.checkpoint_entries = info.entries;
                loaded = Some(info);
                break;
            }
            Err(Error::Corrupt(text)) => {
                tracing::warn!(damage = text, "a checkpoint is passed over");
                report.checkpoints_skipped.push(text);
                passed_over = passed_over.max(ts);
                drop(target);
                target = make()?;
            }
            Err(e) => return Err(e),
        }
    }
    let log = replay::Options {
        database_id: sources.database_id,
        after: report.checkpoint_ts,
        force: options.force,
        repair: sources.repair,
    };
    let mut apply = Applier { target: &target, applied: 0, error: None, progress };
    let done = replay::replay(sources.wal, &log, &mut apply)?;
    report.segments = done.segments;
    report.txns = done.txns;
    report.ops = done.ops;
    report.log_bytes = done.bytes;
    report.torn_bytes = done.torn_bytes;
    report.recovered_ts = done.last_ts;
    report.damage = done.damage;
    if passed_over > done.last_ts {
        let text = format!(
            "the checkpoint of commit {passed_over} is damaged, and what is left reaches only to commit {}",
            done.last_ts
        );
        if !options.force {
            return Err(Error::Corrupt(text));
        }
        report.damage.get_or_insert(text);
    }
    if sources.repair && !report.checkpoints_skipped.is_empty() {
        files::set_damaged_aside(sources.checkpoint, report.checkpoint_ts);
    }
    target.set_clock(done.last_ts)?;
    report.took = started.elapsed();
    Ok(Recovered { target, report, next_seq: done.next_seq, checkpoint: loaded })
}

fn load<T: ReplayTarget>(
    sources: &Sources<'_>,
    ts: u64,
    target: &T,
    progress: &mut dyn FnMut(RecoveryProgress),
) -> Result<super::checkpoint::CheckpointInfo> {
    files::read_file(
        sources.checkpoint,
        ts,
        &mut |header, change| {
            if header.database_id != *sources.database_id {
                let other = std::io::Error::other("it belongs to another database");
                return Err(Error::io(format!("loading the checkpoint of commit {ts}"), other));
            }
            target.begin(ts);
            target.change(change);
            target.end()
        },
        &mut |p| {
            progress(RecoveryProgress {
                phase: RecoveryPhase::Checkpoint,
                done_bytes: p.done,
                total_bytes: p.total,
                applied: p.entries,
            });
        },
    )
}

/// Passes the transactions of the log on to the target.
struct Applier<'a, T> {
    target: &'a T,
    applied: u64,
    error: Option<Error>,
    progress: &'a mut dyn FnMut(RecoveryProgress),
}

impl<T: ReplayTarget> TxnSink for Applier<'_, T> {
    fn begin(&mut self, commit_ts: u64) {
        self.target.begin(commit_ts);
    }

    fn op(&mut self, op: OpRef<'_>) {
        self.target.change(op);
    }

    fn end(&mut self) {
        self.applied += 1;
        if let Err(error) = self.target.end() {
            self.error.get_or_insert(error);
        }
    }
}

impl<T: ReplayTarget> replay::Apply for Applier<'_, T> {
    fn sink(&mut self) -> &mut dyn TxnSink {
        self
    }

    fn check(&mut self, bytes: u64, total: u64) -> Result<()> {
        (self.progress)(RecoveryProgress {
            phase: RecoveryPhase::Log,
            done_bytes: bytes,
            total_bytes: total,
            applied: self.applied,
        });
        self.error.take().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests;
