//! One memory: the state that handlers, snapshots and background threads share.
//!
//! Main's tables are those below the process's own topmost table. [`Space::main`] says which they are, and changes
//! only with the latch held for writing. A snapshot's slot ([`SnapshotSlot`]) belongs to its task from the moment
//! when it is taken until it is given back.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use bedplate_ring0::frames::{Backing, Frame};
use bedplate_ring0::paging::{PageSize, PageTables, Pte, PteFlags, VirtRange};
use bedplate_ring0::shootdown::{Batch, CpuSet};
use bedplate_ring0::word::Native;
use bedplate_ring0::{Cpu, Process, Reserved, Windows};

use super::frames::{Home, Pool, reserve, unavailable};
use super::protocol::{Epochs, Latch, Limbo, MOST};
use super::tables::{TablePool, TableSet, entry_of};
use super::{calls, fault, native, registry};
use crate::engine::{Options, Statistics};
use crate::{Error, PAGE};

/// Stands for no processor.
pub const NO_CPU: u32 = u32::MAX;

/// Number of copies of all pages for which there is room. There is one for each snapshot that may be active, and
/// one for the remains of ended snapshots until they are reclaimed. If snapshots need more, some are abandoned
/// ([`Error::Incomplete`]).
fn most_copies(options: Options) -> usize {
    options.at_once + 1
}

/// The state of an active snapshot.
#[derive(Debug)]
pub struct SnapshotSlot {
    /// The snapshot's tables.
    pub table: AtomicPtr<TableSet>,
    /// The processor that uses the tables.
    pub cpu: AtomicU32,
    /// Whether pages of the snapshot were lost.
    pub incomplete: AtomicBool,
}

/// Statistics of a memory.
#[derive(Debug, Default)]
pub struct Counters {
    /// Writes to protected pages for which a copy was made.
    pub copied: AtomicU64,
    /// Other writes to protected pages.
    pub not_copied: AtomicU64,
    pub ended: AtomicU64,
    pub without_copying: AtomicU64,
    pub protected_at_snapshots: AtomicU64,
    pub protected_ahead: AtomicU64,
}

/// One memory. See the module.
#[derive(Debug)]
pub struct Space {
    // The fields are dropped in this order.
    pub pool: Pool,
    pub home: Home,
    reserved: Reserved,
    pub process: &'static Process,
    number: usize,
    bytes: usize,
    range: VirtRange,
    all: VirtRange,
    /// The previous entry of the process's topmost table for this memory.
    before: Pte,
    pub latch: Latch<Native>,
    pub epochs: Epochs<Native>,
    pub limbo: Limbo<Native>,
    pub slots: [SnapshotSlot; MOST],
    main: AtomicPtr<TableSet>,
    pub table_pool: TablePool,
    /// The frame that replaces lost pages.
    garbage: Frame,
    /// Number of snapshots that can be taken in a row without copying tables.
    pub ahead: usize,
    pub counters: Counters,
}

/// Number of frames that the tables of a memory of this size in bytes take.
pub fn table_frames(bytes: usize) -> usize {
    let leaves = bytes.div_ceil(2 << 20);
    1 + 1 + leaves.div_ceil(512) + leaves
}

impl Space {
    /// Creates a memory filled with zeros, and main's tables, which are in use.
    pub fn new(process: &'static Process, options: Options) -> Result<Arc<Self>, Error> {
        let backing = if options.huge_pages { Backing::Transparent } else { Backing::Small };
        Self::with(process, options, backing)
    }

    /// The same as `new`, with this kind of backing.
    pub fn with(process: &'static Process, options: Options, backing: Backing) -> Result<Arc<Self>, Error> {
        let _changing = registry::CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        let all = registry::all().ok_or_else(|| unavailable("no addresses for it"))?;
        let (number, reserved) = (0..registry::ENTRIES)
            .filter(|number| registry::is_free(*number))
            .find_map(|number| Some((number, reserve(process, number).ok()?)))
            .ok_or_else(|| unavailable(format_args!("there are {} memories already", registry::ENTRIES)))?;
        let mapped = options.bytes.next_multiple_of(PageSize::Size2M.bytes() as usize);
        let range = VirtRange::at(reserved.range().start(), mapped as u64).map_err(unavailable)?;
        let home = Home::new(process, options.bytes, backing)?;
        // The host provides these frames only when they are used.
        let frames = most_copies(options) * mapped / PAGE
            + table_frames(mapped) * (MOST + 2 * options.ahead + 2)
            + 512;
        let pool = Pool::new(process, frames * PAGE, backing)?;
        let frames = &mut pool.frames.cpu(0);
        // SAFETY: only the entry of the reserved range is changed.
        let own = unsafe { process.page_tables() };
        let main = TableSet::new(&own, all, range, frames).map_err(unavailable)?;
        for (page, address) in range.pages().enumerate() {
            if let Some(entry) = main.directory().slot(address) {
                entry.store_exclusive(Pte::leaf(home.frame(page), PageSize::Size4K, PteFlags::WRITABLE));
            }
        }
        let garbage = pool.frames.take(0).ok_or_else(|| unavailable("no frames"))?;
        let limbo = Limbo::new(pool.count());
        let before = own.top().slots[entry_of(range)].load();
        let entry = main.entry;
        let slot = || SnapshotSlot {
            table: AtomicPtr::default(),
            cpu: AtomicU32::new(NO_CPU),
            incomplete: AtomicBool::new(false),
        };
        let space = Arc::new(Self {
            process,
            number,
            bytes: options.bytes,
            range,
            all,
            before,
            latch: Latch::new(),
            epochs: Epochs::new(),
            limbo,
            slots: std::array::from_fn(|_| slot()),
            main: AtomicPtr::new(Box::into_raw(Box::new(main))),
            table_pool: TablePool::default(),
            garbage,
            ahead: options.ahead,
            counters: Counters::default(),
            pool,
            home,
            reserved,
        });
        let touched = space
            .limbo
            .spans()
            .into_iter()
            .chain([(Arc::as_ptr(&space) as usize, size_of::<Self>()), space.main().directory().span()]);
        for (address, bytes) in touched {
            process.add_windows(address as u64, bytes as u64).map_err(unavailable)?;
        }
        calls::install(process)?;
        native::install()?;
        fault::install(all)?;
        own.top().slots[entry_of(range)].store_exclusive(entry);
        registry::set(number, Arc::as_ptr(&space));
        Ok(space)
    }

    /// The number of the memory.
    pub fn number(&self) -> usize {
        self.number
    }

    /// The address of the memory in ring 0.
    pub fn base(&self) -> u64 {
        self.range.start()
    }

    /// The size of the memory in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The addresses of all possible memories.
    pub fn all(&self) -> VirtRange {
        self.all
    }

    /// Whether an address is in this memory.
    #[inline]
    pub fn contains(&self, address: u64) -> bool {
        address.wrapping_sub(self.range.start()) < self.bytes as u64
    }

    /// The process's page tables, to change the entry of this memory.
    pub fn process_tables(&self) -> PageTables<'static, Windows> {
        // SAFETY: only the entry of the reserved range is changed through them.
        unsafe { self.process.page_tables() }
    }

    /// Main's tables.
    #[inline]
    pub fn main(&self) -> &TableSet {
        // SAFETY: tables are freed only with the memory.
        unsafe { &*self.main.load(Ordering::Acquire) }
    }

    /// Switches main to other tables, and returns the previous ones. The caller must hold the latch for writing,
    /// and must flush the processors that use the previous tables.
    pub fn replace_main(&self, table: Box<TableSet>) -> Box<TableSet> {
        self.process_tables().top().slots[entry_of(self.range)].store_exclusive(table.entry);
        let old = self.main.swap(Box::into_raw(table), Ordering::AcqRel);
        // SAFETY: the pointer was made of a box, and only main knew it.
        unsafe { Box::from_raw(old) }
    }

    /// The tables of an active snapshot.
    #[inline]
    pub fn snapshot(&self, slot: usize) -> Option<&TableSet> {
        // SAFETY: the tables exist as long as the snapshot is active. The latch, which the caller holds, keeps it
        // active.
        unsafe { self.slots.get(slot)?.table.load(Ordering::Acquire).as_ref() }
    }

    /// Creates tables.
    pub fn new_table(&self) -> Result<Box<TableSet>, Error> {
        let frames = &mut self.pool.frames.cpu(0);
        let table = TableSet::new(&self.process_tables(), self.all, self.range, frames);
        let table = table.map_err(|_| Error::System {
            what: "frames for page tables",
            source: rustix::io::Errno::NOMEM,
        })?;
        let (address, bytes) = table.directory().span();
        self.process.add_windows(address as u64, bytes as u64).map_err(unavailable)?;
        Ok(Box::new(table))
    }

    /// The processors that use main's tables: all that use no snapshot of this memory.
    pub fn processors_of_main(&self) -> CpuSet {
        let mut cpus = CpuSet::first(self.process.cpus());
        for (slot, _) in self.epochs.active() {
            cpus.remove(self.slots[slot].cpu.load(Ordering::Acquire) as usize);
        }
        cpus
    }

    /// Makes the processors of these snapshots (one bit for each slot) drop their translations of a page.
    pub fn flush_snapshots(&self, cpu: Cpu, snapshots: u64, address: u64) {
        let mut cpus = CpuSet::new();
        for slot in (0..MOST).filter(|slot| snapshots & 1 << slot != 0) {
            cpus.insert(self.slots[slot].cpu.load(Ordering::SeqCst) as usize);
        }
        // An error would mean that this code does not run in ring 0.
        let _ = cpu.shoot_down(&cpus, &Batch::page(address, PageSize::Size4K));
    }

    /// Whether a frame replaces a lost page.
    pub fn is_garbage(&self, frame: Frame) -> bool {
        frame == self.garbage
    }

    /// The addresses reserved for the memory.
    pub fn addresses(&self) -> VirtRange {
        self.reserved.range()
    }

    /// The addresses that the memory's tables map.
    pub fn range(&self) -> VirtRange {
        self.range
    }

    /// Marks a snapshot as incomplete, and returns the frame that replaces its lost pages.
    #[cold]
    pub fn tear(&self, slot: usize) -> Frame {
        self.slots[slot].incomplete.store(true, Ordering::Release);
        self.garbage
    }

    /// The address of a frame in the process.
    #[inline]
    pub fn address_of(&self, frame: Frame) -> Option<*mut u8> {
        self.home.address_of(frame).or_else(|| self.pool.frames.address(frame))
    }

    pub fn statistics(&self) -> Statistics {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let snapshots = self.epochs.latest();
        Statistics {
            snapshots,
            active: snapshots - read(&self.counters.ended).min(snapshots),
            faults: read(&self.counters.copied) + read(&self.counters.not_copied),
            pages_copied: read(&self.counters.copied),
            pages_armed_at_snapshots: read(&self.counters.protected_at_snapshots),
            pages_armed_ahead: read(&self.counters.protected_ahead),
            instantaneous: read(&self.counters.without_copying),
            extra_bytes: self.pool.in_use() * PAGE as u64,
            ..Statistics::default()
        }
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let _changing = registry::CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        registry::set(self.number, std::ptr::null());
        self.process_tables().top().slots[entry_of(self.range)].store_exclusive(self.before);
        // Processors that are not in ring 0 now drop all translations when they enter. A forked child cannot enter
        // this process, but has no processor in ring 0 either.
        let _ = self.process.run(|cpu| cpu.shoot_down_everywhere(&Batch::full()));
        let main = self.main.swap(std::ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: the pointer was made of a box, and nothing uses it any more. Its frames are freed with the pool.
        drop(unsafe { Box::from_raw(main) });
    }
}
