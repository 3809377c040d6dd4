//! Looking at a whole tree: whether it is sound, how large it is, which pages it has.

use std::collections::HashSet;

use bedplate_bufpool::{PageId, Shared};

use crate::error::{Attempt, Result, damaged};
use crate::handle::{Handle, Mode, retry};
use crate::latch::Readable;
use crate::node::check::check;
use crate::node::view::{Bytes, Page, Value};
use crate::node::{CAPACITY, Key};
use crate::overflow::{CHAIN, checked_len, next_and_len};

/// What a tree consists of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shape {
    /// Records.
    pub records: u64,
    /// Levels: 1 when the root is a leaf.
    pub height: u32,
    /// Pages with records.
    pub leaves: u64,
    /// Pages above them.
    pub inner: u64,
    /// Pages of values that are too long for a leaf.
    pub values: u64,
    /// Bytes of leaves in use, of [`Shape::leaf_capacity`].
    pub leaf_bytes: u64,
}

impl Shape {
    /// Pages of the tree.
    pub fn pages(&self) -> u64 {
        self.leaves + self.inner + self.values
    }

    /// Bytes that all leaves have room for.
    pub fn leaf_capacity(&self) -> u64 {
        self.leaves * CAPACITY as u64
    }
}

type Visit<'v> = &'v mut dyn FnMut(PageId);

/// One walk over a tree. Pages from the root to where it is are held shared, so nothing it compares can move meanwhile.
struct Walk<'p, 'v> {
    tree: Handle<'p>,
    shape: Shape,
    /// Pages that were seen, and who is shown them; a tree that changes may use a page again in another place.
    still: Option<(HashSet<u64>, Visit<'v>)>,
}

impl<'p> Handle<'p> {
    /// Checks everything; of a tree that nobody changes also that no page is in it twice, and shows every page to `visit`.
    pub fn walk(self, visit: Option<&mut dyn FnMut(PageId)>) -> Result<Shape> {
        let still = visit.map(|visit| (HashSet::new(), visit));
        let mut walk = Walk { tree: self, shape: Shape::default(), still };
        let root = self.pool.pin_shared(self.root)?;
        let level = root.view().level();
        walk.shape.height = u32::from(level) + 1;
        walk.node(&root, level, None, None)?;
        Ok(walk.shape)
    }

    /// About how many records there are: of some random descents, how many there would be if the whole tree were as
    /// wide as on the way.
    pub fn estimate(self) -> Result<u64> {
        const DESCENTS: u64 = 64;
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut sum = 0.0;
        for _ in 0..DESCENTS {
            sum += retry(|mode| self.width(mode, &mut random))?;
        }
        Ok((sum / DESCENTS as f64).round() as u64)
    }

    /// The product of the numbers of children on a random way down.
    fn width(self, mode: Mode, random: &mut u64) -> Attempt<f64> {
        let width = std::cell::Cell::new(1.0);
        let seed = std::cell::Cell::new(*random);
        let position = |inner: crate::node::view::Inner<'_>| {
            let children = inner.count() + 1;
            width.set(width.get() * children as f64);
            // SplitMix64.
            seed.set(seed.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
            let mut mixed = seed.get();
            mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((mixed ^ mixed >> 31) % children as u64) as usize
        };
        let count = match mode {
            Mode::Optimistic => {
                let leaf = self.leaf(position)?;
                let count = leaf.view().leaf().count();
                Readable::validate(&leaf)?;
                count
            }
            Mode::Latched => self.leaf_shared(&position)?.view().leaf().count(),
        };
        *random = seed.get();
        Ok(width.get() * count as f64)
    }

    /// Gives all pages back.
    pub fn free_all(self) -> Result<()> {
        let mut pages = Vec::new();
        self.walk(Some(&mut |page| pages.push(page)))?;
        for page in pages {
            let page = self.pool.pin_exclusive(page)?;
            self.pool.free(page)?;
        }
        Ok(())
    }
}

impl<'p> Walk<'p, '_> {
    fn enter(&mut self, page: PageId) -> Result<()> {
        if let Some((seen, visit)) = &mut self.still {
            if !seen.insert(page.0) {
                return Err(damaged(page, "is in the tree twice"));
            }
            visit(page);
        }
        Ok(())
    }

    fn node(&mut self, node: &Shared<'p>, level: u8, low: Option<&[u8]>, high: Option<&[u8]>) -> Result<()> {
        self.enter(node.page())?;
        let page = node.view();
        check(page, level).map_err(|what| damaged(node.page(), what))?;
        let is = |fence: Option<Bytes<'_>>, bound: Option<&[u8]>| match (fence, bound) {
            (Some(fence), Some(bound)) => fence.compare(bound).is_eq(),
            (fence, bound) => fence.is_none() && bound.is_none(),
        };
        if !is(page.low(), low) || !is(page.high(), high) {
            return Err(damaged(node.page(), "has other fences than its parent says"));
        }
        if level == 0 { self.leaf(page) } else { self.children(page, level, low, high) }
    }

    fn children(&mut self, page: Page<'_>, level: u8, low: Option<&[u8]>, high: Option<&[u8]>) -> Result<()> {
        self.shape.inner += 1;
        let inner = page.inner();
        let (mut before, mut after) = (Key::new(), Key::new());
        for i in 0..=inner.count() {
            let low = if i == 0 { low } else { Some(&before[..]) };
            let high = if i == inner.count() {
                high
            } else {
                inner.key(i, &mut after);
                Some(&after[..])
            };
            let child = self.tree.pool.pin_shared(PageId(inner.child(i)))?;
            self.node(&child, level - 1, low, high)?;
            std::mem::swap(&mut before, &mut after);
        }
        Ok(())
    }

    fn leaf(&mut self, page: Page<'_>) -> Result<()> {
        self.shape.leaves += 1;
        self.shape.leaf_bytes += page.used() as u64;
        let leaf = page.leaf();
        self.shape.records += leaf.count() as u64;
        for i in 0..leaf.count() {
            if let Value::Elsewhere(first, len) = leaf.value(i) {
                self.chain(first, len)?;
            }
        }
        Ok(())
    }

    fn chain(&mut self, first: u64, len: u64) -> Result<()> {
        let len = checked_len(first, len)? as u64;
        let (mut next, mut total) = (first, 0);
        while next != 0 {
            let page = PageId(next);
            self.enter(page)?;
            self.shape.values += 1;
            let part = self.tree.pool.pin_shared(page)?;
            if part[0] != CHAIN {
                return Err(damaged(page, "is no part of a value"));
            }
            let (after, here) = next_and_len(&part);
            // So a circle ends, too.
            if here == 0 || here > len - total {
                return Err(damaged(page, "is empty, or more than is left of its value"));
            }
            (next, total) = (after, total + here);
        }
        if total == len {
            Ok(())
        } else {
            Err(damaged(PageId(first), format!("has {total} bytes of a value of {len}")))
        }
    }
}
