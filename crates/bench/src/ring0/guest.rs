//! The privileged side: it copies page tables, handles faults itself, and makes system calls.

use std::path::Path;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use bedplate_ring0::frames::{Backing, Frame, FramePool, HostMemory, copy_frame};
use bedplate_ring0::paging::{Directory, PageSize, PageTables, Protect, Pte, PteFlags, VirtRange, Which};
use bedplate_ring0::{Cpu, Outcome, Process, TrapFrame, Windows, handlers};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use crate::{Error, Result};

use super::calls::Files;
use super::clock::Clock;
use super::{Costs, MEMORY, PAGE, WRITTEN};

pub const COPY: &str = "copy of the page tables of 256 MiB";
pub const PCOW_FAULT: &str = "first write to a page after it (prioritized copy-on-write)";
pub const NOT_PRESENT_FAULT: &str = "fault on a page that is not present";
pub const ENTER_LEAVE: &str = "enter and leave";

const ENTRIES: usize = 2000;
/// The entry of the topmost table that is kept for the benchmark.
const SLOT: usize = 96;

/// The state of the handlers.
struct Ground {
    process: &'static Process,
    tables: PageTables<'static, Windows>,
    pool: &'static FramePool,
    slot: VirtRange,
    /// The memory of which snapshots are taken.
    data: Directory<'static>,
    /// Mapped on demand, to one frame.
    demand: Directory<'static>,
    frame: Frame,
}

static GROUND: OnceLock<Ground> = OnceLock::new();
/// The leaf tables of the current snapshot.
static SNAPSHOT: AtomicPtr<Directory<'static>> = AtomicPtr::new(ptr::null_mut());

fn prepare() -> Result<&'static Ground> {
    let process = Process::builder().build().map_err(ring0)?;
    let slot = VirtRange::top_level_slot(SLOT).map_err(ring0)?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: a new mapping where there is none; it stays as long as the process.
    unsafe { mmap_anonymous(slot.start() as *mut _, slot.bytes() as usize, ProtFlags::empty(), flags) }
        .map_err(Error::io("reserving addresses"))?;
    process.keep_private(slot.start(), slot.bytes()).map_err(ring0)?;
    let size = MEMORY + WRITTEN * PAGE + (16 << 20);
    let memory = HostMemory::map(size, Backing::Small).map_err(ring0)?;
    memory.prefault().map_err(ring0)?;
    let pool = process.frame_pool(memory).map_err(ring0)?;
    // SAFETY: the range was reserved for this, and no other code uses it.
    let tables = unsafe { process.page_tables() };
    let frames = &mut pool.cpu(0);
    let data = VirtRange::at(slot.start(), MEMORY as u64).map_err(ring0)?;
    for address in (data.start()..data.end()).step_by(PAGE) {
        let frame = pool.take(0).ok_or_else(out_of_frames)?;
        tables.map(address, frame, PageSize::Size4K, PteFlags::WRITABLE, frames).map_err(ring0)?;
    }
    let demand = VirtRange::at(slot.start() + (1 << 30), (WRITTEN * PAGE).next_multiple_of(2 << 20) as u64);
    let demand = tables.directory_or_add(demand.map_err(ring0)?, frames).map_err(ring0)?;
    let data = tables.directory(data).map_err(ring0)?;
    let frame = pool.take(0).ok_or_else(out_of_frames)?;
    Ok(GROUND.get_or_init(|| Ground { process, tables, pool, slot, data, demand, frame }))
}

fn ring0(error: impl std::fmt::Display) -> Error {
    Error::Io { what: "ring 0".to_owned(), source: std::io::Error::other(error.to_string()) }
}

fn out_of_frames() -> Error {
    ring0("no frame is left")
}

/// The handler of page faults. It maps a page that is not present, and copies a written page for the snapshot.
fn page_fault(cpu: Cpu, frame: &mut TrapFrame, address: u64) -> Outcome {
    let Some(ground) = GROUND.get() else { return Outcome::Pass };
    let done = if let Some(slot) = ground.demand.slot(address) {
        let page = Pte::leaf(ground.frame, PageSize::Size4K, PteFlags::WRITABLE);
        slot.compare_exchange(Pte::EMPTY, page).ok()
    } else if frame.is_write() && frame.is_present() {
        copy_for_snapshot(ground, cpu, address)
    } else {
        None
    };
    done.map_or(Outcome::Pass, |()| Outcome::Handled)
}

/// Prioritized copy-on-write: the snapshot's entry is redirected to the copy, and the writer keeps its frame.
fn copy_for_snapshot(ground: &Ground, cpu: Cpu, address: u64) -> Option<()> {
    // SAFETY: the list exists while the snapshot's pages are written to.
    let snapshot = unsafe { SNAPSHOT.load(Ordering::Acquire).as_ref() }?;
    let mine = ground.data.slot(address)?;
    let theirs = snapshot.slot(address)?;
    let copy = ground.pool.take(cpu.number())?;
    let shared = mine.load();
    // SAFETY: both frames belong to this benchmark, and no other code has the new one.
    unsafe { copy_frame(ground.pool.address(copy)?, ground.pool.address(shared.frame())?) };
    theirs.update(|pte| Some(pte.at(copy))).ok()?;
    mine.update(|pte| Some(pte.with(PteFlags::WRITABLE))).ok()?;
    cpu.flush_page(address);
    Some(())
}

impl Ground {
    /// Copies the tables and flushes.
    fn snapshot(&self, cpu: Cpu) -> Result<PageTables<'static, Windows>> {
        let frames = &mut self.pool.cpu(0);
        let copy = self.tables.create_sharing(self.slot, frames).map_err(ring0)?;
        self.tables.clone_range(&copy, self.data.range(), Protect::BothQuiesced, frames).map_err(ring0)?;
        cpu.flush();
        Ok(copy)
    }

    /// Frees a snapshot, with its copies of pages, and lets the original be written to again.
    fn end(&self, cpu: Cpu, snapshot: PageTables<'static, Windows>) -> Result<()> {
        let frames = &mut self.pool.cpu(0);
        let mut given = Ok(());
        snapshot.for_each(self.data.range(), |address, leaf| {
            let original = self.tables.translate(address).map(|found| found.pte.frame());
            if original != Some(leaf.pte.frame()) {
                given = given.and(self.pool.give(0, leaf.pte.frame()));
            }
        });
        given.map_err(ring0)?;
        // SAFETY: no processor has used the snapshot, and this part of it is its own.
        unsafe {
            snapshot.free_range(self.slot, Which::All, frames);
            snapshot.free_root(frames);
        }
        self.tables
            .protect_range(self.data.range(), PteFlags::WRITABLE, PteFlags::empty(), frames)
            .map_err(ring0)?;
        cpu.flush();
        Ok(())
    }

    /// Measures page tables and faults.
    fn round(&self, cpu: Cpu, clock: Clock) -> Result<Costs> {
        let mut snapshot = None;
        let copy = clock.time(1, || {
            snapshot = Some(self.snapshot(cpu)?);
            Ok(())
        })?;
        let snapshot = snapshot.ok_or_else(out_of_frames)?;
        let mut directory = snapshot.directory(self.data.range()).map_err(ring0)?;
        SNAPSHOT.store(&raw mut directory, Ordering::Release);
        let writes = clock.time(WRITTEN, || {
            self.data.range().pages().take(WRITTEN).for_each(|page| write(page, page));
            Ok(())
        })?;
        SNAPSHOT.store(ptr::null_mut(), Ordering::Release);
        drop(directory);
        self.end(cpu, snapshot)?;

        let reads = clock.time(WRITTEN, || {
            self.demand.range().pages().take(WRITTEN).for_each(read);
            Ok(())
        })?;
        self.tables.unmap_range(self.demand.range(), &mut self.pool.cpu(0), |_, _, _| {}).map_err(ring0)?;
        cpu.flush();
        let row = |operation: &str, cost| (operation.to_owned(), cost);
        Ok(vec![row(COPY, copy), row(PCOW_FAULT, writes), row(NOT_PRESENT_FAULT, reads)])
    }
}

fn write(address: u64, value: u64) {
    // SAFETY: mapped, and made writable by the handler.
    unsafe { ptr::write_volatile(address as *mut u64, value) }
}

fn read(address: u64) {
    // SAFETY: mapped by the handler.
    unsafe { ptr::read_volatile(address as *const u64) };
}

/// The privileged side: this process.
pub struct Side {
    clock: Clock,
    files: Files,
    ground: &'static Ground,
}

impl Side {
    pub fn start(clock: Clock, directory: &Path) -> Result<Side> {
        Ok(Side { clock, files: Files::create(directory)?, ground: prepare()? })
    }

    /// A description of the files that it reads and writes.
    pub fn file(&self) -> String {
        self.files.describe()
    }

    /// Measures a round.
    pub fn round(&self) -> Result<Costs> {
        let (process, clock) = (self.ground.process, self.clock);
        handlers::set_page_fault_handler(Some(page_fault));
        let faults = process.run(|cpu| self.ground.round(cpu, clock));
        handlers::set_page_fault_handler(None);
        let mut costs = faults.map_err(ring0)??;
        costs.extend(process.run(|_| self.files.measure(clock)).map_err(ring0)??);
        let entries =
            clock.time(ENTRIES, || (0..ENTRIES).try_for_each(|_| process.run(|_| ())).map_err(ring0))?;
        costs.push((ENTER_LEAVE.to_owned(), entries));
        Ok(costs)
    }
}
