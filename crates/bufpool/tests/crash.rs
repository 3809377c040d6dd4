//! The power fails while pages are written: with a log, nothing is lost that the log has.

mod common;
#[path = "common/faulty.rs"]
mod faulty;
#[path = "common/wal.rs"]
mod wal;

use std::sync::Arc;

use bedplate_bufpool::{Choice, Error, Kind, PAGE, PageId, Pool, TornPages};
use common::kinds;
use faulty::Faulty;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use wal::{Content, WORDS, Wal, words};

const FRAMES: usize = 32;
const CRASHES: usize = 40;

fn open(disk: &Faulty, wal: &Arc<Wal>, kind: Kind, torn_pages: TornPages) -> Pool {
    Pool::builder("")
        .storage(Box::new(disk.clone()))
        .memory(FRAMES * PAGE)
        .engine(Choice::Only(kind))
        .log(wal.clone())
        .torn_pages(torn_pages)
        .open()
        .unwrap()
}

/// Changes words of pages, allocates and frees some and takes checkpoints, until the power fails. Changes that a checkpoint made obsolete in the log go into `content`.
fn work(
    pool: &Pool,
    wal: &Wal,
    disk: &Faulty,
    pages: &mut Vec<PageId>,
    content: &mut Content,
    random: &mut SmallRng,
    images: bool,
) -> Error {
    loop {
        let result = match random.random_range(0..400) {
            0 => {
                let mut before = content.clone();
                wal.apply(&mut before);
                wal.checkpoint(pool).map(|()| *content = before)
            }
            1..20 => wal.commit().map(drop).map_err(Error::Log),
            20..40 if pages.len() < 8 * FRAMES => pool.allocate().map(|mut page| {
                wal.begin(&mut page, 0, 1);
                pages.push(page.page());
            }),
            40..48 if pages.len() > FRAMES => {
                let page = pages.swap_remove(random.random_range(0..pages.len()));
                pool.pin_exclusive(page).and_then(|mut page| {
                    wal.free(&mut page);
                    pool.free(page)
                })
            }
            _ if pages.is_empty() => Ok(()),
            _ => {
                let page = pages[random.random_range(0..pages.len())];
                pool.pin_exclusive(page).map(|mut page| {
                    wal.set(&mut page, random.random_range(0..WORDS), random.random(), images);
                })
            }
        };
        if disk.is_dead() {
            wal.die();
        }
        if let Err(error) = result {
            return error;
        }
    }
}

/// Returns how many pages the crashes tore that were repaired.
fn survive(kind: Kind, torn_pages: TornPages, images: bool, seed: u64) -> u64 {
    let disk = Faulty::new(seed);
    let wal = Arc::new(Wal::default());
    let mut random = SmallRng::seed_from_u64(seed);
    let mut content = Content::new();
    let mut repaired = 0;
    for _ in 0..CRASHES {
        let pool = open(&disk, &wal, kind, torn_pages);
        repaired += pool.statistics().restored + wal.redo(&pool) as u64;
        wal.apply(&mut content);
        for (page, expected) in &content {
            assert_eq!(&words(&pool.pin_shared(*page).unwrap()), expected, "page {page}");
        }
        let mut pages: Vec<PageId> = content.keys().copied().collect();
        let known: Vec<PageId> = pages.clone();
        pool.reclaim(|page| known.contains(&page));
        if random.random() {
            wal.checkpoint(&pool).unwrap();
        }
        disk.fuse(random.random_range(1..400));
        let error = work(&pool, &wal, &disk, &mut pages, &mut content, &mut random, images);
        assert!(disk.is_dead(), "{error}");
        drop(pool);
        disk.crash();
        wal.crash();
    }
    repaired
}

#[test]
fn pages_are_written_twice() {
    for (seed, kind) in (1..).zip(kinds()) {
        assert!(survive(kind, TornPages::DoubleWrite, false, seed) > 0);
    }
}

#[test]
fn or_the_log_has_whole_pages() {
    for (seed, kind) in (10..).zip(kinds()) {
        assert!(survive(kind, TornPages::Detect, true, seed) > 0);
    }
}
