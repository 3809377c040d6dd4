//! Splits: a full node becomes two, and its parent gets a separator for the second.
//!
//! The root splits downwards: its content moves into two new nodes below it. So the page number of the root, where
//! every descent begins, stays the same.

use bedplate_bufpool::{Exclusive, PageId};

use crate::descend::{Handle, retry};
use crate::error::{Attempt, Result, damaged};
use crate::latch::Readable;
use crate::node::INNER_SLOT;
use crate::node::edit::Node;
use crate::node::rebuild::{Split, halves, split_inner, split_leaf};

/// Maximum number of splits in a row for one operation. A sound tree needs a few, and more when other threads use up
/// the new room. More than this is a sign of damage.
pub(crate) const SPLITS: usize = 1000;

impl<'p> Handle<'p> {
    /// Splits `page`, the node of `level` that covers `key`. Does nothing if another node covers `key` by now, or if
    /// `page` has `need` free bytes. In both cases the caller's next attempt decides.
    pub fn split(self, page: PageId, level: u8, key: &[u8], need: usize) -> Result<()> {
        retry(|mode| {
            for _ in 0..SPLITS {
                let Some(parent_child) = self.parent_child(level, key, mode)? else { return Ok(()) };
                let view = parent_child.node.view();
                if parent_child.node.page() != page || view.capacity().saturating_sub(view.used()) >= need {
                    return Ok(());
                }
                let (count, least) =
                    if level == 0 { (view.leaf().count(), 2) } else { (view.inner().count(), 3) };
                if count < least {
                    return Err(damaged(page, "is full, and has too little to be split").into());
                }
                let split = if level == 0 { split_leaf(view, key) } else { split_inner(view) };
                match parent_child.parent {
                    None => return self.split_root(parent_child.node, &split),
                    Some((parent, _)) if !parent.view().has_room_for_child(&split.separator) => {
                        let above = parent.page();
                        let need = INNER_SLOT + split.separator.len();
                        drop((parent, parent_child.node));
                        self.split(above, level + 1, key, need)?;
                    }
                    Some((mut parent, at)) => {
                        let mut node = parent_child.node;
                        // Keys that arrive in order leave full leaves behind. No thread inserts into those any more, so
                        // a split beats redistribution.
                        let in_order = split.at == 0 || split.at == count;
                        if level == 0
                            && !in_order
                            && self.redistribute(&mut parent, at, &mut node, key, need)?
                        {
                            return Ok(());
                        }
                        return self.split_below(parent, at, node, &split);
                    }
                }
            }
            Err(damaged(page, "has no parent with room for another child").into())
        })
    }

    /// Splits child `at` of a parent that has room for another child.
    fn split_below(
        self,
        mut parent: Exclusive<'p>,
        at: usize,
        mut node: Exclusive<'p>,
        split: &Split,
    ) -> Attempt<()> {
        let (left, right) =
            halves(node.view(), split).map_err(|_| damaged(node.page(), "cannot be split"))?;
        // Everything that can fail happens before the first change.
        let mut new = self.pool.allocate()?;
        Node::of(&mut parent)
            .insert_child(at, &split.separator, new.page().0)
            .map_err(|_| damaged(parent.page(), "has no room where it said so"))?;
        Node::of(&mut new).overwrite(&right);
        Node::of(&mut node).overwrite(&left);
        self.log.images([&mut parent, &mut node, &mut new]);
        Ok(())
    }

    fn split_root(self, mut root: Exclusive<'p>, split: &Split) -> Attempt<()> {
        let (left, right) =
            halves(root.view(), split).map_err(|_| damaged(root.page(), "cannot be split"))?;
        let level = root.view().level();
        let mut first = self.pool.allocate()?;
        let mut second = match self.pool.allocate() {
            Ok(second) => second,
            Err(error) => {
                // The error to report is the one of the second allocation.
                let _ = self.pool.free(first);
                return Err(error.into());
            }
        };
        Node::of(&mut first).overwrite(&left);
        Node::of(&mut second).overwrite(&right);
        Node::create(&mut root, level + 1, None, None, first.page().0)
            .insert_child(0, &split.separator, second.page().0)
            .expect("an empty node has room for a separator");
        self.log.images([&mut root, &mut first, &mut second]);
        Ok(())
    }
}
