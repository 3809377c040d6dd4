//! A store on a simulated disk, for tests of what survives a crash.
//!
//! The disk is in memory. A test can hold its fsyncs back, and can look at what a power failure at this moment leaves:
//! all that was synced, and an arbitrary part of the rest.

use std::sync::Arc;

use super::datadir::DataDir;
use super::disk::faulty::FaultyDir;
use super::recovery::RecoveryReport;
use crate::{Result, Store, StoreConfig};

/// A disk with one data directory. Clones share the disk.
#[derive(Clone, Default)]
pub struct SimulatedDisk {
    wal: FaultyDir,
    checkpoint: FaultyDir,
}

impl SimulatedDisk {
    /// An empty disk.
    pub fn new() -> SimulatedDisk {
        SimulatedDisk::default()
    }

    /// Opens the store on the disk, or creates it. There may be one store on a disk at a time.
    pub fn open(&self, config: StoreConfig) -> Result<(Store, RecoveryReport)> {
        let data = DataDir::simulated(Arc::new(self.wal.clone()), Arc::new(self.checkpoint.clone()));
        Store::open_in(config, data, &mut |_| (), &mut |_| ())
    }

    /// From now on, an fsync of the log does not return (`true`), or does again, held ones included (`false`).
    pub fn hold_syncs(&self, hold: bool) {
        self.wal.hold_syncs(hold);
    }

    /// The disk after a power failure at this moment; `choose(n)` picks a number below `n`. This disk goes on.
    pub fn crash(&self, choose: &mut dyn FnMut(usize) -> usize) -> SimulatedDisk {
        // A checkpoint replaces log, so its directory is looked at first.
        let checkpoint = self.checkpoint.crash(choose);
        SimulatedDisk { wal: self.wal.crash(choose), checkpoint }
    }
}
