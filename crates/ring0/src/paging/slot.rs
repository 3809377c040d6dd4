//! A page-table entry in memory. It is atomic, and shared with other vCPUs and the processor's page walker.
//!
//! Invariants:
//! * The processor sets ACCESSED and DIRTY at any time, with an atomic read-modify-write. An entry in use is
//!   therefore replaced only by an atomic operation that returns the old entry. No dirty bit is lost between a load
//!   and a store. Only `store_exclusive` stores directly.
//! * While LOCK is set, only its holder changes the entry, except for ACCESSED and DIRTY.
//! * An entry becomes visible with release order: a thread that reads a table's address sees the table filled.
//!
//! The lock bit is a try-lock: a thread that does not get it decides what to do. A handler that spins for it with
//! interrupts off must serve shootdowns meanwhile ([`Shootdown::serve`](crate::shootdown::Protocol::serve)).
//! Otherwise the holder of the lock may wait for the handler, and both wait forever.

use std::sync::atomic::Ordering;

use crate::frames::Frame;
use crate::word::Atomic;

use super::{PageSize, Pte, PteFlags};

/// A page-table entry in memory.
pub type Slot = RawSlot<std::sync::atomic::AtomicU64>;

/// A page-table entry in a word of any atomic type. Programs use [`Slot`].
#[derive(Debug)]
#[repr(transparent)]
pub struct RawSlot<W>(W);

impl<W: Atomic<u64>> RawSlot<W> {
    /// Creates a slot with this entry.
    pub fn new(pte: Pte) -> Self {
        RawSlot(W::new(pte.bits()))
    }

    /// Reads the entry with acquire order.
    #[inline]
    pub fn load(&self) -> Pte {
        Pte::from_bits(self.0.load(Ordering::Acquire))
    }

    /// Reads the entry with relaxed order, for callers that do not follow its address.
    #[inline]
    pub(super) fn peek(&self) -> Pte {
        Pte::from_bits(self.0.load(Ordering::Relaxed))
    }

    /// Overwrites the entry. No other thread or processor may use its table at that time.
    #[inline]
    pub fn store_exclusive(&self, pte: Pte) {
        self.0.store(pte.bits(), Ordering::Release);
    }

    /// Replaces the entry `current` by `new`. If the entry differs from `current`, returns the entry found.
    #[inline]
    pub fn compare_exchange(&self, current: Pte, new: Pte) -> Result<(), Pte> {
        let result = self.0.compare_exchange(current.bits(), new.bits(), Ordering::AcqRel, Ordering::Acquire);
        result.map(|_| ()).map_err(Pte::from_bits)
    }

    /// Changes the entry by `change`, and returns the old entry. If `change` returns `None`, the entry stays as it
    /// is, and is returned as the error. `change` may be called several times.
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

    /// Clears [`PteFlags::ACCESSED`], [`PteFlags::DIRTY`] or both, which any thread may clear, and returns the old
    /// entry. The TLBs may still hold the bits: until they are flushed, the processor need not set the bits again.
    #[inline]
    pub fn harvest(&self, flags: PteFlags) -> Pte {
        let flags = flags.intersection(PteFlags::ACCESSED.union(PteFlags::DIRTY));
        Pte::from_bits(self.0.fetch_and(!flags.bits(), Ordering::AcqRel))
    }

    /// Sets the lock bit. Returns `None` if it is set already.
    #[inline]
    pub fn try_lock(&self) -> Option<Locked<'_, W>> {
        let before = Pte::from_bits(self.0.fetch_or(PteFlags::LOCK.bits(), Ordering::AcqRel));
        // `then_some` would construct the value in any case, and dropping it would unlock the entry.
        (!before.is_locked()).then(|| Locked { slot: self })
    }
}

/// The right to change an entry. Dropping it unlocks the entry and leaves it otherwise unchanged.
#[derive(Debug)]
#[must_use]
pub struct Locked<'a, W: Atomic<u64> = std::sync::atomic::AtomicU64> {
    slot: &'a RawSlot<W>,
}

impl<W: Atomic<u64>> Locked<'_, W> {
    /// The entry, with its lock bit set.
    #[inline]
    pub fn get(&self) -> Pte {
        self.slot.load()
    }

    /// Changes the entry, keeps the lock, and returns the old entry. `change` gets the entry with all bits that the
    /// processor has set, and may be called several times.
    #[inline]
    pub fn set(&self, mut change: impl FnMut(Pte) -> Pte) -> Pte {
        let changed = self.slot.update(|current| Some(change(current).with(PteFlags::LOCK)));
        changed.unwrap_or_else(|current| current)
    }

    /// Changes and unlocks the entry in one atomic step; returns the old entry.
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

/// The target of an entry above the leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Child {
    /// A table in this frame.
    Table(Frame),
    /// A huge page.
    Leaf(Pte),
    /// Neither: the entry is not present and not empty.
    Blocked(Pte),
}

impl<W: Atomic<u64>> RawSlot<W> {
    /// The target of this slot, in a table above the leaves. If the slot is empty, it is set to the table
    /// `prepared`. The second value says whether that happened; if not, `prepared` still belongs to the caller.
    ///
    /// `prepared` must be filled before, with zeros or with entries.
    pub(super) fn child_or_install(&self, prepared: Frame) -> (Child, bool) {
        match self.compare_exchange(Pte::EMPTY, Pte::table(prepared)) {
            Ok(()) => (Child::Table(prepared), true),
            Err(found) => (Self::child_of(found), false),
        }
    }

    /// Replaces the huge leaf `pte` by a table. `fill` must fill the table for the leaf it gets. It may be called
    /// several times; the last call gets the leaf that is replaced, with all bits that the processor has set
    /// meanwhile. If the entry is locked, or no longer a leaf, returns the entry found.
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

    /// The target of the slot, or `None` if the slot is empty.
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
