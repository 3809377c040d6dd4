//! Tests a node against a sorted map, and with bytes that are not a node.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::arbitrary::{arbitrary_page, records};
use super::check::check;
use super::edit::{Full, NewValue, Node};
use super::rebuild::{balanced, halves, merged, split_inner, split_leaf};
use super::view::Page;
use super::{Key, LONGEST_KEY, MAX_KEY, MAX_RECORD, PageBuf, head, max_key, max_record, separator};
use bedplate_bufpool::PageSize;

#[derive(Clone, Debug)]
enum Change {
    Put(Vec<u8>, Vec<u8>),
    PutElsewhere(Vec<u8>, u64, u64),
    Remove(Vec<u8>),
}

/// Keys with long common prefixes, keys that differ by trailing zeros, and very long keys.
fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => vec(prop_oneof![Just(0u8), Just(1), Just(255), any::<u8>()], 0..12),
        3 => (0u32..2000).prop_map(|n| n.to_be_bytes().to_vec()),
        2 => (0u8..4, 0usize..40).prop_map(|(byte, len)| [vec![b'a'; 40], vec![byte; len]].concat()),
        1 => (any::<u8>(), 400usize..MAX_KEY - 60).prop_map(|(byte, len)| vec![byte; len]),
    ]
}

/// Lengthens parts that are long in a page of 4 KiB, so that they are as long in a page of this size.
fn stretch(size: PageSize, bytes: Vec<u8>) -> Vec<u8> {
    if bytes.len() < 100 { bytes } else { bytes.repeat(size.bytes() / PageSize::MIN.bytes()) }
}

fn change() -> impl Strategy<Value = Change> {
    let value = prop_oneof![
        3 => vec(any::<u8>(), 0..20),
        1 => (any::<u8>(), 0usize..MAX_RECORD - MAX_KEY).prop_map(|(byte, len)| vec![byte; len])
    ];
    prop_oneof![
        6 => (key(), value).prop_map(|(key, value)| Change::Put(key, value)),
        1 => (key(), any::<u64>(), any::<u64>()).prop_map(|(key, page, len)| Change::PutElsewhere(key, page, len)),
        3 => key().prop_map(Change::Remove),
    ]
}

/// The expected content of a leaf. The value is none for an overflow value.
type Model = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

fn apply(page: &mut PageBuf, model: &mut Model, change: &Change) -> Result<(), Full> {
    let mut node = Node::of(&mut page.0);
    let (key, value) = match change {
        Change::Remove(key) => {
            let (at, found) = node.leaf().lower_bound(key);
            assert_eq!(found, model.contains_key(key));
            if found {
                node.remove(at);
                model.remove(key);
            }
            return Ok(());
        }
        Change::Put(key, value) => (key, NewValue::Here(value)),
        Change::PutElsewhere(key, page, len) => (key, NewValue::Overflow(*page, *len)),
    };
    let (at, found) = node.leaf().lower_bound(key);
    assert_eq!(found, model.contains_key(key));
    if found {
        node.replace(at, value)?
    } else {
        node.insert(at, key, value)?
    };
    let value = match value {
        NewValue::Here(value) => Some(value.to_vec()),
        NewValue::Overflow(..) => None,
    };
    model.insert(key.clone(), value);
    Ok(())
}

fn verify(page: &PageBuf, model: &Model) {
    let page = Page::of(&page.0);
    check(page, 0).unwrap();
    let expected: Vec<_> = model.clone().into_iter().collect();
    assert_eq!(records(page), expected);
    // A copy into a buffer with other content has the same records, and its keys are read one after the other.
    let mut copy = PageBuf::new(page.size());
    copy.0.as_mut_bytes().fill(0xa5);
    page.copy_leaf_to(&mut copy);
    let leaf = Page::of(&copy.0).leaf();
    assert_eq!(records(Page::of(&copy.0)), expected);
    let mut key = Key::new();
    if leaf.count() > 0 {
        leaf.key(0, &mut key);
    }
    for (i, (expected, _)) in expected.iter().enumerate() {
        leaf.next_key(i, &mut key);
        assert_eq!(key[..], expected[..]);
    }
}

fn leaf(size: PageSize, low: Option<&[u8]>, high: Option<&[u8]>) -> PageBuf {
    let mut page = PageBuf::new(size);
    Node::create(&mut page.0, 0, low, high, 0);
    page
}

fn is_between((low, high): &(Option<Vec<u8>>, Option<Vec<u8>>), key: &Vec<u8>) -> bool {
    low.as_ref().is_none_or(|low| low <= key) && high.as_ref().is_none_or(|high| key < high)
}

proptest! {
    #[test]
    fn a_leaf_is_a_sorted_map(
        size in select(&PageSize::ALL),
        prefix in vec(any::<u8>(), 0..50),
        bounded: bool,
        changes in vec(change(), 0..150),
        absent in vec(key(), 20),
    ) {
        // Each fence is the common prefix and one byte. Each random key becomes a key between the fences.
        let [low, high] = [0u8, 2].map(|last| [&prefix[..], &[last]].concat());
        let inside = |key: &Vec<u8>| [&prefix[..], &[1], &stretch(size, key.clone())[..]].concat();
        let mut fences = if bounded { (Some(low), Some(high)) } else { (None, None) };
        let mut page = leaf(size, fences.0.as_deref(), fences.1.as_deref());
        let mut model = Model::new();
        for change in changes {
            let change = match change {
                Change::Put(key, value) => Change::Put(inside(&key), stretch(size, value)),
                Change::PutElsewhere(key, page, len) => Change::PutElsewhere(inside(&key), page, len),
                Change::Remove(key) => Change::Remove(inside(&key)),
            };
            let (Change::Put(key, _) | Change::PutElsewhere(key, ..) | Change::Remove(key)) = &change;
            if !is_between(&fences, key) { continue }
            if apply(&mut page, &mut model, &change).is_err() {
                verify(&page, &model);
                // A full leaf splits into two halves with all of its records. A merge of the halves restores the leaf.
                if model.contains_key(key) { continue }
                let view = Page::of(&page.0);
                let split = split_leaf(view, key);
                let (left, right) = halves(view, &split).unwrap();
                let upper = model.split_off(&split.separator[..]);
                verify(&left, &model);
                verify(&right, &upper);
                // A redistribution keeps all records of the siblings. Each sibling has a part of them.
                if let Ok((first, second, between)) = balanced(Page::of(&left.0), Page::of(&right.0)) {
                    check(Page::of(&first.0), 0).unwrap();
                    check(Page::of(&second.0), 0).unwrap();
                    let (below, above) = (records(Page::of(&first.0)), records(Page::of(&second.0)));
                    prop_assert!(below.last().unwrap().0 < between.to_vec() && between.to_vec() <= above[0].0);
                    prop_assert_eq!([below, above].concat(), records(view));
                }
                if let Ok(both) = merged(Page::of(&left.0), Page::of(&right.0), &split.separator, 0) {
                    prop_assert_eq!(records(Page::of(&both.0)), records(view));
                }
                if key[..] < split.separator[..] {
                    page = left;
                    fences.1 = Some(split.separator.to_vec());
                } else {
                    page = right;
                    fences.0 = Some(split.separator.to_vec());
                    model = upper;
                }
                continue;
            }
            verify(&page, &model);
        }
        let view = Page::of(&page.0);
        for key in absent.iter().map(inside).filter(|key| is_between(&fences, key)) {
            let (at, found) = view.leaf().lower_bound(&key);
            prop_assert_eq!(found, model.contains_key(&key));
            let below = model.range::<[u8], _>((std::ops::Bound::Unbounded, std::ops::Bound::Excluded(&key[..])));
            prop_assert_eq!(at, below.count());
        }
    }

    #[test]
    fn an_inner_node_finds_the_child_of_every_key(
        size in select(&PageSize::ALL),
        separators in proptest::collection::btree_set(key().prop_filter("separators are not empty", |k| !k.is_empty()), 3..60),
        keys in vec(key(), 30),
    ) {
        let stretched = |key: Vec<u8>| stretch(size, key);
        let separators: BTreeSet<Vec<u8>> = separators.into_iter().map(stretched).collect();
        let keys: Vec<Vec<u8>> = keys.into_iter().map(stretched).collect();
        let mut page = PageBuf::new(size);
        let mut node = Node::create(&mut page.0, 3, None, None, 1000);
        let mut kept: Vec<Vec<u8>> = Vec::new();
        for (i, separator) in separators.iter().enumerate() {
            // The set yields the separators in ascending order.
            let at = node.inner().lower_bound(separator).0;
            let room = node.page().has_room_for_child(separator);
            let done = node.insert_child(at, separator, i as u64);
            prop_assert_eq!(done.is_ok(), room);
            if done.is_ok() { kept.push(separator.clone()) }
        }
        let removed = kept.remove(kept.len() / 2);
        let at = node.inner().lower_bound(&removed).0;
        node.remove(at);
        let view = Page::of(&page.0);
        check(view, 3).unwrap();
        let child = |page: Page<'_>, key: &[u8]| page.inner().child(page.inner().position(key));
        let expected = |key: &[u8]| kept.iter().rev().find(|kept| &kept[..] <= key)
            .map_or(1000, |found| separators.iter().position(|separator| separator == found).unwrap() as u64);
        for key in keys.iter().chain(&kept) {
            prop_assert_eq!(child(view, key), expected(key));
            let before = view.inner().child(view.inner().position_before(Some(key)));
            let last_below = kept.iter().rev().find(|kept| *kept < key);
            prop_assert_eq!(before, last_below.map_or(1000, |found| expected(found)));
        }
        if kept.len() >= 3 {
            let split = split_inner(view);
            let (left, right) = halves(view, &split).unwrap();
            check(Page::of(&left.0), 3).unwrap();
            check(Page::of(&right.0), 3).unwrap();
            for key in &keys {
                let half = if key[..] < split.separator[..] { &left } else { &right };
                prop_assert_eq!(child(Page::of(&half.0), key), expected(key));
            }
            let both = merged(Page::of(&left.0), Page::of(&right.0), &split.separator, 0).unwrap();
            check(Page::of(&both.0), 3).unwrap();
            for key in &keys {
                prop_assert_eq!(child(Page::of(&both.0), key), expected(key));
            }
        }
    }

    #[test]
    fn heads_and_separators_keep_the_order(a in key(), b in key()) {
        if a < b {
            prop_assert!(head(&a) <= head(&b));
            let separator = separator(&a, &b);
            prop_assert!(&a[..] < separator && separator <= &b[..]);
        }
    }

    #[test]
    fn bytes_that_are_no_node_do_no_harm(input in vec(any::<u8>(), 0..4200)) {
        arbitrary_page(&input);
    }

    #[test]
    fn a_damaged_node_does_no_harm(
        size in select(&PageSize::ALL),
        changes in vec(change(), 1..60),
        damage in vec((0usize..140, any::<u8>()), 1..6),
        argument in vec(any::<u8>(), 24),
    ) {
        let (mut page, mut model) = (leaf(size, None, None), Model::new());
        for change in &changes {
            let _ = apply(&mut page, &mut model, change);
        }
        for &(at, byte) in &damage {
            page.0.as_mut_bytes()[at] = byte;
        }
        arbitrary_page(&[&argument[..], page.0.as_mut_bytes()].concat());
    }
}

#[test]
fn two_of_the_largest_records_fit_beside_the_longest_fences() {
    for size in PageSize::ALL {
        let [low, mid, high] = [b'a', b'b', b'c'].map(|byte| vec![byte; max_key(size)]);
        let mut page = leaf(size, Some(&low), Some(&high));
        let mut node = Node::of(&mut page.0);
        let value = vec![1; max_record(size) - max_key(size)];
        node.insert(0, &low, NewValue::Here(&value)).unwrap();
        node.insert(1, &mid, NewValue::Here(&value)).unwrap();
        assert_eq!(node.insert(2, &mid, NewValue::Here(&value)), Err(Full));
        check(Page::of(&page.0), 0).unwrap();
    }
}

/// The heap of an empty node begins at the end of the payload, which is the largest offset.
#[test]
fn the_last_byte_of_the_largest_page_is_used() {
    let mut page = leaf(PageSize::MAX, None, None);
    let mut node = Node::of(&mut page.0);
    let mut count = 0u32;
    while node.insert(count as usize, &count.to_be_bytes(), NewValue::Here(&[7; 10])).is_ok() {
        count += 1;
    }
    // A record has a slot of 8 bytes, a length of 2 and a value of 10. The key is in the slot.
    assert_eq!(count as usize, (PageSize::MAX.payload() - super::SLOTS) / 20);
    assert_eq!(page.0.as_mut_bytes().last(), Some(&7));
    check(Page::of(&page.0), 0).unwrap();
    assert_eq!(records(Page::of(&page.0)).len(), count as usize);
}

#[test]
fn keys_of_every_length_are_copied_piece_by_piece() {
    let bytes: Vec<u8> = (0..LONGEST_KEY + 100).map(|at| (at % 251) as u8).collect();
    let mut key = Key::new();
    for len in [0, 1, MAX_KEY - 1, MAX_KEY, MAX_KEY + 1, 2 * MAX_KEY, LONGEST_KEY, LONGEST_KEY + 100] {
        for piece in [1, 100, MAX_KEY, MAX_KEY + 1, LONGEST_KEY + 100] {
            key.clear();
            bytes[..len].chunks(piece).for_each(|piece| key.push(piece));
            assert!(key[..] == bytes[..len.min(LONGEST_KEY)], "{len} bytes in pieces of {piece}");
        }
    }
}

#[test]
fn records_of_eight_and_of_120_bytes_fill_a_leaf_as_densely_as_lmdb() {
    let [low, high] = [1000u64, 1040].map(u64::to_be_bytes);
    let mut page = leaf(PageSize::MIN, Some(&low), Some(&high));
    let mut node = Node::of(&mut page.0);
    let fitting = (1000u64..1040).take_while(|n| {
        let at = node.leaf().count();
        node.insert(at, &n.to_be_bytes(), NewValue::Here(&[0; 120])).is_ok()
    });
    assert_eq!(fitting.count(), 30);
}

#[test]
fn rising_keys_leave_full_leaves_behind() {
    let mut page = leaf(PageSize::MIN, None, None);
    let mut node = Node::of(&mut page.0);
    let full =
        (0u64..).find(|n| node.insert(*n as usize, &n.to_be_bytes(), NewValue::Here(&[0; 100])).is_err());
    let full = full.unwrap();
    let split = split_leaf(node.page(), &full.to_be_bytes());
    let (left, right) = halves(node.page(), &split).unwrap();
    assert_eq!((Page::of(&left.0).leaf().count(), Page::of(&right.0).leaf().count()), (full as usize, 0));
    assert!(split.separator[..] <= full.to_be_bytes()[..]);
}
