//! Checkpoints, which bound the log and the time that recovery takes.
//!
//! The LSN from which redo starts is read under the commit mutex, so no commit is partly in the trees. Commits continue while the
//! pool writes its pages. The checkpoint's record is appended after `pool.sync()` has succeeded, and segments are removed after
//! the record is durable.
//!
//! A poisoned store makes no checkpoint, because a commit is partly in the trees, and only its record completes it.

use std::sync::{MutexGuard, PoisonError};
use std::time::Instant;

use super::Store;
use super::error::{Error, Result};
use super::record::Checkpoint;
use super::statistics::Counters;

impl Store {
    /// Writes all pages and removes the log segments that recovery does not need any more. Other threads can commit meanwhile.
    pub fn checkpoint(&self) -> Result<()> {
        self.run_checkpoint(self.last_checkpoint())
    }

    /// The last checkpoint. No checkpoint is made until the guard is dropped.
    pub(crate) fn last_checkpoint(&self) -> MutexGuard<'_, Checkpoint> {
        self.last_checkpoint.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a checkpoint if the log has become long and no other thread makes one.
    pub(crate) fn checkpoint_if_due(&self) {
        let Ok(last) = self.last_checkpoint.try_lock() else { return };
        if self.log.end().saturating_sub(last.redo_from) < self.checkpoint_bytes {
            return;
        }
        if self.run_checkpoint(last).is_err() {
            // The commit that found the checkpoint due is durable, and must not fail.
            Counters::add(&self.counters.failed_checkpoints);
        }
    }

    fn run_checkpoint(&self, mut last: MutexGuard<'_, Checkpoint>) -> Result<()> {
        let begin = Instant::now();
        let checkpoint = {
            let _commit = self.lock_commit()?;
            Checkpoint { redo_from: self.log.end(), timestamp: self.clock.visible() }
        };
        self.pool.sync()?;
        let lsn = self.log.checkpoint(checkpoint);
        self.log.make_durable(lsn).map_err(Error::Log)?;
        *last = checkpoint;
        Counters::add(&self.counters.checkpoints);
        self.checkpoint_latency.record(begin);
        self.log.remove_before(checkpoint.redo_from).map_err(Error::io("remove a segment of the log"))
    }
}
