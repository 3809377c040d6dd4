//! Page tables in memory, and the source of frames for new tables.
//!
//! This module owns nothing. Its traits say what the page-table code needs from its surroundings. The same code
//! therefore works in ring 3 (in tests, and to build tables before a process enters) and in ring 0.

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
    /// Makes all entries empty. The table must not be in use.
    pub(super) fn clear(&self) {
        for slot in &self.slots {
            slot.store_exclusive(Pte::EMPTY);
        }
    }
}

/// Access to the physical memory that contains page tables.
///
/// # Safety
/// For every frame that is used as a table, `table` must return the same memory every time. That memory must be
/// aligned to 4 KiB, and valid for reads and writes as long as the table is in use. Programs must access it only as
/// a [`Table`]. Handlers call `table`: that memory, and the memory that `table` itself reads, must be mapped there.
/// The lookup must not fault, allocate, take locks, or panic.
pub unsafe trait PhysicalMemory {
    /// The table in this frame.
    fn table(&self, frame: Frame) -> &Table;
}

/// Memory whose virtual addresses are its physical addresses plus a constant: one region of frames, or all memory
/// of a process if its windows are laid out so.
#[derive(Debug, Clone, Copy)]
pub struct LinearMemory {
    first: Frame,
    count: u64,
    base: *const u8,
}

// SAFETY: the pointer is used only for references to tables, whose entries are atomics.
unsafe impl Send for LinearMemory {}
// SAFETY: as above.
unsafe impl Sync for LinearMemory {}

impl LinearMemory {
    /// Describes `count` frames from `first` on, which are mapped at `base`.
    ///
    /// # Safety
    /// The frames must be mapped there, readable and writable, as long as this value and its copies are used.
    /// `base` must be aligned to 4 KiB. Frames that are used as tables must not be used for anything else
    /// meanwhile.
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
        // SAFETY: inside the region, by the contract of `new`. A table consists of atomics, for which every bit
        // pattern is valid.
        unsafe { &*self.base.add((index << 12) as usize).cast::<Table>() }
    }
}

/// The source of frames for tables, to which freed frames return. The frames need not be zeroed.
pub trait TableSource {
    /// Takes a frame. Returns `None` if none is left.
    fn take(&mut self) -> Option<Frame>;
    /// Gives back a frame that no table uses any more.
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

/// A source without frames, for operations that must not add tables.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoTables;

impl TableSource for NoTables {
    fn take(&mut self) -> Option<Frame> {
        None
    }

    fn give(&mut self, _frame: Frame) {}
}

/// A frame that is to become a table. Dropping it returns the frame to its source, unless it was installed.
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

    /// Records that the frame is a table now.
    pub(super) fn installed(self) {
        let _ = ManuallyDrop::new(self);
    }
}

impl<S: TableSource> Drop for Prepared<'_, S> {
    fn drop(&mut self) {
        self.source.give(self.frame);
    }
}
