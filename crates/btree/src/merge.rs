//! Merges: a node that has become small is merged with a sibling, and one page becomes free.
//!
//! A merge that is not possible is not an error. The node stays small until a merge is possible or insertions fill it.

use bedplate_bufpool::{Exclusive, PageId};

use crate::descend::{Handle, ParentChild, retry};
use crate::error::{Attempt, Result, damaged};
use crate::latch::{Readable, not_held};
use crate::node::Key;
use crate::node::edit::Node;
use crate::node::rebuild::merged;
use crate::node::view::Page;
use crate::write::is_underfull;

/// Free bytes that a merged node must have, so that the next insertion does not split it again.
fn spare(node: Page<'_>) -> usize {
    node.capacity() / 8
}

impl<'p> Handle<'p> {
    /// Merges the node of `level` that covers `key` with a sibling. Then merges each ancestor that has become small as
    /// a result.
    pub fn merge(self, level: u8, key: &[u8]) -> Result<()> {
        let mut level = level;
        while retry(|mode| {
            let Some(ParentChild { parent: Some((parent, at)), node }) =
                self.parent_child(level, key, mode)?
            else {
                return Ok(false);
            };
            if !is_underfull(node.view()) {
                return Ok(false);
            }
            self.merge_child(parent, at, node)
        })? {
            level += 1;
        }
        Ok(())
    }

    /// Merges child `at` with its right sibling, or else with its left one. Returns whether the parent has become
    /// small.
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
            // This waits from right to left, against the latch order. It cannot deadlock: a thread that waits for a
            // sibling holds the parent, and this thread holds it.
            let left = self.sibling(&parent, at - 1, &node)?;
            if let Merged::Yes(left) = self.merge_pair(&mut parent, at - 1, left, node)? {
                return self.after_merge(parent, left);
            }
        }
        Ok(false)
    }

    /// Holds child `at`, a sibling of `node`, exclusively.
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
        if left.view().used() + right.view().used() + spare(left.view()) > left.view().capacity() {
            return Ok(Merged::No(left));
        }
        let mut separator = Key::new();
        parent.view().inner().key(at, &mut separator);
        // The merged node has other fences. Its keys may have a shorter common prefix and need more room than before.
        let Ok(both) = merged(left.view(), right.view(), &separator, spare(left.view())) else {
            return Ok(Merged::No(left));
        };
        Node::of(&mut left).overwrite(&both);
        Node::of(parent).remove(at);
        self.log.images([parent, &mut left]);
        self.pool.free(right)?;
        Ok(Merged::Yes(left))
    }

    /// If the root has only one child, moves the content of that child into the root.
    fn after_merge(self, mut parent: Exclusive<'p>, child: Exclusive<'p>) -> Attempt<bool> {
        if parent.page() != self.root {
            return Ok(is_underfull(parent.view()));
        }
        if parent.view().inner().count() == 0 {
            parent.write(0, &child[..]);
            self.log.images([&mut parent]);
            self.pool.free(child)?;
        }
        Ok(false)
    }
}

enum Merged<'p> {
    /// The merged node.
    Yes(Exclusive<'p>),
    /// Both nodes are unchanged. The left one is still held.
    No(Exclusive<'p>),
}
