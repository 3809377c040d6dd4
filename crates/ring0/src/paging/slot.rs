//! A page-table entry in memory: atomic, shared with other vCPUs and with the processor's page walker.
//!
//! Invariants:
//! * The processor sets ACCESSED and DIRTY at any time, with an atomic read-modify-write of its own. So nothing
//!   here replaces an entry without an atomic operation that returns what was replaced: a dirty bit is never
//!   lost between a load and a store.
//! * While LOCK is set, only its holder changes the entry (ACCESSED and DIRTY excepted).
//! * An entry becomes visible with release order: whoever reads a table's address sees the table filled.
//!
//! The lock bit is a try-lock: whoever does not get it decides what to do. A handler that spins for it with
//! interrupts off must serve shootdowns meanwhile ([`Shootdown::serve`](crate::shootdown::Protocol::serve)),
//! or it waits for somebody who waits for it.

use std::sync::atomic::Ordering;

use crate::frames::Frame;
use crate::word::Atomic;

use super::{PageSize, Pte, PteFlags};

/// A page-table entry in memory.
pub type Slot = RawSlot<std::sync::atomic::AtomicU64>;

/// A page-table entry in a word of any kind; programs use [`Slot`].
#[derive(Debug)]
#[repr(transparent)]
pub struct RawSlot<W>(W);

impl<W: Atomic<u64>> RawSlot<W> {
    /// A slot with this entry.
    pub fn new(pte: Pte) -> Self {
        RawSlot(W::new(pte.bits()))
    }

    /// What it holds.
    #[inline]
    pub fn load(&self) -> Pte {
        Pte::from_bits(self.0.load(Ordering::Acquire))
    }

    /// What it holds, where nothing behind the entry is going to be read.
    #[inline]
    pub(super) fn peek(&self) -> Pte {
        Pte::from_bits(self.0.load(Ordering::Relaxed))
    }

    /// Overwrites whatever is there: for tables that nobody else uses yet, or at the moment.
    #[inline]
    pub fn store_exclusive(&self, pte: Pte) {
        self.0.store(pte.bits(), Ordering::Release);
    }

    /// Puts `new` in the place of `current`, or says what is there instead.
    #[inline]
    pub fn compare_exchange(&self, current: Pte, new: Pte) -> Result<(), Pte> {
        let result = self.0.compare_exchange(current.bits(), new.bits(), Ordering::AcqRel, Ordering::Acquire);
        result.map(|_| ()).map_err(Pte::from_bits)
    }

    /// Changes the entry by `change` and returns what it was. Where `change` says `None` the entry stays, and
    /// the error is what it is. `change` may be called several times.
    #[inline]
    pub fn update(&self, mut change: impl FnMut(Pte) -> Option<Pte>) -> Result<Pte, Pte> {
        let mut current = self.load();
        loop {
            let Some(new) = change(current) else { return Err(current) };
            match self.compare_exchange(current, new) {
                Ok(()) => return Ok(current),
                Err(found) => current = found,
            }
        }
    }

    /// Clears bits that may be cleared by anybody, [`PteFlags::ACCESSED`] and [`PteFlags::DIRTY`], and returns
    /// the entry as it was. The translation lookaside buffers may still hold the bits: until they are flushed,
    /// the processor need not set them again.
    #[inline]
    pub fn harvest(&self, flags: PteFlags) -> Pte {
        let flags = flags.intersection(PteFlags::ACCESSED.union(PteFlags::DIRTY));
        Pte::from_bits(self.0.fetch_and(!flags.bits(), Ordering::AcqRel))
    }

    /// Takes the lock bit if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<Locked<'_, W>> {
        let before = Pte::from_bits(self.0.fetch_or(PteFlags::LOCK.bits(), Ordering::AcqRel));
        // Not `then_some`, which would make, and drop, what unlocks it.
        (!before.is_locked()).then(|| Locked { slot: self })
    }
}

/// The right to change an entry. Dropping it unlocks the entry as it is.
#[derive(Debug)]
#[must_use]
pub struct Locked<'a, W: Atomic<u64> = std::sync::atomic::AtomicU64> {
    slot: &'a RawSlot<W>,
}

impl<W: Atomic<u64>> Locked<'_, W> {
    /// The entry, with its lock bit.
    #[inline]
    pub fn get(&self) -> Pte {
        self.slot.load()
    }

    /// Changes the entry, keeps the lock, and returns what was there. `change` sees the entry as the processor
    /// has left it and may be called several times.
    #[inline]
    pub fn set(&self, mut change: impl FnMut(Pte) -> Pte) -> Pte {
        let changed = self.slot.update(|current| Some(change(current).with(PteFlags::LOCK)));
        changed.unwrap_or_else(|current| current)
    }

    /// Changes the entry and unlocks it in the same instant; returns what was there.
    #[inline]
    pub fn publish(self, mut change: impl FnMut(Pte) -> Pte) -> Pte {
        let changed = self.slot.update(|current| Some(change(current).without(PteFlags::LOCK)));
        std::mem::forget(self);
        changed.unwrap_or_else(|current| current)
    }
}

impl<W: Atomic<u64>> Drop for Locked<'_, W> {
    #[inline]
    fn drop(&mut self) {
        self.slot.0.fetch_and(!PteFlags::LOCK.bits(), Ordering::AcqRel);
    }
}

/// What an entry above the leaves leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Child {
    /// A table.
    Table(Frame),
    /// A huge page.
    Leaf(Pte),
    /// Neither: not present, and not empty.
    Blocked(Pte),
}

impl<W: Atomic<u64>> RawSlot<W> {
    /// The table that this slot of a table above the leaves leads to; where there is none, `prepared` is put
    /// there. The second value says whether that happened: otherwise `prepared` still belongs to the caller.
    ///
    /// `prepared` must be filled (with zeros, or with entries) before.
    pub(super) fn child_or_install(&self, prepared: Frame) -> (Child, bool) {
        match self.compare_exchange(Pte::EMPTY, Pte::table(prepared)) {
            Ok(()) => (Child::Table(prepared), true),
            Err(found) => (Self::child_of(found), false),
        }
    }

    /// Puts a table in the place of the huge leaf `pte`. `fill` fills the table for the leaf that it is given, the
    /// last one being the one that was replaced: what the processor added meanwhile is in it. Otherwise returns
    /// what is there instead: a locked leaf, or none any more.
    pub(super) fn replace_leaf(
        &self,
        mut pte: Pte,
        size: PageSize,
        table: Frame,
        mut fill: impl FnMut(Pte),
    ) -> Result<(), Pte> {
        while pte.is_leaf(size) && !pte.is_locked() {
            fill(pte);
            match self.compare_exchange(pte, Pte::table(table)) {
                Ok(()) => return Ok(()),
                Err(found) => pte = found,
            }
        }
        Err(pte)
    }

    /// What the slot leads to, or nothing.
    pub(super) fn child(&self) -> Option<Child> {
        let pte = self.load();
        (pte != Pte::EMPTY).then(|| Self::child_of(pte))
    }

    fn child_of(pte: Pte) -> Child {
        if !pte.is_present() {
            Child::Blocked(pte)
        } else if pte.has(PteFlags::HUGE) {
            Child::Leaf(pte)
        } else {
            Child::Table(pte.frame())
        }
    }
}
