//! The power fails while pages are written. With a log, recovery restores everything that the log contains.

mod common;
#[path = "common/faulty.rs"]
mod faulty;
#[path = "common/wal.rs"]
mod wal;

use std::sync::Arc;

use bedplate_bufpool::{Choice, Error, Kind, PageId, PageSize, Pool, TornPages};
use common::{has_size, in_guest, kinds_of_here, page_sizes, scaled};
use faulty::Faulty;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use wal::{Content, Wal, words};

const FRAMES: usize = 32;
/// Number of crashes, outside the test machine.
const CRASHES: usize = 40;

fn open(disk: &Faulty, wal: &Arc<Wal>, kind: Kind, size: PageSize, torn_pages: TornPages) -> Pool {
    Pool::builder("")
        .storage(Box::new(disk.clone()))
        .memory(FRAMES * size.bytes())
        .page_size(size.bytes())
        .engine(Choice::Only(kind))
        .log(wal.clone())
        .torn_pages(torn_pages)
        .open()
        .unwrap()
}

/// Changes, allocates and frees pages and makes checkpoints until the power fails. At a checkpoint, `content` gets the
/// changes that the log no longer needs.
fn work(
    pool: &Pool,
    wal: &Wal,
    disk: &Faulty,
    pages: &mut Vec<PageId>,
    content: &mut Content,
    random: &mut SmallRng,
    images: bool,
) -> Error {
    let words = pool.page_size().payload() / 8;
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
                    wal.set(&mut page, random.random_range(0..words), random.random(), images);
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

/// Returns the number of torn pages that recovery has repaired.
fn survive(kind: Kind, size: PageSize, torn_pages: TornPages, images: bool, seed: u64) -> u64 {
    let blocks = size.bytes() as u64 / PageSize::MIN.bytes() as u64;
    let disk = Faulty::new(seed);
    let wal = Arc::new(Wal::default());
    let mut random = SmallRng::seed_from_u64(seed);
    let mut content = Content::new();
    let mut repaired = 0;
    for _ in 0..scaled(CRASHES) {
        let pool = open(&disk, &wal, kind, size, torn_pages);
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
        disk.fuse(random.random_range(1..400 * blocks));
        let error = work(&pool, &wal, &disk, &mut pages, &mut content, &mut random, images);
        assert!(disk.is_dead(), "{error}");
        drop(pool);
        disk.crash();
        wal.crash();
    }
    repaired
}

/// Every engine with pages of 4 KiB, and each larger size with one engine that maps pages and one that does not.
fn engines_and_sizes() -> impl Iterator<Item = (Kind, PageSize)> {
    let with_sizes = |kind| page_sizes().into_iter().map(move |size| (kind, size));
    let is_wanted = |(kind, size): &(Kind, PageSize)| {
        *size == PageSize::MIN || has_size(*kind, *size) && matches!(kind, Kind::Array | Kind::Stock)
    };
    kinds_of_here().flat_map(with_sizes).filter(is_wanted)
}

/// Outside the test machine, there are enough crashes that some of them tear pages.
fn is_enough(repaired: u64) {
    assert!(repaired > 0 || in_guest(), "no crash has torn a page");
}

#[test]
fn pages_are_written_twice() {
    for (seed, (kind, size)) in (1..).zip(engines_and_sizes()) {
        is_enough(survive(kind, size, TornPages::DoubleWrite, false, seed));
    }
}

#[test]
fn or_the_log_has_whole_pages() {
    for (seed, (kind, size)) in (10..).zip(engines_and_sizes()) {
        is_enough(survive(kind, size, TornPages::Detect, true, seed));
    }
}
