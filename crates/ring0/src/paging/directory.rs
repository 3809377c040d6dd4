//! A directory of the leaf tables of a range. Frequent page-fault handlers use it to find entries without a walk.
//!
//! A directory owns only its list. It does not contain tables that are added later. It must be dropped before the
//! tables of its range are freed.

use super::address::index;
use super::slot::Child;
use super::{PageSize, PageTables, PagingError, PhysicalMemory, Slot, Table, TableSource, VirtRange};

/// The tables of 4 KiB leaves of a range.
#[derive(Debug)]
pub struct Directory<'m> {
    range: VirtRange,
    tables: Box<[Option<&'m Table>]>,
}

impl Directory<'_> {
    /// The range of the directory.
    pub const fn range(&self) -> VirtRange {
        self.range
    }

    /// The entry of the 4 KiB page at an address, present or not. Returns `None` outside of the range, and where
    /// there is a huge page or no table.
    #[inline]
    pub fn slot(&self, address: u64) -> Option<&Slot> {
        let offset = address.wrapping_sub(self.range.start());
        let table = self.tables.get((offset >> PageSize::Size2M.shift()) as usize)?;
        Some(&(*table)?.slots[index(address, 1)])
    }

    /// Address and length of the list, which handlers touch.
    pub fn span(&self) -> (usize, usize) {
        (self.tables.as_ptr() as usize, size_of_val(&*self.tables))
    }
}

impl<'m, M: PhysicalMemory> PageTables<'m, M> {
    /// Lists the existing leaf tables of a range whose ends are multiples of 2 MiB. It allocates memory, so
    /// handlers must not call it.
    pub fn directory(&self, range: VirtRange) -> Result<Directory<'m>, PagingError> {
        Self::aligned(range, PageSize::Size2M)?;
        let pages = (range.start()..range.end()).step_by(PageSize::Size2M.bytes() as usize);
        let table = |address| match self.slot(address, PageSize::Size2M)?.child()? {
            Child::Table(frame) => Some(self.memory().table(frame)),
            Child::Leaf(_) | Child::Blocked(_) => None,
        };
        Ok(Directory { range, tables: pages.map(table).collect() })
    }

    /// The same as [`directory`](Self::directory), but adds all missing tables first. Pages of the range can then be mapped on
    /// demand without adding tables.
    pub fn directory_or_add(
        &self,
        range: VirtRange,
        tables: &mut impl TableSource,
    ) -> Result<Directory<'m>, PagingError> {
        Self::aligned(range, PageSize::Size2M)?;
        for address in (range.start()..range.end()).step_by(PageSize::Size2M.bytes() as usize) {
            self.slot_or_add(address, PageSize::Size4K, tables)?;
        }
        self.directory(range)
    }
}
