//! Operations on all pages of a range: map, unmap, protect, visit, harvest.
//!
//! They proceed from low to high addresses and stop at the first entry that refuses. Earlier entries stay changed,
//! and the operation can be repeated. If a huge page extends over an end of the range, operations that change
//! mappings split it first. Operations that only look at it treat it as a whole.

use crate::frames::Frame;

use super::address::{check, span};
use super::tables::{change_leaf, entries};
use super::{
    Leaf, NoTables, PageSize, PageTables, PagingError, PhysicalMemory, Pte, PteFlags, Table, TableSource,
    VirtRange,
};

/// The bits that `protect_range` does not change. They say what an entry is, and are not rights.
const STRUCTURE: PteFlags = PteFlags::PRESENT.union(PteFlags::HUGE).union(PteFlags::LOCK);

/// The treatment of a huge page that is only partly in the range.
enum Partly<'t, S> {
    Split(&'t mut S),
    Whole,
}

impl<M: PhysicalMemory> PageTables<'_, M> {
    /// Maps a range to the frames from `frame` on. It uses the largest pages that both addresses allow, up to
    /// `largest`.
    pub fn map_range(
        &self,
        range: VirtRange,
        frame: Frame,
        largest: PageSize,
        flags: PteFlags,
        tables: &mut impl TableSource,
    ) -> Result<(), PagingError> {
        let (mut address, mut frame) = (range.start(), frame);
        while address < range.end() {
            let fits = |size: &PageSize| {
                *size <= largest
                    && (address | frame.address()).is_multiple_of(size.bytes())
                    && size.bytes() <= range.end() - address
            };
            let sizes = [PageSize::Size1G, PageSize::Size2M, PageSize::Size4K];
            let size = sizes.into_iter().find(fits).unwrap_or(PageSize::Size4K);
            self.map(address, frame, size, flags, tables)?;
            address += size.bytes();
            frame = frame.offset(size.frames());
        }
        Ok(())
    }

    /// Unmaps all pages of a range. Calls `taken` with the address, the last entry and the size of each page.
    ///
    /// The frames may be reused only when no processor can have cached the translation any more.
    pub fn unmap_range(
        &self,
        range: VirtRange,
        tables: &mut impl TableSource,
        mut taken: impl FnMut(u64, Pte, PageSize),
    ) -> Result<(), PagingError> {
        self.leaves(self.top(), 4, range, &mut Partly::Split(tables), &mut |address, leaf| {
            let changed = change_leaf(leaf.slot, leaf.size, |_| Pte::EMPTY);
            if let Ok(pte) = changed {
                taken(address, pte, leaf.size);
            }
            settled(changed, address)
        })
    }

    /// Sets and clears rights and software bits of all pages of a range; returns the number of entries changed. The
    /// present, huge and lock bits are never changed.
    pub fn protect_range(
        &self,
        range: VirtRange,
        set: PteFlags,
        clear: PteFlags,
        tables: &mut impl TableSource,
    ) -> Result<u64, PagingError> {
        let (set, clear) = (set.difference(STRUCTURE), clear.difference(STRUCTURE));
        let mut count = 0;
        self.leaves(self.top(), 4, range, &mut Partly::Split(tables), &mut |address, leaf| {
            let change = |pte: Pte| pte.without(clear).with(set);
            if change(leaf.pte) == leaf.pte && !leaf.pte.is_locked() {
                return Ok(true);
            }
            let changed = change_leaf(leaf.slot, leaf.size, change);
            count += u64::from(changed.is_ok());
            settled(changed, address)
        })?;
        Ok(count)
    }

    /// Calls `see` with the address and the entry of every mapped page of a range.
    pub fn for_each(&self, range: VirtRange, mut see: impl FnMut(u64, Leaf<'_>)) {
        let never_fails =
            self.leaves(self.top(), 4, range, &mut Partly::<NoTables>::Whole, &mut |address, leaf| {
                see(address, leaf);
                Ok(true)
            });
        debug_assert_eq!(never_fails, Ok(()));
    }

    /// Clears `flags` ([`PteFlags::ACCESSED`], [`PteFlags::DIRTY`] or both) in all entries of a range that have at
    /// least one of them. Calls `seen` with the address, the entry before, and the size of each.
    ///
    /// A processor that has cached a translation does not set the bits again. A caller that must not miss the next
    /// write must therefore shoot down the pages that were dirty before it relies on the bits.
    pub fn harvest(&self, range: VirtRange, flags: PteFlags, mut seen: impl FnMut(u64, Pte, PageSize)) {
        self.for_each(range, |address, leaf| {
            if leaf.pte.has_any(flags) {
                // If a huge page was split meanwhile, its parts have inherited its bits. An entry that points to a
                // table may lose ACCESSED without harm.
                let before = leaf.slot.harvest(flags);
                if before.is_leaf(leaf.size) {
                    seen(address, before, leaf.size);
                }
            }
        });
    }

    /// Adds a table below every empty entry of the topmost table. Tables that share these entries
    /// ([`create_sharing`](Self::create_sharing)) then also share later mappings.
    pub fn fill_top_level(&self, tables: &mut impl TableSource) -> Result<(), PagingError> {
        for slot in self.top().slots.iter().take(super::ADDRESS_LIMIT.div_ceil(span(4)) as usize) {
            if slot.child().is_none() {
                self.add_table(slot, tables)?;
            }
        }
        Ok(())
    }

    /// Calls `work` with every leaf of the range below `table`. `work` returns whether it is done with the entry;
    /// if not, the entry is read and visited again.
    fn leaves<S: TableSource>(
        &self,
        table: &Table,
        level: u8,
        range: VirtRange,
        partly: &mut Partly<'_, S>,
        work: &mut impl FnMut(u64, Leaf<'_>) -> Result<bool, PagingError>,
    ) -> Result<(), PagingError> {
        for (slot, base) in entries(table, level, range) {
            let Some(part) = range.within(base, span(level)) else { continue };
            loop {
                let pte = slot.load();
                if !pte.is_present() {
                    break;
                }
                match (PageSize::of_level(level), &mut *partly) {
                    (Some(size), Partly::Split(tables))
                        if pte.is_leaf(size) && part.bytes() < size.bytes() =>
                    {
                        self.split_leaf(slot, pte, part.start(), level, *tables)?;
                    }
                    (Some(size), _) if pte.is_leaf(size) => {
                        if work(base, Leaf { slot, pte, size })? {
                            break;
                        }
                    }
                    _ => {
                        self.leaves(self.memory().table(pte.frame()), level - 1, part, partly, work)?;
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Refuses a range whose ends are not multiples of the size.
    pub(super) fn aligned(range: VirtRange, size: PageSize) -> Result<(), PagingError> {
        check(range.start(), size)?;
        if !range.end().is_multiple_of(size.bytes()) {
            return Err(PagingError::Unaligned { value: range.end(), size });
        }
        Ok(())
    }
}

/// Whether an attempt to change a leaf is finished: it has changed, or another thread has unmapped the page.
/// Returns false for a page that was split meanwhile, which must be visited again. A locked page is an error.
fn settled(changed: Result<Pte, Pte>, address: u64) -> Result<bool, PagingError> {
    match changed {
        Ok(_) => Ok(true),
        Err(found) if found.is_locked() => Err(PagingError::Locked { address }),
        Err(found) => Ok(!found.is_present()),
    }
}
