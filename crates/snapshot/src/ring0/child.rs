//! A forked child with a snapshot: a separate process in ring 0 whose page tables show the snapshot.
//!
//! All memory outside of the region is the child's own after `fork`, and Linux sees it as the child does. Only
//! addresses in the region need the staging buffer. In the region, the child's page tables are empty at first. Its
//! page-fault handler finds a page through the snapshot's tables, which the parent's handlers maintain (`fault`),
//! and gives the child its own copy.
//!
//! The parent never waits for a child, because the child's TLB contains none of the parent's pages. The parent
//! changes the snapshot's entry before it writes to the page. A copy is therefore valid if the entry is the same
//! before and after copying. Of the pages that the child only reads, it keeps at most [`CLEAN`]; it copies the
//! others again when they are needed. A child takes no lock of the parent, and no thread waits for it, so it may be
//! killed or stopped at any time.
//!
//! The lock of [`Child::state`] is taken in ring 0 with interrupts off. The holder must not touch memory that may
//! fault.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering, fence};

use bedplate_ring0::frames::{Backing, Frame, copy_frame};
use bedplate_ring0::paging::{PageSize, Pte, PteFlags};
use bedplate_ring0::shootdown::Batch;
use bedplate_ring0::{Cpu, InterruptsOff, Outcome, Process, TrapFrame, handlers};

use super::arena::Region;
use super::frames::{Pool, unavailable};
use super::space::{Space, table_frames};
use super::tables::{TableSet, entry_of};
use super::{registry, staging};
use crate::region::Pages;
use crate::{Error, PAGE};

/// Limit of unchanged pages that a child keeps: 16 MiB.
const CLEAN: usize = 4096;

/// The child that this process is; null if it is none.
static CURRENT: AtomicPtr<Child> = AtomicPtr::new(std::ptr::null_mut());

/// A child with a snapshot. See the module.
pub struct Child {
    region: &'static Region,
    space: &'static Space,
    process: &'static Process,
    slot: usize,
    epoch: u64,
    /// The snapshot's tables, in memory that is shared with the parent.
    source: &'static TableSet,
    table: TableSet,
    pool: Pool,
    /// The pages that must be zero on their next access.
    emptied: Pages,
    lock: AtomicBool,
    state: std::cell::UnsafeCell<VecDeque<u32>>,
}

// SAFETY: fields that are not atomic are used only with the lock held.
unsafe impl Sync for Child {}

/// The child that this process is, if it is a child with a snapshot.
pub fn current() -> Option<&'static Child> {
    // SAFETY: the value is never dropped.
    unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
}

/// Whether this process is a child with a snapshot.
#[inline]
pub fn is_child() -> bool {
    !CURRENT.load(Ordering::Relaxed).is_null()
}

/// Makes this process, which has just been forked, see the snapshot in this slot, and enters ring 0.
pub fn enter(region: &'static Region, slot: usize, epoch: u64) -> Result<(), Error> {
    let space: &'static Space = region.space;
    let process = Process::builder().build().map_err(unavailable)?;
    let (addresses, range) = (space.addresses(), space.range());
    process.keep_private(addresses.start(), addresses.bytes()).map_err(unavailable)?;
    let pages = range.bytes() as usize / PAGE;
    let pool =
        Pool::new(process, (pages + table_frames(range.bytes() as usize) + 512) * PAGE, Backing::Small)?;
    // SAFETY: only the entry of the reserved range is changed.
    let own = unsafe { process.page_tables() };
    let table = TableSet::new(&own, space.all(), range, &mut pool.frames.cpu(0)).map_err(unavailable)?;
    let source = space.snapshot(slot).ok_or_else(|| unavailable("there is no snapshot"))?;
    let child = Box::leak(Box::new(Child {
        region,
        space,
        process,
        slot,
        epoch,
        source,
        table,
        pool,
        emptied: Pages::new(pages, true).map_err(Error::system("mapping a set of pages"))?,
        lock: AtomicBool::new(false),
        state: std::cell::UnsafeCell::new(VecDeque::with_capacity(CLEAN + 1)),
    }));
    // Memory that was mapped before already has windows.
    let queue = child.state.get_mut().as_slices().0.as_ptr() as usize;
    let touched = [
        (std::ptr::from_ref(child) as usize, size_of::<Child>()),
        child.table.directory().span(),
        (queue, (CLEAN + 1) * size_of::<u32>()),
        child.emptied.span(),
    ];
    for (address, bytes) in touched {
        process.add_windows(address as u64, bytes as u64).map_err(unavailable)?;
    }
    staging::prepare(process)?;
    // This replaces the parent's handler.
    handlers::claim_page_faults(space.all(), page_fault).map_err(unavailable)?;
    handlers::adopt_segv();
    own.top().slots[entry_of(range)].store_exclusive(child.table.entry);
    CURRENT.store(child, Ordering::Release);
    process.enter().map_err(unavailable)?;
    region.control.children.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// The child's handler of page faults in the addresses of all memories.
fn page_fault(cpu: Cpu, frame: &mut TrapFrame, address: u64) -> Outcome {
    match current().filter(|child| child.space.contains(address)) {
        // A present page allows every access except instruction fetches.
        Some(child) if !frame.is_fetch() => child.bring(cpu, address & !(PAGE as u64 - 1)),
        _ => Outcome::Pass,
    }
}

impl Child {
    /// Runs `act` with the lock held, in ring 0.
    fn locked<R>(&self, cpu: Cpu, act: impl FnOnce(&mut VecDeque<u32>) -> R) -> R {
        // SAFETY: in ring 0, and dropped there.
        let _off = unsafe { InterruptsOff::new() };
        while self.lock.swap(true, Ordering::Acquire) {
            cpu.relax();
        }
        // SAFETY: the lock is held.
        let result = act(unsafe { &mut *self.state.get() });
        self.lock.store(false, Ordering::Release);
        result
    }

    /// Makes a page present.
    fn bring(&self, cpu: Cpu, address: u64) -> Outcome {
        self.locked(cpu, |clean| {
            let Some(entry) = self.table.directory().slot(address) else { return Outcome::Pass };
            if entry.load().is_present() {
                // Another thread has made the page present.
                return Outcome::Handled;
            }
            while clean.len() >= CLEAN {
                self.let_go(cpu, clean);
            }
            let Some(own) = self.pool.frames.take(cpu.number()) else { return Outcome::Pass };
            let Some(to) = self.pool.frames.address(own) else { return Outcome::Pass };
            let page = ((address - self.space.base()) / PAGE as u64) as usize;
            if self.emptied.contains(page) {
                // SAFETY: a frame of this process that no other code uses.
                unsafe { to.write_bytes(0, PAGE) };
            } else {
                self.read(address, to);
                clean.push_back(page as u32);
            }
            entry.store_exclusive(Pte::leaf(own, PageSize::Size4K, PteFlags::WRITABLE));
            self.region.control.brought.fetch_add(1, Ordering::Relaxed);
            Outcome::Handled
        })
    }

    /// Copies a page of the snapshot.
    fn read(&self, address: u64, to: *mut u8) {
        let Some(entry) = self.source.directory().slot(address) else { end("a page is missing") };
        let mut frame: Frame = entry.load().frame();
        loop {
            if self.space.is_garbage(frame) {
                end("there was no memory to keep it");
            }
            let Some(from) = self.space.address_of(frame) else { end("a page is missing") };
            // SAFETY: a shared frame of the parent, and a frame that no other code uses. If the parent writes to
            // the page meanwhile, the copy is not used.
            unsafe { copy_frame(to, from) };
            fence(Ordering::SeqCst);
            let now = entry.load().frame();
            if now == frame {
                break;
            }
            frame = now;
        }
        if self.region.control.is_over(self.slot, self.epoch) {
            end("it has closed the file that keeps it");
        }
    }

    /// Drops the page that was brought first, unless it was written to.
    fn let_go(&self, cpu: Cpu, clean: &mut VecDeque<u32>) {
        let Some(page) = clean.pop_front() else { return };
        let address = self.space.base() + u64::from(page) * PAGE as u64;
        let Some(entry) = self.table.directory().slot(address) else { return };
        let unused = entry.update(|pte| (pte.is_present() && !pte.is_dirty()).then_some(Pte::EMPTY));
        if let Ok(pte) = unused {
            self.forget(cpu, address, pte);
            self.region.control.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Frees the frame of an entry that was emptied, after a shootdown.
    fn forget(&self, cpu: Cpu, address: u64, before: Pte) {
        // An error would mean that this code does not run in ring 0.
        let _ = cpu.shoot_down_everywhere(&Batch::page(address, PageSize::Size4K));
        // A frame of this pool that is handed out is never refused.
        let _ = self.pool.frames.give(cpu.number(), before.frame());
    }

    /// Makes pages zero.
    pub fn empty(&self, pages: Range<usize>) {
        for page in pages {
            let address = self.space.base() + (page * PAGE) as u64;
            let emptied = self.process.run(|cpu| {
                self.locked(cpu, |_| {
                    self.emptied.insert(page..page + 1);
                    let Some(entry) = self.table.directory().slot(address) else { return };
                    if let Ok(pte) = entry.update(|pte| pte.is_present().then_some(Pte::EMPTY)) {
                        self.forget(cpu, address, pte);
                    }
                });
            });
            if emptied.is_err() {
                // Without ring 0, this process has no access to its memory.
                end("it cannot enter ring 0");
            }
        }
    }
}

/// Ends this process, because it cannot see its snapshot any more.
fn end(why: &str) -> ! {
    let parts = ["bedplate snapshot: a child ends: its memory is lost: ", why, "\n"];
    for part in parts {
        let _ = rustix::io::write(rustix::stdio::stderr(), part.as_bytes());
    }
    loop {
        let this = rustix::process::getpid();
        let _ = rustix::process::kill_process(this, rustix::process::Signal::KILL);
    }
}

/// Whether a processor sees a snapshot and not main's memory.
#[inline]
pub fn is_on_snapshot(cpu: Cpu) -> bool {
    registry::snapshot_on(cpu.number()).is_some() || is_child()
}
