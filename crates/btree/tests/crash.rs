//! A tree with a log survives crashes. At random moments the test copies the storage, as a crash would leave it. Then
//! it replays the durable records and compares the tree with the state after the last durable operation. Between
//! crashes, the pool is closed and opened again. Each replay begins at the last checkpoint or at a random earlier one.
//!
//! `BEDPLATE_TEST_SEED` sets the seed of the first history. `BEDPLATE_TEST_KILLS` sets the number of crashes. A history
//! has 12 crashes.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use bedplate_btree::{Error, Journal, Tree, max_record, redo};
use bedplate_bufpool::{Log, PAGE, PageSize, Pool};

/// A log in memory. Records become durable only on request.
#[derive(Default)]
struct Memory(Mutex<State>);

#[derive(Default)]
struct State {
    /// Record `i` has the number `i + 1`.
    records: Vec<Vec<u8>>,
    durable: u64,
}

impl Memory {
    /// The number of the put or removal since record `before`. Records of a merge may follow it.
    fn change_since(&self, before: u64) -> u64 {
        let state = self.0.lock().unwrap();
        let changes = |record: &Vec<u8>| matches!(record[0], 1 | 2);
        let at = state.records[before as usize..].iter().rposition(changes);
        at.map_or(state.records.len() as u64, |at| before + at as u64 + 1)
    }
}

impl Journal for Memory {
    fn append(&self, record: &[&[u8]]) -> u64 {
        let mut state = self.0.lock().unwrap();
        state.records.push(record.concat());
        state.records.len() as u64
    }
}

impl Log for Memory {
    fn durable_lsn(&self) -> u64 {
        self.0.lock().unwrap().durable
    }

    fn make_durable(&self, up_to: u64) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        assert!(up_to <= state.records.len() as u64, "a page has a record's number that there is not");
        state.durable = state.durable.max(up_to);
        Ok(())
    }
}

fn open(path: &Path, log: &Arc<Memory>) -> Pool {
    open_sized(path, log, PageSize::MIN)
}

fn open_sized(path: &Path, log: &Arc<Memory>, size: PageSize) -> Pool {
    Pool::builder(path)
        .memory(24 * size.bytes())
        .page_size(size.bytes())
        .capacity(64 << 20)
        .engine(common::engine())
        .log(Arc::clone(log) as Arc<dyn Log>)
        .open()
        .unwrap()
}

/// Creates a pool with an empty tree, which is durable.
fn begin(path: &Path, size: PageSize) -> (Arc<Memory>, Tree<Arc<Pool>>) {
    let log = Arc::new(Memory::default());
    let pool = Arc::new(open_sized(path, &log, size));
    let tree = Tree::create_with(pool, 0, Arc::clone(&log) as Arc<dyn Journal>).unwrap();
    tree.pool().sync().unwrap();
    (log, tree)
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Opens a copy of the storage, replays the durable records from `checkpoint` on, and compares the tree with the
/// history.
fn recover(storage: &Path, size: PageSize, log: &Memory, checkpoint: u64, history: &[(u64, Model)]) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    fs::copy(storage, &path).unwrap();
    let (records, durable) = {
        let state = log.0.lock().unwrap();
        (state.records[..state.durable as usize].to_vec(), state.durable)
    };
    let expected =
        &history.iter().rev().find(|(lsn, _)| *lsn <= durable).expect("the beginning is durable").1;
    let again = Arc::new(Memory::default());
    again.0.lock().unwrap().records = records.clone();
    again.0.lock().unwrap().durable = durable;
    let pool = open_sized(&path, &again, size);
    assert!(pool.needs_recovery());
    for (index, record) in records.iter().enumerate().skip(checkpoint as usize) {
        let redone = redo(&pool, index as u64 + 1, record);
        redone.unwrap_or_else(|error| panic!("record {} after checkpoint {checkpoint}: {error}", index + 1));
    }
    let tree = Tree::open_with(&pool, 0, Arc::clone(&again) as Arc<dyn Journal>).unwrap();
    let mut pages = std::collections::HashSet::new();
    tree.pages(|page| assert!(pages.insert(page))).unwrap();
    pool.reclaim(|page| pages.contains(&page));
    assert_eq!(pool.pages_in_use(), pages.len() as u64);
    let found: Result<Model, Error> = tree.iter().owned().collect();
    let found = found.unwrap();
    assert!(found == *expected, "{} records instead of {} at {durable}", found.len(), expected.len());
    // The recovered tree can be changed.
    for n in 0..200u64 {
        tree.upsert(&common::mixed(n).to_be_bytes(), &[9; 300]).unwrap();
    }
    assert!(tree.check().unwrap().records >= 200);
    pool.close().unwrap();
}

/// Closes the pool of a tree, and opens both again.
fn reopen(path: &Path, log: &Arc<Memory>, tree: Tree<Arc<Pool>>) -> Tree<Arc<Pool>> {
    let size = tree.pool().page_size();
    tree.pool().close().unwrap();
    drop(tree);
    let pool = Arc::new(open_sized(path, log, size));
    assert!(!pool.needs_recovery());
    Tree::open_with(pool, 0, Arc::clone(log) as Arc<dyn Journal>).unwrap()
}

/// Runs a history. The pool is closed and opened again every `steps_between_closes` steps on average.
fn crashes(seed: u64, size: PageSize, steps_between_closes: u64) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let (log, mut tree) = begin(&path, size);
    // With larger pages, values are longer, and few are so long that they need overflow pages.
    let (longer, few) = if size == PageSize::MIN { (1, 31) } else { (2, 127) };
    let last = || log.0.lock().unwrap().records.len() as u64;
    let mut checkpoints = vec![last()];
    let mut model = Model::new();
    let mut history = vec![(last(), model.clone())];
    let mut random = seed;
    let mut crashed = 0;
    let crashes = common::scaled(12) as u64 + u64::from(common::in_guest());
    for step in 0..crashes * 250 {
        random = common::mixed(random);
        let key = match random % 3 {
            0 => (random >> 8 & 255).to_be_bytes().to_vec(),
            1 => common::mixed(random >> 8 & 255).to_be_bytes().to_vec(),
            _ => [vec![b'x'; 200], (random >> 8 & 127).to_be_bytes().to_vec()].concat(),
        };
        let len = if random >> 20 & few == 0 {
            max_record(size) + 3500
        } else {
            (random >> 24) as usize % (300 * longer)
        };
        let value = vec![step as u8; len];
        let before = last();
        // The tree grows and shrinks, so that nodes merge and their pages are used again.
        let shrink = step / 700 % 2 == 1;
        match random >> 40 & 7 {
            0..=3 if shrink => assert_eq!(tree.remove(&key).unwrap(), model.remove(&key).is_some()),
            0 | 4 => {
                tree.update(&key, |old, new| new.extend(old.iter().chain(&value[..value.len().min(100)])))
                    .unwrap();
                model.entry(key).and_modify(|old| old.extend(&value[..value.len().min(100)]));
            }
            5 => {
                tree.update_in_place(&key, |old| old.fill(1)).unwrap();
                model.entry(key).and_modify(|old| old.fill(1));
            }
            _ => {
                tree.upsert(&key, &value).unwrap();
                model.insert(key, value);
            }
        }
        history.push((log.change_since(before), model.clone()));
        if random >> 50 & 255 == 0 {
            // This is a commit.
            let lsn = last();
            log.make_durable(lsn).unwrap();
        }
        if random >> 50 & 511 == 1 {
            tree.pool().sync().unwrap();
            checkpoints.push(last());
        }
        if common::mixed(random).is_multiple_of(steps_between_closes) {
            tree = reopen(&path, &log, tree);
        }
        if step % 250 == 249 {
            let any = (common::mixed(random) >> 32) as usize % checkpoints.len();
            let at = if random >> 60 & 1 == 0 { any } else { checkpoints.len() - 1 };
            recover(&path, size, &log, checkpoints[at], &history);
            crashed += 1;
            let durable = log.durable_lsn();
            history.retain(|(lsn, _)| *lsn + 500 >= durable);
        }
    }
    assert_eq!(crashed, crashes);
}

#[test]
fn what_is_durable_survives_crashes() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("BEDPLATE_TEST_SEED").unwrap_or(1);
    let seeds = if common::in_guest() { 1 } else { 3 };
    for seed in seed..seed + number("BEDPLATE_TEST_KILLS").map_or(seeds, |kills| kills.div_ceil(12)) {
        println!("BEDPLATE_TEST_SEED={seed}");
        // Some histories have no close, others have many.
        crashes(seed, PageSize::MIN, [u64::MAX, 400, 100, 30][seed as usize % 4]);
    }
    for size in common::page_sizes().into_iter().skip(1) {
        crashes(seed, size, 200);
    }
}

#[test]
fn a_bulk_load_is_logged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let (log, tree) = begin(&path, PageSize::MIN);
    let records: Model = (0..common::scaled(3000) as u64)
        .map(|n| {
            (common::mixed(n).to_be_bytes().to_vec(), vec![n as u8; if n % 99 == 0 { 7000 } else { 90 }])
        })
        .collect();
    tree.bulk_load(&records).unwrap();
    let last = log.0.lock().unwrap().records.len() as u64;
    log.make_durable(last).unwrap();
    recover(&path, PageSize::MIN, &log, 0, &[(last, records)]);
}

#[test]
fn records_that_are_none_are_refused() {
    let (_directory, pool) = common::pool(64);
    let tree = Tree::create(&pool, 0).unwrap();
    let put = [&[1][..], &pool.root(0).to_le_bytes(), &3u16.to_le_bytes(), &[0], b"key", b"value"].concat();
    redo(&pool, 7, &put).unwrap();
    assert_eq!(tree.get(b"key", <[u8]>::to_vec).unwrap().unwrap(), b"value");
    for end in 0..put.len() - b"value".len() {
        assert!(matches!(redo(&pool, 8, &put[..end]), Err(Error::Record { lsn: 8 })), "{end}");
    }
    assert!(redo(&pool, 8, &[9, 1, 2]).is_err() && redo(&pool, 8, &[3; 4000]).is_err());
    assert_eq!(tree.check().unwrap().records, 1);
}

/// Puts records into `tree` until nodes have split. Does not make a checkpoint.
fn grow(tree: &Tree<&Pool>, count: u64) -> Result<(), Error> {
    (0..count).try_for_each(|n| tree.upsert(&common::mixed(n).to_be_bytes(), &[3; 300]).map(drop))
}

/// Creates a closed pool with a journaled tree of 100 records. Returns its log and the records.
fn closed_journaled_tree(path: &Path) -> (Arc<Memory>, Model) {
    let (log, tree) = begin(path, PageSize::MIN);
    let model: Model = (0u64..100).map(|n| (n.to_be_bytes().to_vec(), vec![7; 300])).collect();
    model.iter().for_each(|(key, value)| assert!(!tree.upsert(key, value).unwrap()));
    tree.pool().close().unwrap();
    (log, model)
}

/// Without the refusal, splits would reach storage in any order, and the crash would lose durable records.
#[test]
fn a_journaled_tree_is_not_opened_without_its_journal() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let (log, model) = closed_journaled_tree(&path);
    let plain = Pool::builder(&path).memory(24 * PAGE).capacity(64 << 20).open().unwrap();
    let opened = Tree::open(&plain, 0);
    if let Ok(tree) = &opened {
        grow(tree, 2000).unwrap();
    }
    let again = Tree::open_or_create(&plain, 0).map(drop);
    let refusals = [opened.err(), again.err()].map(|error| error.map(|error| error.to_string()));
    // This is the crash: nothing is closed, and the log survives.
    let last = log.0.lock().unwrap().records.len() as u64;
    log.make_durable(last).unwrap();
    let copy = directory.path().join("copy");
    fs::copy(&path, &copy).unwrap();
    let pool = open(&copy, &log);
    for (index, record) in log.0.lock().unwrap().records.clone().iter().enumerate() {
        redo(&pool, index as u64 + 1, record).unwrap();
    }
    let tree = Tree::open_with(&pool, 0, Arc::clone(&log) as Arc<dyn Journal>).unwrap();
    let found: Result<Model, Error> = tree.iter().owned().collect();
    let lost = match (tree.pages(drop), found) {
        (Ok(_), Ok(found)) => model.iter().filter(|(key, value)| found.get(*key) != Some(value)).count(),
        (checked, _) => panic!("the crash left a damaged tree: {checked:?}; refusals: {refusals:?}"),
    };
    assert_eq!(lost, 0, "durable records are lost; refusals: {refusals:?}");
    for refusal in refusals {
        let refusal = refusal.expect("a journaled tree is opened without its journal");
        assert!(refusal.contains("journal") && refusal.contains("open_with"), "{refusal}");
    }
}

/// The conversion makes a checkpoint: unlogged changes are durable before the first logged change.
#[test]
fn an_unjournaled_tree_that_is_opened_with_a_journal_survives_crashes_from_then_on() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let log = Arc::new(Memory::default());
    let pool = open(&path, &log);
    let tree = Tree::create(&pool, 0).unwrap();
    // These changes are not logged, and the pool is not synced. Some of their pages are in memory only.
    grow(&tree, 300).unwrap();
    let mut model: Model = tree.iter().owned().collect::<Result<_, _>>().unwrap();
    drop(tree);
    let tree = Tree::open_with(&pool, 0, Arc::clone(&log) as Arc<dyn Journal>).unwrap();
    for n in 0u64..50 {
        tree.upsert(&n.to_be_bytes(), &[8; 300]).unwrap();
        model.insert(n.to_be_bytes().to_vec(), vec![8; 300]);
    }
    let last = log.0.lock().unwrap().records.len() as u64;
    log.make_durable(last).unwrap();
    recover(&path, PageSize::MIN, &log, 0, &[(0, Model::new()), (last, model)]);
    // The tree stays journaled after a close.
    drop(tree);
    pool.close().unwrap();
    drop(pool);
    let plain = Pool::builder(&path).memory(24 * PAGE).capacity(64 << 20).open().unwrap();
    assert!(Tree::open(&plain, 0).is_err());
}

#[test]
fn a_journal_that_the_pool_does_not_wait_for_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let log = Arc::new(Memory::default());
    let other = Arc::new(Memory::default());
    let without = Pool::builder(&path).memory(24 * PAGE).capacity(64 << 20).open().unwrap();
    let refused = Tree::create_with(&without, 0, Arc::clone(&log) as Arc<dyn Journal>).err();
    let refused = refused.expect("a pool without a log takes a journal").to_string();
    assert!(refused.contains("no log"), "{refused}");
    Tree::create(&without, 1).unwrap();
    assert!(Tree::open_with(&without, 1, Arc::clone(&log) as Arc<dyn Journal>).is_err());
    without.close().unwrap();
    drop(without);
    let pool = open(&path, &log);
    let refused = Tree::create_with(&pool, 0, Arc::clone(&other) as Arc<dyn Journal>).err();
    let refused = refused.expect("a journal of another log is taken").to_string();
    assert!(refused.contains("another log"), "{refused}");
    assert!(Tree::open_with(&pool, 1, Arc::clone(&other) as Arc<dyn Journal>).is_err());
    // A refusal changes nothing.
    assert_eq!(pool.root(0), 0);
    Tree::open(&pool, 1).unwrap();
    Tree::create_with(&pool, 0, Arc::clone(&log) as Arc<dyn Journal>).unwrap();
}
