//! Operations on all pages of a range: map, take away, protect, look, harvest.
//!
//! They go from low to high addresses and stop at the first entry that refuses; what came before stays changed,
//! and doing the same again is harmless. Huge pages that reach over an end of the range are split first by what
//! changes mappings, and seen as a whole by what only looks.

use crate::frames::Frame;

use super::address::{check, span};
use super::tables::{change_leaf, entries};
use super::{
    Leaf, NoTables, PageSize, PageTables, PagingError, PhysicalMemory, Pte, PteFlags, Table, TableSource,
    VirtRange,
};

/// What `protect_range` leaves alone: bits that say what an entry is, not what may be done with the page.
const STRUCTURE: PteFlags = PteFlags::PRESENT.union(PteFlags::HUGE).union(PteFlags::LOCK);

/// What to do with a huge page that is only partly in the range.
enum Partly<'t, S> {
    Split(&'t mut S),
    Whole,
}

impl<M: PhysicalMemory> PageTables<'_, M> {
    /// Maps a range to the frames from `frame` on, in pages as large as both addresses allow, but not larger than
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

    /// Takes all pages of a range away and calls `taken` with the address, the last state and the size of each.
    ///
    /// The frames may be used again only when no processor can have the translation cached any more.
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

    /// Sets and clears rights (and software's bits) of all pages of a range; returns how many entries changed.
    /// Bits that say what an entry is (present, huge, lock) are not touched.
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

    /// Calls `see` with the address of every page of a range that is mapped, and its entry.
    pub fn for_each(&self, range: VirtRange, mut see: impl FnMut(u64, Leaf<'_>)) {
        let never_fails =
            self.leaves(self.top(), 4, range, &mut Partly::<NoTables>::Whole, &mut |address, leaf| {
                see(address, leaf);
                Ok(true)
            });
        debug_assert_eq!(never_fails, Ok(()));
    }

    /// Clears `flags` ([`PteFlags::ACCESSED`], [`PteFlags::DIRTY`] or both) in the entries of a range that have
    /// one of them, and calls `seen` with the address, the state before, and the size of each.
    ///
    /// What the processors have cached keeps them from setting the bits again: whoever must not miss the next
    /// write shoots down what was dirty before relying on it.
    pub fn harvest(&self, range: VirtRange, flags: PteFlags, mut seen: impl FnMut(u64, Pte, PageSize)) {
        self.for_each(range, |address, leaf| {
            if leaf.pte.has_any(flags) {
                // A huge page that was split meanwhile has handed its bits to its parts, and an entry that leads to
                // a table may lose ACCESSED without harm.
                let before = leaf.slot.harvest(flags);
                if before.is_leaf(leaf.size) {
                    seen(address, before, leaf.size);
                }
            }
        });
    }

    /// Makes sure that every entry of the topmost table leads to a table, so that tables that share the entries
    /// ([`create_sharing`](Self::create_sharing)) share what is mapped later, too.
    pub fn fill_top_level(&self, tables: &mut impl TableSource) -> Result<(), PagingError> {
        for slot in self.top().slots.iter().take(super::ADDRESS_LIMIT.div_ceil(span(4)) as usize) {
            if slot.child().is_none() {
                self.add_table(slot, tables)?;
            }
        }
        Ok(())
    }

    /// Calls `work` with every leaf of the range below `table`. `work` says whether it is done with the entry;
    /// otherwise the entry is looked at again.
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

/// Whether an attempt to change a leaf settles the matter: it did change, or somebody else has taken the page away.
/// A page that was split meanwhile is looked at again, and a locked one is an error.
fn settled(changed: Result<Pte, Pte>, address: u64) -> Result<bool, PagingError> {
    match changed {
        Ok(_) => Ok(true),
        Err(found) if found.is_locked() => Err(PagingError::Locked { address }),
        Err(found) => Ok(!found.is_present()),
    }
}
