//! Freeing tables. Only this module removes tables, and it requires exclusive access to them.

use super::address::span;
use super::slot::Child;
use super::tables::entries;
use super::{PageTables, PhysicalMemory, Pte, Table, TableSource, VirtRange};

/// The tables of a range to free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// All tables that lie wholly in the range, whatever they map, and all empty tables.
    All,
    /// Only empty tables. They remain after unmapping, and keep a huge page from being mapped.
    Empty,
}

impl<M: PhysicalMemory> PageTables<'_, M> {
    /// Frees tables of a range, and returns their number. The mapped frames are not freed, because they belong to
    /// their owners. An owner must find them before, with [`for_each`](Self::for_each).
    ///
    /// # Safety
    /// No program and no processor may walk these tables in the range meanwhile. No processor may use cached
    /// translations of them: every vCPU that had them in CR3 must have made a full flush, or use other tables. No
    /// other tables may share them.
    pub unsafe fn free_range(&self, range: VirtRange, which: Which, tables: &mut impl TableSource) -> u64 {
        self.free_below(self.top(), 4, range, which, tables)
    }

    /// Frees the topmost table. The tables below it must be freed before ([`free_range`](Self::free_range)), or
    /// belong to tables that share them.
    ///
    /// # Safety
    /// The table must be in no CR3. No other handle on these tables may be used any more.
    pub unsafe fn free_root(self, tables: &mut impl TableSource) {
        tables.give(self.root());
    }

    fn free_below(
        &self,
        table: &Table,
        level: u8,
        range: VirtRange,
        which: Which,
        tables: &mut impl TableSource,
    ) -> u64 {
        let mut freed = 0;
        for (slot, base) in entries(table, level, range) {
            let (Some(Child::Table(frame)), Some(part)) = (slot.child(), range.within(base, span(level)))
            else {
                continue;
            };
            let below = self.memory().table(frame);
            if level > 2 {
                freed += self.free_below(below, level - 1, part, which, tables);
            }
            let all = which == Which::All && part.bytes() == span(level);
            if all || below.slots.iter().all(|slot| slot.load() == Pte::EMPTY) {
                slot.store_exclusive(Pte::EMPTY);
                tables.give(frame);
                freed += 1;
            }
        }
        freed
    }
}
