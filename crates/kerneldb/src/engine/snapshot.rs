//! Registered snapshots of a database.
//!
//! Registration follows `bpf/engine/snapshot.h`. The storage engine reads the versions that a registered snapshot sees.

use std::sync::atomic::{Ordering, fence};

use super::{
    control::Control,
    storage::{SnapshotItem, Storage},
};
use crate::{Error, Result, layout::SNAPSHOT_SCAN, limits::SNAPSHOTS_MAX};

/// A registered snapshot: a consistent view of all commits up to [`Snapshot::timestamp`]. The arena engine reads it
/// straight from the mapped arenas, without system calls. Writers are not stopped. The versions that the snapshot needs
/// are kept until it is dropped. At most [`SNAPSHOTS_MAX`] snapshots and read-only transactions exist at once.
pub struct Snapshot<'db> {
    control: &'db Control,
    storage: &'db dyn Storage,
    slot: usize,
    timestamp: u64,
}

impl<'db> Snapshot<'db> {
    pub(super) fn register(control: &'db Control, storage: &'db dyn Storage) -> Result<Self> {
        let state = control.state();
        let now = state.coarse_ns.load(Ordering::SeqCst);
        state.active_snapshots.fetch_add(1, Ordering::SeqCst);
        for slot in 0..SNAPSHOTS_MAX {
            if state.snapshots[slot].compare_exchange(0, 1, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
                state.snapshot_high.fetch_max(slot as u32 + 1, Ordering::SeqCst);
                control.snapshot_ns(slot).store(now, Ordering::SeqCst);
                let timestamp = state.clock.load(Ordering::SeqCst);
                state.snapshots[slot].store(slot_value(timestamp), Ordering::SeqCst);
                return Ok(Snapshot { control, storage, slot, timestamp });
            }
        }
        state.active_snapshots.fetch_sub(1, Ordering::SeqCst);
        Err(Error::Busy)
    }

    /// Every commit up to and including this timestamp is visible, none after it.
    pub fn timestamp(&self) -> u64 {
        self.timestamp
    }

    /// Number of scan positions; `scan` takes positions below it.
    pub fn positions(&self) -> u64 {
        self.storage.positions()
    }

    /// A position that may have keys, drawn with a random number. Memory that was never used has no keys.
    pub fn draw_position(&self, random: u64) -> u64 {
        self.storage.draw_position(random)
    }

    /// Calls `f` for every key visible at the positions from `from` up to the one that is returned, in no particular order. The returned
    /// position is `to`, or a later one with the hash-map engine, and a pass over all keys continues there. A key keeps its
    /// position as long as it exists. Keys past their expiry that were not collected yet are included.
    ///
    /// [`Error::Io`] if the kernel has no memory for reading a hash map; [`Error::SnapshotTooOld`] if the snapshot was revoked ([`Snapshot::check`]). The caller must then discard the
    /// items of this call: keys and values may have changed while `f` looked at them.
    pub fn scan(&self, from: u64, to: u64, f: &mut dyn FnMut(SnapshotItem<'_>)) -> Result<u64> {
        self.check()?;
        let next = self.storage.scan(self.control, self.timestamp, from, to, f)?;
        self.check()?;
        Ok(next)
    }

    /// Whether all items read so far belong to the snapshot. [`Error::SnapshotTooOld`] if the snapshot was revoked,
    /// because it was older than [`crate::Timeouts::scan_grace_ms`] and a writer needed one of its versions.
    pub fn check(&self) -> Result<()> {
        // Reads before this are valid if the slot is unchanged now, because the slot changes before a version leaves.
        fence(Ordering::Acquire);
        let value = self.control.state().snapshots[self.slot].load(Ordering::Acquire);
        if value == slot_value(self.timestamp) { Ok(()) } else { Err(Error::SnapshotTooOld) }
    }
}

/// Value of a slot in which a scan at `timestamp` is registered.
fn slot_value(timestamp: u64) -> u64 {
    (timestamp + 2) | SNAPSHOT_SCAN
}

impl Drop for Snapshot<'_> {
    fn drop(&mut self) {
        let state = self.control.state();
        state.snapshots[self.slot].store(0, Ordering::SeqCst);
        state.active_snapshots.fetch_sub(1, Ordering::SeqCst);
    }
}
