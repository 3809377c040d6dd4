//! One set of page tables: finding, adding and splitting single entries.
//!
//! This module owns no memory and no lock. The rules for concurrent use are in the documentation of
//! [`paging`](super).

use crate::frames::Frame;
use crate::word::Atomic;

use super::address::{check, index, span};
use super::slot::Child;
use super::table::Prepared;
use super::{
    PageSize, PagingError, PhysicalMemory, Pte, PteFlags, RawSlot, Slot, Table, TableSource, VirtRange,
};

/// A handle on a set of four-level page tables: the frame of the topmost table, and the memory that contains them.
#[derive(Debug)]
pub struct PageTables<'m, M> {
    memory: &'m M,
    root: Frame,
}

impl<M> Clone for PageTables<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for PageTables<'_, M> {}

/// The entry at which the walk for an address ended.
#[derive(Debug, Clone, Copy)]
pub struct Leaf<'m> {
    /// The entry.
    pub slot: &'m Slot,
    /// The value that the walk read from it, present or not.
    pub pte: Pte,
    /// The size of the page that the entry maps or would map.
    pub size: PageSize,
}

/// The translation of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Translation {
    /// The entry.
    pub pte: Pte,
    /// The size of the page.
    pub size: PageSize,
    /// The offset of the address in the page, in bytes.
    pub offset: u64,
}

impl Translation {
    /// The guest-physical address.
    pub const fn physical_address(&self) -> u64 {
        self.pte.frame().address() + self.offset
    }
}

impl<'m, M: PhysicalMemory> PageTables<'m, M> {
    /// Creates a handle on the tables below `root`.
    ///
    /// # Safety
    /// `root` must be a topmost table in `memory`, and all tables below it must be in `memory`. This handle may
    /// change only addresses that the caller may change: no code that is unaware of the change may rely on them.
    pub const unsafe fn from_root(memory: &'m M, root: Frame) -> Self {
        PageTables { memory, root }
    }

    /// Creates tables that map nothing.
    ///
    /// # Safety
    /// The same as for [`from_root`](Self::from_root), once the tables are in use.
    pub unsafe fn create(memory: &'m M, tables: &mut impl TableSource) -> Result<Self, PagingError> {
        let root = tables.take().ok_or(PagingError::OutOfTables)?;
        memory.table(root).clear();
        Ok(PageTables { memory, root })
    }

    /// The frame of the topmost table, for CR3.
    #[inline]
    pub const fn root(&self) -> Frame {
        self.root
    }

    /// The memory that contains the tables.
    #[inline]
    pub const fn memory(&self) -> &'m M {
        self.memory
    }

    /// The topmost table.
    #[inline]
    pub fn top(&self) -> &'m Table {
        self.memory.table(self.root)
    }

    /// The entry that determines the translation of an address. It is a leaf, or the entry that is not present at
    /// which the walk ends, if a leaf can be there. Returns `None` if the walk ends at a higher level.
    #[inline]
    pub fn leaf(&self, address: u64) -> Option<Leaf<'m>> {
        let mut table = self.top();
        let mut level = 4;
        loop {
            let slot = table.slots.get(index(address, level))?;
            let pte = slot.load();
            match PageSize::of_level(level) {
                Some(size) if size == PageSize::Size4K || !pte.is_present() || pte.is_leaf(size) => {
                    return Some(Leaf { slot, pte, size });
                }
                _ if !pte.is_present() => return None,
                _ => table = self.memory.table(pte.frame()),
            }
            level -= 1;
        }
    }

    /// The translation of an address, or `None` if nothing is mapped there.
    #[inline]
    pub fn translate(&self, address: u64) -> Option<Translation> {
        check(address & !0xfff, PageSize::Size4K).ok()?;
        let Leaf { pte, size, .. } = self.leaf(address)?;
        pte.is_present().then(|| Translation { pte, size, offset: address & (size.bytes() - 1) })
    }

    /// The entry for the page of this size at `address`, present or not. Returns `None` if a table above it is
    /// missing.
    #[inline]
    pub fn slot(&self, address: u64, size: PageSize) -> Option<&'m Slot> {
        let mut table = self.top();
        for level in (size.level() + 1..=4).rev() {
            match table.slots.get(index(address, level))?.child()? {
                Child::Table(frame) => table = self.memory.table(frame),
                Child::Leaf(_) | Child::Blocked(_) => return None,
            }
        }
        table.slots.get(index(address, size.level()))
    }

    /// The entry for the page of this size at `address`. Missing tables above it are added.
    ///
    /// A handler that maps pages on demand calls this once for its range. Afterwards it finds the entries with
    /// [`slot`](Self::slot) and needs no tables.
    pub fn slot_or_add(
        &self,
        address: u64,
        size: PageSize,
        tables: &mut impl TableSource,
    ) -> Result<&'m Slot, PagingError> {
        self.reach(address, size, tables, false)
    }

    /// Maps the page of this size at `address` to the frames from `frame` on.
    pub fn map(
        &self,
        address: u64,
        frame: Frame,
        size: PageSize,
        flags: PteFlags,
        tables: &mut impl TableSource,
    ) -> Result<(), PagingError> {
        check(address, size)?;
        if !frame.number().is_multiple_of(size.frames()) {
            return Err(PagingError::Unaligned { value: frame.address(), size });
        }
        let slot = self.reach(address, size, tables, false)?;
        let new = Pte::leaf(frame, size, flags.difference(PteFlags::LOCK));
        let changed = slot.update(|pte| (!pte.is_present() && !pte.is_locked()).then_some(new));
        changed.map(|_| ()).map_err(|found| refused(found, address))
    }

    /// Unmaps the page at `address`, and returns its old entry and size. Its tables stay.
    ///
    /// `address` must be the first address of the page: a huge page is unmapped as a whole.
    /// [`unmap_range`](Self::unmap_range) splits huge pages.
    pub fn unmap(&self, address: u64) -> Result<(Pte, PageSize), PagingError> {
        check(address, PageSize::Size4K)?;
        loop {
            let leaf = self.leaf(address).ok_or(PagingError::NotMapped { address })?;
            if !leaf.pte.is_present() {
                return Err(refused(leaf.pte, address));
            }
            if !address.is_multiple_of(leaf.size.bytes()) {
                return Err(PagingError::HugePage { address });
            }
            match change_leaf(leaf.slot, leaf.size, |_| Pte::EMPTY) {
                Ok(pte) => return Ok((pte, leaf.size)),
                // Another thread has replaced the huge page by a table of smaller pages.
                Err(found) if found.is_present() && !found.is_locked() => {}
                Err(found) => return Err(refused(found, address)),
            }
        }
    }

    /// Replaces the huge page around `address` by tables of smaller pages, down to pages of `size`. The memory and
    /// the rights do not change, so no flush is needed before the next change.
    pub fn split(
        &self,
        address: u64,
        size: PageSize,
        tables: &mut impl TableSource,
    ) -> Result<(), PagingError> {
        check(address & !0xfff, PageSize::Size4K)?;
        let leaf = self.leaf(address).ok_or(PagingError::NotMapped { address })?;
        if !leaf.pte.is_present() {
            return Err(PagingError::NotMapped { address });
        }
        if leaf.size <= size {
            return Ok(());
        }
        self.reach(address, size, tables, true).map(|_| ())
    }

    /// Walks down to the entry for a page of this size. Adds missing tables, and splits huge pages if `split` is
    /// set.
    fn reach(
        &self,
        address: u64,
        size: PageSize,
        tables: &mut impl TableSource,
        split: bool,
    ) -> Result<&'m Slot, PagingError> {
        check(address & !0xfff, PageSize::Size4K)?;
        let mut table = self.top();
        for level in (size.level() + 1..=4).rev() {
            let slot = &table.slots[index(address, level)];
            table = self.descend(slot, address, level, tables, split)?;
        }
        Ok(&table.slots[index(address, size.level())])
    }

    /// The table below a slot of a table of this level.
    fn descend(
        &self,
        slot: &Slot,
        address: u64,
        level: u8,
        tables: &mut impl TableSource,
        split: bool,
    ) -> Result<&'m Table, PagingError> {
        loop {
            let child = match slot.child() {
                Some(child) => child,
                None => self.add_table(slot, tables)?.0,
            };
            match child {
                Child::Table(frame) => return Ok(self.memory.table(frame)),
                Child::Leaf(_) if !split => return Err(PagingError::HugePage { address }),
                Child::Leaf(pte) => self.split_leaf(slot, pte, address, level, tables)?,
                Child::Blocked(pte) => return Err(refused(pte, address)),
            }
        }
    }

    /// Adds an empty table below a slot. If another thread has added one meanwhile, that one is used. The second
    /// value says whether this call added the table.
    pub(super) fn add_table(
        &self,
        slot: &Slot,
        tables: &mut impl TableSource,
    ) -> Result<(Child, bool), PagingError> {
        let prepared = Prepared::take(tables).ok_or(PagingError::OutOfTables)?;
        self.memory.table(prepared.frame()).clear();
        let (child, installed) = slot.child_or_install(prepared.frame());
        if installed {
            prepared.installed();
        }
        Ok((child, installed))
    }

    /// Replaces a huge leaf by a table of smaller pages. If the entry is no longer a leaf, does nothing; the caller
    /// must read the entry again.
    pub(super) fn split_leaf(
        &self,
        slot: &Slot,
        pte: Pte,
        address: u64,
        level: u8,
        tables: &mut impl TableSource,
    ) -> Result<(), PagingError> {
        let Some(size) = PageSize::of_level(level) else { return Err(PagingError::HugePage { address }) };
        let prepared = Prepared::take(tables).ok_or(PagingError::OutOfTables)?;
        let parts = &self.memory.table(prepared.frame()).slots;
        let fill = |pte: Pte| {
            parts.iter().enumerate().for_each(|(number, part)| part.store_exclusive(pte.part(size, number)));
        };
        match slot.replace_leaf(pte, size, prepared.frame(), fill) {
            Ok(()) => prepared.installed(),
            Err(found) if found.is_locked() => return Err(PagingError::Locked { address }),
            Err(_) => {}
        }
        Ok(())
    }
}

/// The entries of a table of this level that a range touches, each with the first address of its span. The range
/// must begin in the table's span. Its part behind that span is ignored.
pub(super) fn entries(table: &Table, level: u8, range: VirtRange) -> impl Iterator<Item = (&Slot, u64)> {
    let first = range.start() & !(span(level) - 1);
    let end = (range.start() & !(span(level + 1) - 1)) + span(level + 1);
    let count = (range.end().min(end) - first).div_ceil(span(level)) as usize;
    let slots = table.slots.get(index(first, level)..).unwrap_or_default();
    slots.iter().take(count).enumerate().map(move |(n, slot)| (slot, first + n as u64 * span(level)))
}

/// Changes an entry that is a leaf of this size and not locked. Otherwise returns the entry found.
pub(super) fn change_leaf<W: Atomic<u64>>(
    slot: &RawSlot<W>,
    size: PageSize,
    change: impl Fn(Pte) -> Pte,
) -> Result<Pte, Pte> {
    slot.update(|pte| (pte.is_leaf(size) && !pte.is_locked()).then(|| change(pte)))
}

/// The error for an entry that could not be changed.
pub(super) const fn refused(found: Pte, address: u64) -> PagingError {
    if found.is_locked() {
        PagingError::Locked { address }
    } else if found.is_present() {
        PagingError::AlreadyMapped { address }
    } else {
        PagingError::NotMapped { address }
    }
}
