//! Threads that read, change, free and evict the same pages.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bedplate_bufpool::{PAYLOAD, PageId, Pool};
use common::{fill, in_guest, kinds, pool, version};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Number of frames.
fn frames() -> usize {
    if in_guest() { 16 } else { 64 }
}

/// Number of operations of each thread.
fn operations() -> usize {
    if in_guest() { 300 } else { 30_000 }
}

/// Each page has a version, which only grows. No thread sees an older version than before, or a mixture of versions.
#[test]
fn eight_times_as_many_pages_as_memory_has() {
    for kind in kinds() {
        let (pool, _folder) = pool(kind, frames());
        let pages = 8 * frames() as u64;
        let ids: Vec<PageId> = (0..pages)
            .map(|_| {
                let mut page = pool.allocate().unwrap();
                let id = page.page();
                fill(&mut page, id.0, 1);
                id
            })
            .collect();
        let known: Vec<AtomicU64> = (0..pages).map(|_| AtomicU64::new(1)).collect();
        std::thread::scope(|scope| {
            for seed in 0..3 {
                let (pool, ids, known) = (&pool, &ids, &known);
                scope.spawn(move || work(pool, ids, known, seed));
            }
        });
        pool.close().unwrap();
        for (id, known) in ids.iter().zip(&known) {
            assert_eq!(version(&pool.pin_shared(*id).unwrap(), id.0), known.load(Ordering::Relaxed));
        }
        assert!(pool.statistics().evicted > pages);
    }
}

fn work(pool: &Pool, ids: &[PageId], known: &[AtomicU64], seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut copy = [0; PAYLOAD];
    for _ in 0..operations() {
        // Some pages are used far more often than others.
        let index = (random.random::<f64>().powi(3) * ids.len() as f64) as usize;
        let (id, known) = (ids[index], &known[index]);
        let least = known.load(Ordering::Acquire);
        match random.random_range(0..8) {
            0 | 1 => {
                let mut page = pool.pin_exclusive(id).unwrap();
                let version = version(&page, id.0);
                assert_eq!(version, known.load(Ordering::Acquire));
                fill(&mut page, id.0, version + 1);
                known.store(version + 1, Ordering::Release);
            }
            2 => {
                let page = pool.pin_shared(id).unwrap();
                assert_eq!(version(&page, id.0), known.load(Ordering::Acquire));
            }
            3 => {
                let read = pool.optimistic(id).unwrap();
                let Ok(mut page) = read.upgrade() else { continue };
                let version = version(&page, id.0);
                fill(&mut page, id.0, version + 1);
                known.store(version + 1, Ordering::Release);
            }
            _ => {
                pool.optimistic_read(id, |read| read.copy_to(&mut copy)).unwrap();
                assert!(version(&copy, id.0) >= least);
            }
        }
    }
}

/// All threads allocate and free pages. Each page has one owner at a time.
#[test]
fn pages_that_come_and_go_have_one_owner() {
    for kind in kinds() {
        let (pool, _folder) = pool(kind, frames());
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for seed in 1..4u64 {
                let (pool, stop) = (&pool, &stop);
                scope.spawn(move || {
                    let mut random = SmallRng::seed_from_u64(seed);
                    let mut own: Vec<PageId> = Vec::new();
                    for _ in 0..operations() / 3 {
                        if own.len() < 3 * frames() / 2 || random.random() {
                            let mut page = pool.allocate().unwrap();
                            assert!(page.iter().all(|byte| *byte == 0));
                            let id = page.page();
                            fill(&mut page, id.0, seed);
                            own.push(id);
                        } else {
                            let id = own.swap_remove(random.random_range(0..own.len()));
                            let page = pool.pin_exclusive(id).unwrap();
                            assert_eq!(version(&page, id.0), seed);
                            pool.free(page).unwrap();
                        }
                    }
                    stop.store(true, Ordering::Relaxed);
                });
            }
            // Meanwhile this thread flushes.
            while !stop.load(Ordering::Relaxed) {
                pool.flush().unwrap();
            }
        });
    }
}
