//! Opening a store.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bedplate_bufpool::storage::Storage;
use bedplate_bufpool::{Choice, Pool};
use bedplate_threads::outwait;

use super::Store;
use super::disk::{Directory, Disk, create_directory, sync_names};
use super::error::{Error, Result};
use super::latency::Recorder;
use super::limits::{DEFAULT_CHECKPOINT_BYTES, DEFAULT_VERSION_BYTES};
use super::recovery;
use super::replay::Replay;
use super::statistics::Counters;
use super::versions::Versions;
use super::{clock::Clock, trees::CATALOG_SLOT};

/// The moment when a commit returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// When the commit is durable. Commits at the same time share a write and an fsync of the log.
    #[default]
    Sync,
    /// When the commit is visible. A crash may lose the last commits, in the reverse order in which they were made;
    /// [`Store::sync`] makes all of them durable.
    Async,
}

/// The file of the pool.
pub(crate) const PAGES: &str = "pages";
/// The file of the pool that a compaction makes.
pub(crate) const NEW_PAGES: &str = "pages.new";
/// A directory with this file has a store that is not complete yet.
pub(crate) const INCOMPLETE: &str = "incomplete";
/// The largest capacity that a pool can have.
pub(crate) const MAX_CAPACITY: u64 = bedplate_bufpool::MAX_PAGES * bedplate_bufpool::PAGE as u64;

/// Opens a store: [`Store::builder`].
#[must_use = "a builder opens nothing before `open`"]
pub struct Builder {
    directory: PathBuf,
    memory: usize,
    capacity: u64,
    page_size: Option<usize>,
    engine: Choice,
    durability: Durability,
    version_bytes: usize,
    checkpoint_bytes: u64,
    creates: bool,
    storage: Option<Box<dyn Storage>>,
    disk: Option<Arc<dyn Disk>>,
}

impl Store {
    /// Begins to open the store in a directory, which is created if it does not exist.
    pub fn builder(directory: impl AsRef<Path>) -> Builder {
        Builder {
            directory: directory.as_ref().to_owned(),
            memory: 64 << 20,
            capacity: 16 << 30,
            page_size: None,
            engine: Choice::Auto,
            durability: Durability::Sync,
            version_bytes: DEFAULT_VERSION_BYTES,
            checkpoint_bytes: DEFAULT_CHECKPOINT_BYTES,
            creates: true,
            storage: None,
            disk: None,
        }
    }
}

impl Builder {
    /// Maximum number of bytes of pages in memory. Default: 64 MiB.
    pub fn memory(mut self, bytes: usize) -> Self {
        self.memory = bytes;
        self
    }

    /// Maximum number of bytes of pages that the store can ever have. Default: 16 GiB.
    pub fn capacity(mut self, bytes: u64) -> Self {
        self.capacity = bytes;
        self
    }

    /// Bytes of a page: a power of two from 4 KiB to 64 KiB. Default: the size that the store was created with, or 4 KiB for a
    /// new store. Opening a store with another size is an error.
    ///
    /// Larger pages allow longer keys ([`max_key`](crate::max_key)).
    pub fn page_size(mut self, bytes: usize) -> Self {
        self.page_size = Some(bytes);
        self
    }

    /// The engine of the buffer pool. Default: the best that works here. The files are the same for every engine.
    pub fn engine(mut self, engine: Choice) -> Self {
        self.engine = engine;
        self
    }

    /// The moment when a commit returns. Default: when it is durable.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Maximum number of bytes of superseded values that are kept for snapshots. Default: [`DEFAULT_VERSION_BYTES`].
    pub fn version_bytes(mut self, bytes: usize) -> Self {
        self.version_bytes = bytes;
        self
    }

    /// Number of bytes of log after which a checkpoint begins. Default: [`DEFAULT_CHECKPOINT_BYTES`].
    pub fn checkpoint_bytes(mut self, bytes: u64) -> Self {
        self.checkpoint_bytes = bytes;
        self
    }

    /// Whether a store is created if there is none. Default: yes. Otherwise the result is [`Error::NoStore`].
    pub fn create_if_missing(mut self, creates: bool) -> Self {
        self.creates = creates;
        self
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.memory
    }

    /// Stores pages and log here instead of in the directory.
    #[cfg(test)]
    pub(crate) fn devices(mut self, storage: Box<dyn Storage>, disk: Arc<dyn Disk>) -> Self {
        (self.storage, self.disk) = (Some(storage), Some(disk));
        self
    }

    /// Opens the store, creates an empty one, or recovers one that was not closed.
    pub fn open(self) -> Result<Store> {
        static STORES: AtomicU64 = AtomicU64::new(0);
        let lock = if self.creates { lock(&self.directory)? } else { lock_existing(&self.directory)? };
        if self.directory.join(INCOMPLETE).exists() {
            return Err(Error::Incomplete(self.directory));
        }
        // A file of new pages belongs to a compaction that was interrupted, because this store has the lock. A file that
        // cannot be removed does no harm.
        let _ = std::fs::remove_file(self.directory.join(NEW_PAGES));
        if self.storage.is_none() {
            check_log_is_there(&self.directory)?;
        }
        let disk = self.disk.unwrap_or_else(|| Arc::new(Directory(self.directory.clone())));
        let found = Replay::read(disk)?;
        let mut pool = Pool::builder(self.directory.join(PAGES))
            .memory(self.memory)
            .capacity(self.capacity)
            .engine(self.engine);
        if let Some(bytes) = self.page_size {
            pool = pool.page_size(bytes);
        }
        if let Some(storage) = self.storage {
            pool = pool.storage(storage);
        }
        if !found.is_new() {
            // This comes before the files of the log are changed, because another copy of them may have the rest.
            check_log_end(&mut pool, found.end())?;
        }
        let (log, replay) = found.open()?;
        let opened = pool.log(Arc::clone(&log) as Arc<dyn bedplate_bufpool::Log>).open();
        let pool = Arc::new(opened.map_err(|error| match error {
            bedplate_bufpool::Error::LogTooShort { .. } if replay.is_new() => {
                Error::Missing("the log is missing")
            }
            error => error.into(),
        })?);
        log.set_page_size(pool.page_size());
        // The name of the pool's file must survive a crash.
        sync_names(&self.directory).map_err(Error::directory(&self.directory, "make its names durable"))?;
        check_pair(&pool, &replay)?;
        let number = STORES.fetch_add(1, Ordering::Relaxed);
        let recovered = recovery::recover(&pool, &log, &replay, number)?;
        let store = Store {
            number,
            _lock: lock,
            last_checkpoint: replay.checkpoint().into(),
            pool,
            log,
            catalog: recovered.catalog,
            trees: recovered.trees.into(),
            commit: ().into(),
            clock: Clock::at(recovered.timestamp),
            versions: Versions::new(self.version_bytes),
            durability: self.durability,
            promised_pages: 0.into(),
            checkpoint_bytes: self.checkpoint_bytes,
            poisoned: false.into(),
            counters: Counters::default(),
            commit_latency: Recorder::new(),
            checkpoint_latency: Recorder::new(),
        };
        store.checkpoint()?;
        Ok(store)
    }
}

/// Refuses pages without a log. The log of a new store is durable before its pages exist, so such a store has lost its log. It must
/// not get an empty log, because the next opening would accept that.
fn check_log_is_there(directory: &Path) -> Result<()> {
    let has_pages = directory.join(PAGES).metadata().is_ok_and(|pages| pages.len() > 0);
    let failed = Error::directory(directory, "look for the log");
    if has_pages && Directory(directory.to_owned()).list().map_err(failed)?.is_empty() {
        return Err(Error::Missing("the log is missing"));
    }
    Ok(())
}

/// Refuses a log that ends before the LSN that the superblock has.
pub(crate) fn check_log_end(pool: &mut bedplate_bufpool::Builder, log_end: u64) -> Result<()> {
    let pages = pool.stored_lsn()?;
    if pages > log_end {
        return Err(bedplate_bufpool::Error::LogTooShort { log_end, pages }.into());
    }
    Ok(())
}

/// Whether the pages and the log are of one store.
pub(crate) fn check_pair(pool: &Pool, replay: &Replay) -> Result<()> {
    match (pool.root(CATALOG_SLOT) == 0, replay.is_new(), replay.has_checkpoint()) {
        (false, true, _) => Err(Error::Missing("the log is missing")),
        (true, _, true) => Err(Error::Missing("the pages are missing, and the log does not begin")),
        _ => Ok(()),
    }
}

/// Locks a directory that has a store, for the caller alone.
pub(crate) fn lock_existing(directory: &Path) -> Result<File> {
    check_there_is_a_store(directory)?;
    lock(directory)
}

/// Locks a directory that has a store, for the caller and others that only read it. This needs no permission to write. Returns
/// none if the store has no lock file, and there cannot be one.
pub(crate) fn lock_for_reading(directory: &Path) -> Result<Option<File>> {
    check_there_is_a_store(directory)?;
    let path = directory.join("lock");
    let failed = Error::directory(directory, "open its lock file");
    let file = match File::open(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            match OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path) {
                // A program that opens the store writes this file too.
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem
                    ) =>
                {
                    return Ok(None);
                }
                created => created.map_err(failed)?,
            }
        }
        opened => opened.map_err(failed)?,
    };
    take(directory, &file, File::try_lock_shared)?;
    Ok(Some(file))
}

fn check_there_is_a_store(directory: &Path) -> Result<()> {
    let failed = || Error::directory(directory, "look for a store");
    let has_log = || -> io::Result<bool> {
        match Directory(directory.to_owned()).list() {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            segments => Ok(!segments?.is_empty()),
        }
    };
    let has_pages = directory.join(PAGES).try_exists().map_err(failed())?;
    if !has_pages && !has_log().map_err(failed())? {
        return Err(Error::NoStore(directory.to_owned()));
    }
    Ok(())
}

/// Locks a directory for this store alone.
pub(crate) fn lock(directory: &Path) -> Result<File> {
    create_directory(directory).map_err(Error::directory(directory, "create the directory"))?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let file =
        options.open(directory.join("lock")).map_err(Error::directory(directory, "open its lock file"))?;
    take(directory, &file, File::try_lock)?;
    Ok(file)
}

/// Locks the lock file of a directory.
fn take(
    directory: &Path,
    file: &File,
    lock: fn(&File) -> std::result::Result<(), TryLockError>,
) -> Result<()> {
    let is_held = |error: &TryLockError| matches!(error, TryLockError::WouldBlock);
    outwait(|| lock(file), is_held).map_err(|error| match error {
        TryLockError::WouldBlock => Error::InUse(directory.to_owned()),
        TryLockError::Error(source) => Error::directory(directory, "lock it")(source),
    })
}
