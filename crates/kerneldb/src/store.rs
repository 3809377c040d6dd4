//! A durable database: [`Database`], log, checkpoints and the data directory that holds them.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::checkpoint::{CheckpointConfig, CheckpointInfo, CheckpointStatus, Progress};
use crate::recovery::{RecoveryOptions, RecoveryProgress, RecoveryReport};
use crate::wal::{Wal, WalConfig};
use crate::{Config, Database, Durability, Result};

/// How to open a [`Store`].
#[derive(Clone, Debug, Default)]
pub struct StoreConfig {
    /// The database. `wal_ring_bytes` is overridden with 0 without a log, and with a default if it is
    /// 0 and there is a log.
    pub database: Config,
    /// The log; `None` = no log ([`Durability::Off`]), checkpoints only.
    pub wal: Option<WalConfig>,
    /// Checkpoints.
    pub checkpoint: CheckpointConfig,
    /// Recovery.
    pub recovery: RecoveryOptions,
}

/// A durable database in a data directory:
///
/// ```text
/// <data>/lock              held while open: one process per directory
/// <data>/id                identity of the database
/// <data>/wal/*.log         log segments
/// <data>/checkpoint/*.kdb  checkpoints
/// ```
///
/// `Send + Sync`; wrap it in an `Arc`. Dropping it stops the threads and flushes the log
/// ([`Store::close`] without a checkpoint).
pub struct Store {
    _private: (),
}

impl Store {
    /// Opens or creates the data directory and recovers what is in it.
    pub fn open(
        _config: StoreConfig,
        _data: &Path,
        _progress: &mut dyn FnMut(RecoveryProgress),
    ) -> Result<(Store, RecoveryReport)> {
        todo!()
    }

    /// A database without a data directory: nothing is logged, checkpoints are refused.
    pub fn in_memory(_config: Config) -> Result<Store> {
        todo!()
    }

    /// The database.
    pub fn database(&self) -> &Arc<Database> {
        todo!()
    }

    /// The log writer; `None` without a log.
    pub fn wal(&self) -> Option<&Wal> {
        todo!()
    }

    /// The data directory; `None` for [`Store::in_memory`].
    pub fn data_dir(&self) -> Option<&Path> {
        todo!()
    }

    /// What a commit waits for by default.
    pub fn durability(&self) -> Durability {
        todo!()
    }

    /// Waits until every commit up to `ts` is on disk: [`Wal::wait_durable`]; without a log at once
    /// `Ok(true)`.
    pub fn wait_durable(&self, _ts: u64, _timeout: Duration) -> Result<bool> {
        todo!()
    }

    /// Takes a checkpoint and waits for it (SAVE). If one is running, waits for it and takes another
    /// one, so that everything committed before the call is in it.
    pub fn checkpoint(&self) -> Result<CheckpointInfo> {
        todo!()
    }

    /// Asks for a checkpoint in the background (BGSAVE). `Ok(false)` if one was running already (that
    /// one goes on, no other is queued).
    pub fn request_checkpoint(&self) -> Result<bool> {
        todo!()
    }

    /// How checkpoints are doing.
    pub fn checkpoint_status(&self) -> CheckpointStatus {
        todo!()
    }

    /// Flushes the log and stops the background threads; idempotent. With `final_checkpoint` a
    /// checkpoint is taken first. The caller has stopped its writers; commits made after it are not
    /// durable.
    pub fn close(&self, _final_checkpoint: bool) -> Result<()> {
        todo!()
    }
}

/// Writes a consistent image of `database` to `out`, in the format of checkpoint files. Writers are
/// not stopped.
pub fn dump(
    _database: &Database,
    _out: &mut dyn Write,
    _progress: &mut dyn FnMut(Progress),
) -> Result<CheckpointInfo> {
    todo!()
}

/// Reads a dump or checkpoint file and SETs every key of it in `database` (logged like any write).
/// Keys that are not in the dump stay as they are.
pub fn load(
    _database: &Database,
    _input: &mut dyn Read,
    _progress: &mut dyn FnMut(Progress),
) -> Result<CheckpointInfo> {
    todo!()
}

/// Checks a data directory without opening it for writing or recovering it: every checksum of every
/// checkpoint and log segment, and that the log continues the newest checkpoint without a gap.
pub fn verify_data_dir(_data: &Path, _progress: &mut dyn FnMut(RecoveryProgress)) -> Result<RecoveryReport> {
    todo!()
}

/// Makes a new data directory that starts with the contents of a checkpoint or dump file. The
/// directory must not hold a database.
pub fn restore(
    _checkpoint: &Path,
    _data: &Path,
    _progress: &mut dyn FnMut(Progress),
) -> Result<CheckpointInfo> {
    todo!()
}
