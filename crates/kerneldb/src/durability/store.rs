//! A durable database: [`Database`], log, checkpoints and the data directory that holds them.
//!
//! Order of the steps that make it durable:
//! - A checkpoint gets its name when it is synced and the log is durable up to its timestamp. If the log cannot be
//!   written, the checkpoint does not wait for it, and alone makes its commits durable.
//! - The log is cut after that, back to the oldest checkpoint that is kept.
//! - After recovery the log's end is made durable before anything is appended.

use std::fmt;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::checkpoint::background::{CheckpointTask, Checkpointer};
use super::checkpoint::source::DatabaseSnapshot;
use super::checkpoint::{CheckpointConfig, CheckpointInfo, CheckpointStatus, Progress, files};
use super::datadir::DataDir;
use super::image::Image;
use super::libraries;
use super::recovery::{
    Filler, Recovered, RecoveryOptions, RecoveryProgress, RecoveryReport, Sources, recover,
};
use super::transfer::verify_files;
pub use super::transfer::{dump, load, restore, verify_data_dir};
use super::wal::{Start, Wal, WalConfig, remove_segments};
use crate::limits::LOG_RING_BYTES_DEFAULT;
use crate::{Config, Database, Durability, Error, Result, session};

/// Longest time that a finished checkpoint waits for the log before it is published anyway.
const LOG_PATIENCE: Duration = Duration::from_secs(30);

/// Number of times that an online verification with a failure is repeated before the failure is reported.
const VERIFY_AGAIN: usize = 4;

/// Configuration of a [`Store`].
#[derive(Clone, Debug, Default)]
pub struct StoreConfig {
    /// The database. `wal_ring_bytes` is replaced by 0 without a log, and by a default if it is 0 and there is a log.
    pub database: Config,
    /// The log; `None` = no log ([`Durability::Off`]), checkpoints only.
    pub wal: Option<WalConfig>,
    /// Checkpoints.
    pub checkpoint: CheckpointConfig,
    /// Recovery.
    pub recovery: RecoveryOptions,
}

impl StoreConfig {
    /// Checks the values.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if one is out of range.
    pub fn check(&self) -> Result<()> {
        self.checkpoint.check()?;
        self.database_config().check()
    }

    /// The configuration of the database, with log rings if there is a log.
    pub(super) fn database_config(&self) -> Config {
        let wal_ring_bytes = match (&self.wal, self.database.wal_ring_bytes) {
            (None, _) => 0,
            (Some(_), 0) => LOG_RING_BYTES_DEFAULT,
            (Some(_), bytes) => bytes,
        };
        Config { wal_ring_bytes, ..self.database.clone() }
    }
}

/// A durable database in a data directory:
///
/// ```text
/// <data>/lock              held while open: one process per directory
/// <data>/id                identity of the database
/// <data>/wal/*.log         log segments
/// <data>/checkpoint/*.kdb  checkpoints
/// <data>/procedures/*.o    libraries of procedures
/// ```
///
/// `Send + Sync`; wrap it in an `Arc`. Dropping it stops the threads and flushes the log
/// ([`Store::close`] without a checkpoint).
pub struct Store {
    // The fields are dropped in this order: the threads before the objects that they use, the lock last.
    checkpointer: Option<Checkpointer>,
    wal: Option<Arc<Wal>>,
    durability: Durability,
    config: StoreConfig,
    database: Arc<Database>,
    closed: AtomicBool,
    data: Option<DataDir>,
}

impl Store {
    /// Opens or creates the data directory and recovers its contents.
    pub fn open(
        config: StoreConfig,
        data: &Path,
        progress: &mut dyn FnMut(RecoveryProgress),
    ) -> Result<(Store, RecoveryReport)> {
        Store::open_with(config, data, progress, &mut |_| ())
    }

    /// The same. Calls `created` with the database before it is filled, for work that needs no data. More programs can
    /// be loaded on the database ([`Database::attach`]), but no operators may run. If a checkpoint turns out to be
    /// damaged, `created` is called again with a new database, which replaces the first.
    pub fn open_with(
        config: StoreConfig,
        data: &Path,
        progress: &mut dyn FnMut(RecoveryProgress),
        created: &mut dyn FnMut(&Arc<Database>),
    ) -> Result<(Store, RecoveryReport)> {
        config.checkpoint.check()?;
        Store::open_in(config, DataDir::open_or_create(data)?, progress, created)
    }

    /// Recovers the contents of a data directory that is open already.
    pub(crate) fn open_in(
        config: StoreConfig,
        data: DataDir,
        progress: &mut dyn FnMut(RecoveryProgress),
        created: &mut dyn FnMut(&Arc<Database>),
    ) -> Result<(Store, RecoveryReport)> {
        config.checkpoint.check()?;
        let kept = config.clone();
        let recovered = fill(&config, &data, progress, created)?;
        let (database, report) = (recovered.target.done(), recovered.report);
        let durability = config.wal.as_ref().map_or(Durability::Off, |wal| wal.durability);
        let wal = match config.wal {
            Some(wal) => {
                let start = Start {
                    dir: data.wal.clone(),
                    database_id: data.id,
                    ts: report.recovered_ts,
                    seq: recovered.next_seq,
                };
                Some(Arc::new(start_wal(wal, start, &database)?))
            }
            None => None,
        };
        let task = StoreCheckpoint {
            database: database.clone(),
            wal: wal.clone(),
            wal_dir: data.wal.clone(),
            dir: data.checkpoint.clone(),
            database_id: data.id,
            config: config.checkpoint.clone(),
        };
        if let Some(path) = data.libraries() {
            libraries::load_all(path, &database);
        }
        let checkpointer = Checkpointer::start(config.checkpoint, recovered.checkpoint, Box::new(task))?;
        let store = Store {
            checkpointer: Some(checkpointer),
            wal,
            durability,
            config: kept,
            database,
            closed: AtomicBool::new(false),
            data: Some(data),
        };
        Ok((store, report))
    }

    /// A database without a data directory: nothing is logged, checkpoints are refused.
    pub fn in_memory(config: Config) -> Result<Store> {
        let config = StoreConfig { database: config, ..StoreConfig::default() };
        let database = Arc::new(Database::create(config.database_config())?);
        Ok(Store::without_data_dir(config, database))
    }

    /// A database without a data directory, filled with the contents of an image. `created` is called as by [`Store::open_with`].
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if the configuration has a log, those of creating the database, or [`Error::NoMemory`] if the data does not fit.
    pub fn open_image(
        config: StoreConfig,
        image: &Image,
        created: &mut dyn FnMut(&Arc<Database>),
    ) -> Result<Store> {
        if config.wal.is_some() {
            return Err(Error::Config("a log needs a data directory, and there is none".into()));
        }
        Store::fill_from_image(config, image, created).map(|(store, _)| store)
    }

    pub(super) fn fill_from_image(
        config: StoreConfig,
        image: &Image,
        created: &mut dyn FnMut(&Arc<Database>),
    ) -> Result<(Store, RecoveryReport)> {
        let recovered = fill(&config, &image.data_dir(), &mut |_| (), created)?;
        Ok((Store::without_data_dir(config, recovered.target.done()), recovered.report))
    }

    /// Copies the data into an image, in memory. Others may use the database meanwhile; their later commits are not in it.
    pub fn image(&self) -> Result<Image> {
        Image::of(&self.database)
    }

    fn without_data_dir(config: StoreConfig, database: Arc<Database>) -> Store {
        Store {
            checkpointer: None,
            wal: None,
            durability: Durability::Off,
            config,
            database,
            closed: AtomicBool::new(false),
            data: None,
        }
    }

    /// The database.
    pub fn database(&self) -> &Arc<Database> {
        &self.database
    }

    /// Loads a library: [`Database::load_library`]. It is kept in the data directory, if there is one, and loaded again at each start.
    /// After [`Error::Io`] the procedures are as before, but the next start may find the new library.
    pub fn load_library(&self, library: &str, elf: &[u8], replace: bool) -> Result<Vec<String>> {
        let keep = || match self.data.as_ref().and_then(DataDir::libraries) {
            Some(data) => libraries::write(data, library, elf),
            None => Ok(()),
        };
        session::load_library(self.database.engine(), library, elf, replace, keep)
    }

    /// Removes a library, also from the data directory; false if there is none. After [`Error::Io`] it can still be called.
    pub fn unload_library(&self, library: &str) -> Result<bool> {
        let engine = self.database.engine();
        let _changes = engine.procedures.lock_changes();
        if !engine.has_library(library) {
            return Ok(false);
        }
        if let Some(data) = self.data.as_ref().and_then(DataDir::libraries) {
            libraries::remove(data, library)?;
        }
        engine.remove_library(library)
    }

    /// The configuration with which the store was opened.
    pub fn config(&self) -> &StoreConfig {
        &self.config
    }

    /// The log writer; `None` without a log.
    pub fn wal(&self) -> Option<&Wal> {
        self.wal.as_deref()
    }

    /// The data directory; `None` for [`Store::in_memory`].
    pub fn data_dir(&self) -> Option<&Path> {
        self.data.as_ref().map(DataDir::path)
    }

    pub(super) fn owned_data(&self) -> Option<&DataDir> {
        self.data.as_ref()
    }

    /// The default condition for which a commit waits.
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// Waits until every commit up to `ts` is on disk: [`Wal::wait_durable`]. Without a log it returns `Ok(true)` at
    /// once.
    pub fn wait_durable(&self, ts: u64, timeout: Duration) -> Result<bool> {
        self.wal.as_ref().map_or(Ok(true), |wal| wal.wait_durable(ts, timeout))
    }

    fn checkpointer(&self) -> Result<&Checkpointer> {
        self.checkpointer
            .as_ref()
            .ok_or_else(|| Error::Config("a checkpoint needs a data directory, and there is none".into()))
    }

    /// Takes a checkpoint and waits for it (SAVE). If one is running, waits for it and takes another
    /// one, so that everything committed before the call is in it.
    pub fn checkpoint(&self) -> Result<CheckpointInfo> {
        self.checkpointer()?.take()
    }

    /// Requests a checkpoint in the background (BGSAVE). `Ok(false)` if one was running already (that one goes on, no
    /// other is queued).
    pub fn request_checkpoint(&self) -> Result<bool> {
        Ok(self.checkpointer()?.request())
    }

    /// Status of the checkpoints.
    pub fn checkpoint_status(&self) -> CheckpointStatus {
        self.checkpointer.as_ref().map(Checkpointer::status).unwrap_or_default()
    }

    /// Checks the files of the data directory while the store is open: [`verify_data_dir`]. Without a
    /// data directory there is nothing to check.
    pub fn verify(&self, progress: &mut dyn FnMut(RecoveryProgress)) -> Result<RecoveryReport> {
        let Some(data) = &self.data else { return Ok(RecoveryReport::default()) };
        let mut last = verify_files(data, progress);
        for _ in 0..VERIFY_AGAIN {
            // Files that are written and removed meanwhile can look like damage; real damage stays.
            if last.is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
            last = verify_files(data, progress);
        }
        last
    }

    /// Flushes the log and stops the background threads; idempotent. With `final_checkpoint` it takes a checkpoint
    /// first. The caller must have stopped its writers: later commits are not durable (with a log, they are refused).
    pub fn close(&self, final_checkpoint: bool) -> Result<()> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        // What handlers commit from now on would not be kept.
        self.database.detach_handlers();
        let _ = self.database.wait_for_programs();
        let checkpoint = match &self.checkpointer {
            Some(checkpointer) => {
                let result = if final_checkpoint { checkpointer.take().map(drop) } else { Ok(()) };
                checkpointer.stop();
                result
            }
            None => Ok(()),
        };
        // The log is flushed in any case.
        let flushed = self.wal.as_ref().map_or(Ok(()), |wal| wal.stop());
        checkpoint.and(flushed)
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("data_dir", &self.data_dir()).finish_non_exhaustive()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Err(e) = self.close(false) {
            tracing::error!(error = %e, "closing the store");
        }
    }
}

/// Makes a database and recovers its contents.
fn fill(
    config: &StoreConfig,
    data: &DataDir,
    progress: &mut dyn FnMut(RecoveryProgress),
    created: &mut dyn FnMut(&Arc<Database>),
) -> Result<Recovered<Filler>> {
    files::discard(&*data.checkpoint);
    let sources =
        Sources { database_id: &data.id, checkpoint: &*data.checkpoint, wal: &*data.wal, repair: true };
    let mut make = || {
        let database = Arc::new(Database::create(config.database_config())?);
        created(&database);
        Filler::new(database)
    };
    let recovered = recover(&sources, config.recovery, &mut make, progress)?;
    let report = &recovered.report;
    tracing::info!(
        ts = report.recovered_ts,
        checkpoint = report.checkpoint_entries,
        txns = report.txns,
        took = ?report.took,
        "recovered"
    );
    Ok(recovered)
}

fn start_wal(config: WalConfig, start: Start, database: &Arc<Database>) -> Result<Wal> {
    let (source, sink) = (database.clone(), database.clone());
    Wal::start(
        config,
        start,
        Box::new(move |run| match source.log_reader() {
            Some(mut reader) => run(&mut reader),
            None => tracing::error!("the database has no log rings, or somebody else reads them"),
        }),
        Box::new(move |ts, failed| sink.set_durable(ts, failed)),
    )
}

/// The work of the checkpoint thread.
struct StoreCheckpoint {
    database: Arc<Database>,
    wal: Option<Arc<Wal>>,
    wal_dir: Arc<dyn super::disk::Dir>,
    dir: Arc<dyn super::disk::Dir>,
    database_id: [u8; 16],
    config: CheckpointConfig,
}

impl CheckpointTask for StoreCheckpoint {
    fn run(&mut self, progress: &mut dyn FnMut(Progress) -> ControlFlow<()>) -> Result<CheckpointInfo> {
        let source = Box::new(DatabaseSnapshot::take(&self.database)?);
        let info = files::write(&*self.dir, source, self.database_id, self.config.rate_limit, progress)?;
        let failed = self.wait_for_log(info.ts);
        let published = files::publish(&*self.dir, info.ts, self.config.keep);
        let oldest = published.inspect_err(|_| files::discard(&*self.dir))?;
        // If the log's disk is full, free space is more important than a fallback for a damaged newest checkpoint.
        let needed = if failed { info.ts } else { oldest };
        if let Err(e) = remove_segments(&*self.wal_dir, needed) {
            tracing::warn!(error = %e, "could not remove old log segments");
        }
        Ok(info)
    }

    fn clock(&self) -> u64 {
        self.database.clock()
    }

    fn log_bytes(&self) -> u64 {
        self.wal.as_ref().map_or(0, |wal| wal.bytes())
    }
}

impl StoreCheckpoint {
    /// Waits until the log is durable up to `ts`, so that the log can replace the checkpoint if that is damaged.
    /// Returns whether the log cannot be written; it does not wait then.
    fn wait_for_log(&self, ts: u64) -> bool {
        let Some(wal) = &self.wal else { return false };
        let deadline = Instant::now() + LOG_PATIENCE;
        while !wal.failed() && Instant::now() < deadline {
            if wal.wait_durable(ts, Duration::from_millis(100)).unwrap_or(false) {
                return false;
            }
        }
        wal.failed()
    }
}
