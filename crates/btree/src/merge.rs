//! Merging: a node that has become small takes in a neighbour, or the other way round, and a page is free.
//!
//! A merge that is not possible is no error: the node stays small until one is, and is filled by what comes.

use bedplate_bufpool::{Exclusive, PageId};

use crate::error::{Attempt, Result, damaged};
use crate::handle::{Family, Handle, retry};
use crate::latch::{Readable, not_held};
use crate::node::edit::Node;
use crate::node::rebuild::merged;
use crate::node::{CAPACITY, Key};
use crate::write::UNDERFULL;

/// Bytes that a merged node has left, so that the next insertion does not split it again.
const SPARE: usize = CAPACITY / 8;

impl<'p> Handle<'p> {
    /// Merges the node of `level` that has `key` with a neighbour, and what becomes small by that above it.
    pub fn merge(self, level: u8, key: &[u8]) -> Result<()> {
        let mut level = level;
        while retry(|mode| {
            let Some(Family { parent: Some((parent, at)), node }) = self.family(level, key, mode)? else {
                return Ok(false);
            };
            if node.view().used() >= UNDERFULL {
                return Ok(false);
            }
            self.merge_child(parent, at, node)
        })? {
            level += 1;
        }
        Ok(())
    }

    /// Merges child `at` with the one after it, or else the one before it. Says whether the parent has become small.
    fn merge_child(self, mut parent: Exclusive<'p>, at: usize, node: Exclusive<'p>) -> Attempt<bool> {
        let count = parent.view().inner().count();
        let node = if at < count {
            let right = self.sibling(&parent, at + 1, &node)?;
            match self.merge_pair(&mut parent, at, node, right)? {
                Merged::Yes(left) => return self.after_merge(parent, left),
                Merged::No(node) => node,
            }
        } else {
            node
        };
        if at > 0 {
            // Nobody waits from the right to the left without holding the parent, as this does.
            let left = self.sibling(&parent, at - 1, &node)?;
            if let Merged::Yes(left) = self.merge_pair(&mut parent, at - 1, left, node)? {
                return self.after_merge(parent, left);
            }
        }
        Ok(false)
    }

    /// Child `at`, beside `node`.
    fn sibling(self, parent: &Exclusive<'p>, at: usize, node: &Exclusive<'p>) -> Result<Exclusive<'p>> {
        let page = not_held(PageId(parent.view().inner().child(at)), parent)?;
        let sibling = self.pool.pin_exclusive(not_held(page, node)?)?;
        let (here, there) = (node.view(), sibling.view());
        let alike = if here.is_leaf() { there.is_leaf() } else { there.is_inner() };
        if alike && here.level() == there.level() {
            Ok(sibling)
        } else {
            Err(damaged(page, "is no node like the one beside it"))
        }
    }

    /// Merges children `at` and `at + 1` into the first of them.
    fn merge_pair(
        self,
        parent: &mut Exclusive<'p>,
        at: usize,
        mut left: Exclusive<'p>,
        right: Exclusive<'p>,
    ) -> Attempt<Merged<'p>> {
        if left.view().used() + right.view().used() + SPARE > CAPACITY {
            return Ok(Merged::No(left));
        }
        let mut separator = Key::new();
        parent.view().inner().key(at, &mut separator);
        // With other fences, keys have less in common and may need more room than both had.
        let Ok(both) = merged(left.view(), right.view(), &separator, SPARE) else {
            return Ok(Merged::No(left));
        };
        Node::of(&mut left).overwrite(&both);
        Node::of(parent).remove(at);
        self.log.images([parent, &mut left]);
        self.pool.free(right)?;
        Ok(Merged::Yes(left))
    }

    /// A root with one child becomes that child.
    fn after_merge(self, mut parent: Exclusive<'p>, child: Exclusive<'p>) -> Attempt<bool> {
        if parent.page() != self.root {
            return Ok(parent.view().used() < UNDERFULL);
        }
        if parent.view().inner().count() == 0 {
            parent.copy_from_slice(&child[..]);
            self.log.images([&mut parent]);
            self.pool.free(child)?;
        }
        Ok(false)
    }
}

enum Merged<'p> {
    /// What both have become.
    Yes(Exclusive<'p>),
    /// Both are as they were; the left one is still held.
    No(Exclusive<'p>),
}
