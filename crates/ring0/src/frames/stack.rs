//! Lock-free stacks of numbered entries. The global free lists are such stacks.
//!
//! An entry is a number below [`LIMIT`]. Its link is a word in an array of [`Links`] that all stacks of the same
//! entries share. A stack's head is one word: the first entry, and a tag that every change increments. A
//! compare-and-swap therefore succeeds only if the stack has not changed since the head was read. This allows a pop
//! to take several entries at once: either the links it followed are still valid, or its compare-and-swap fails.
//!
//! The tag has 32 bits. A wrong success requires that a vCPU stops inside a pop while the others change the stack
//! exactly 2^32 times and leave the same first entry.
//!
//! No operation waits, so an interrupt handler, or a vCPU that the host has stopped, never blocks another.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crate::word::{Atomic, Atomics};

/// Entries are below this limit. Values from here on are marks or [`NIL`].
pub(super) const LIMIT: u32 = u32::MAX - 7;
/// The link of the last entry, and the first entry of an empty stack.
pub(super) const NIL: u32 = u32::MAX;

/// One link for each entry, or a mark (at least [`LIMIT`]) for an entry that is on no list.
pub(super) struct Links<A: Atomics>(Box<[A::U32]>);

impl<A: Atomics> Links<A> {
    /// Links of `count` entries, all marked `mark`.
    pub(super) fn new(count: u32, mark: u32) -> Self {
        Links((0..count).map(|_| A::U32::new(mark)).collect())
    }

    pub(super) fn len(&self) -> u32 {
        self.0.len() as u32
    }

    /// The link or mark of an entry; `NIL` if there is no such entry.
    #[inline]
    pub(super) fn get(&self, entry: u32) -> u32 {
        self.0.get(entry as usize).map_or(NIL, |link| link.load(Relaxed))
    }

    #[inline]
    pub(super) fn set(&self, entry: u32, link: u32) {
        if let Some(word) = self.0.get(entry as usize) {
            word.store(link, Relaxed);
        }
    }

    /// Replaces a mark by `link` if the entry has that mark. Of several concurrent callers, one succeeds.
    #[inline]
    pub(super) fn replace(&self, entry: u32, mark: u32, link: u32) -> Result<(), u32> {
        let Some(word) = self.0.get(entry as usize) else { return Err(NIL) };
        word.compare_exchange(mark, link, AcqRel, Relaxed).map(|_| ())
    }

    /// Address and length of the links in memory.
    pub(super) fn span(&self) -> (usize, usize) {
        (self.0.as_ptr() as usize, size_of_val(&*self.0))
    }
}

/// A chain of entries that is on no stack, linked from `first` to `last`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chain {
    pub(super) first: u32,
    pub(super) last: u32,
    pub(super) count: u32,
}

impl Chain {
    pub(super) const EMPTY: Chain = Chain { first: NIL, last: NIL, count: 0 };

    pub(super) const fn one(entry: u32) -> Chain {
        Chain { first: entry, last: entry, count: 1 }
    }
}

/// A stack.
#[repr(align(128))]
pub(super) struct Stack<A: Atomics>(A::U64);

const fn head(tag: u32, first: u32) -> u64 {
    (tag as u64) << 32 | first as u64
}

impl<A: Atomics> Stack<A> {
    pub(super) fn new() -> Self {
        Stack(A::U64::new(head(0, NIL)))
    }

    /// Puts a chain of linked entries on top.
    pub(super) fn push(&self, links: &Links<A>, chain: Chain) {
        if chain.count == 0 {
            return;
        }
        let mut old = self.0.load(Relaxed);
        loop {
            links.set(chain.last, old as u32);
            let new = head(((old >> 32) as u32).wrapping_add(1), chain.first);
            match self.0.compare_exchange(old, new, AcqRel, Relaxed) {
                Ok(_) => return,
                Err(found) => old = found,
            }
        }
    }

    /// Takes up to `most` entries off the top, as a chain that ends in `NIL`.
    pub(super) fn pop(&self, links: &Links<A>, most: u32) -> Chain {
        let mut old = self.0.load(Acquire);
        loop {
            let first = old as u32;
            if first == NIL || most == 0 {
                return Chain::EMPTY;
            }
            if let Some((last, count, rest)) = Self::walk(links, first, most) {
                let new = head(((old >> 32) as u32).wrapping_add(1), rest);
                match self.0.compare_exchange(old, new, AcqRel, Acquire) {
                    Ok(_) => {
                        links.set(last, NIL);
                        return Chain { first, last, count };
                    }
                    Err(found) => old = found,
                }
            } else {
                A::relax();
                old = self.0.load(Acquire);
            }
        }
    }

    /// Follows the links from `first` over up to `most` entries. Returns the last entry, the number of entries, and
    /// the entry behind them. Returns `None` if it finds a mark instead of a link: then the stack has changed
    /// meanwhile.
    fn walk(links: &Links<A>, first: u32, most: u32) -> Option<(u32, u32, u32)> {
        let (mut last, mut count) = (first, 1);
        loop {
            let next = links.get(last);
            if next != NIL && next >= LIMIT {
                return None;
            }
            if next == NIL || count == most {
                return Some((last, count, next));
            }
            (last, count) = (next, count + 1);
        }
    }

    /// Empties the stack. No other thread may use it.
    pub(super) fn reset(&mut self) {
        *self = Self::new();
    }
}
