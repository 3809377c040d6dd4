//! Everything that can be done to a node, done to bytes that need not be one: for the fuzzer and the property tests.

use super::edit::{NewValue, Node};
use super::view::{Page, Value};
use super::{Copied, INNER, Key, LEAF, MAX_KEY, PAYLOAD, check, rebuild};

/// Reads and changes `input` as if it were a node. Nothing may panic, hang or leave the page; what comes out is of no
/// interest, except that a page that passes the checks still does after a change.
pub fn arbitrary_page(input: &[u8]) {
    let (arguments, payload) = input.split_at(input.len().min(24));
    let mut page = Copied::new();
    let len = payload.len().min(PAYLOAD);
    page.0[..len].copy_from_slice(&payload[..len]);
    // Most inputs would be neither kind.
    match arguments.first().copied().unwrap_or_default() % 4 {
        0 => page.0[0] = LEAF,
        1 => page.0[0] = INNER,
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
        assert!(copy.len() <= MAX_KEY);
    }
    for i in 0..inner.count() {
        inner.key(i, &mut copy);
        std::hint::black_box(inner.child(i));
    }
    let level = page.level();
    let _ = check::check(page, level);
    for (key, value) in records(page) {
        assert!(key.len() <= MAX_KEY && value.is_none_or(|value| value.len() <= PAYLOAD));
    }
}

type Change<'c> = dyn Fn(&mut Node<'_>, usize) -> bool + 'c;

fn change(page: &Copied, key: &[u8]) {
    let value = vec![7; 200 * key.first().map_or(0, |&byte| usize::from(byte % 8))];
    let changes: [&Change; 5] = [
        &|node, at| node.insert(at, key, NewValue::Here(&value)).is_ok(),
        &|node, at| node.insert_child(at, key, 1).is_ok(),
        &|node, at| node.replace(at, NewValue::Here(&value)).is_ok(),
        &|node, at| node.replace(at, NewValue::Elsewhere(1, 2)).is_ok(),
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
    if let Some(value) = Node::of(&mut copy.0).into_value(0) {
        value.fill(1);
    }
    let page = Page::of(&page.0);
    let split = if page.is_leaf() { rebuild::split_leaf(page, key) } else { rebuild::split_inner(page) };
    if let Ok((left, right)) = rebuild::halves(page, &split) {
        read(Page::of(&left.0), key);
        let _ = rebuild::merged(Page::of(&left.0), Page::of(&right.0), &split.separator, 0);
    }
}

/// All keys and values of a leaf that stands still, with values that are elsewhere left out.
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
                Value::Elsewhere(..) => None,
            };
            (key.to_vec(), value)
        })
        .collect()
}
