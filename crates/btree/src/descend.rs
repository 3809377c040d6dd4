//! Descents: every operation finds its page with one.
//!
//! Optimistic lock coupling: a descent validates the parent after it has read the version of the child. So a descent
//! without a restart has followed a path that existed. A thread that moves keys between nodes holds their parent
//! exclusively. So a thread that arrives at a node by a valid path finds its key between the node's fences.
//!
//! A descent that was disturbed [`PATIENCE`] times restarts with latches. It latches each child before it releases the
//! parent. No other thread can disturb such a descent.
//!
//! **Latch order**: parent before child, left before right, pages of overflow chains last. A thread only *tries* to
//! upgrade an optimistic guard. A thread waits for a latch only in this order. A page that was just allocated is known
//! to no other thread.

use bedplate_bufpool::{Exclusive, Optimistic, PageId, PageSize, Pool, Shared};

use crate::error::{Abort, Attempt, Result, damaged};
use crate::journal::Logged;
use crate::latch::{Latch, Readable, not_held};
use crate::node::view::Inner;

/// Number of times that an operation is disturbed before it takes latches.
const PATIENCE: u32 = 16;
/// More levels than any tree has. A longer path is a cycle.
pub(crate) const DEPTH: usize = 64;

/// A tree, as its operations see it.
#[derive(Clone, Copy)]
pub(crate) struct Handle<'p> {
    pub pool: &'p Pool,
    /// The page number of the root never changes. When the root is split, its content moves down.
    pub root: PageId,
    pub log: Logged<'p>,
}

/// The way in which an attempt reads nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Reads optimistically, and restarts when it is disturbed.
    Optimistic,
    /// Waits for latches, and cannot be disturbed.
    Latched,
}

/// A node that is held exclusively, with the parent that leads to it.
pub(crate) struct ParentChild<'p> {
    /// The parent and the position of the node in it. None if the node is the root.
    pub parent: Option<(Exclusive<'p>, usize)>,
    pub node: Exclusive<'p>,
}

/// Repeats an attempt until it succeeds or fails. The first [`PATIENCE`] attempts are optimistic.
#[inline(always)]
pub(crate) fn retry<T>(mut attempt: impl FnMut(Mode) -> Attempt<T>) -> Result<T> {
    let mut restarts = 0;
    loop {
        let mode = if restarts < PATIENCE { Mode::Optimistic } else { Mode::Latched };
        match attempt(mode) {
            Ok(result) => return Ok(result),
            Err(Abort::Failed(error)) => return Err(error),
            Err(Abort::Restart) => restarts = restarts.saturating_add(1),
        }
    }
}

impl<'p> Handle<'p> {
    /// The size of the tree's pages.
    #[inline]
    pub fn size(self) -> PageSize {
        self.pool.page_size()
    }

    /// Finds the leaf at the end of the path that `position` chooses.
    #[inline(always)]
    pub fn leaf(self, position: impl Fn(Inner<'_>) -> usize) -> Attempt<Optimistic<'p>> {
        self.leaf_and_parent(position, |_, _| {}).map(|(leaf, _)| leaf)
    }

    /// Like [`Handle::leaf`], and also returns the parent with the position of the leaf in it. Calls `above` with each
    /// inner node on the path and the position of the next child, before it accesses that child.
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

    /// Reads child `at` of an inner node optimistically. The node is validated.
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
                // The error may have occurred because another thread has freed the child. Then the node has changed.
                node.validate()?;
                Err(error.into())
            }
        }
    }

    /// Finds the leaf at the end of the path that `position` chooses, and holds it shared.
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

    /// Finds the leaf of `key` and holds it exclusively.
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

    /// Finds the node of `level` that covers `key`, and holds it and its parent exclusively. Returns none if the tree
    /// is lower.
    pub fn parent_child(self, level: u8, key: &[u8], mode: Mode) -> Attempt<Option<ParentChild<'p>>> {
        let parent_child = match mode {
            Mode::Optimistic => self.parent_child_optimistic(level, key)?,
            Mode::Latched => self.parent_child_latched(level, key)?,
        };
        if let Some(ParentChild { parent, node }) = &parent_child {
            if !(if level == 0 { node.view().is_leaf() } else { node.view().is_inner() }) {
                return Err(damaged(node.page(), "is no node").into());
            }
            // The caller continues at the level above `level`. With any other level in the parent, it would never find
            // the parent.
            if let Some((parent, _)) = parent
                && parent.view().level().checked_sub(1) != Some(level)
            {
                return Err(
                    damaged(parent.page(), format!("is above level {level}, and says otherwise")).into()
                );
            }
        }
        Ok(parent_child)
    }

    fn parent_child_optimistic(self, level: u8, key: &[u8]) -> Attempt<Option<ParentChild<'p>>> {
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
                return Ok(Some(ParentChild { parent, node: node.upgrade()? }));
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
    fn parent_child_latched(self, level: u8, key: &[u8]) -> Attempt<Option<ParentChild<'p>>> {
        let mut parent: Option<(Exclusive<'p>, usize)> = None;
        let mut node = self.pool.pin_exclusive(self.root)?;
        for _ in 0..DEPTH {
            let now = node.view().level();
            if now < level {
                return Ok(None);
            }
            if now == level {
                return Ok(Some(ParentChild { parent, node }));
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
