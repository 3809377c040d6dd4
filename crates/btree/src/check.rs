//! Checks of a whole tree while other threads use and change it.
//!
//! The walk visits the leaves in key order. It continues at the upper fence of the last leaf. It holds no latch while
//! it waits for storage. There is one exception: after [`PATIENCE`](crate::descend) disturbances in a row it holds a
//! parent and its child.
//!
//! **What it guarantees.** Every visited node was sound at one moment of the walk. At that moment its parent had the
//! same fences for it. The visited leaves cover all keys, in order and without a gap. A record that is in the tree
//! during the whole walk is counted exactly once. Every overflow chain was complete at one moment.
//!
//! **What it does not guarantee.** The moments differ from node to node, so the numbers of a changing tree do not belong to one
//! moment. This check cannot detect a page that is in the tree twice. `verify` does that, for a tree that no thread changes.
//!
//! The walk keeps a copy of each node on the path from the root to the last leaf, with the version of the copy. A copy
//! whose page is unchanged needs no new check. The walk continues below such a copy, without a descent from the root.

use bedplate_bufpool::{Optimistic, PageId};

use crate::descend::{Handle, Mode, retry};
use crate::error::{Abort, Attempt, Result, damaged};
use crate::latch::{Readable, not_held};
use crate::node::view::{Bytes, Page, Value};
use crate::node::{Key, PageBuf};
use crate::overflow::{ChainSource, Source};
use crate::verify::{Shape, check_node};

/// A checked copy of a node, as it was at one moment.
struct Visited<'p> {
    page: PageId,
    /// Tells whether the node is still unchanged. None if the copy was made while the node was latched.
    seen: Option<Optimistic<'p>>,
    copy: PageBuf,
}

impl Visited<'_> {
    fn view(&self) -> Page<'_> {
        Page::of(&self.copy.0)
    }

    fn is_unchanged(&self) -> bool {
        self.seen.is_some_and(|seen| seen.validate().is_ok())
    }

    /// Whether the upper fence of the node is above `key`. None is the lowest key.
    fn ends_after(&self, key: Option<&[u8]>) -> bool {
        match (self.view().high(), key) {
            (Some(high), Some(key)) => high.compare(key).is_gt(),
            _ => true,
        }
    }

    /// The child that covers `key`, with its fences.
    fn child(&self, key: Option<&[u8]>) -> (PageId, Option<Key>, Option<Key>) {
        let inner = self.view().inner();
        let at = key.map_or(0, |key| inner.position(key));
        let separator = |i| {
            let mut key = Key::new();
            inner.key(i, &mut key);
            key
        };
        let low = if at == 0 { self.view().low().map(key_of) } else { Some(separator(at - 1)) };
        let high = if at == inner.count() { self.view().high().map(key_of) } else { Some(separator(at)) };
        (PageId(inner.child(at)), low, high)
    }
}

fn key_of(bytes: Bytes<'_>) -> Key {
    let mut key = Key::new();
    bytes.push_to(&mut key);
    key
}

/// Copies a node that may change, and validates the copy.
fn visit<'p>(page: PageId, node: &impl Readable, seen: Option<Optimistic<'p>>) -> Attempt<Visited<'p>> {
    let copy = PageBuf(node.view().to_boxed());
    node.validate()?;
    Ok(Visited { page, seen, copy })
}

impl<'p> Handle<'p> {
    /// Checks the whole tree. Other threads may change it meanwhile.
    pub fn check(self) -> Result<Shape> {
        let mut shape = Shape::default();
        let mut path: Vec<Visited<'p>> = Vec::new();
        let mut from: Option<Key> = None;
        let mut value = Vec::new();
        loop {
            retry(|mode| match mode {
                Mode::Optimistic => self.advance(from.as_deref(), &mut path),
                Mode::Latched => self.advance_latched(from.as_deref(), &mut path),
            })?;
            let Some((leaf, above)) = path.split_last() else { return Ok(shape) };
            let high = leaf.view().high();
            shape.height = path.len() as u32;
            shape.leaves += 1;
            shape.capacity += leaf.view().capacity() as u64;
            shape.leaf_bytes += leaf.view().used() as u64;
            // An inner node is complete when the last leaf below it is.
            let ends = |node: &&Visited<'_>| match (node.view().high(), high) {
                (Some(end), Some(high)) => end.compare(&key_of(high)).is_eq(),
                (end, high) => end.is_none() && high.is_none(),
            };
            shape.inner += above.iter().filter(ends).count() as u64;
            let slots = leaf.view().leaf();
            // The keys below `from` were counted when they were in the previous leaf.
            let first = from.as_deref().map_or(0, |from| slots.lower_bound(from).0);
            shape.records += (slots.count() - first.min(slots.count())) as u64;
            for at in first..slots.count() {
                if let Value::Overflow(..) = slots.value(at) {
                    let mut key = Key::new();
                    slots.key(at, &mut key);
                    shape.values += self.check_value(&key, &mut value)?;
                }
            }
            match high.map(key_of) {
                None => return Ok(shape),
                Some(high) if from.as_deref().is_some_and(|from| *high <= *from) => {
                    return Err(damaged(leaf.page, "ends before it begins"));
                }
                high => from = high,
            }
        }
    }

    /// Checks the current value of `key`. Returns the number of its overflow pages.
    fn check_value(self, key: &[u8], value: &mut Vec<u8>) -> Result<u64> {
        match self.read_value(key, value)? {
            Some(Source::Chain(ChainSource { after: 0, pages, .. })) => Ok(pages),
            Some(Source::Chain(source)) => {
                Err(damaged(PageId(source.after), "continues a value that has ended"))
            }
            // Another thread has replaced or removed the value.
            Some(Source::Leaf) | None => Ok(0),
        }
    }

    /// Extends the path to the leaf that covers `from`. Unchanged nodes of the old path are kept.
    fn advance(self, from: Option<&[u8]>, path: &mut Vec<Visited<'p>>) -> Attempt<()> {
        let is_kept =
            |node: &Visited<'_>| node.view().is_inner() && node.ends_after(from) && node.is_unchanged();
        while path.pop_if(|node| !is_kept(node)).is_some() {}
        if path.is_empty() {
            let root = self.pool.optimistic(self.root)?;
            let root = visit(self.root, &root, Some(root))?;
            check_node(self.root, root.view(), root.view().level(), None, None)?;
            path.push(root);
        }
        while let Some(parent) = path.last().filter(|node| node.view().is_inner()) {
            let (child, low, high) = parent.child(from);
            let Some(above) = parent.seen else { return Err(Abort::Restart) };
            let found = match self.pool.optimistic(child) {
                Ok(node) => visit(child, &node, Some(node)),
                Err(error) => Err(error.into()),
            };
            // An error, too, may be the result of a stale parent.
            Readable::validate(&above)?;
            let found = found?;
            let level = parent.view().level().saturating_sub(1);
            check_node(child, found.view(), level, low.as_deref(), high.as_deref())?;
            path.push(found);
        }
        Ok(())
    }

    /// Like `advance`, but from the root down and with latches. A parent is held until its child is held.
    #[cold]
    fn advance_latched(self, from: Option<&[u8]>, path: &mut Vec<Visited<'p>>) -> Attempt<()> {
        path.clear();
        let mut node = self.pool.pin_shared(self.root)?;
        let root = visit(self.root, &node, None)?;
        check_node(self.root, root.view(), root.view().level(), None, None)?;
        path.push(root);
        while let Some(parent) = path.last().filter(|node| node.view().is_inner()) {
            let (child, low, high) = parent.child(from);
            let level = parent.view().level().saturating_sub(1);
            node = self.pool.pin_shared(not_held(child, &node)?)?;
            let found = visit(child, &node, None)?;
            check_node(child, found.view(), level, low.as_deref(), high.as_deref())?;
            path.push(found);
        }
        Ok(())
    }
}
