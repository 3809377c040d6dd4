//! The contents of the store: a function of the number of commits of each thread, and of the dumps that were loaded.

use std::collections::BTreeMap;
use std::path::Path;

use bedplate_btree::store::{NamedTree, Result, Store, WriteTransaction};

/// Threads that commit.
pub const THREADS: u64 = 3;
/// Number of keys of each thread in each tree. One more key has the number of its last commit.
const SLOTS: u64 = 40;
/// Each thread increments the shared counter in every fourth transaction.
const COUNTS: u64 = 4;
/// The key of the shared counter in the first tree.
const COUNTER: &[u8] = b"total";
/// The trees that the threads write.
pub const TREES: [&str; 2] = ["a", "b"];

/// The records of a tree.
pub type Records = BTreeMap<Vec<u8>, Vec<u8>>;
/// All trees.
pub type Model = BTreeMap<String, Records>;

/// Opens a store with little memory, so that pages are evicted, and with short logs, so that commits make checkpoints.
pub fn open(folder: &Path) -> Result<Store> {
    builder(folder).open()
}

pub fn builder(folder: &Path) -> bedplate_btree::store::Builder {
    Store::builder(folder).memory(64 * 4096).capacity(256 << 20).checkpoint_bytes(300_000)
}

pub fn trees(store: &Store) -> Result<[NamedTree; 2]> {
    Ok([store.tree(TREES[0])?, store.tree(TREES[1])?])
}

fn key(thread: u64, slot: u64) -> [u8; 16] {
    (u128::from(thread) << 64 | u128::from(slot)).to_be_bytes()
}

fn value(n: u64, slot: u64) -> Vec<u8> {
    let len = [10, 300, 1400, 5000][((n + slot) % 4) as usize];
    [&n.to_le_bytes()[..], &vec![n as u8; len]].concat()
}

/// The changes of transaction `n` of a thread: the tree, the key, and the value or none for a removal.
fn changes(thread: u64, n: u64) -> [(usize, [u8; 16], Option<Vec<u8>>); 5] {
    let put = |tree, slot| (tree, key(thread, slot), Some(value(n, slot)));
    let removal = (0, key(thread, (n * 7 + 3) % SLOTS), None);
    [put(0, n % SLOTS), put(0, n * 7 % SLOTS), put(1, n * 3 % SLOTS), removal, put(1, SLOTS)]
}

/// Transaction `n` of a thread.
pub fn write(
    transaction: &mut WriteTransaction<'_>,
    trees: &[NamedTree; 2],
    thread: u64,
    n: u64,
) -> Result<()> {
    for (tree, key, value) in changes(thread, n) {
        match value {
            Some(value) => transaction.put(&trees[tree], &key, &value)?,
            None => _ = transaction.remove(&trees[tree], &key)?,
        }
    }
    if n.is_multiple_of(COUNTS) {
        let before = transaction.get(&trees[0], COUNTER)?;
        let before = before.map_or(0, |value| u64::from_le_bytes(value.try_into().unwrap()));
        transaction.put(&trees[0], COUNTER, &(before + 1).to_le_bytes())?;
    }
    Ok(())
}

/// The number of the last transaction of a thread.
pub fn last(store: &Store, trees: &[NamedTree; 2], thread: u64) -> Result<u64> {
    let value = store.read()?.get(&trees[1], &key(thread, SLOTS))?;
    Ok(value.map_or(0, |value| u64::from_le_bytes(value[..8].try_into().unwrap())))
}

/// Applies transaction `n` of a thread to a model.
pub fn apply(model: &mut Model, thread: u64, n: u64) {
    for (tree, key, value) in changes(thread, n) {
        let records = model.entry(TREES[tree].to_owned()).or_default();
        match value {
            Some(value) => _ = records.insert(key.to_vec(), value),
            None => _ = records.remove(&key[..]),
        }
    }
    if n.is_multiple_of(COUNTS) {
        let counter = model.entry(TREES[0].to_owned()).or_default().entry(COUNTER.to_vec()).or_default();
        let before = <[u8; 8]>::try_from(&counter[..]).map_or(0, u64::from_le_bytes);
        *counter = (before + 1).to_le_bytes().to_vec();
    }
}

/// The content of a store.
pub fn content(store: &Store) -> Result<Model> {
    let snapshot = store.read()?;
    let mut model = Model::new();
    for name in store.trees() {
        let tree = store.tree(&name)?;
        let records: Result<_> = snapshot.range::<&[u8]>(&tree, ..)?.collect();
        model.insert(name, records?);
    }
    Ok(model)
}

/// A dump, and the treatment of the trees that the store has already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dump {
    /// Two trees that the store does not have.
    Refuse,
    /// Two trees that replace others.
    Replace,
    /// A tree whose records are put into another one. It has more records than one transaction of a load.
    Merge,
}

impl Dump {
    pub const ALL: [Self; 3] = [Self::Refuse, Self::Replace, Self::Merge];

    /// The trees of the dump. There are two dumps of each kind, and they have no record in common.
    pub fn model(self, odd: bool) -> Model {
        let records = |count: u64, len: fn(u64) -> usize| {
            let value = move |n| [&[u8::from(odd)][..], &vec![n as u8; len(n)]].concat();
            (0..count).map(|n| (n.to_be_bytes().to_vec(), value(n))).collect::<Records>()
        };
        let pair = |name: &str| {
            let each = |number: u64| (format!("{name}{number}"), records(100 + 20 * number, long));
            (0..2).map(each).collect()
        };
        match self {
            Self::Refuse => pair("new"),
            Self::Replace => pair("replaced"),
            Self::Merge => [("merged".to_owned(), records(10_200, |_| 8))].into(),
        }
    }

    /// The file of a dump.
    pub fn file(self, odd: bool) -> String {
        format!("{self:?}-{}.dump", u8::from(odd))
    }
}

/// Some of the lengths need overflow pages.
fn long(n: u64) -> usize {
    [10, 300, 1400, 5000][(n % 4) as usize]
}

/// Puts the trees of a model into a store.
pub fn put(store: &Store, model: &Model) -> Result<()> {
    for (name, records) in model {
        let tree = store.create_tree(name)?;
        store.update(|transaction| {
            records.iter().try_for_each(|(key, value)| transaction.put(&tree, key, value))
        })?;
    }
    Ok(())
}
