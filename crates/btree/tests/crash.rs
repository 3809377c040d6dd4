//! A log that is attached makes a tree survive crashes: at random moments the storage is copied as a crash would leave it,
//! what is durable of the log is repeated, and the tree is what it was after the last operation that was durable.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use bedplate_btree::{Error, Journal, Tree, redo};
use bedplate_bufpool::{Log, PAGE, Pool};

/// A log whose records are durable when somebody insists.
#[derive(Default)]
struct Memory(Mutex<State>);

#[derive(Default)]
struct State {
    /// Record `i` has the number `i + 1`.
    records: Vec<Vec<u8>>,
    durable: u64,
}

impl Memory {
    /// The record with which the operation that began there took place: a merge comes after a removal.
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
    Pool::builder(path)
        .memory(24 * PAGE)
        .capacity(64 << 20)
        .log(Arc::clone(log) as Arc<dyn Log>)
        .open()
        .unwrap()
}

/// A pool with an empty tree, which is durable.
fn begin(path: &Path) -> (Arc<Memory>, Tree<Arc<Pool>>) {
    let log = Arc::new(Memory::default());
    let pool = Arc::new(open(path, &log));
    let tree = Tree::create_with(pool, 0, Arc::clone(&log) as Arc<dyn Journal>).unwrap();
    tree.pool().sync().unwrap();
    (log, tree)
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Opens a copy of the storage, repeats the durable records from `checkpoint` on, and compares.
fn recover(storage: &Path, log: &Memory, checkpoint: u64, history: &[(u64, Model)]) {
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
    let pool = open(&path, &again);
    assert!(pool.needs_recovery());
    // Repeating more than is needed does no harm.
    for (index, record) in records.iter().enumerate().skip(checkpoint.saturating_sub(50) as usize) {
        redo(&pool, index as u64 + 1, record).unwrap();
    }
    let tree = Tree::open_with(&pool, 0, Arc::clone(&again) as Arc<dyn Journal>).unwrap();
    let mut pages = std::collections::HashSet::new();
    tree.pages(|page| assert!(pages.insert(page))).unwrap();
    pool.reclaim(|page| pages.contains(&page));
    assert_eq!(pool.pages_in_use(), pages.len() as u64);
    let found: Result<Model, Error> = tree.iter().owned().collect();
    let found = found.unwrap();
    assert!(found == *expected, "{} records instead of {} at {durable}", found.len(), expected.len());
    // And it goes on.
    for n in 0..200u64 {
        tree.upsert(&common::mixed(n).to_be_bytes(), &[9; 300]).unwrap();
    }
    assert!(tree.check().unwrap().records >= 200);
    pool.close().unwrap();
}

fn crashes(seed: u64) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let (log, tree) = begin(&path);
    let last = || log.0.lock().unwrap().records.len() as u64;
    let mut checkpoint = last();
    let mut model = Model::new();
    let mut history = vec![(last(), model.clone())];
    let mut random = seed;
    let mut crashed = 0;
    for step in 0..3000u64 {
        random = common::mixed(random);
        let key = match random % 3 {
            0 => (random >> 8 & 255).to_be_bytes().to_vec(),
            1 => common::mixed(random >> 8 & 255).to_be_bytes().to_vec(),
            _ => [vec![b'x'; 200], (random >> 8 & 127).to_be_bytes().to_vec()].concat(),
        };
        let len = if random >> 20 & 31 == 0 { 5000 } else { (random >> 24) as usize % 300 };
        let value = vec![step as u8; len];
        let before = last();
        // It grows and shrinks, so that nodes merge and their pages are used again.
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
            // A commit.
            let lsn = last();
            log.make_durable(lsn).unwrap();
        }
        if random >> 50 & 511 == 1 {
            tree.pool().sync().unwrap();
            checkpoint = last();
        }
        if step % 250 == 249 {
            recover(&path, &log, checkpoint, &history);
            crashed += 1;
            let durable = log.durable_lsn();
            history.retain(|(lsn, _)| *lsn + 500 >= durable);
        }
    }
    assert_eq!(crashed, 12);
}

#[test]
fn what_is_durable_survives_crashes() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("BEDPLATE_TEST_SEED").unwrap_or(1);
    for seed in seed..seed + number("BEDPLATE_TEST_KILLS").map_or(1, |kills| kills.div_ceil(12)) {
        println!("BEDPLATE_TEST_SEED={seed}");
        crashes(seed);
    }
}

#[test]
fn a_bulk_load_is_logged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let (log, tree) = begin(&path);
    let records: Model = (0u64..3000)
        .map(|n| {
            (common::mixed(n).to_be_bytes().to_vec(), vec![n as u8; if n % 99 == 0 { 7000 } else { 90 }])
        })
        .collect();
    tree.bulk_load(&records).unwrap();
    let last = log.0.lock().unwrap().records.len() as u64;
    log.make_durable(last).unwrap();
    recover(&path, &log, 0, &[(last, records)]);
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
