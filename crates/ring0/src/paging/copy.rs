//! Copying page tables, for snapshots.
//!
//! A copy has its own tables below some entries of the topmost table and shares the others. The copy loops run over
//! whole tables without reference counts and take about eight instructions per page. Several threads can copy
//! disjoint ranges into the same copy at once.
//!
//! A locked entry stops a copy with [`PagingError::Locked`] before its table becomes part of the copy. The caller
//! can then copy the range again. Copying over an older copy is also allowed.

use super::address::{index, span};
use super::slot::Child;
use super::table::Prepared;
use super::tables::entries;
use super::{
    PageSize, PageTables, PagingError, PhysicalMemory, Pte, PteFlags, Slot, Table, TableSource, VirtRange,
};

/// The tables that lose the right to write when they are copied.
///
/// WRITABLE is also cleared in entries that are not present. Software that stores data in such entries must
/// therefore not use this bit, nor LOCK.
///
/// ACCESSED and DIRTY are clear in a copy that is not exact, because no processor has used the copy. An entry of
/// the copy with ACCESSED still clear is in no TLB, and can be changed without a flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protect {
    /// None: the copy is exact.
    Nothing,
    /// The copy loses it; the original stays unchanged. For copies made ahead.
    Copy,
    /// Both lose it. Other vCPUs may use and change the original meanwhile.
    Both,
    /// Both lose it. No other vCPU may use or change the original meanwhile; otherwise changes and dirty bits are
    /// lost. This saves an atomic operation per page.
    BothQuiesced,
}

const LOCK: u64 = PteFlags::LOCK.bits();
const WRITABLE: PteFlags = PteFlags::WRITABLE;
/// The flags that are cleared in a copy that is not exact.
const NOT_COPIED: PteFlags = WRITABLE.union(PteFlags::ACCESSED).union(PteFlags::DIRTY);

impl<'m, M: PhysicalMemory> PageTables<'m, M> {
    /// Creates tables that share all tables with these, except in the range `private`. That range must consist of
    /// whole entries of the topmost table. It is empty in the new tables until [`clone_range`](Self::clone_range)
    /// fills it.
    ///
    /// Entries added to the topmost table of these tables later are not shared; see
    /// [`fill_top_level`](Self::fill_top_level).
    pub fn create_sharing(
        &self,
        private: VirtRange,
        tables: &mut impl TableSource,
    ) -> Result<Self, PagingError> {
        if !(private.start() | private.end()).is_multiple_of(span(4)) {
            return Err(PagingError::Unaligned { value: private.start(), size: PageSize::Size1G });
        }
        let root = tables.take().ok_or(PagingError::OutOfTables)?;
        for (number, (new, old)) in self.memory().table(root).slots.iter().zip(&self.top().slots).enumerate()
        {
            let shared = !private.contains(number as u64 * span(4));
            new.store_exclusive(if shared { old.load() } else { Pte::EMPTY });
        }
        // SAFETY: the new topmost table leads only to tables of the old one.
        Ok(unsafe { PageTables::from_root(self.memory(), root) })
    }

    /// Copies the tables of a range to `copy` and returns the number of tables added. Both ends of the range must
    /// be multiples of 2 MiB. In this range, `copy` must be unused, or be an older copy of these tables. A huge
    /// page is copied with the range that contains its first byte.
    ///
    /// Several threads may copy disjoint ranges to one copy at once ([`VirtRange::split`]). With [`Protect::Both`]
    /// and [`Protect::BothQuiesced`], vCPUs may still write through cached translations of the original until a
    /// shootdown has returned.
    pub fn clone_range(
        &self,
        copy: &PageTables<'m, M>,
        range: VirtRange,
        protect: Protect,
        tables: &mut impl TableSource,
    ) -> Result<u64, PagingError> {
        Self::aligned(range, PageSize::Size2M)?;
        let leaves = match protect {
            Protect::Nothing => copy_leaves::<{ Protect::Nothing as u8 }>,
            Protect::Copy => copy_leaves::<{ Protect::Copy as u8 }>,
            Protect::BothQuiesced => copy_leaves::<{ Protect::BothQuiesced as u8 }>,
            Protect::Both => copy_shared_leaves,
        };
        let mut copying = Copying { original: self, copy, protect, leaves, tables, added: 0 };
        copying.table(self.top(), copy.top(), 4, range)?;
        Ok(copying.added)
    }
}

struct Copying<'c, 'm, M, S> {
    original: &'c PageTables<'m, M>,
    copy: &'c PageTables<'m, M>,
    protect: Protect,
    /// Copies a table of 4 KiB leaves. The error is the index of a locked entry.
    leaves: fn(&Table, &Table) -> Result<(), usize>,
    tables: &'c mut S,
    added: u64,
}

impl<'m, M: PhysicalMemory, S: TableSource> Copying<'_, 'm, M, S> {
    /// Copies the entries of a table above the tables of 4 KiB leaves.
    fn table(&mut self, from: &Table, to: &Table, level: u8, range: VirtRange) -> Result<(), PagingError> {
        for (old, base) in entries(from, level, range) {
            let new = &to.slots[index(base, level)];
            match old.child() {
                None => {
                    if new.load().is_present() {
                        return Err(PagingError::AlreadyMapped { address: base });
                    }
                    new.store_exclusive(Pte::EMPTY);
                }
                Some(Child::Table(frame)) => {
                    let Some(part) = range.within(base, span(level)) else { continue };
                    let from = self.original.memory().table(frame);
                    if level > 2 {
                        let to = self.below(new, base)?;
                        self.table(from, to, level - 1, part)?;
                    } else {
                        self.leaf_table(from, new, base)?;
                    }
                }
                // This huge page is copied with the range that contains its first byte.
                Some(Child::Leaf(_)) if base < range.start() => {}
                Some(Child::Leaf(_) | Child::Blocked(_)) => self.entry(old, new, base)?,
            }
        }
        Ok(())
    }

    /// The copy's table below an entry for which the original has a table. Adds it if it is missing.
    fn below(&mut self, new: &Slot, base: u64) -> Result<&'m Table, PagingError> {
        let child = match new.child() {
            Some(child) => child,
            None => {
                let (child, added) = self.copy.add_table(new, self.tables)?;
                self.added += u64::from(added);
                child
            }
        };
        match child {
            Child::Table(frame) => Ok(self.copy.memory().table(frame)),
            Child::Leaf(_) | Child::Blocked(_) => Err(PagingError::AlreadyMapped { address: base }),
        }
    }

    /// Copies a table of 4 KiB leaves. A new table is filled before it is linked, so it need not be cleared.
    fn leaf_table(&mut self, from: &Table, new: &Slot, base: u64) -> Result<(), PagingError> {
        let locked = |number: usize| PagingError::Locked { address: base + number as u64 * span(1) };
        match new.child() {
            Some(Child::Table(frame)) => (self.leaves)(from, self.copy.memory().table(frame)).map_err(locked),
            Some(_) => Err(PagingError::AlreadyMapped { address: base }),
            None => {
                let prepared = Prepared::take(self.tables).ok_or(PagingError::OutOfTables)?;
                (self.leaves)(from, self.copy.memory().table(prepared.frame())).map_err(locked)?;
                if !new.child_or_install(prepared.frame()).1 {
                    return Err(PagingError::AlreadyMapped { address: base });
                }
                prepared.installed();
                self.added += 1;
                Ok(())
            }
        }
    }

    /// Copies a huge leaf, or the data that software stores in an entry that is not present.
    fn entry(&self, old: &Slot, new: &Slot, base: u64) -> Result<(), PagingError> {
        if matches!(new.child(), Some(Child::Table(_))) {
            return Err(PagingError::AlreadyMapped { address: base });
        }
        let pte = match self.protect {
            Protect::Nothing | Protect::Copy => old.load(),
            Protect::Both | Protect::BothQuiesced => old
                .update(|pte| (!pte.is_locked()).then_some(pte.without(WRITABLE)))
                .unwrap_or_else(|locked| locked),
        };
        if pte.is_locked() {
            return Err(PagingError::Locked { address: base });
        }
        let copied = if self.protect == Protect::Nothing { pte } else { pte.without(NOT_COPIED) };
        new.store_exclusive(copied);
        Ok(())
    }
}

/// Copies a table of 4 KiB leaves entry by entry. It uses as few instructions as possible, because it runs while a
/// database waits for its snapshot. It checks for locks once per group of entries.
fn copy_leaves<const PROTECT: u8>(from: &Table, to: &Table) -> Result<(), usize> {
    const GROUP: usize = 8;
    let (from_groups, _) = from.slots.as_chunks::<GROUP>();
    let (to_groups, _) = to.slots.as_chunks::<GROUP>();
    for (group, (old, new)) in from_groups.iter().zip(to_groups).enumerate() {
        let mut seen = 0;
        for (old, new) in old.iter().zip(new) {
            let pte = old.peek();
            seen |= pte.bits();
            let copied = if PROTECT == Protect::Nothing as u8 { pte } else { pte.without(NOT_COPIED) };
            if PROTECT == Protect::BothQuiesced as u8 {
                old.store_exclusive(pte.without(WRITABLE));
            }
            new.store_exclusive(copied);
        }
        if seen & LOCK != 0 {
            let locked = old.iter().position(|slot| slot.peek().is_locked()).unwrap_or(0);
            return Err(group * GROUP + locked);
        }
    }
    Ok(())
}

/// Copies a table of 4 KiB leaves whose original is in use. Entries lose the right to write atomically.
fn copy_shared_leaves(from: &Table, to: &Table) -> Result<(), usize> {
    for (number, (old, new)) in from.slots.iter().zip(&to.slots).enumerate() {
        let mut pte = old.peek();
        while pte.is_writable() && !pte.is_locked() {
            let protected = pte.without(WRITABLE);
            pte = match old.compare_exchange(pte, protected) {
                Ok(()) => protected,
                Err(found) => found,
            };
        }
        if pte.is_locked() {
            return Err(number);
        }
        new.store_exclusive(pte.without(NOT_COPIED));
    }
    Ok(())
}
