//! Addresses that exist only in ring 0, one for each page that the storage may have, with their page tables.
//!
//! Every address is mapped. The address of a page that was never read in leads to the null frame, which is all zeros
//! and read-only. A thread that reads the word there finds that it belongs to another page, as after an eviction. So an
//! access to a page in bounds never faults.
//!
//! Three shared tables map all ranges without their own tables. A range of 2 MiB gets its own tables, at most two, when its first
//! page is read in. A new table is filled first and then replaces the shared table by compare-and-swap. Processors that still use
//! the shared table find the null frame.

use std::sync::atomic::{AtomicPtr, Ordering};

use bedplate_ring0::frames::{Backing, Frame, FramePool, HostMemory};
use bedplate_ring0::paging::{LinearMemory, PageSize, PhysicalMemory, Pte, PteFlags, Slot, Table, VirtRange};
use bedplate_ring0::shootdown::{Batch, MOST_CPUS};
use bedplate_ring0::{Attached, Cpu, Process, Reserved};

use super::registry::{self, PoolEntry};
use super::unavailable;
use crate::access::backoff::Backoff;
use crate::error::Result;
use crate::page::PAGE;

/// Number of pages that one table of leaves maps.
const LEAVES: u64 = 512;
/// Number of pages that one entry of the topmost table maps: the maximum for a pool.
pub const MOST_PAGES: u64 = LEAVES * LEAVES * LEAVES;

/// The addresses of a pool. See the module.
pub struct Addresses {
    // The fields are dropped in this order.
    tables: Tables,
    /// The table of leaves of each 2 MiB, or null.
    leaves: Box<[AtomicPtr<Table>]>,
    _reserved: Reserved,
    /// Dropped after the fields above, because another pool may take the entry then.
    pool_entry: PoolEntry,
    base: u64,
    process: &'static Process,
    /// The previous entry in the process's topmost table.
    before: Pte,
}

/// The memory of the tables.
struct Tables {
    frames: FramePool,
    memory: LinearMemory,
    attached: Attached,
    process: &'static Process,
    /// The shared tables: the one of leaves, and the one above it.
    shared: [Frame; 2],
    /// The table above those two.
    top: Frame,
}

impl Addresses {
    /// Creates the addresses of `pages` pages. Fails if all 16 entries for pools are in use.
    pub fn new(process: &'static Process, pages: u64) -> Result<Self> {
        let pool_entry =
            registry::take().ok_or_else(|| unavailable("there are 16 pools in ring 0 already"))?;
        let range = VirtRange::top_level_slot(pool_entry.entry()).map_err(unavailable)?;
        let reserved = Reserved::new(process, range).map_err(unavailable)?;
        let tables = Tables::new(process, pages)?;
        let leaves = (0..pages.div_ceil(LEAVES)).map(|_| AtomicPtr::default()).collect();
        // SAFETY: only the entry of the reserved range is changed.
        let top = unsafe { process.page_tables() }.top();
        let entry = &top.slots[pool_entry.entry()];
        let before = entry.load();
        entry.store_exclusive(Pte::table(tables.top));
        pool_entry.open(pages * PAGE as u64).map_err(unavailable)?;
        let base = range.start();
        Ok(Self { tables, leaves, pool_entry, _reserved: reserved, base, process, before })
    }

    /// The address of page 0.
    #[inline(always)]
    pub fn base(&self) -> *mut u8 {
        self.base as *mut u8
    }

    /// The address of a page.
    #[inline(always)]
    pub fn address(&self, page: u64) -> u64 {
        self.base + page * PAGE as u64
    }

    /// The entry of a page.
    #[inline]
    pub fn entry(&self, page: u64) -> &Slot {
        let table = self.leaves[(page / LEAVES) as usize].load(Ordering::Acquire);
        // SAFETY: the pointer is to a table, which lives as long as `self`.
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
        // The lists of processors may have some frames where other processors do not find them at once. So there are a
        // few more.
        let frames = own + 4 + 1024;
        let memory = HostMemory::map(frames as usize * PAGE, Backing::Small).map_err(unavailable)?;
        let (address, bytes) = (memory.base() as u64, memory.bytes() as u64);
        // SAFETY: the memory is kept in the pool of frames, and it is detached before that pool is dropped.
        let attached = unsafe { process.attach(address, bytes) }.map_err(unavailable)?;
        let first = Frame::containing(attached.physical);
        let frames = FramePool::new(first, memory, MOST_CPUS as u32).map_err(unavailable)?;
        // SAFETY: the pool is kept beside it. Its frames are tables, except one that is never written.
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

    /// The table that a slot leads to. If it is the shared one, a copy replaces it first.
    fn own(&self, slot: &Slot, shared: Frame) -> &Table {
        let cpu = Cpu::current().map_or(0, |cpu| cpu.number());
        let mut entry = slot.load();
        if entry.frame() != shared {
            return self.memory.table(entry.frame());
        }
        let mut backoff = Backoff::default();
        let frame = loop {
            // There are enough frames. At worst, other threads have them and are about to free them. They may need this
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
        // The exchange also fails if the processor has just set the accessed bit of the entry.
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
        self.pool_entry.close();
        // SAFETY: only the entry of the reserved range is changed.
        let top = unsafe { self.process.page_tables() }.top();
        top.slots[self.pool_entry.entry()].store_exclusive(self.before);
        // A processor that is not in ring 0 flushes all translations when it enters. A forked child cannot enter ring
        // 0, but none of its threads is there either.
        let _ = self.process.run(|cpu| cpu.shoot_down_everywhere(&Batch::full()));
    }
}
