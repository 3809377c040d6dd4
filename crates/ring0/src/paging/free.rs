//! Taking tables away: the only code that does, and the only one that needs everybody else kept out.

use super::address::span;
use super::slot::Child;
use super::tables::entries;
use super::{PageTables, PhysicalMemory, Pte, Table, TableSource, VirtRange};

/// Which tables of a range to free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// All that lie wholly in the range, whatever they map, and the empty ones.
    All,
    /// Those that hold nothing: what unmapping leaves behind, and what keeps a huge page from being mapped.
    Empty,
}

impl<M: PhysicalMemory> PageTables<'_, M> {
    /// Frees tables of a range and returns how many. Frames that were mapped are not freed: they are their
    /// owner's, who looks for them before ([`for_each`](Self::for_each)).
    ///
    /// # Safety
    /// Nobody walks these tables in the range meanwhile, neither programs nor processors, and none uses what it
    /// has cached of them: every vCPU that had them in CR3 has had a full flush, or uses others. No other tables
    /// share them.
    pub unsafe fn free_range(&self, range: VirtRange, which: Which, tables: &mut impl TableSource) -> u64 {
        self.free_below(self.top(), 4, range, which, tables)
    }

    /// Frees the topmost table. What it leads to is freed before ([`free_range`](Self::free_range)), or
    /// belongs to the tables that it is shared with.
    ///
    /// # Safety
    /// It is in no CR3, and no handle on these tables is used any more.
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
