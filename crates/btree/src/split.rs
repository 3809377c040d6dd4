//! Splitting: a node that is full becomes two, and its parent learns of the second.
//!
//! The root splits downwards: its content moves into two new nodes below it, so that its page, where every descent
//! begins, stays the same.

use bedplate_bufpool::{Exclusive, PageId};

use crate::error::{Attempt, Result, damaged};
use crate::handle::{Handle, retry};
use crate::latch::Readable;
use crate::node::edit::Node;
use crate::node::rebuild::{Split, halves, split_inner, split_leaf};
use crate::node::{CAPACITY, INNER_SLOT};

/// How often in a row room is made before that is a sign of damage: a few times are enough in a sound tree, and some more
/// when others use up what was made.
pub(crate) const SPLITS: usize = 1000;

impl<'p> Handle<'p> {
    /// Splits `page`, the node of `level` that has `key`, unless that is another one by now, or it has `need` bytes: then
    /// whoever wanted this finds out when he tries again.
    pub fn split(self, page: PageId, level: u8, key: &[u8], need: usize) -> Result<()> {
        retry(|mode| {
            for _ in 0..SPLITS {
                let Some(family) = self.family(level, key, mode)? else { return Ok(()) };
                let view = family.node.view();
                if family.node.page() != page || CAPACITY.saturating_sub(view.used()) >= need {
                    return Ok(());
                }
                let (count, least) =
                    if level == 0 { (view.leaf().count(), 2) } else { (view.inner().count(), 3) };
                if count < least {
                    return Err(damaged(page, "is full, and has too little to be split").into());
                }
                let split = if level == 0 { split_leaf(view, key) } else { split_inner(view) };
                match family.parent {
                    None => return self.split_root(family.node, &split),
                    Some((parent, _)) if !parent.view().has_room_for_child(&split.separator) => {
                        let above = parent.page();
                        let need = INNER_SLOT + split.separator.len();
                        drop((parent, family.node));
                        self.split(above, level + 1, key, need)?;
                    }
                    Some((mut parent, at)) => {
                        let mut node = family.node;
                        // Keys that arrive in order leave full leaves behind, which nobody inserts into any more.
                        let in_order = split.at == 0 || split.at == count;
                        if level == 0 && !in_order && self.balance(&mut parent, at, &mut node, key, need)? {
                            return Ok(());
                        }
                        return self.split_below(parent, at, node, &split);
                    }
                }
            }
            Err(damaged(page, "has no parent with room for another child").into())
        })
    }

    /// Splits child `at` of a parent that has room.
    fn split_below(
        self,
        mut parent: Exclusive<'p>,
        at: usize,
        mut node: Exclusive<'p>,
        split: &Split,
    ) -> Attempt<()> {
        let (left, right) =
            halves(node.view(), split).map_err(|_| damaged(node.page(), "cannot be split"))?;
        // Whatever can fail comes before the first change.
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
                // What is to be reported is why there was no room for the second.
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
