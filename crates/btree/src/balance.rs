//! Balancing: a leaf that is full shares its records with a neighbour that has room, instead of being split (the
//! redistribution of B*-trees, without their splits of two into three).
//!
//! With splits alone, leaves that are filled in random order are two thirds full; with this, about three quarters, so
//! memory has more of them and scans read fewer. It is not worth reading a neighbour from storage, or waiting for one.

use bedplate_bufpool::{Exclusive, Optimistic, PageId};

use crate::error::{Attempt, damaged};
use crate::handle::Handle;
use crate::latch::Readable;
use crate::node::edit::Node;
use crate::node::rebuild::balanced;
use crate::node::view::Page;
use crate::node::{CAPACITY, Copied};

/// Bytes that a neighbour has free at least. With less, both would soon be full again: splits would be fewer still, but
/// changes of two leaves many.
const ROOM: usize = CAPACITY / 4;

impl<'p> Handle<'p> {
    /// Spreads the records of child `at`, which is the full leaf `node`, and of the emptier of its neighbours over both.
    /// False if none has room and is at hand, or it would not make room for `need` bytes at `key`: then all is as it was.
    pub fn balance(
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
            let free = CAPACITY.saturating_sub(leaf.view().used());
            (leaf.view().is_leaf() && free >= ROOM).then_some((free, at, leaf))
        };
        let after = Some(at + 1).filter(|at| *at <= parent.view().inner().count());
        let sides = [after, at.checked_sub(1)].into_iter().flatten().filter_map(neighbour);
        let Some((_, beside, leaf)) = sides.max_by_key(|(free, ..)| *free) else { return Ok(false) };
        // What was read of it is true if this works.
        let Ok(mut leaf) = Optimistic::upgrade(leaf) else { return Ok(false) };
        let (left, right) = if beside > at { (node, &mut leaf) } else { (&mut leaf, node) };
        // With other fences, keys have less in common and may need more room than both had.
        let Ok((first, second, separator)) = balanced(left.view(), right.view()) else { return Ok(false) };
        // Large records may have been shared out so that it is of no use; it would be done over and over again.
        let of_key = Page::of(if *key < *separator { &first.0 } else { &second.0 });
        if of_key.used() + need > CAPACITY || !parent.view().has_room_for_child(&separator) {
            return Ok(false);
        }
        // Whatever can fail comes before the first change.
        let mut above = Copied(**parent);
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
