//! The contents of a checkpoint.

use std::time::Duration;

use crate::engine::unix_ms;
use crate::{Database, Error, Result, Snapshot, SnapshotItem};

/// A consistent image that can be scanned piece by piece. [`DatabaseSnapshot`] is the production implementation.
pub(crate) trait SnapshotSource {
    /// Every commit up to and including this timestamp is in it, none after.
    fn timestamp(&self) -> u64;
    /// Number of scan positions.
    fn positions(&self) -> u64;
    /// Number of keys, roughly; 0 = not known.
    fn expected(&self) -> u64;
    /// Hands over the keys, except expired ones, at the positions from `from` up to the one that is returned, which is `to` or a later one.
    /// After an error the caller must discard all keys that were handed over.
    fn scan(&mut self, from: u64, to: u64, f: &mut dyn FnMut(SnapshotItem<'_>)) -> Result<u64>;
}

/// A snapshot of a database.
pub(crate) struct DatabaseSnapshot<'db> {
    database: &'db Database,
    snapshot: Snapshot<'db>,
}

impl<'db> DatabaseSnapshot<'db> {
    /// Takes a snapshot; waits a moment if all snapshot slots are in use.
    pub(crate) fn take(database: &'db Database) -> Result<Self> {
        for _ in 0..100 {
            match database.snapshot() {
                Err(Error::Busy) => std::thread::sleep(Duration::from_millis(2)),
                other => return Ok(DatabaseSnapshot { database, snapshot: other? }),
            }
        }
        Err(Error::Busy)
    }
}

impl SnapshotSource for DatabaseSnapshot<'_> {
    fn timestamp(&self) -> u64 {
        self.snapshot.timestamp()
    }

    fn positions(&self) -> u64 {
        self.snapshot.positions()
    }

    fn expected(&self) -> u64 {
        self.database.len()
    }

    fn scan(&mut self, from: u64, to: u64, f: &mut dyn FnMut(SnapshotItem<'_>)) -> Result<u64> {
        let now_ms = unix_ms();
        self.snapshot.scan(from, to, &mut |item| {
            // An expired key does not exist for any reader of the snapshot, so the image does not need it.
            if item.expire_at_ms.is_none_or(|at| at > now_ms) {
                f(item);
            }
        })
    }
}
