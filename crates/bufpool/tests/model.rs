//! Random operations on a pool have the same results as on a map of pages.

mod common;

use std::collections::BTreeMap;

use bedplate_bufpool::{Error, Kind, PageId, Pool, ROOTS};
use common::{builder_for, fill, has_size, kind_of_here, kinds, page_sizes, scaled, version};
use proptest::prelude::*;
use tempfile::TempDir;

#[derive(Clone, Debug)]
enum Step {
    Allocate,
    Free(usize),
    Write(usize),
    Upgrade(usize),
    Read(usize),
    ReadOptimistically(usize),
    Fetch(usize, usize),
    Prefetch(usize, usize),
    Root(usize, u64),
    Flush,
    Sync,
    Reopen(Kind),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        30 => Just(Step::Allocate),
        8 => any::<usize>().prop_map(Step::Free),
        20 => any::<usize>().prop_map(Step::Write),
        8 => any::<usize>().prop_map(Step::Upgrade),
        10 => any::<usize>().prop_map(Step::Read),
        20 => any::<usize>().prop_map(Step::ReadOptimistically),
        3 => (any::<usize>(), 1..40usize).prop_map(|(at, count)| Step::Fetch(at, count)),
        3 => (any::<usize>(), 1..40usize).prop_map(|(at, count)| Step::Prefetch(at, count)),
        2 => (0..ROOTS, any::<u64>()).prop_map(|(slot, value)| Step::Root(slot, value)),
        2 => Just(Step::Flush),
        1 => Just(Step::Sync),
        1 => prop::sample::select(kinds().collect::<Vec<_>>()).prop_map(Step::Reopen),
    ];
    prop::collection::vec(step, 1..600)
}

/// Pages and their versions.
#[derive(Default)]
struct Model {
    pages: BTreeMap<PageId, u64>,
    roots: [u64; ROOTS],
    version: u64,
}

impl Model {
    fn pick(&self, index: usize) -> Option<(PageId, u64)> {
        let index = index.checked_rem(self.pages.len())?;
        self.pages.iter().nth(index).map(|(page, version)| (*page, *version))
    }

    /// Consecutive page numbers, some of which may not be in use.
    fn pages_from(&self, index: usize, count: usize) -> Vec<PageId> {
        let from = self.pick(index).map_or(PageId(300), |(page, _)| page);
        (from.0..).take(count).map(PageId).collect()
    }

    fn next(&mut self, page: PageId) -> u64 {
        self.version += 1;
        self.pages.insert(page, self.version);
        self.version
    }
}

fn run(pool: &Pool, model: &mut Model, step: &Step) -> Result<(), Error> {
    match *step {
        Step::Allocate => {
            let mut page = pool.allocate()?;
            let id = page.page();
            assert!(!model.pages.contains_key(&id), "page {id} is in use");
            assert!(page.iter().all(|byte| *byte == 0) && page.lsn() == 0);
            fill(&mut page, id.0, model.next(id));
        }
        Step::Free(index) => {
            if let Some((id, _)) = model.pick(index) {
                pool.free(pool.pin_exclusive(id)?)?;
                model.pages.remove(&id);
            }
        }
        Step::Write(index) => {
            if let Some((id, known)) = model.pick(index) {
                let mut page = pool.pin_exclusive(id)?;
                assert_eq!(version(&page, id.0), known);
                fill(&mut page, id.0, model.next(id));
            }
        }
        Step::Upgrade(index) => {
            if let Some((id, known)) = model.pick(index) {
                // An upgrade fails while the page provider holds the page to copy it.
                let mut page = loop {
                    if let Ok(page) = pool.optimistic(id)?.upgrade() {
                        break page;
                    }
                    std::thread::yield_now();
                };
                assert_eq!(version(&page, id.0), known);
                fill(&mut page, id.0, model.next(id));
            }
        }
        Step::Read(index) => {
            if let Some((id, known)) = model.pick(index) {
                assert_eq!(version(&pool.pin_shared(id)?, id.0), known);
            }
        }
        Step::ReadOptimistically(index) => {
            if let Some((id, known)) = model.pick(index) {
                let mut copy = vec![0; pool.page_size().payload()];
                pool.optimistic_read(id, |page| page.copy_to(&mut copy))?;
                assert_eq!(version(&copy, id.0), known);
            }
        }
        Step::Fetch(index, count) => pool.fetch(&model.pages_from(index, count)),
        Step::Prefetch(index, count) => pool.prefetch(&model.pages_from(index, count)),
        Step::Root(slot, value) => {
            pool.set_root(slot, value);
            model.roots[slot] = value;
        }
        Step::Flush => pool.flush()?,
        Step::Sync => pool.sync()?,
        Step::Reopen(_) => unreachable!("done by the caller"),
    }
    Ok(())
}

fn check(pool: &Pool, model: &Model) {
    assert_eq!(pool.pages_in_use(), model.pages.len() as u64);
    for (page, known) in &model.pages {
        assert_eq!(version(&pool.pin_shared(*page).unwrap(), page.0), *known);
    }
    for (slot, value) in model.roots.iter().enumerate() {
        assert_eq!(pool.root(slot), *value);
    }
    let statistics = pool.statistics();
    assert!(statistics.resident <= statistics.frames);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: scaled(48) as u32, ..ProptestConfig::default() })]

    #[test]
    fn a_pool_is_a_map_of_pages(steps in steps(), size in prop::sample::select(page_sizes().to_vec())) {
        // An engine that does not have pages of this size is replaced by one that does.
        let with_size = |kind| if has_size(kind, size) { kind } else { Kind::Array };
        let folder = TempDir::new().unwrap();
        let mut model = Model::default();
        let mut pool = builder_for(&folder, with_size(kind_of_here()), 24, size).page_size(size.bytes()).open().unwrap();
        for step in &steps {
            if let Step::Reopen(kind) = step {
                pool.close().unwrap();
                check(&pool, &model);
                pool.close().unwrap();
                drop(pool);
                pool = builder_for(&folder, with_size(*kind), 24, size).open().unwrap();
                check(&pool, &model);
            } else {
                run(&pool, &mut model, step).unwrap();
            }
        }
        check(&pool, &model);
        pool.close().unwrap();
        drop(pool);
        check(&builder_for(&folder, Kind::Hashtable, 24, size).open().unwrap(), &model);
    }
}
