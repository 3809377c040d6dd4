//! Addresses that only ring 0 has, as many as the storage may have pages, and the page tables for them.
//!
//! Nothing is ever absent there: what has not been brought in leads to a frame that is nobody's, which is
//! all zeros and read-only. So whoever looks at a page's word finds that it is another page's, as after an
//! eviction, and no access to a page in bounds ever faults.
//!
//! Three tables lead there for all that has no tables of its own: those are added, two at most, when the
//! first page of their 2 MiB is brought in. A table takes the place of the one that all share by
//! compare-and-swap, filled before; processors that still use the other one find nobody's frame.

use std::sync::atomic::{AtomicPtr, Ordering};

use bedplate_ring0::frames::{Backing, Frame, FramePool, HostMemory};
use bedplate_ring0::paging::{LinearMemory, PageSize, PhysicalMemory, Pte, PteFlags, Slot, Table, VirtRange};
use bedplate_ring0::shootdown::{Batch, MOST_CPUS};
use bedplate_ring0::{Attached, Cpu, Process, Reserved};

use super::registry::{self, Place};
use super::unavailable;
use crate::error::Result;
use crate::page::PAGE;
use crate::wait::Backoff;

/// Pages that one table of leaves maps.
const LEAVES: u64 = 512;
/// Pages that one entry of the topmost table maps: the most that a pool can have.
pub const MOST_PAGES: u64 = LEAVES * LEAVES * LEAVES;

/// See the module.
pub struct Addresses {
    // Dropped in this order.
    tables: Tables,
    /// For each 2 MiB, their own table of leaves, if there is one.
    leaves: Box<[AtomicPtr<Table>]>,
    _reserved: Reserved,
    /// Somebody else's as soon as nothing is mapped there any more.
    place: Place,
    base: u64,
    process: &'static Process,
    /// What the process's topmost table had there before.
    before: Pte,
}

/// The memory of the tables.
struct Tables {
    frames: FramePool,
    memory: LinearMemory,
    attached: Attached,
    process: &'static Process,
    /// The tables that all share: the one of leaves, and the one above.
    shared: [Frame; 2],
    /// The one above that.
    top: Frame,
}

impl Addresses {
    /// For that many pages.
    pub fn new(process: &'static Process, pages: u64) -> Result<Self> {
        let place = registry::take().ok_or_else(|| unavailable("there are 16 pools in ring 0 already"))?;
        let range = VirtRange::top_level_slot(place.entry()).map_err(unavailable)?;
        let reserved = Reserved::new(process, range).map_err(unavailable)?;
        let tables = Tables::new(process, pages)?;
        let leaves = (0..pages.div_ceil(LEAVES)).map(|_| AtomicPtr::default()).collect();
        // SAFETY: only the entry of the reserved range is changed.
        let top = unsafe { process.page_tables() }.top();
        let entry = &top.slots[place.entry()];
        let before = entry.load();
        entry.store_exclusive(Pte::table(tables.top));
        place.open(pages * PAGE as u64).map_err(unavailable)?;
        let base = range.start();
        Ok(Self { tables, leaves, place, _reserved: reserved, base, process, before })
    }

    /// Where page 0 would be.
    #[inline(always)]
    pub fn base(&self) -> *mut u8 {
        self.base as *mut u8
    }

    /// Where a page is.
    #[inline(always)]
    pub fn address(&self, page: u64) -> u64 {
        self.base + page * PAGE as u64
    }

    /// The entry of a page.
    #[inline]
    pub fn entry(&self, page: u64) -> &Slot {
        let table = self.leaves[(page / LEAVES) as usize].load(Ordering::Acquire);
        // SAFETY: the address of a table, which stays as long as this does.
        let table = unsafe { table.as_ref() }.unwrap_or_else(|| self.add(page));
        &table.slots[(page % LEAVES) as usize]
    }

    /// Gives the 2 MiB of a page their own table of leaves.
    #[cold]
    fn add(&self, page: u64) -> &Table {
        let tables = &self.tables;
        let top = tables.memory.table(tables.top);
        let middle = tables.own(&top.slots[(page / LEAVES / LEAVES) as usize], tables.shared[1]);
        let leaves = tables.own(&middle.slots[(page / LEAVES % LEAVES) as usize], tables.shared[0]);
        let known = &self.leaves[(page / LEAVES) as usize];
        known.store(std::ptr::from_ref(leaves).cast_mut(), Ordering::Release);
        leaves
    }
}

impl Tables {
    fn new(process: &'static Process, pages: u64) -> Result<Self> {
        let own = pages.div_ceil(LEAVES) + pages.div_ceil(LEAVES * LEAVES);
        // Some more are in the lists of processors, where others do not find them at once.
        let frames = own + 4 + 1024;
        let memory = HostMemory::map(frames as usize * PAGE, Backing::Small).map_err(unavailable)?;
        let (address, bytes) = (memory.base() as u64, memory.bytes() as u64);
        // SAFETY: the memory is kept in the pool of frames, and detached before that is dropped.
        let attached = unsafe { process.attach(address, bytes) }.map_err(unavailable)?;
        let first = Frame::containing(attached.physical);
        let frames = FramePool::new(first, memory, MOST_CPUS as u32).map_err(unavailable)?;
        // SAFETY: the pool is kept beside it; its frames are tables, and one that nothing is written to.
        let memory = unsafe { frames.table_memory() };
        let take = || frames.take(0).ok_or_else(|| unavailable("no frames for page tables"));
        let (nobody, leaves, middle, top) = (take()?, take()?, take()?, take()?);
        let fill = |table: Frame, entry: Pte| {
            memory.table(table).slots.iter().for_each(|slot| slot.store_exclusive(entry));
        };
        // New memory is all zeros.
        fill(leaves, Pte::leaf(nobody, PageSize::Size4K, PteFlags::ACCESSED | PteFlags::NO_EXECUTE));
        fill(middle, Pte::table(leaves));
        fill(top, Pte::table(middle));
        Ok(Self { frames, memory, attached, process, shared: [leaves, middle], top })
    }

    /// The table that a slot leads to; where that is the one that all share, a copy of it takes its place.
    fn own(&self, slot: &Slot, shared: Frame) -> &Table {
        let cpu = Cpu::current().map_or(0, |cpu| cpu.number());
        let mut entry = slot.load();
        if entry.frame() != shared {
            return self.memory.table(entry.frame());
        }
        let mut backoff = Backoff::default();
        let frame = loop {
            // There are enough: at worst they are in the hands of those who are about to give them back, and may need this
            // processor for that.
            if let Some(frame) = self.frames.take(cpu) {
                break frame;
            }
            backoff.pause();
        };
        let table = self.memory.table(frame);
        for (to, from) in table.slots.iter().zip(&self.memory.table(shared).slots) {
            to.store_exclusive(from.load());
        }
        // It fails, too, when the processor has just noted that it used the entry.
        while let Err(found) = slot.compare_exchange(entry, Pte::table(frame)) {
            if found.frame() != shared {
                let given = self.frames.give(cpu, frame);
                debug_assert_eq!(given, Ok(()));
                return self.memory.table(found.frame());
            }
            entry = found;
        }
        table
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        let _ = self.process.detach(self.attached);
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        self.place.close();
        // SAFETY: only the entry of the reserved range is changed.
        let top = unsafe { self.process.page_tables() }.top();
        top.slots[self.place.entry()].store_exclusive(self.before);
        // Processors that are not in ring 0 now forget everything when they come in. A forked child cannot enter, but
        // has none in ring 0 either.
        let _ = self.process.run(|cpu| cpu.shoot_down_everywhere(&Batch::full()));
    }
}
