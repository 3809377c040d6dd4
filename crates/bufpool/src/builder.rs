//! How a pool is opened.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::arrivals::Arrivals;
use crate::buffer::{Buffers, TOGETHER};
use crate::credit::Credit;
use crate::doublewrite::{self, DoubleWrite, TornPages};
use crate::engine::{Engine, Kind, Mapped, Release, Table};
#[cfg(target_arch = "x86_64")]
use crate::engine::{Ring0, ring0::Parts};
use crate::error::{Error, Result};
use crate::home::Home;
use crate::log::Log;
use crate::meta::{FIRST, Meta};
use crate::page::{MAX_PAGES, PAGE};
use crate::pool::Pool;
use crate::space::{self, Space};
use crate::statistics::Counters;
use crate::storage::{File, Storage};

/// The fewest pages in memory: a tree's operation holds several, and several threads have some each.
const LEAST_FRAMES: usize = 16;
/// The most pages that are evicted at once. A batch costs one flush, and whoever needs one page waits for all of them.
const MOST_BATCH: usize = 256;

/// Which engine a pool has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Choice {
    /// The best that works here.
    #[default]
    Auto,
    /// This one, or an error that says why not.
    Only(Kind),
}

/// Opens a pool: [`Pool::builder`].
pub struct Builder {
    path: PathBuf,
    storage: Option<Box<dyn Storage>>,
    memory: usize,
    capacity: u64,
    choice: Choice,
    direct: bool,
    batch: Option<usize>,
    log: Option<Arc<dyn Log>>,
    torn_pages: Option<TornPages>,
    recover: bool,
    #[cfg(target_arch = "x86_64")]
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
            choice: Choice::Auto,
            direct: true,
            batch: None,
            log: None,
            torn_pages: None,
            recover: false,
            #[cfg(target_arch = "x86_64")]
            parts: Parts::ALL,
        }
    }

    /// How many bytes of pages are in memory at most. Default: 64 MiB.
    pub fn memory(mut self, bytes: usize) -> Self {
        self.memory = bytes;
        self
    }

    /// How many bytes the storage may ever have: so much address space is reserved, and 1/512 of it for the pages' states.
    /// It may be another one each time. Default: 16 GiB; of a block device at most its size.
    pub fn capacity(mut self, bytes: u64) -> Self {
        self.capacity = bytes;
        self
    }

    /// Which engine. Default: the best that works here.
    pub fn engine(mut self, choice: Choice) -> Self {
        self.choice = choice;
        self
    }

    /// Whether to bypass the kernel's page cache, where the file system allows it. Default: yes.
    pub fn direct(mut self, direct: bool) -> Self {
        self.direct = direct;
        self
    }

    /// How many pages are evicted at once. Default: a 32nd of those in memory, at most 256.
    pub fn batch(mut self, pages: usize) -> Self {
        self.batch = Some(pages);
        self
    }

    /// The log without whose records no page is written. A pool with a log is also opened when it was not closed
    /// ([`Pool::needs_recovery`]).
    pub fn log(mut self, log: Arc<dyn Log>) -> Self {
        self.log = Some(log);
        self
    }

    /// What protects pages from being torn by a crash. Default: the pool, if it has a log.
    pub fn torn_pages(mut self, torn_pages: TornPages) -> Self {
        self.torn_pages = Some(torn_pages);
        self
    }

    /// Opens a pool that was not closed, even without a log: what is in it is of different moments.
    pub fn recover(mut self, recover: bool) -> Self {
        self.recover = recover;
        self
    }

    /// Pages are here instead of in a file.
    pub fn storage(mut self, storage: Box<dyn Storage>) -> Self {
        self.storage = Some(storage);
        self
    }

    /// Does without parts of the engine in ring 0, for those who want to know what each is worth.
    #[cfg(target_arch = "x86_64")]
    #[doc(hidden)]
    pub fn parts(mut self, parts: Parts) -> Self {
        self.parts = parts;
        self
    }

    /// Opens the pool, or creates an empty one.
    pub fn open(self) -> Result<Pool> {
        let frames = self.memory / PAGE;
        let setting = |what, value, must| Err(Error::Setting { what, value, must });
        if frames < LEAST_FRAMES || frames > MAX_PAGES as usize / 2 {
            return setting("memory", self.memory as u64, "at least 64 KiB, at most 8 TiB");
        }
        let mut limit = self.capacity / PAGE as u64;
        if limit <= FIRST || limit > MAX_PAGES {
            return setting("capacity", self.capacity, "more than 1 MiB, at most 16 TiB");
        }
        let batch = self.batch.unwrap_or((frames / 32).clamp(1, MOST_BATCH));
        if batch == 0 || batch > frames {
            return setting("batch", batch as u64, "at least 1, at most the pages in memory");
        }
        let storage: Box<dyn Storage> = match self.storage {
            Some(storage) => storage,
            None => {
                let file = File::open(&self.path, self.direct).map_err(Error::storage("open the pool"))?;
                // A system call in ring 0 costs several times one in ring 3.
                Box::new(if self.choice == Choice::Only(Kind::Ring0) { file.polled() } else { file })
            }
        };
        let device = storage.limit().map_err(Error::storage("look at the size of the device"))?;
        if let Some(pages) = device {
            limit = limit.min(pages);
            if limit <= FIRST {
                return setting("a device", pages * PAGE as u64, "a pool takes more than 1 MiB");
            }
        }
        #[cfg(target_arch = "x86_64")]
        let asked = match self.choice {
            Choice::Only(Kind::Ring0) => {
                let ring0 = Box::new(Ring0::new(limit, frames, self.parts)?);
                Some((Engine::Ring0(ring0), Kind::Ring0, "it was asked for".to_owned()))
            }
            _ => None,
        };
        #[cfg(not(target_arch = "x86_64"))]
        let asked = None;
        let (engine, kind, reason) = match asked {
            Some(asked) => asked,
            None => engine(self.choice, limit, frames)?,
        };
        let meta = match Meta::load(&*storage)? {
            Some(meta) => meta,
            None => create(&*storage)?,
        };
        if let Some(pages) = device.filter(|pages| *pages < meta.end) {
            return setting("a device", pages * PAGE as u64, "the pool in it needs more");
        }
        if meta.end > limit {
            return setting("capacity", self.capacity, "at least what is in use");
        }
        let recovering = !meta.clean;
        if recovering && !self.recover && self.log.is_none() {
            return Err(Error::Unclean);
        }
        let (sequence, restored) = doublewrite::restore(&*storage, recovering)?;
        let default = if self.log.is_some() { TornPages::DoubleWrite } else { TornPages::Detect };
        let double = match self.torn_pages.unwrap_or(default) {
            TornPages::DoubleWrite => Some(DoubleWrite::new(sequence)),
            TornPages::Detect => {
                doublewrite::forget(&*storage)?;
                None
            }
        };
        let (free, end) = if meta.clean {
            (space::load(&*storage, meta.free, meta.end)?, meta.end)
        } else {
            (BTreeSet::new(), space::find_end(&*storage, meta.end, meta.room.min(limit))?)
        };
        let room = meta.room.min(limit);
        let slots = engine.slots(frames);
        let pool = Pool {
            prefetched: Arrivals::default(),
            layout: engine.layout(),
            engine,
            limit,
            batch,
            credit: Credit::new(frames),
            slots,
            space: Space::new(free, end, room, limit),
            home: Home::new(storage.into(), double, meta),
            log: self.log,
            buffers: Buffers::new(TOGETHER),
            counters: Counters::restored(restored),
            kind,
            reason,
            recovering,
        };
        if pool.log.is_some() {
            // From here on there may be commits that only the log has: after a crash it must be asked.
            drop(pool.home.begin()?);
        }
        Ok(pool)
    }
}

fn create(storage: &dyn Storage) -> Result<Meta> {
    storage.grow(0..FIRST).map_err(Error::storage("make room for the pool"))?;
    let mut meta = Meta::empty();
    meta.store(storage)?;
    storage.sync().map_err(Error::storage("make the new pool durable"))?;
    Ok(meta)
}

/// Which engine a pool of this capacity would have here if it may choose, and why.
pub fn probe(capacity: u64) -> Result<(Kind, String)> {
    let pages = (capacity / PAGE as u64).clamp(FIRST + 1, MAX_PAGES);
    engine(Choice::Auto, pages, LEAST_FRAMES).map(|(_, kind, reason)| (kind, reason))
}

/// The engine that was chosen, which one it is, and why.
fn engine(choice: Choice, pages: u64, frames: usize) -> Result<(Engine, Kind, String)> {
    let asked = || "it was asked for".to_owned();
    match choice {
        Choice::Only(Kind::Vmcache) => {
            Ok((Engine::Mapped(Mapped::new(pages, Release::Single)?), Kind::Vmcache, asked()))
        }
        Choice::Only(Kind::Hashtable) => Ok((Engine::Table(Table::new(frames)?), Kind::Hashtable, asked())),
        Choice::Only(engine @ Kind::Ring0) => {
            Err(Error::Unavailable { engine, reason: "it takes an x86-64 processor".to_owned() })
        }
        Choice::Only(Kind::Stock) => stock(pages),
        Choice::Auto => stock(pages).or_else(|error| {
            // Its memory is all the address space it takes.
            let table = Table::new(frames)?;
            Ok((Engine::Table(table), Kind::Hashtable, error.to_string()))
        }),
    }
}

fn stock(pages: u64) -> Result<(Engine, Kind, String)> {
    let (release, reason) = match Release::probe() {
        Ok(release) => (release, "many pages are released with one call".to_owned()),
        Err(why) => (Release::Single, format!("pages are released one by one: {why}")),
    };
    Ok((Engine::Mapped(Mapped::new(pages, release)?), Kind::Stock, reason))
}
