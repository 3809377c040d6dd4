//! Verification of a store that was closed, or that a crash left. It finds damage and changes nothing.
//!
//! It does what opening the store does, including recovery, on an `overlay`. So it verifies the records that a user would see.
//! Then it reads every page, walks all trees, and compares the pages that they reach with the free ones.
//!
//! - A page is sound if its checksum is right, it is the page that belongs there, and its log sequence number is not beyond the
//!   end of the log. A page beyond it has a change whose record the log has lost.
//! - Damage in a tree does not end the walk, but the walk cannot reach the nodes below a damaged one. So pages that are in no
//!   tree and not free are damage only if no tree is damaged.
//! - Bytes at the end of the log that are not a record are damage if the store was closed. Otherwise they are the last write
//!   before the crash, which did not become durable.

use std::path::Path;
use std::sync::Arc;

use bedplate_bufpool::storage::File as PageFile;
use bedplate_bufpool::{Error as PoolError, PageId, Pool};

use super::Store;
use super::builder::{self, INCOMPLETE, MAX_CAPACITY, PAGES};
use super::disk::Directory;
use super::error::{Error, Result};
use super::limits::MAX_DAMAGES;
use super::log::Log;
use super::overlay::{Overlay, ReadOnly};
use super::progress::Progress;
use super::recovery;
use super::replay::{Replay, Scanned, scan};
use super::trees::{self, CATALOG_SLOT, Trees};
use crate::page_set::PageSet;
use crate::{Journal, Shape, Tree};

/// Bytes of pages in memory during a verification.
const MEMORY: usize = 64 << 20;
/// Pages that are read at once.
const TOGETHER: u64 = 64;

/// The result of [`Store::verify`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verification {
    /// Whether the store was closed. If not, the result describes the store after recovery.
    pub is_closed: bool,
    /// Pages of the store, in use or free.
    pub pages: u64,
    /// Free pages.
    pub free_pages: u64,
    /// The log.
    pub log: LogSummary,
    /// The trees, by name.
    pub trees: Vec<TreeSummary>,
    /// The first damages; [`Verification::damage_count`] has their number.
    pub damages: Vec<Damage>,
    /// Number of damages.
    pub damage_count: u64,
}

impl Verification {
    /// Whether nothing is damaged.
    pub fn is_sound(&self) -> bool {
        self.damage_count == 0
    }
}

/// The log of a store that was verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogSummary {
    /// Segments.
    pub segments: u64,
    /// Bytes of records.
    pub bytes: u64,
    /// Records.
    pub records: u64,
    /// Records that are transactions.
    pub commits: u64,
    /// Bytes at the end that are not a record.
    pub torn_bytes: u64,
}

/// A tree of a store that was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TreeSummary {
    /// Its name.
    pub name: String,
    /// Its size and structure, as far as its pages can be reached.
    pub shape: Shape,
    /// Damages in it.
    pub damages: u64,
}

/// One damage.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damage {
    /// The tree of the damage, if it is known.
    pub tree: Option<String>,
    /// The page.
    pub page: Option<PageId>,
    /// The segment of the log.
    pub segment: Option<u64>,
    /// The damage.
    pub what: String,
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(tree) = &self.tree {
            write!(f, "tree {tree:?}: ")?;
        }
        f.write_str(&self.what)
    }
}

impl Verification {
    /// Adds a damage. If the page has a known damage already, only adds the tree.
    fn add(&mut self, damage: Damage) {
        if damage.page.is_some()
            && let Some(known) = self.damages.iter_mut().find(|known| known.page == damage.page)
        {
            if known.tree.is_none() {
                known.tree = damage.tree;
            }
            return;
        }
        self.damage_count += 1;
        if self.damages.len() < MAX_DAMAGES {
            self.damages.push(damage);
        }
    }

    fn add_error(&mut self, tree: Option<&str>, error: &crate::Error) {
        let damage = Damage {
            tree: tree.map(str::to_owned),
            page: page_of(error),
            segment: None,
            what: error.to_string(),
        };
        self.add(damage);
    }

    fn add_page(&mut self, page: PageId, what: impl Into<String>) {
        self.add(Damage { tree: None, page: Some(page), segment: None, what: what.into() });
    }

    /// Adds an error that opening the store would return.
    fn add_refusal(&mut self, error: &Error) {
        match error {
            Error::Tree(error) => self.add_error(None, error),
            Error::LogDamaged { segment, what } => self.add_segment(*segment, what),
            error => self.add(Damage { tree: None, page: None, segment: None, what: error.to_string() }),
        }
    }

    fn add_segment(&mut self, segment: u64, what: &str) {
        let is_known = self.damages.iter().any(|damage| damage.segment == Some(segment));
        if !is_known {
            let what = format!("segment {segment} of the log {what}");
            self.add(Damage { tree: None, page: None, segment: Some(segment), what });
        }
    }
}

/// The page that an error is about.
fn page_of(error: &crate::Error) -> Option<PageId> {
    match error {
        crate::Error::Damaged { page, .. }
        | crate::Error::Pool(
            PoolError::Damaged { page, .. }
            | PoolError::Read { page, .. }
            | PoolError::NoSuchPage { page }
            | PoolError::PageAheadOfLog { page, .. },
        ) => Some(*page),
        _ => None,
    }
}

/// Whether an error says that the store is damaged. Other errors concern the verification itself, such as a full directory for
/// temporary files.
fn is_damage(error: &crate::Error) -> bool {
    matches!(
        error,
        crate::Error::Record { .. }
            | crate::Error::NoTree { .. }
            | crate::Error::Pool(PoolError::Format(_) | PoolError::LogTooShort { .. })
    ) || page_of(error).is_some()
}

/// The catalog, the trees, and whether recovery succeeded.
type Found = (Tree<Arc<Pool>>, Trees, bool);

/// A store that was opened on an overlay.
struct Opened {
    pool: Arc<Pool>,
    log: Arc<Log>,
    /// Whether the log can be repeated.
    has_log: bool,
    found: Verification,
}

impl Store {
    /// Verifies the store in a directory, which no process has open, and changes nothing. Damage is not an error, but part of the
    /// result. An error says that the store could not be read, or that its creation was interrupted ([`Error::NoStore`]).
    ///
    /// If the store was not closed, its pages after recovery are written to a temporary file. The caller needs no permission to
    /// write to the directory, which may be on a read-only file system. Several verifications can run at once.
    pub fn verify(directory: impl AsRef<Path>, progress: &mut dyn FnMut(Progress)) -> Result<Verification> {
        let directory = directory.as_ref();
        let _lock = builder::lock_for_reading(directory)?;
        if directory.join(INCOMPLETE).exists() {
            return Err(Error::Incomplete(directory.to_owned()));
        }
        let mut found = Verification::default();
        let scanned = scan(&Directory(directory.to_owned()))?;
        found.log = scanned.summary;
        scanned.damages.iter().for_each(|(segment, what)| found.add_segment(*segment, what));
        let disk = |has_log: bool| ReadOnly(has_log.then(|| Directory(directory.to_owned())));
        let opened = Replay::open(Arc::new(disk(true)));
        let pages = directory.join(PAGES);
        if !pages.exists() {
            // The creation of a store makes the log first, and ends with a checkpoint.
            if opened.is_ok_and(|(_, replay)| !replay.has_checkpoint()) {
                return Err(Error::NoStore(directory.to_owned()));
            }
            found.add_refusal(&Error::Missing("the pages are missing"));
            return Ok(found);
        }
        let base = PageFile::open_for_reading(&pages, true)
            .map_err(Error::directory(directory, "open its pages"))?;
        let mut pool =
            Pool::builder(&pages).memory(MEMORY).capacity(MAX_CAPACITY).storage(Box::new(Overlay::new(base)));
        let is_long_enough = |opened: (_, Replay)| {
            // The pool reports damage of the superblock when it is opened.
            builder::check_log_end(&mut pool, opened.1.end()).or_else(|error| match error {
                Error::Tree(crate::Error::Pool(PoolError::LogTooShort { .. })) => Err(error),
                _ => Ok(()),
            })?;
            Ok(opened)
        };
        let (log, replay, has_log) = match opened.and_then(is_long_enough) {
            Ok((log, replay)) => (log, replay, true),
            Err(error) => {
                found.add_refusal(&error);
                let (mut log, replay) = Replay::open(Arc::new(disk(false)))?;
                // Pages are verified with any LSN.
                Arc::get_mut(&mut log).expect("no other thread has it yet").cover_every_lsn();
                (log, replay, false)
            }
        };
        let pool = pool.log(Arc::clone(&log) as Arc<dyn bedplate_bufpool::Log>).open();
        let pool = match pool.map_err(crate::Error::from) {
            Ok(pool) => Arc::new(pool),
            Err(error) if is_damage(&error) => {
                found.add_error(None, &error);
                return Ok(found);
            }
            Err(error) => return Err(error.into()),
        };
        let opened = Opened { pool, log, has_log, found };
        opened.verify(&replay, &scanned, progress)
    }
}

impl Opened {
    fn verify(
        mut self,
        replay: &Replay,
        scanned: &Scanned,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Verification> {
        self.found.is_closed = !self.pool.needs_recovery();
        if self.found.is_closed
            && self.found.log.torn_bytes > 0
            && let Some(last) = scanned.last
        {
            self.found
                .add_segment(last, "has bytes at its end that are no record, although the store was closed");
        }
        let trees = self.recover(replay)?;
        self.check_pages(progress)?;
        if let Some((catalog, trees, is_recovered)) = trees {
            self.check_trees(&catalog, &trees, is_recovered, progress)?;
        }
        self.found.pages = self.pool.pages().count() as u64;
        self.found.free_pages = self.pool.free_pages().len() as u64;
        Ok(self.found)
    }

    /// Recovers the store. Returns none if its trees cannot be verified.
    fn recover(&mut self, replay: &Replay) -> Result<Option<Found>> {
        if self.has_log
            && let Err(error) = builder::check_pair(&self.pool, replay)
        {
            self.found.add_refusal(&error);
            return Ok(None);
        }
        if !self.has_log && !self.found.is_closed {
            // The pages are from different moments, so the trees are not sound without the log.
            return Ok(None);
        }
        match recovery::recover(&self.pool, &self.log, replay, 0) {
            Ok(recovered) => return Ok(Some((recovered.catalog, recovered.trees, true))),
            Err(Error::Tree(error)) if !is_damage(&error) => return Err(error.into()),
            Err(error) => self.found.add_refusal(&error),
        }
        let journal = Arc::clone(&self.log) as Arc<dyn Journal>;
        let catalog = Tree::open_with(Arc::clone(&self.pool), CATALOG_SLOT, journal).map_err(Error::from);
        let opened = catalog.and_then(|catalog| Ok((trees::open_all(&catalog, 0)?, catalog)));
        match opened {
            Ok((trees, catalog)) => Ok(Some((catalog, trees, false))),
            Err(error) => {
                self.found.add_refusal(&error);
                Ok(None)
            }
        }
    }

    /// Reads every page.
    fn check_pages(&mut self, progress: &mut dyn FnMut(Progress)) -> Result<()> {
        let pages = self.pool.pages();
        let count = pages.end - pages.start;
        for first in pages.clone().step_by(TOGETHER as usize) {
            let together: Vec<_> = (first..(first + TOGETHER).min(pages.end)).map(PageId).collect();
            self.pool.fetch(&together);
            for page in together {
                match self.pool.pin_shared(page) {
                    Ok(_) => {}
                    Err(error) => {
                        let error = error.into();
                        if !is_damage(&error) {
                            return Err(error.into());
                        }
                        self.found.add_error(None, &error);
                    }
                }
            }
            progress(Progress::new(first - pages.start, 2 * count));
        }
        Ok(())
    }

    fn check_trees(
        &mut self,
        catalog: &Tree<Arc<Pool>>,
        trees: &Trees,
        is_recovered: bool,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<()> {
        let mut reached = PageSet::default();
        let count = self.pool.pages().count() as u64;
        let mut is_complete = is_recovered;
        let named = trees.iter().map(|(name, tree)| (Some(&**name), tree.0.handle(&self.pool, &self.log)));
        for (name, tree) in std::iter::once((None, catalog.handle())).chain(named) {
            let (mut errors, mut twice) = (Vec::new(), Vec::new());
            let mut visit = |page| {
                if !reached.insert(page) {
                    twice.push(page);
                }
                if reached.len().is_multiple_of(1024) {
                    progress(Progress::new(count + reached.len(), 2 * count));
                }
            };
            let mut damages = 0;
            let mut report = |error| {
                if !is_damage(&error) {
                    return Err(error);
                }
                damages += 1;
                if errors.len() < MAX_DAMAGES {
                    errors.push(error);
                }
                Ok(())
            };
            let shape = match tree.survey(&mut visit, &mut report) {
                Ok(shape) => shape,
                Err(error) => {
                    report(error)?;
                    Shape::default()
                }
            };
            is_complete &= damages == 0;
            let found = &mut self.found;
            errors.iter().for_each(|error| found.add_error(name, error));
            damages += twice.len() as u64;
            for page in twice {
                let what = format!("page {page} belongs to another tree, too");
                found.add(Damage { tree: name.map(str::to_owned), page: Some(page), segment: None, what });
            }
            if let Some(name) = name {
                found.trees.push(TreeSummary { name: name.to_owned(), shape, damages });
            }
        }
        let mut free = PageSet::default();
        for page in self.pool.free_pages() {
            free.insert(page);
            if reached.contains(page) {
                self.found.add_page(page, format!("page {page} is free, and a tree has it"));
            }
        }
        if is_complete {
            for page in self.pool.pages().map(PageId) {
                if !reached.contains(page) && !free.contains(page) {
                    self.found.add_page(page, format!("page {page} is in no tree, and not free"));
                }
            }
        }
        Ok(())
    }
}
