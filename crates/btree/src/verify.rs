//! Verification of a whole tree that no thread changes. It also lists the pages of the tree. Also an estimate of the size of a
//! tree. `check` verifies a tree that other threads change.

use bedplate_bufpool::{PageId, Shared};

use crate::descend::{Handle, Mode, retry};
use crate::error::{Attempt, Error, Result, damaged};
use crate::latch::Readable;
use crate::node::Key;
use crate::node::check::check;
use crate::node::view::{Bytes, Page, Value};
use crate::overflow::{CHAIN, checked_len, next_and_len};
use crate::page_set::PageSet;

/// The size and structure of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shape {
    /// Number of records.
    pub records: u64,
    /// Number of levels: 1 if the root is a leaf.
    pub height: u32,
    /// Number of leaves.
    pub leaves: u64,
    /// Number of inner nodes.
    pub inner: u64,
    /// Number of overflow pages.
    pub values: u64,
    /// Bytes in use in all leaves, of [`Shape::leaf_capacity`].
    pub leaf_bytes: u64,
    /// Capacity of all leaves, in bytes.
    pub(crate) capacity: u64,
}

impl Shape {
    /// Number of pages of the tree.
    pub fn pages(&self) -> u64 {
        self.leaves + self.inner + self.values
    }

    /// Capacity of all leaves, in bytes.
    pub fn leaf_capacity(&self) -> u64 {
        self.capacity
    }
}

type Visit<'v> = &'v mut dyn FnMut(PageId);
type Report<'v> = &'v mut dyn FnMut(Error) -> Result<()>;

/// A walk over a tree that no thread changes. It holds the pages from the root to the current node shared.
struct Walk<'p, 'v> {
    tree: Handle<'p>,
    shape: Shape,
    /// The pages that the walk has visited.
    seen: PageSet,
    visit: Visit<'v>,
    /// Receives the errors of damage below the root. The walk ends with the error that this returns, or skips the damage and
    /// continues.
    report: Report<'v>,
}

impl<'p> Handle<'p> {
    /// Verifies a tree that no thread changes, and also that no page is in it twice. Calls `visit` for every page.
    pub fn walk(self, visit: &mut dyn FnMut(PageId)) -> Result<Shape> {
        self.survey(visit, &mut Err)
    }

    /// The same for a tree that may be damaged. Calls `report` with each error, and continues with the next page unless `report`
    /// returns an error. If the root is damaged, there is no next page, and its error is returned.
    pub fn survey(self, visit: &mut dyn FnMut(PageId), report: Report<'_>) -> Result<Shape> {
        let mut walk = Walk { tree: self, shape: Shape::default(), seen: PageSet::default(), visit, report };
        let root = self.pool.pin_shared(self.root)?;
        let level = root.view().level();
        walk.shape.height = u32::from(level) + 1;
        walk.node(&root, level, None, None)?;
        Ok(walk.shape)
    }

    /// Estimates the number of records from random descents. Each descent yields the number of records of a tree that
    /// is everywhere as wide as on its path. The result is the mean.
    pub fn estimate(self) -> Result<u64> {
        const DESCENTS: u64 = 64;
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut sum = 0.0;
        for _ in 0..DESCENTS {
            sum += retry(|mode| self.width(mode, &mut random))?;
        }
        Ok((sum / DESCENTS as f64).round() as u64)
    }

    /// The product of the numbers of children on a random path, and of the number of records in its leaf.
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

    /// Frees all pages of the tree.
    pub fn free_all(self) -> Result<()> {
        let mut pages = Vec::new();
        self.walk(&mut |page| pages.push(page))?;
        for page in pages {
            let page = self.pool.pin_exclusive(page)?;
            self.pool.free(page)?;
        }
        Ok(())
    }
}

impl<'p> Walk<'p, '_> {
    fn enter(&mut self, page: PageId) -> Result<()> {
        if !self.tree.pool.pages().contains(&page.0) {
            return Err(bedplate_bufpool::Error::NoSuchPage { page }.into());
        }
        if !self.seen.insert(page) {
            return Err(damaged(page, "is in the tree twice"));
        }
        (self.visit)(page);
        Ok(())
    }

    fn node(&mut self, node: &Shared<'p>, level: u8, low: Option<&[u8]>, high: Option<&[u8]>) -> Result<()> {
        self.enter(node.page())?;
        let page = node.view();
        check_node(node.page(), page, level, low, high)?;
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
            let child = self.tree.pool.pin_shared(PageId(inner.child(i))).map_err(Error::from);
            if let Err(error) = child.and_then(|child| self.node(&child, level - 1, low, high)) {
                (self.report)(error)?;
            }
            std::mem::swap(&mut before, &mut after);
        }
        Ok(())
    }

    fn leaf(&mut self, page: Page<'_>) -> Result<()> {
        self.shape.leaves += 1;
        self.shape.leaf_bytes += page.used() as u64;
        self.shape.capacity += page.capacity() as u64;
        let leaf = page.leaf();
        self.shape.records += leaf.count() as u64;
        for i in 0..leaf.count() {
            if let Value::Overflow(first, len) = leaf.value(i)
                && let Err(error) = self.chain(first, len)
            {
                (self.report)(error)?;
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
            // Each part takes bytes of the value, so even a circular chain ends.
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

/// Checks that a node is sound and of `level`, and that its fences are those in its parent. The node must not change
/// meanwhile.
pub(crate) fn check_node(
    number: PageId,
    page: Page<'_>,
    level: u8,
    low: Option<&[u8]>,
    high: Option<&[u8]>,
) -> Result<()> {
    check(page, level).map_err(|what| damaged(number, what))?;
    let is = |fence: Option<Bytes<'_>>, bound: Option<&[u8]>| match (fence, bound) {
        (Some(fence), Some(bound)) => fence.compare(bound).is_eq(),
        (fence, bound) => fence.is_none() && bound.is_none(),
    };
    if is(page.low(), low) && is(page.high(), high) {
        Ok(())
    } else {
        Err(damaged(number, "has other fences than its parent says"))
    }
}
