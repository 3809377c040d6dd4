//! Descending: how every operation finds the page it is about.
//!
//! Optimistic lock coupling: a parent is validated after its child's version was taken, so a descent that ends without a
//! restart has seen a path that existed. Whoever moves keys between nodes holds their parent exclusively, hence whoever
//! arrives at a node by a valid path finds his key between its fences.
//!
//! A descent that has been disturbed [`PATIENCE`] times goes on with latches, from the root down, each taken before its
//! parent's is let go: nobody can disturb that.
//!
//! **Order of latches**: parent before child, left before right, pages of values last. Optimistic guards are only ever
//! *tried* to be upgraded; waiting happens in this order alone. A page that was just allocated is nobody else's.

use bedplate_bufpool::{Exclusive, Optimistic, PageId, Pool, Shared};

use crate::error::{Attempt, Result, Stop, damaged};
use crate::journal::Logged;
use crate::latch::{Latch, Readable, not_held};
use crate::node::view::Inner;

/// How often an operation is disturbed before it takes latches.
const PATIENCE: u32 = 16;
/// More levels than any tree has: a path that is longer is a circle.
const DEPTH: usize = 64;

/// A tree, as its operations see it.
#[derive(Clone, Copy)]
pub(crate) struct Handle<'p> {
    pub pool: &'p Pool,
    /// The root's page never changes: its content moves down when it is split.
    pub root: PageId,
    pub log: Logged<'p>,
}

/// How an attempt goes about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Reads optimistically, and gives up when disturbed.
    Optimistic,
    /// Waits for latches, and is not disturbed.
    Latched,
}

/// A node held exclusively, and the parent that leads to it.
pub(crate) struct Family<'p> {
    /// None when the node is the root; else which child of it the node is.
    pub parent: Option<(Exclusive<'p>, usize)>,
    pub node: Exclusive<'p>,
}

/// Tries until it works, optimistically first.
#[inline(always)]
pub(crate) fn retry<T>(mut attempt: impl FnMut(Mode) -> Attempt<T>) -> Result<T> {
    let mut restarts = 0;
    loop {
        let mode = if restarts < PATIENCE { Mode::Optimistic } else { Mode::Latched };
        match attempt(mode) {
            Ok(result) => return Ok(result),
            Err(Stop::Failed(error)) => return Err(error),
            Err(Stop::Restart) => restarts = restarts.saturating_add(1),
        }
    }
}

impl<'p> Handle<'p> {
    /// The leaf at the end of the children that `position` chooses.
    #[inline(always)]
    pub fn leaf(self, position: impl Fn(Inner<'_>) -> usize) -> Attempt<Optimistic<'p>> {
        self.leaf_and_parent(position, |_, _| {}).map(|(leaf, _)| leaf)
    }

    /// The same, and its parent with the position of the leaf in it. `above` is shown each node on the way, and which child
    /// is next, before that is looked at.
    #[inline(always)]
    pub fn leaf_and_parent(
        self,
        position: impl Fn(Inner<'_>) -> usize,
        mut above: impl FnMut(&Optimistic<'p>, usize),
    ) -> Attempt<(Optimistic<'p>, Option<(Optimistic<'p>, usize)>)> {
        let mut parent = None;
        let mut node = self.pool.optimistic(self.root)?;
        for _ in 0..DEPTH {
            if node.view().is_leaf() {
                return Ok((node, parent));
            }
            let at = position(node.view().inner());
            above(&node, at);
            let child = self.child(node, at)?;
            parent = Some((node, at));
            node = child;
        }
        node.validate()?;
        Err(damaged(node.page(), "is in a circle").into())
    }

    /// Child `at` of an inner node, which is validated.
    #[inline(always)]
    pub fn child(self, node: Optimistic<'p>, at: usize) -> Attempt<Optimistic<'p>> {
        let (child, sound) = (node.view().inner().child(at), node.view().is_inner());
        node.validate()?;
        if !sound {
            return Err(damaged(node.page(), "is no node").into());
        }
        match self.pool.optimistic(PageId(child)) {
            Ok(next) => {
                node.validate()?;
                Ok(next)
            }
            Err(error) => {
                // It may be an error because the child has been freed.
                node.validate()?;
                Err(error.into())
            }
        }
    }

    /// The leaf at the end of the children that `position` chooses, held shared.
    #[cold]
    pub fn leaf_shared(self, position: &dyn Fn(Inner<'_>) -> usize) -> Result<Shared<'p>> {
        let mut node = self.pool.pin_shared(self.root)?;
        for _ in 0..DEPTH {
            if node.view().is_leaf() {
                return Ok(node);
            }
            node = self.pool.pin_shared(self.child_of(&node, position)?)?;
        }
        Err(damaged(node.page(), "is in a circle"))
    }

    /// The leaf of `key`, held exclusively.
    #[cold]
    pub fn leaf_exclusive(self, key: &[u8]) -> Result<Exclusive<'p>> {
        loop {
            let mut node = self.pool.pin_shared(self.root)?;
            if node.view().is_leaf() {
                drop(node);
                let root = self.pool.pin_exclusive(self.root)?;
                if root.view().is_leaf() {
                    return Ok(root);
                }
                continue;
            }
            for _ in 0..DEPTH {
                let level = node.view().level();
                let child = self.child_of(&node, &|inner| inner.position(key))?;
                if level == 1 {
                    let leaf = self.pool.pin_exclusive(not_held(child, &node)?)?;
                    drop(node);
                    return if leaf.view().is_leaf() { Ok(leaf) } else { Err(damaged(child, "is no leaf")) };
                }
                node = self.pool.pin_shared(child)?;
            }
            return Err(damaged(node.page(), "is in a circle"));
        }
    }

    fn child_of(self, node: &impl Latch, position: &dyn Fn(Inner<'_>) -> usize) -> Result<PageId> {
        if !node.view().is_inner() {
            return Err(damaged(node.number(), "is no node"));
        }
        let inner = node.view().inner();
        Ok(PageId(inner.child(position(inner))))
    }

    /// The node of `level` that has `key`, held exclusively together with its parent; none if the tree is lower.
    pub fn family(self, level: u8, key: &[u8], mode: Mode) -> Attempt<Option<Family<'p>>> {
        let family = match mode {
            Mode::Optimistic => self.family_optimistic(level, key)?,
            Mode::Latched => self.family_latched(level, key)?,
        };
        if let Some(Family { parent, node }) = &family {
            if !(if level == 0 { node.view().is_leaf() } else { node.view().is_inner() }) {
                return Err(damaged(node.page(), "is no node").into());
            }
            // Whoever goes on with the parent's level would look for it in vain.
            if let Some((parent, _)) = parent
                && parent.view().level().checked_sub(1) != Some(level)
            {
                return Err(
                    damaged(parent.page(), format!("is above level {level}, and says otherwise")).into()
                );
            }
        }
        Ok(family)
    }

    fn family_optimistic(self, level: u8, key: &[u8]) -> Attempt<Option<Family<'p>>> {
        let mut parent = None;
        let mut node = self.pool.optimistic(self.root)?;
        for _ in 0..DEPTH {
            let now = node.view().level();
            if now <= level {
                node.validate()?;
                if now < level {
                    return Ok(None);
                }
                let parent = match parent {
                    Some((parent, at)) => Some((Optimistic::upgrade(parent)?, at)),
                    None => None,
                };
                return Ok(Some(Family { parent, node: node.upgrade()? }));
            }
            let at = node.view().inner().position(key);
            let child = self.child(node, at)?;
            parent = Some((node, at));
            node = child;
        }
        node.validate()?;
        Err(damaged(node.page(), "is in a circle").into())
    }

    #[cold]
    fn family_latched(self, level: u8, key: &[u8]) -> Attempt<Option<Family<'p>>> {
        let mut parent: Option<(Exclusive<'p>, usize)> = None;
        let mut node = self.pool.pin_exclusive(self.root)?;
        for _ in 0..DEPTH {
            let now = node.view().level();
            if now < level {
                return Ok(None);
            }
            if now == level {
                return Ok(Some(Family { parent, node }));
            }
            let at = node.view().inner().position(key);
            let mut child = not_held(self.child_of(&node, &|_| at)?, &node)?;
            if let Some((parent, _)) = &parent {
                child = not_held(child, parent)?;
            }
            let child = self.pool.pin_exclusive(child)?;
            parent = Some((node, at));
            node = child;
        }
        Err(damaged(node.page(), "is in a circle").into())
    }
}
