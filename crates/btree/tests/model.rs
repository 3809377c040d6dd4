//! Compares a tree with a `BTreeMap`: random operations, in pools that hold an eighth of the tree or less.

mod common;

use std::collections::BTreeMap;
use std::ops::Bound;

use bedplate_btree::{MAX_KEY, MAX_RECORD, Tree, max_key, max_record};
use bedplate_bufpool::{PageSize, Pool};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

#[derive(Clone, Debug)]
enum Operation {
    Insert(Vec<u8>, Vec<u8>),
    Upsert(Vec<u8>, Vec<u8>),
    /// Appends, and truncates to a length.
    Update(Vec<u8>, Vec<u8>, usize),
    InPlace(Vec<u8>, u8),
    Remove(Vec<u8>),
    RemoveRange(Vec<u8>, Vec<u8>),
    Get(Vec<u8>),
    Range(Bound<Vec<u8>>, Bound<Vec<u8>>, usize),
    RangeRev(Bound<Vec<u8>>, Bound<Vec<u8>>, usize),
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        5 => (0u32..400).prop_map(|n| n.to_be_bytes().to_vec()),
        3 => (0u64..300).prop_map(|n| common::mixed(n).to_be_bytes().to_vec()),
        3 => (0u8..6, 0usize..30).prop_map(|(byte, len)| [&b"https://example.org/"[..], &vec![byte; len]].concat()),
        2 => vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 0..6),
        1 => (0u8..30, MAX_KEY - 20..=MAX_KEY).prop_map(|(byte, len)| vec![byte; len]),
        1 => (0u8..30).prop_map(|byte| [vec![7; MAX_KEY - 1], vec![byte]].concat()),
    ]
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        6 => vec(any::<u8>(), 0..30),
        6 => (any::<u8>(), 80usize..400).prop_map(|(byte, len)| vec![byte; len]),
        2 => (any::<u8>(), 700usize..MAX_RECORD + 100).prop_map(|(byte, len)| vec![byte; len]),
        1 => (any::<u8>(), 4000usize..20_000).prop_map(|(byte, len)| vec![byte; len]),
    ]
}

fn bound() -> impl Strategy<Value = Bound<Vec<u8>>> {
    prop_oneof![
        1 => Just(Bound::Unbounded),
        3 => key().prop_map(Bound::Included),
        3 => key().prop_map(Bound::Excluded),
        1 => (0u8..30).prop_map(|byte| Bound::Included(vec![byte; MAX_KEY + 1])),
        1 => (0u8..30).prop_map(|byte| Bound::Excluded(vec![byte; MAX_KEY + 1])),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        10 => (key(), value()).prop_map(|(key, value)| Operation::Insert(key, value)),
        10 => (key(), value()).prop_map(|(key, value)| Operation::Upsert(key, value)),
        4 => (key(), value(), 0usize..3000).prop_map(|(key, value, len)| Operation::Update(key, value, len)),
        3 => (key(), any::<u8>()).prop_map(|(key, byte)| Operation::InPlace(key, byte)),
        10 => key().prop_map(Operation::Remove),
        1 => (key(), key()).prop_map(|(low, high)| Operation::RemoveRange(low, high)),
        4 => key().prop_map(Operation::Get),
        3 => (bound(), bound(), 0usize..200).prop_map(|(low, high, take)| Operation::Range(low, high, take)),
        3 => (bound(), bound(), 0usize..200).prop_map(|(low, high, take)| Operation::RangeRev(low, high, take)),
    ]
}

/// Lengthens keys and values near the limits of a page of 4 KiB, so that they are near the limits of this size.
fn stretch(size: PageSize, operation: Operation) -> Operation {
    use Operation::*;
    let key = |key: Vec<u8>| stretch_key(size, key);
    let value = |value: Vec<u8>| stretch_value(size, value);
    let bound = |bound: Bound<Vec<u8>>| bound.map(key);
    match operation {
        Insert(k, v) => Insert(key(k), value(v)),
        Upsert(k, v) => Upsert(key(k), value(v)),
        Update(k, v, len) => Update(key(k), value(v), len * size.bytes() / PageSize::MIN.bytes()),
        InPlace(k, byte) => InPlace(key(k), byte),
        Remove(k) => Remove(key(k)),
        RemoveRange(low, high) => RemoveRange(key(low), key(high)),
        Get(k) => Get(key(k)),
        Range(low, high, take) => Range(bound(low), bound(high), take),
        RangeRev(low, high, take) => RangeRev(bound(low), bound(high), take),
    }
}

fn stretch_key(size: PageSize, key: Vec<u8>) -> Vec<u8> {
    match key.first() {
        Some(first) if key.len() >= MAX_KEY - 20 => [vec![*first; max_key(size) - MAX_KEY], key].concat(),
        _ => key,
    }
}

fn stretch_value(size: PageSize, value: Vec<u8>) -> Vec<u8> {
    match value.first() {
        Some(first) if (700..MAX_RECORD + 100).contains(&value.len()) => {
            [vec![*first; max_record(size) - MAX_RECORD], value].concat()
        }
        _ => value,
    }
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn in_range<'m>(
    model: &'m Model,
    low: &'m Bound<Vec<u8>>,
    high: &'m Bound<Vec<u8>>,
) -> impl DoubleEndedIterator<Item = (Vec<u8>, Vec<u8>)> + 'm {
    use std::ops::RangeBounds;
    let range = (low.clone(), high.clone());
    model.iter().filter(move |(key, _)| range.contains(*key)).map(|(key, value)| (key.clone(), value.clone()))
}

fn apply(tree: &Tree<&Pool>, model: &mut Model, operation: Operation) -> Result<(), TestCaseError> {
    match operation {
        Operation::Insert(key, value) => {
            let new = !model.contains_key(&key);
            prop_assert_eq!(tree.insert(&key, &value).unwrap(), new);
            model.entry(key).or_insert(value);
        }
        Operation::Upsert(key, value) => {
            let was_there = tree.upsert(&key, &value).unwrap();
            prop_assert_eq!(was_there, model.insert(key, value).is_some());
        }
        Operation::Update(key, suffix, len) => {
            let changed = |old: &[u8]| [old, &suffix[..]].concat().into_iter().take(len).collect::<Vec<_>>();
            let found = tree.update(&key, |old, new| new.extend(changed(old))).unwrap();
            prop_assert_eq!(found, model.contains_key(&key));
            model.entry(key).and_modify(|value| *value = changed(value));
        }
        Operation::InPlace(key, byte) => {
            let len = tree
                .update_in_place(&key, |value| {
                    value.fill(byte);
                    value.len()
                })
                .unwrap();
            prop_assert_eq!(len, model.get(&key).map(Vec::len));
            model.entry(key).and_modify(|value| value.fill(byte));
        }
        Operation::Remove(key) => {
            prop_assert_eq!(tree.remove(&key).unwrap(), model.remove(&key).is_some());
        }
        Operation::RemoveRange(low, high) => {
            let range = (Bound::Included(low), Bound::Excluded(high));
            let keys: Vec<_> = in_range(model, &range.0, &range.1).map(|(key, _)| key).collect();
            for key in keys {
                prop_assert!(tree.remove(&key).unwrap());
                model.remove(&key);
            }
        }
        Operation::Get(key) => {
            prop_assert_eq!(tree.get(&key, <[u8]>::to_vec).unwrap(), model.get(&key).cloned());
            prop_assert_eq!(tree.contains_key(&key).unwrap(), model.contains_key(&key));
        }
        Operation::Range(low, high, take) => {
            let expected: Vec<_> = in_range(model, &low, &high).take(take).collect();
            // The expected number of records does not change the result.
            let found: Result<Vec<_>, _> =
                tree.range((low, high)).expecting(model.len() % 100).owned().take(take).collect();
            prop_assert_eq!(found.unwrap(), expected);
        }
        Operation::RangeRev(low, high, take) => {
            let expected: Vec<_> = in_range(model, &low, &high).rev().take(take).collect();
            let found: Result<Vec<_>, _> =
                tree.range_rev((low, high)).expecting(model.len() % 100).owned().take(take).collect();
            prop_assert_eq!(found.unwrap(), expected);
        }
    }
    Ok(())
}

fn verify(tree: &Tree<&Pool>, pool: &Pool, model: &Model) -> Result<(), TestCaseError> {
    let mut pages = 0;
    let shape = tree.pages(|_| pages += 1).unwrap();
    prop_assert_eq!(shape.records, model.len() as u64);
    prop_assert_eq!(shape.pages(), pages);
    // No page has leaked.
    prop_assert_eq!(pool.pages_in_use(), pages);
    let all: Result<Vec<_>, _> = tree.iter().owned().collect();
    prop_assert_eq!(all.unwrap(), model.clone().into_iter().collect::<Vec<_>>());
    let rev: Result<Vec<_>, _> = tree.range_rev::<&[u8]>(..).owned().collect();
    prop_assert_eq!(rev.unwrap(), model.clone().into_iter().rev().collect::<Vec<_>>());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn a_tree_is_a_sorted_map(
        size in select(common::page_sizes()),
        operations in vec(operation(), 1..600),
        again in vec(operation(), 0..200),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let mut model = Model::new();
        {
            // 600 operations allocate about 150 pages.
            let pool = common::open_sized(directory.path(), 20, size);
            let tree = Tree::create(&pool, 3).unwrap();
            for operation in operations {
                apply(&tree, &mut model, stretch(size, operation))?;
            }
            verify(&tree, &pool, &model)?;
            pool.close().unwrap();
        }
        let pool = common::open_sized(directory.path(), 20, size);
        let tree = Tree::open(&pool, 3).unwrap();
        verify(&tree, &pool, &model)?;
        for operation in again {
            apply(&tree, &mut model, stretch(size, operation))?;
        }
        verify(&tree, &pool, &model)?;
        for key in model.keys() {
            prop_assert!(tree.remove(key).unwrap());
        }
        verify(&tree, &pool, &Model::new())?;
        tree.destroy().unwrap();
        prop_assert_eq!(pool.pages_in_use(), 0);
    }

    #[test]
    fn bulk_loading_is_inserting(
        size in select(common::page_sizes()),
        records in proptest::collection::btree_map(key(), value(), 0..800),
    ) {
        let records: Model =
            records.into_iter().map(|(key, value)| (stretch_key(size, key), stretch_value(size, value))).collect();
        let directory = tempfile::tempdir().unwrap();
        let pool = common::open_sized(directory.path(), 40, size);
        let tree = Tree::create(&pool, 0).unwrap();
        prop_assert_eq!(tree.bulk_load(records.clone()).unwrap(), records.len() as u64);
        verify(&tree, &pool, &records)?;
    }
}
