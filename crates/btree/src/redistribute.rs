//! Redistribution: a full leaf shares its records with a sibling that has room, instead of a split. B*-trees do the
//! same, and also split two nodes into three, which this crate does not.
//!
//! With splits alone, leaves that are filled in random order are two thirds full. With redistribution they are about
//! three quarters full. So memory holds more records, and scans read fewer leaves. Redistribution never reads a sibling
//! from storage and never waits for one, because the gain is not worth that.

use bedplate_bufpool::{Exclusive, Optimistic, PageId};

use crate::descend::Handle;
use crate::error::{Attempt, damaged};
use crate::latch::Readable;
use crate::node::PageBuf;
use crate::node::edit::Node;
use crate::node::rebuild::balanced;
use crate::node::view::Page;

/// The sibling must have at least its capacity divided by this number of free bytes. With a lower minimum, both leaves would
/// soon be full again: there would be even fewer splits, but many more changes of two leaves.
const ROOM: usize = 4;

impl<'p> Handle<'p> {
    /// Distributes the records of child `at`, the full leaf `node`, and of its emptier sibling evenly over both leaves.
    /// Returns false and changes nothing if no sibling in memory has room. Does the same if `need` bytes at `key` would
    /// still not fit, or if the new separator does not fit into the parent.
    pub fn redistribute(
        self,
        parent: &mut Exclusive<'p>,
        at: usize,
        node: &mut Exclusive<'p>,
        key: &[u8],
        need: usize,
    ) -> Attempt<bool> {
        let neighbour = |at: usize| {
            let page = PageId(parent.view().inner().child(at));
            let leaf = self.pool.try_optimistic(page)?;
            let capacity = leaf.view().capacity();
            let free = capacity.saturating_sub(leaf.view().used());
            (leaf.view().is_leaf() && free >= capacity / ROOM).then_some((free, at, leaf))
        };
        let after = Some(at + 1).filter(|at| *at <= parent.view().inner().count());
        let sides = [after, at.checked_sub(1)].into_iter().flatten().filter_map(neighbour);
        let Some((_, beside, leaf)) = sides.max_by_key(|(free, ..)| *free) else { return Ok(false) };
        // If the upgrade succeeds, everything that was read from the sibling is consistent.
        let Ok(mut leaf) = Optimistic::upgrade(leaf) else { return Ok(false) };
        let (left, right) = if beside > at { (node, &mut leaf) } else { (&mut leaf, node) };
        // The leaves get other fences. Their keys may have a shorter common prefix and need more room than before.
        let Ok((first, second, separator)) = balanced(left.view(), right.view()) else { return Ok(false) };
        // With large records, an even distribution may still leave no room at `key`. Then the caller would redistribute
        // forever.
        let of_key = Page::of(if *key < *separator { &first.0 } else { &second.0 });
        if of_key.used() + need > of_key.capacity() || !parent.view().has_room_for_child(&separator) {
            return Ok(false);
        }
        // Everything that can fail happens before the first change.
        let mut above = PageBuf(parent.payload().to_boxed());
        let (mut copy, between) = (Node::of(&mut above.0), at.min(beside));
        copy.remove(between);
        copy.insert_child(between, &separator, right.page().0)
            .map_err(|_| damaged(parent.page(), "has no room where it said so"))?;
        Node::of(parent).overwrite(&above);
        Node::of(left).overwrite(&first);
        Node::of(right).overwrite(&second);
        self.log.images([parent, left, right]);
        Ok(true)
    }
}
