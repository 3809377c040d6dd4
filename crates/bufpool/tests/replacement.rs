//! Page replacement: the choice of the pages that stay in memory.

mod common;

use bedplate_bufpool::{PageId, Pool};
use common::{kinds, stored};

const FRAMES: usize = 64;
const HOT: usize = 16;

/// Reads pages. Returns the number of pages that were not in memory.
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
        let (pool, _folder, ids) = stored(kind, FRAMES, 20 * FRAMES);
        let (hot, others) = ids.split_at(HOT);
        let mut others = others.chunks(8).cycle();
        // The hot pages are used while other pages come and go, for more than two rounds of the clock.
        let mut again = 0;
        for _ in 0..100 {
            again += misses(&pool, hot);
            assert_eq!(misses(&pool, others.next().unwrap()), 8);
        }
        assert!((HOT as u64..2 * HOT as u64).contains(&again), "{kind}: {again} misses of {HOT} hot pages");
        // A scan of more pages than frames evicts none of the hot pages.
        for _ in 0..FRAMES * 3 / 2 / 8 {
            assert_eq!(misses(&pool, others.next().unwrap()), 8);
        }
        assert_eq!(misses(&pool, hot), 0, "{kind}: hot pages left for a scan");
        // When the hot pages are not used any more, they are evicted.
        for _ in 0..8 * FRAMES / 8 {
            assert_eq!(misses(&pool, others.next().unwrap()), 8);
        }
        assert_eq!(misses(&pool, hot), HOT as u64, "{kind}: cold pages stay");
    }
}

/// Pages that were fetched and used once get no usage count. So pages that were used twice outlast them.
#[test]
fn pages_that_were_fetched_and_used_once_leave_before_those_that_were_used_twice() {
    for kind in kinds() {
        let (pool, _folder, ids) = stored(kind, FRAMES, 20 * FRAMES);
        let (twice, rest) = ids.split_at(HOT);
        let (fetched, others) = rest.split_at(HOT);
        misses(&pool, twice);
        pool.fetch(fetched);
        assert_eq!(misses(&pool, fetched) + misses(&pool, twice), 0);
        // With this many misses, the hand reaches the pages of both groups.
        misses(&pool, &others[..FRAMES]);
        assert_eq!(misses(&pool, twice), 0, "{kind}");
        misses(&pool, &others[FRAMES..2 * FRAMES]);
        assert_eq!(misses(&pool, fetched), HOT as u64, "{kind}");
    }
}

/// An attempt to read a page does not keep it in memory.
#[test]
fn tries_are_no_uses() {
    for kind in kinds() {
        let (pool, _folder, ids) = stored(kind, FRAMES, 20 * FRAMES);
        let (tried, others) = ids.split_at(HOT);
        misses(&pool, tried);
        for some in others.chunks(8).take(2 * FRAMES / 8) {
            tried.iter().for_each(|page| _ = pool.try_optimistic(*page));
            misses(&pool, some);
        }
        assert_eq!(misses(&pool, tried), HOT as u64, "{kind}");
    }
}

/// There are frames for fetched pages even if all other pages are used frequently.
#[test]
fn there_is_room_for_what_is_fetched() {
    for kind in kinds() {
        let (pool, _folder, ids) = stored(kind, FRAMES, 20 * FRAMES);
        let (used, others) = ids.split_at(FRAMES);
        for _ in 0..5 {
            misses(&pool, used);
            // The clock's hand passes.
            misses(&pool, &others[..2]);
        }
        pool.fetch(&others[8..16]);
        assert_eq!(misses(&pool, &others[8..16]), 0, "{kind}");
    }
}
