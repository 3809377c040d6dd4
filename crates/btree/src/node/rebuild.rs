//! Splits, merges and redistributions: nodes are rebuilt because their fences change.
//!
//! New fences mean another common prefix, so records cannot be copied unchanged. All functions here build copies. The
//! caller overwrites the latched pages at the end, when nothing can fail any more.

use std::ops::Range;

use bedplate_bufpool::PageSize;

use super::edit::{Full, NewValue, Node, record_len};
use super::view::{Leaf, Page, Value};
use super::{INNER_SLOT, Key, LEAF_SLOT, PageBuf, separator};

/// The position of a split. Slots from `at` on move to the right node. In an inner node, separator `at` moves up instead.
pub struct Split {
    /// The first slot that does not stay in the left node.
    pub at: usize,
    /// The fence between the two nodes.
    pub separator: Key,
}

/// Chooses the position where a leaf is split that has no room for `key`.
///
/// Keys that arrive in order should leave full leaves behind. For ascending keys this holds anywhere in the tree: a
/// table whose rows are grouped by owner grows at many places. For descending keys it holds at the start of the tree.
/// In all other cases the leaf is split in the middle by bytes, or near it where the separator is shortest. The middle
/// is also right for a key that is in the leaf already and gets a longer value.
///
/// Each half gets a new fence, which may be longer than the prefix bytes that the split saves. If a split position does
/// not leave room for it, the middle is used. The middle always leaves room for the longest fence, even with large
/// records.
pub fn split_leaf(page: Page<'_>, key: &[u8]) -> Split {
    let leaf = page.leaf();
    let count = leaf.count();
    let size = |i| LEAF_SLOT + record_len(leaf, leaf.slot(i));
    let fits = |at: usize, separator: &[u8]| {
        let sides = [(0..at, page.low()), (at..count, page.high())];
        sides.into_iter().all(|(slots, fence)| {
            slots.map(size).sum::<usize>() + fence.map_or(0, |fence| fence.len()) + separator.len()
                <= page.capacity()
        })
    };
    let (place, found) = leaf.lower_bound(key);
    let (mut left, mut right) = (Key::new(), Key::new());
    if !found && place == count && count > 0 {
        leaf.key(count - 1, &mut left);
        let separator = separator(&left, key);
        if fits(count, separator) {
            return Split { at: count, separator: Key::of(separator) };
        }
    }
    if !found && place == 0 && count > 0 && page.low().is_none() {
        leaf.key(0, &mut right);
        let separator = separator(key, &right);
        if fits(0, separator) {
            return Split { at: 0, separator: Key::of(separator) };
        }
    }
    let mut separate = |at: usize| {
        leaf.key(at - 1, &mut left);
        leaf.key(at, &mut right);
        Key::of(separator(&left, &right))
    };
    if count < 2 {
        return Split { at: 0, separator: Key::of(key) };
    }
    let middle = middle(count, size);
    let mut best = Split { at: middle, separator: separate(middle) };
    for at in middle.saturating_sub(count / 16).max(1)..=(middle + count / 16).min(count - 1) {
        let candidate = separate(at);
        let distance = |at: usize| at.abs_diff(middle);
        let shorter = (candidate.len(), distance(at)) < (best.separator.len(), distance(best.at));
        if shorter && fits(at, &candidate) {
            best = Split { at, separator: candidate };
        }
    }
    best
}

/// Chooses the position where an inner node is split: in the middle by bytes. At least one separator remains on each side of the
/// one that moves up.
pub fn split_inner(page: Page<'_>) -> Split {
    let inner = page.inner();
    let count = inner.count();
    let mut separator = Key::new();
    if count < 3 {
        return Split { at: 0, separator };
    }
    let at = middle(count, |i| INNER_SLOT + record_len(inner, inner.slot(i))).clamp(1, count - 2);
    inner.key(at, &mut separator);
    Split { at, separator }
}

/// The position, except both ends, where the larger side is smallest.
fn middle(count: usize, size: impl Fn(usize) -> usize) -> usize {
    let total = (0..count).map(&size).sum::<usize>();
    let mut left = 0;
    let larger = |at: usize| {
        left += size(at - 1);
        (left.max(total - left), at)
    };
    (1..count).map(larger).min().map_or(0, |(_, at)| at)
}

/// The two halves of `page`.
pub fn halves(page: Page<'_>, split: &Split) -> Result<(PageBuf, PageBuf), Full> {
    let (low, high) = (fence(page.low()), fence(page.high()));
    if page.is_leaf() {
        return spread(page.size(), &[page.leaf()], split, low.as_deref(), high.as_deref());
    }
    let (mut left, mut right) = (PageBuf::new(page.size()), PageBuf::new(page.size()));
    let separator = Some(&split.separator[..]);
    let inner = page.inner();
    let mut node = Node::create(&mut left.0, page.level(), low.as_deref(), separator, inner.child(0));
    copy_children(&mut node, page, 0, split.at)?;
    node.refresh_hints();
    let first = inner.child(split.at + 1);
    let mut node = Node::create(&mut right.0, page.level(), separator, high.as_deref(), first);
    copy_children(&mut node, page, split.at + 1, inner.count())?;
    node.refresh_hints();
    Ok((left, right))
}

/// Distributes the records of two sibling leaves evenly over two leaves. Returns the leaves and the separator between
/// them.
pub fn balanced(left: Page<'_>, right: Page<'_>) -> Result<(PageBuf, PageBuf, Key), Full> {
    let leaves = [left.leaf(), right.leaf()];
    let count = leaves[0].count() + leaves[1].count();
    let slot = |i: usize| match i.checked_sub(leaves[0].count()) {
        None => (leaves[0], i),
        Some(i) => (leaves[1], i),
    };
    let size = |i: usize| {
        let (leaf, i) = slot(i);
        LEAF_SLOT + record_len(leaf, leaf.slot(i))
    };
    let key = |i: usize| {
        let ((leaf, i), mut key) = (slot(i), Key::new());
        leaf.key(i, &mut key);
        key
    };
    let at = middle(count, size);
    if at == 0 {
        return Err(Full);
    }
    let separator = Key::of(separator(&key(at - 1), &key(at)));
    let split = Split { at, separator };
    let (low, high) = (fence(left.low()), fence(right.high()));
    let (left, right) = spread(left.size(), &leaves, &split, low.as_deref(), high.as_deref())?;
    Ok((left, right, split.separator))
}

/// Copies the records of `leaves`, which must not change, into two leaves.
fn spread(
    size: PageSize,
    leaves: &[Leaf<'_>],
    split: &Split,
    low: Option<&[u8]>,
    high: Option<&[u8]>,
) -> Result<(PageBuf, PageBuf), Full> {
    let separator = Some(&split.separator[..]);
    let filled = |low, high, slots: Range<usize>| {
        let mut copy = PageBuf::new(size);
        let mut node = Node::create(&mut copy.0, 0, low, high, 0);
        let mut first = 0;
        for leaf in leaves {
            let [from, to] = [slots.start, slots.end].map(|at| at.saturating_sub(first).min(leaf.count()));
            copy_records(&mut node, *leaf, from, to)?;
            first += leaf.count();
        }
        node.refresh_hints();
        Ok(copy)
    };
    Ok((filled(low, separator, 0..split.at)?, filled(separator, high, split.at..usize::MAX)?))
}

/// Merges both nodes into one. `separator` is the parent's key between them. Fails if the result has fewer than `spare`
/// free bytes.
pub fn merged(left: Page<'_>, right: Page<'_>, separator: &[u8], spare: usize) -> Result<PageBuf, Full> {
    let (low, high) = (fence(left.low()), fence(right.high()));
    let mut both = PageBuf::new(left.size());
    if left.is_leaf() {
        let mut node = Node::create(&mut both.0, 0, low.as_deref(), high.as_deref(), 0);
        copy_records(&mut node, left.leaf(), 0, left.leaf().count())?;
        copy_records(&mut node, right.leaf(), 0, right.leaf().count())?;
        node.refresh_hints();
    } else {
        let first = left.inner().child(0);
        let mut node = Node::create(&mut both.0, left.level(), low.as_deref(), high.as_deref(), first);
        copy_children(&mut node, left, 0, left.inner().count())?;
        let at = node.inner().count();
        node.put_child(at, separator, right.inner().child(0))?;
        copy_children(&mut node, right, 0, right.inner().count())?;
        node.refresh_hints();
    }
    let used = Page::of(&both.0).used();
    if used + spare > left.capacity() { Err(Full) } else { Ok(both) }
}

fn fence(bytes: Option<super::view::Bytes<'_>>) -> Option<Key> {
    bytes.map(|bytes| {
        let mut key = Key::new();
        bytes.push_to(&mut key);
        key
    })
}

/// Appends slots `from..to` of a leaf that does not change.
fn copy_records(node: &mut Node<'_>, leaf: Leaf<'_>, from: usize, to: usize) -> Result<(), Full> {
    let mut key = Key::new();
    for i in from..to {
        leaf.key(i, &mut key);
        let value = match leaf.value(i) {
            // SAFETY: the caller has latched the leaf, or owns a copy of it.
            Value::Here(bytes) => NewValue::Here(unsafe { bytes.stable() }),
            Value::Overflow(page, len) => NewValue::Overflow(page, len),
        };
        let at = node.leaf().count();
        node.put(at, &key, value)?;
    }
    Ok(())
}

/// Appends separators `from..to` of an inner node, with the child after each.
fn copy_children(node: &mut Node<'_>, page: Page<'_>, from: usize, to: usize) -> Result<(), Full> {
    let (inner, mut key) = (page.inner(), Key::new());
    for i in from..to {
        inner.key(i, &mut key);
        let at = node.inner().count();
        node.put_child(at, &key, inner.child(i + 1))?;
    }
    Ok(())
}
