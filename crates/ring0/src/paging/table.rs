//! Tables, where they are in memory, and where new ones come from.
//!
//! Owns nothing; the traits say what the rest of the module needs from its surroundings, so that the same code
//! works natively (tests, building tables before a process enters) and in ring 0.

use std::mem::ManuallyDrop;

use crate::frames::Frame;

use super::{Pte, Slot};

/// A table of any level: 512 entries in one frame.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct Table {
    /// The entries.
    pub slots: [Slot; 512],
}

impl Table {
    /// Makes all entries empty. The table is not in use yet, or no longer.
    pub(super) fn clear(&self) {
        for slot in &self.slots {
            slot.store_exclusive(Pte::EMPTY);
        }
    }
}

/// Physical memory, as far as it holds page tables.
///
/// # Safety
/// For every frame that was given out as a table, `table` returns the same memory every time, aligned to 4 KiB,
/// valid for reads and writes as long as the table is in use, and accessed only as a [`Table`] by programs (and
/// by the processor). In a handler that memory, and what `table` itself reads, must be mapped: the lookup must
/// not fault, allocate, lock or panic.
pub unsafe trait PhysicalMemory {
    /// The table in this frame.
    fn table(&self, frame: Frame) -> &Table;
}

/// Memory whose virtual addresses are its physical ones plus a constant: one region of frames, or all of the
/// memory of a process whose windows are laid out so.
#[derive(Debug, Clone, Copy)]
pub struct LinearMemory {
    first: Frame,
    count: u64,
    base: *const u8,
}

// SAFETY: the pointer is only ever turned into tables, whose entries are atomics.
unsafe impl Send for LinearMemory {}
// SAFETY: as above.
unsafe impl Sync for LinearMemory {}

impl LinearMemory {
    /// `count` frames from `first` on are at `base`.
    ///
    /// # Safety
    /// They are, for as long as this value and its copies are used; `base` is aligned to 4 KiB, the memory is
    /// readable and writable, and the frames that are used as tables are used for nothing else meanwhile.
    pub const unsafe fn new(first: Frame, count: u64, base: *const u8) -> LinearMemory {
        LinearMemory { first, count, base }
    }
}

// SAFETY: the caller of `new` promised all of it.
unsafe impl PhysicalMemory for LinearMemory {
    #[inline]
    fn table(&self, frame: Frame) -> &Table {
        let index = frame.number().wrapping_sub(self.first.number());
        debug_assert!(index < self.count, "{frame:?} is not in this memory");
        // SAFETY: inside the region, by the contract of `new`; a table is atomics, for which every bit pattern
        // is a value.
        unsafe { &*self.base.add((index << 12) as usize).cast::<Table>() }
    }
}

/// Where frames for tables come from, and go back to. They need not be zeroed.
pub trait TableSource {
    /// A frame, if one is left.
    fn take(&mut self) -> Option<Frame>;
    /// A frame that no table uses any more.
    fn give(&mut self, frame: Frame);
}

impl<T: TableSource + ?Sized> TableSource for &mut T {
    fn take(&mut self) -> Option<Frame> {
        (**self).take()
    }

    fn give(&mut self, frame: Frame) {
        (**self).give(frame);
    }
}

/// For operations that are to do without new tables: it has none.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoTables;

impl TableSource for NoTables {
    fn take(&mut self) -> Option<Frame> {
        None
    }

    fn give(&mut self, _frame: Frame) {}
}

/// A frame on its way to becoming a table: goes back to its source unless it was installed.
pub(super) struct Prepared<'s, S: TableSource> {
    frame: Frame,
    source: &'s mut S,
}

impl<'s, S: TableSource> Prepared<'s, S> {
    pub(super) fn take(source: &'s mut S) -> Option<Self> {
        let frame = source.take()?;
        Some(Prepared { frame, source })
    }

    pub(super) fn frame(&self) -> Frame {
        self.frame
    }

    /// The frame is a table now.
    pub(super) fn installed(self) {
        let _ = ManuallyDrop::new(self);
    }
}

impl<S: TableSource> Drop for Prepared<'_, S> {
    fn drop(&mut self) {
        self.source.give(self.frame);
    }
}
