//! Opening a pool.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::access::payload::Payload;
use crate::access::prefetch_queue::PrefetchQueue;
use crate::buffer::{Buffers, TOGETHER};
use crate::durability::double_write::{self, DoubleWrite, TornPages};
use crate::durability::last_lsn::LastLsn;
use crate::durability::log::Log;
use crate::durability::page_allocator::{self, PageAllocator};
use crate::durability::page_store::PageStore;
use crate::durability::superblock::{FIRST, Superblock};
use crate::engine::{Array, Engine, Kind, Mapped, Release, Table};
#[cfg(all(feature = "ring0", target_arch = "x86_64"))]
use crate::engine::{Ring0, ring0::Parts};
use crate::error::{Error, Result};
use crate::page::{MAX_PAGES, PAGE};
use crate::page_size::PageSize;
use crate::pool::{Core, Pool};
use crate::replacement::provider::{self, Provider};
use crate::replacement::usage_count::UsageCounts;
use crate::statistics::Counters;
use crate::storage::{File, Storage};

/// Minimum number of pages in memory: an operation of a tree holds several, and several threads run operations.
const LEAST_FRAMES: usize = 16;
/// Maximum number of pages that are evicted at once. A batch costs one flush, and a thread that needs one frame waits for the
/// whole batch.
const MOST_BATCH: usize = 256;

/// The choice of the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Choice {
    /// The best engine that works here.
    #[default]
    Auto,
    /// This engine, or an error that says why it does not work.
    Only(Kind),
}

/// Opens a pool: [`Pool::builder`].
pub struct Builder {
    path: PathBuf,
    storage: Option<Box<dyn Storage>>,
    memory: usize,
    capacity: u64,
    page_size: Option<usize>,
    choice: Choice,
    direct: bool,
    batch: Option<usize>,
    provider_threads: usize,
    log: Option<Arc<dyn Log>>,
    torn_pages: Option<TornPages>,
    recover: bool,
    #[cfg(all(feature = "ring0", target_arch = "x86_64"))]
    parts: Parts,
}

impl Pool {
    /// Begins to open the pool in a file or a block device; a file that does not exist is created.
    pub fn builder(path: impl AsRef<Path>) -> Builder {
        Builder::new(path.as_ref())
    }
}

impl Builder {
    fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            storage: None,
            memory: 64 << 20,
            capacity: 16 << 30,
            page_size: None,
            choice: Choice::Auto,
            direct: true,
            batch: None,
            provider_threads: provider::DEFAULT_THREADS,
            log: None,
            torn_pages: None,
            recover: false,
            #[cfg(all(feature = "ring0", target_arch = "x86_64"))]
            parts: Parts::ALL,
        }
    }

    /// Maximum number of bytes of pages in memory. Default: 64 MiB.
    pub fn memory(mut self, bytes: usize) -> Self {
        self.memory = bytes;
        self
    }

    /// Maximum number of bytes that the storage can ever have. The array engine reserves a 1024th of it as address space. Engines
    /// whose page numbers are addresses reserve all of it, and a 512th for the pages' states. It may differ each time that the
    /// pool is opened. Default: 16 GiB; on a block device at most its size.
    pub fn capacity(mut self, bytes: u64) -> Self {
        self.capacity = bytes;
        self
    }

    /// Bytes of a page: a power of two from 4 KiB to 64 KiB. Default: the size of the pages in the storage, or 4 KiB for a
    /// new pool.
    ///
    /// A pool has the size that it was created with. Opening it with another one is an error ([`Error::PageSize`]). The pool's
    /// own pages are the first 256, whatever their size: 1 MiB of pages of 4 KiB, 16 MiB of pages of 64 KiB. The `ring0` engine
    /// has pages of 4 KiB only.
    pub fn page_size(mut self, bytes: usize) -> Self {
        self.page_size = Some(bytes);
        self
    }

    /// The engine. Default: the best that works here.
    pub fn engine(mut self, choice: Choice) -> Self {
        self.choice = choice;
        self
    }

    /// Whether to bypass the kernel's page cache, where the file system allows it. Default: yes.
    pub fn direct(mut self, direct: bool) -> Self {
        self.direct = direct;
        self
    }

    /// Number of pages that are evicted at once. Default: a 32nd of those in memory, at most 256.
    pub fn batch(mut self, pages: usize) -> Self {
        self.batch = Some(pages);
        self
    }

    /// Number of threads that keep some frames free, by evicting and writing pages before a frame is needed: up to 8. With 0, a
    /// thread that needs a frame evicts and writes pages itself. Default: 1.
    ///
    /// The threads start when few frames are free for the first time. From then on they keep up to a 32nd of the frames free. The
    /// `ring0` engine has no such threads, whatever this setting says. Waking one is a system call, and that engine promises
    /// evictions without system calls.
    pub fn provider_threads(mut self, threads: usize) -> Self {
        self.provider_threads = threads;
        self
    }

    /// The log. No page is written before the records about it are durable. A pool with a log is also opened when it was not
    /// closed ([`Pool::needs_recovery`]).
    pub fn log(mut self, log: Arc<dyn Log>) -> Self {
        self.log = Some(log);
        self
    }

    /// The protection of pages from being torn by a crash. Default: the pool protects them, if it has a log.
    pub fn torn_pages(mut self, torn_pages: TornPages) -> Self {
        self.torn_pages = Some(torn_pages);
        self
    }

    /// Opens a pool that was not closed, even without a log. Its pages may then be from different moments.
    pub fn recover(mut self, recover: bool) -> Self {
        self.recover = recover;
        self
    }

    /// Stores pages here instead of in a file.
    pub fn storage(mut self, storage: Box<dyn Storage>) -> Self {
        self.storage = Some(storage);
        self
    }

    /// Selects the parts of the engine in ring 0. Benchmarks measure the effect of each part.
    #[cfg(all(feature = "ring0", feature = "bench", target_arch = "x86_64"))]
    #[doc(hidden)]
    pub fn parts(mut self, parts: Parts) -> Self {
        self.parts = parts;
        self
    }

    /// Opens the storage, and returns an LSN up to which the log must be there: no page had a greater one at the last
    /// [`sync`](Pool::sync) or [`close`](Pool::close). It is 0 if there is no pool yet.
    ///
    /// [`Builder::open`] compares the log with it. A program whose log changes its files when it is opened calls this before.
    pub fn stored_lsn(&mut self) -> Result<u64> {
        let storage = self.take_storage()?;
        let found = Superblock::load(&*storage);
        self.storage = Some(storage);
        Ok(found?.map_or(0, |superblock| superblock.lsn))
    }

    fn take_storage(&mut self) -> Result<Box<dyn Storage>> {
        if let Some(storage) = self.storage.take() {
            return Ok(storage);
        }
        let file = File::open(&self.path, self.direct).map_err(Error::storage("open the pool"))?;
        // A system call in ring 0 costs several times one in ring 3.
        let is_ring0 = matches!(self.choice, Choice::Only(kind) if kind.is_ring0());
        Ok(Box::new(if is_ring0 { file.polled() } else { file }))
    }

    /// Opens the pool, or creates an empty one.
    pub fn open(mut self) -> Result<Pool> {
        let setting = |what, value, must| Err(Error::Setting { what, value, must });
        let asked_size = self.page_size.map(PageSize::new).transpose()?;
        // Settings that are too small for this page size are refused before the storage is opened or created. The storage may have
        // larger pages.
        self.limits(asked_size.unwrap_or_default())?;
        if self.provider_threads > provider::MOST_THREADS {
            return setting("provider threads", self.provider_threads as u64, "at most 8");
        }
        let storage = self.take_storage()?;
        let found = Superblock::load(&*storage)?;
        let log_end = self.log.as_ref().map(|log| log.durable_lsn());
        if let (Some(found), Some(log_end)) = (&found, log_end)
            && found.lsn > log_end
        {
            return Err(Error::LogTooShort { log_end, pages: found.lsn });
        }
        let size = match (&found, asked_size) {
            (Some(Superblock { size, .. }), Some(asked)) if asked != *size => {
                return Err(Error::PageSize { asked, found: *size });
            }
            (Some(Superblock { size, .. }), _) => *size,
            (None, asked) => asked.unwrap_or_default(),
        };
        let Limits { frames, mut limit, batch } = self.limits(size)?;
        let device = storage.limit().map_err(Error::storage("look at the size of the device"))?;
        let device = device.map(|blocks| size.page_of(blocks));
        if let Some(pages) = device {
            limit = limit.min(pages);
            if limit <= FIRST {
                return setting(
                    "a device",
                    pages << size.shift(),
                    "a pool takes more than 256 pages, which are 1 MiB of pages of 4 KiB",
                );
            }
        }
        #[cfg(all(feature = "ring0", target_arch = "x86_64"))]
        let asked = match self.choice {
            Choice::Only(Kind::Ring0) => {
                let ring0 = Box::new(Ring0::new(limit, size, frames, self.parts)?);
                Some((Engine::Ring0(ring0), Kind::Ring0, "it was asked for".to_owned()))
            }
            _ => None,
        };
        #[cfg(not(all(feature = "ring0", target_arch = "x86_64")))]
        let asked = None;
        let (engine, kind, reason) = match asked {
            Some(asked) => asked,
            None => engine(self.choice, limit, frames, size)?,
        };
        let superblock = match found {
            Some(superblock) => superblock,
            None => create(&*storage, size)?,
        };
        if let Some(pages) = device.filter(|pages| *pages < superblock.end) {
            return setting("a device", pages << size.shift(), "the pool in it needs more");
        }
        if superblock.end > limit {
            return setting("capacity", self.capacity, "at least what is in use");
        }
        let recovering = !superblock.clean;
        if recovering && !self.recover && self.log.is_none() {
            return Err(Error::Unclean);
        }
        let restored = double_write::restore(&*storage, size, recovering)?;
        let torn = restored.pages;
        let default = if self.log.is_some() { TornPages::DoubleWrite } else { TornPages::Detect };
        let double = match self.torn_pages.unwrap_or(default) {
            TornPages::DoubleWrite => Some(DoubleWrite::new(restored, size)),
            TornPages::Detect => {
                double_write::forget(&*storage, size, &restored)?;
                None
            }
        };
        let (free, end) = if superblock.clean {
            (page_allocator::load(&*storage, size, superblock.free, superblock.end)?, superblock.end)
        } else {
            (
                BTreeSet::new(),
                page_allocator::find_end(&*storage, size, superblock.end, superblock.room.min(limit))?,
            )
        };
        let room = superblock.room.min(limit);
        let unwritten = superblock.written_up_to..end;
        let outdated = superblock.outdated;
        let frame_table = engine.frames(frames);
        // The module `provider` says why.
        let provider_threads = if kind.is_ring0() { 0 } else { self.provider_threads };
        let last_lsn = LastLsn::new(superblock.lsn);
        let core = Core {
            size,
            layout: engine.layout(),
            engine,
            batch,
            usage: UsageCounts::new(frames),
            frames: frame_table,
            store: PageStore::new(storage.into(), double, superblock),
            log: self.log,
            buffers: Buffers::new(size, TOGETHER),
            counters: Counters::restored(torn),
        };
        let pool = Pool {
            provider: Provider::new(provider_threads, frames),
            prefetch_queue: PrefetchQueue::default(),
            core: Arc::new(core),
            limit,
            payload_words: Payload::words_of(size),
            allocator: PageAllocator::new(free, unwritten, end, room, limit),
            last_lsn,
            log_end,
            kind,
            reason,
            recovering,
        };
        if outdated {
            if let Some(log) = &pool.log {
                // Every page in storage has a number up to this one: no page is written before its records.
                pool.last_lsn.note(log.durable_lsn());
            }
            if !recovering {
                // Version 1 stored the list of free pages without a number, and did not record which pages were written.
                pool.close()?;
            }
        }
        if pool.log.is_some() {
            // From here on, there may be commits that only the log has. After a crash, the log must be replayed.
            drop(pool.store.begin()?);
        }
        Ok(pool)
    }
}

/// The settings of a builder, in pages.
struct Limits {
    frames: usize,
    limit: u64,
    batch: usize,
}

impl Builder {
    /// Converts the settings to pages of this size. Fails if a pool with such pages cannot have them.
    fn limits(&self, size: PageSize) -> Result<Limits> {
        let setting = |what, value, must| Err(Error::Setting { what, value, must });
        let frames = self.memory >> size.shift();
        if frames < LEAST_FRAMES || frames > MAX_PAGES as usize / 2 {
            let must = "at least 16 pages, which are 64 KiB of pages of 4 KiB, and at most 2^31 pages";
            return setting("memory", self.memory as u64, must);
        }
        let limit = self.capacity >> size.shift();
        if limit <= FIRST || limit > MAX_PAGES {
            let must = "more than 256 pages, which are 1 MiB of pages of 4 KiB, and at most 2^32 pages";
            return setting("capacity", self.capacity, must);
        }
        let batch = self.batch.unwrap_or((frames / 32).clamp(1, MOST_BATCH));
        if batch == 0 || batch > frames {
            return setting("batch", batch as u64, "at least 1, at most the pages in memory");
        }
        Ok(Limits { frames, limit, batch })
    }
}

fn create(storage: &dyn Storage, size: PageSize) -> Result<Superblock> {
    storage.grow(0..size.block(FIRST)).map_err(Error::storage("make room for the pool"))?;
    let mut superblock = Superblock::empty(size);
    superblock.store(storage)?;
    storage.sync().map_err(Error::storage("make the new pool durable"))?;
    Ok(superblock)
}

/// Which engine a pool of this capacity would choose here, and why.
pub fn probe(capacity: u64) -> Result<(Kind, String)> {
    let pages = (capacity / PAGE as u64).clamp(FIRST + 1, MAX_PAGES);
    engine(Choice::Auto, pages, LEAST_FRAMES, PageSize::MIN).map(|(_, kind, reason)| (kind, reason))
}

/// The engine that was chosen, which one it is, and why.
fn engine(choice: Choice, pages: u64, frames: usize, size: PageSize) -> Result<(Engine, Kind, String)> {
    let asked = || "it was asked for".to_owned();
    match choice {
        Choice::Only(Kind::Array) => {
            Ok((Engine::Array(Array::new(pages, frames, size)?), Kind::Array, asked()))
        }
        #[cfg(feature = "bench")]
        Choice::Only(Kind::Vmcache) => {
            Ok((Engine::Mapped(Mapped::new(pages, size, Release::Single)?), Kind::Vmcache, asked()))
        }
        Choice::Only(Kind::Hashtable) => {
            Ok((Engine::Table(Table::new(frames, size)?), Kind::Hashtable, asked()))
        }
        #[cfg(feature = "ring0")]
        Choice::Only(engine @ Kind::Ring0) => {
            Err(Error::Unavailable { engine, reason: "it takes an x86-64 processor".to_owned() })
        }
        Choice::Only(Kind::Stock) => stock(pages, size),
        Choice::Auto => match Array::new(pages, frames, size) {
            Ok(array) => Ok((Engine::Array(array), Kind::Array, "its evictions unmap nothing".to_owned())),
            // It reserves no address space except that of its memory.
            Err(error) => Ok((Engine::Table(Table::new(frames, size)?), Kind::Hashtable, error.to_string())),
        },
    }
}

fn stock(pages: u64, size: PageSize) -> Result<(Engine, Kind, String)> {
    let (release, reason) = match Release::probe() {
        Ok(release) => (release, "it was asked for, and releases many pages with one call".to_owned()),
        Err(why) => (Release::Single, does_not_batch(&why)),
    };
    Ok((Engine::Mapped(Mapped::new(pages, size, release)?), Kind::Stock, reason))
}

/// The reason for `stock` on kernels before Linux 6.13, which refuse `process_madvise` on oneself.
fn does_not_batch(why: &str) -> String {
    format!(
        "it does not batch evictions before Linux 6.13 ({why}): it unmaps pages one by one, with an interrupt of all \
         processors each; the array engine unmaps nothing and is the better choice here"
    )
}
