//! All operations on nodes, applied to arbitrary bytes. The fuzzer and the property tests use this.

use super::edit::{NewValue, Node};
use super::view::{Page, Value};
use super::{INNER, Key, LEAF, LONGEST_KEY, PageBuf, check, rebuild};
use bedplate_bufpool::PageSize;

/// Reads and changes `input` as if it were a node. No operation may panic, hang, or access memory outside the page. The
/// results do not matter.
pub fn arbitrary_page(input: &[u8]) {
    let (arguments, payload) = input.split_at(input.len().min(24));
    let choice = arguments.first().copied().unwrap_or_default();
    // Most inputs are as short as a page of 4 KiB. Reading all keys of a large page that is not a node takes long.
    let size = if choice < 240 { 0 } else { 1 + usize::from(choice / 4 % 4) };
    let mut page = PageBuf::new(PageSize::ALL[size]);
    let len = payload.len().min(page.0.len());
    let bytes = page.0.as_mut_bytes();
    bytes[..len].copy_from_slice(&payload[..len]);
    // Without this, most inputs would be neither a leaf nor an inner node.
    match choice % 4 {
        0 => bytes[0] = LEAF,
        1 => bytes[0] = INNER,
        _ => {}
    }
    let key = &arguments[1.min(arguments.len())..];
    read(Page::of(&page.0), key);
    change(&page, key);
}

fn read(page: Page<'_>, key: &[u8]) {
    let mut copy = Key::new();
    let (leaf, inner) = (page.leaf(), page.inner());
    let (at, _) = leaf.lower_bound(key);
    assert!(at <= leaf.count());
    let at = inner.position(key);
    assert!(at <= inner.count());
    std::hint::black_box(inner.child(at));
    assert!(
        inner.position_before(None) == inner.count() && inner.position_before(Some(key)) <= inner.count()
    );
    for i in 0..leaf.count() {
        leaf.key(i, &mut copy);
        assert!(copy.len() <= LONGEST_KEY);
    }
    let mut part = PageBuf::new(page.size());
    page.copy_leaf_to(&mut part);
    let leaf = Page::of(&part.0).leaf();
    for i in 0..leaf.count() {
        leaf.next_key(i, &mut copy);
        assert!(copy.len() <= LONGEST_KEY);
    }
    for i in 0..inner.count() {
        inner.key(i, &mut copy);
        std::hint::black_box(inner.child(i));
    }
    let level = page.level();
    let _ = check::check(page, level);
    for (key, value) in records(page) {
        assert!(key.len() <= LONGEST_KEY && value.is_none_or(|value| value.len() <= page.end()));
    }
}

type Change<'c> = dyn Fn(&mut Node<'_>, usize) -> bool + 'c;

fn change(page: &PageBuf, key: &[u8]) {
    let value = vec![7; 200 * key.first().map_or(0, |&byte| usize::from(byte % 8))];
    let changes: [&Change; 5] = [
        &|node, at| node.insert(at, key, NewValue::Here(&value)).is_ok(),
        &|node, at| node.insert_child(at, key, 1).is_ok(),
        &|node, at| node.replace(at, NewValue::Here(&value)).is_ok(),
        &|node, at| node.replace(at, NewValue::Overflow(1, 2)).is_ok(),
        &|node, at| {
            node.remove(at);
            true
        },
    ];
    for change in changes {
        let mut copy = page.clone();
        let mut node = Node::of(&mut copy.0);
        let at = if node.page().is_leaf() {
            node.leaf().lower_bound(key).0
        } else {
            node.inner().lower_bound(key).0
        };
        std::hint::black_box(change(&mut node, at));
        read(Page::of(&copy.0), key);
    }
    let mut copy = page.clone();
    Node::of(&mut copy.0).overwrite_value(0, &vec![1; page.0.len()]);
    let page = Page::of(&page.0);
    let split = if page.is_leaf() { rebuild::split_leaf(page, key) } else { rebuild::split_inner(page) };
    if let Ok((left, right)) = rebuild::halves(page, &split) {
        read(Page::of(&left.0), key);
        let _ = rebuild::merged(Page::of(&left.0), Page::of(&right.0), &split.separator, 0);
    }
}

/// All records of a leaf that does not change. The value is none for an overflow value.
pub fn records(page: Page<'_>) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let leaf = page.leaf();
    let mut key = Key::new();
    (0..leaf.count())
        .map(|i| {
            leaf.key(i, &mut key);
            let value = match leaf.value(i) {
                Value::Here(bytes) => {
                    let mut value = Vec::new();
                    bytes.append_to(&mut value);
                    Some(value)
                }
                Value::Overflow(..) => None,
            };
            (key.to_vec(), value)
        })
        .collect()
}
