//! Which pages stay in memory.

mod common;

use bedplate_bufpool::{PageId, Pool};
use common::{builder, kinds, pool};

const FRAMES: usize = 64;
const HOT: usize = 16;

/// Reads pages, and says how many of them were not in memory.
fn misses(pool: &Pool, pages: &[PageId]) -> u64 {
    let before = pool.statistics().read;
    for page in pages {
        pool.optimistic_read(*page, |page| page.read::<8>(0)).unwrap();
    }
    pool.statistics().read - before
}

#[test]
fn pages_that_are_used_again_and_again_outlast_those_that_are_used_once() {
    for kind in kinds() {
        let (pool, folder) = pool(kind, FRAMES);
        let ids: Vec<_> = (0..20 * FRAMES).map(|_| pool.allocate().unwrap().page()).collect();
        pool.close().unwrap();
        drop(pool);
        let pool = builder(&folder, kind, FRAMES).open().unwrap();
        let (hot, others) = ids.split_at(HOT);
        let mut others = others.chunks(8).cycle();
        // They are used between others that come and go, twice around the clock and more.
        let mut again = 0;
        for _ in 0..100 {
            again += misses(&pool, hot);
            assert_eq!(misses(&pool, others.next().unwrap()), 8);
        }
        assert!((HOT as u64..2 * HOT as u64).contains(&again), "{kind}: {again} misses of {HOT} hot pages");
        // A scan that fills all of memory, and more, drives none of them out.
        for _ in 0..FRAMES * 3 / 2 / 8 {
            assert_eq!(misses(&pool, others.next().unwrap()), 8);
        }
        assert_eq!(misses(&pool, hot), 0, "{kind}: hot pages left for a scan");
        // When nobody uses them any more, they go.
        for _ in 0..8 * FRAMES / 8 {
            assert_eq!(misses(&pool, others.next().unwrap()), 8);
        }
        assert_eq!(misses(&pool, hot), HOT as u64, "{kind}: cold pages stay");
    }
}
