//! Pools that are closed and opened again before the power fails. The log still has the records from before the close.
//! So recovery may begin at any earlier checkpoint.
//!
//! `BEDPLATE_TEST_SEED` sets the seed of the first history. `BEDPLATE_TEST_HISTORIES` sets the number of histories for
//! each setting.

mod common;
#[path = "common/faulty.rs"]
mod faulty;
#[path = "common/wal.rs"]
mod wal;

use std::collections::BTreeMap;
use std::sync::Arc;

use bedplate_bufpool::{Choice, Error, Kind, PAGE, PageId, Pool, TornPages};
use common::kinds;
use faulty::Faulty;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use wal::{Content, WORDS, Wal, words};

const FRAMES: usize = 24;
/// Number of crashes in a history.
const CRASHES: usize = 6;

/// A pool with its log and its history.
struct History {
    disk: Faulty,
    wal: Arc<Wal>,
    kind: Kind,
    torn_pages: TornPages,
    pages: Vec<PageId>,
    /// The checkpoints at which recovery may begin.
    checkpoints: Vec<u64>,
    random: SmallRng,
    closed: usize,
}

impl History {
    fn new(kind: Kind, torn_pages: TornPages, seed: u64) -> Self {
        Self {
            disk: Faulty::new(seed),
            wal: Arc::new(Wal::keeping_all()),
            kind,
            torn_pages,
            pages: Vec::new(),
            checkpoints: vec![0],
            random: SmallRng::seed_from_u64(seed),
            closed: 0,
        }
    }

    fn open(&self) -> Result<Pool, Error> {
        Pool::builder("")
            .storage(Box::new(self.disk.clone()))
            .memory(FRAMES * PAGE)
            .engine(Choice::Only(self.kind))
            .log(self.wal.clone())
            .torn_pages(self.torn_pages)
            .open()
    }

    /// Runs one random operation. Without double writes, the log has whole pages.
    fn step(&mut self, pool: &Pool) -> Result<(), Error> {
        let images = self.torn_pages == TornPages::Detect;
        match self.random.random_range(0..200) {
            0 => {
                self.wal.checkpoint(pool)?;
                self.checkpoints.push(self.wal.last_checkpoint());
            }
            1..10 => drop(self.wal.commit().map_err(Error::Log)?),
            10..30 if self.pages.len() < 4 * FRAMES => {
                let mut page = pool.allocate()?;
                self.wal.begin(&mut page, 0, 1);
                self.pages.push(page.page());
            }
            // An operation fails after it has allocated a page, and frees the page without a record.
            30..33 => {
                let page = pool.allocate()?;
                pool.free(page)?;
            }
            33..50 if self.pages.len() > FRAMES => {
                let page = self.pages.swap_remove(self.random.random_range(0..self.pages.len()));
                let mut page = pool.pin_exclusive(page)?;
                self.wal.free(&mut page);
                pool.free(page)?;
            }
            _ if self.pages.is_empty() => {}
            _ => {
                let page = self.pages[self.random.random_range(0..self.pages.len())];
                let mut page = pool.pin_exclusive(page)?;
                let (word, value) = (self.random.random_range(0..WORDS), self.random.random());
                self.wal.set(&mut page, word, value, images);
            }
        }
        Ok(())
    }

    /// Uses the pool until the power fails. Sometimes closes it and opens it again.
    fn work(&mut self, mut pool: Pool) {
        loop {
            let result = if self.random.random_range(0..80) == 0 {
                let closed = pool.close();
                if closed.is_ok() {
                    self.closed += 1;
                    drop(pool);
                    match self.open() {
                        Ok(opened) => pool = opened,
                        // The power has failed meanwhile.
                        Err(error) => {
                            assert!(self.disk.is_dead(), "{error}");
                            self.wal.die();
                            return;
                        }
                    }
                }
                closed
            } else {
                self.step(&pool)
            };
            if self.disk.is_dead() {
                self.wal.die();
            }
            if let Err(error) = result {
                assert!(self.disk.is_dead(), "{error}");
                return;
            }
        }
    }

    /// Recovers from a checkpoint, and compares all pages with the log.
    fn recover(&mut self) -> Pool {
        let pool = self.open().unwrap();
        let from = self.checkpoints[self.random.random_range(0..self.checkpoints.len())];
        let torn = self.wal.redo_after(&pool, from);
        assert!(
            torn == 0 || self.torn_pages == TornPages::Detect,
            "{torn} torn pages, whose copies are missing"
        );
        let mut content: Content = BTreeMap::new();
        self.wal.apply(&mut content);
        for (page, expected) in &content {
            let found = pool.pin_shared(*page).unwrap();
            assert!(&words(&found) == expected, "page {page}, recovered from record {from} on");
        }
        self.pages = content.keys().copied().collect();
        pool.reclaim(|page| content.contains_key(&page));
        pool
    }

    fn run(&mut self) {
        for _ in 0..CRASHES {
            let pool = self.recover();
            self.disk.fuse(self.random.random_range(1..600));
            self.work(pool);
            self.disk.crash();
            self.wal.crash();
            let last = self.wal.commit().unwrap();
            self.checkpoints.retain(|checkpoint| *checkpoint <= last);
        }
        self.recover();
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

fn histories(torn_pages: TornPages) {
    let mut closed = 0;
    let first = number("BEDPLATE_TEST_SEED").unwrap_or(1);
    for kind in kinds() {
        for seed in first..first + number("BEDPLATE_TEST_HISTORIES").unwrap_or(4) {
            println!("BEDPLATE_TEST_SEED={seed} {kind}");
            let mut history = History::new(kind, torn_pages, seed);
            history.run();
            closed += history.closed;
        }
    }
    assert!(closed > 0, "no pool was closed before the power failed");
}

#[test]
fn recovery_begins_at_any_checkpoint_when_pages_are_written_twice() {
    histories(TornPages::DoubleWrite);
}

#[test]
fn recovery_begins_at_any_checkpoint_when_the_log_has_whole_pages() {
    histories(TornPages::Detect);
}
