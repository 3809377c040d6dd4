//! A store on a simulated disk, for tests of crashes, and databases on other eBPF objects than those that are shipped.
//!
//! The disk is in memory. A test can hold its fsyncs back, and can examine the disk after a power failure at this
//! moment. It then has all synced bytes, and an arbitrary part of the rest.

use std::sync::Arc;

use super::datadir::DataDir;
use super::disk::faulty::FaultyDir;
use super::recovery::RecoveryReport;
pub use crate::bpf::with_objects;
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
        let data = DataDir::without_path(Arc::new(self.wal.clone()), Arc::new(self.checkpoint.clone()));
        Store::open_in(config, data, &mut |_| (), &mut |_| ())
    }

    /// `true`: from now on, an fsync of the log does not return. `false`: fsyncs return again, including those that
    /// were held.
    pub fn hold_syncs(&self, hold: bool) {
        self.wal.hold_syncs(hold);
    }

    /// The disk after a power failure at this moment; `choose(n)` picks a number below `n`. This disk goes on.
    pub fn crash(&self, choose: &mut dyn FnMut(usize) -> usize) -> SimulatedDisk {
        // A checkpoint replaces log, so the crash of its directory comes first.
        let checkpoint = self.checkpoint.crash(choose);
        SimulatedDisk { wal: self.wal.crash(choose), checkpoint }
    }
}
