//! Tests of page tables that the program creates, used by real processors.

mod common;

use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, OnceLock};

use bedplate_ring0::frames::{Backing, Frame, FramePool, HostMemory, copy_frame};
use bedplate_ring0::paging::{PageSize, PageTables, Protect, PteFlags, VirtRange};
use bedplate_ring0::{Cpu, Outcome, Process, TrapFrame, Windows, handlers};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

const WRITABLE: PteFlags = PteFlags::WRITABLE;
const PAGES: u64 = 2048;

/// An entry of the topmost table that is private to ring 0, and a pool of frames.
struct Ground {
    process: &'static Process,
    tables: PageTables<'static, Windows>,
    pool: &'static FramePool,
    slot: VirtRange,
}

static GROUND: OnceLock<Ground> = OnceLock::new();
/// The handlers belong to the whole process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
static FAULTS: AtomicU64 = AtomicU64::new(0);

fn ground(process: &'static Process) -> &'static Ground {
    GROUND.get_or_init(|| {
        let slot = VirtRange::top_level_slot(96).unwrap();
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
        let (address, bytes) = (slot.start() as *mut _, slot.bytes() as usize);
        // SAFETY: a new mapping where there was none.
        unsafe { mmap_anonymous(address, bytes, ProtFlags::empty(), flags) }.unwrap();
        process.keep_private(slot.start(), slot.bytes()).unwrap();
        let memory = HostMemory::map(64 << 20, Backing::Small).unwrap();
        memory.prefault().unwrap();
        let pool = process.frame_pool(memory).unwrap();
        // SAFETY: the range was reserved for this, and no other code uses it.
        let tables = unsafe { process.page_tables() };
        Ground { process, tables, pool, slot }
    })
}

impl Ground {
    fn range(&self, gigabyte: u64) -> VirtRange {
        VirtRange::at(self.slot.start() + (gigabyte << 30), PAGES * 4096).unwrap()
    }

    fn frame(&self) -> Frame {
        self.pool.take(0).unwrap()
    }

    /// The address of a frame in the process.
    fn word(&self, frame: Frame) -> *mut u64 {
        self.pool.address(frame).unwrap().cast()
    }
}

fn read(address: u64) -> u64 {
    // SAFETY: the tests map the address, or a handler does.
    unsafe { ptr::read_volatile(address as *const u64) }
}

fn write(address: u64, value: u64) {
    // SAFETY: as above.
    unsafe { ptr::write_volatile(address as *mut u64, value) }
}

/// Removes the page-fault handler, even if a test fails.
struct Reset;

impl Drop for Reset {
    fn drop(&mut self) {
        handlers::set_page_fault_handler(None);
    }
}

macro_rules! exclusive {
    () => {{
        let process = ring0_or_skip!();
        let lock = ONE_AT_A_TIME.lock();
        FAULTS.store(0, SeqCst);
        (ground(process), (Reset, lock)) // dropped in this order
    }};
}

#[test]
fn mapped_pages_are_accessible_in_ring_0() {
    let (ground, _guard) = exclusive!();
    let (tables, at) = (ground.tables, ground.slot.start());
    let (one, other) = (ground.frame(), ground.frame());
    for (frame, value) in [(one, 1), (other, 2)] {
        // SAFETY: only this test uses the frame.
        unsafe { ground.word(frame).write(value) };
    }
    tables.map(at, one, PageSize::Size4K, WRITABLE, &mut ground.pool.cpu(0)).unwrap();
    let seen = ground.process.run(|cpu| {
        let before = tables.translate(at).unwrap().pte;
        let first = read(at);
        write(at + 8, 77);
        let after = tables.translate(at).unwrap().pte;
        assert!(!before.is_dirty() && after.is_dirty(), "the processor sets its bits");
        tables.unmap(at).unwrap();
        tables.map(at, other, PageSize::Size4K, WRITABLE, &mut ground.pool.cpu(0)).unwrap();
        cpu.flush_page(at);
        (first, read(at))
    });
    assert_eq!(seen.unwrap(), (1, 2));
    // SAFETY: only this test uses the frame.
    assert_eq!(unsafe { ground.word(one).add(1).read() }, 77);
    tables.unmap(at).unwrap();
}

#[test]
fn a_huge_page_is_one_entry_until_it_is_split() {
    let (ground, _guard) = exclusive!();
    let (tables, at) = (ground.tables, ground.slot.start() + (1 << 30));
    let run = ground.pool.take_run().unwrap();
    tables.map(at, run, PageSize::Size2M, WRITABLE, &mut ground.pool.cpu(0)).unwrap();
    ground
        .process
        .run(|cpu| {
            for page in 0..512 {
                write(at + page * 4096, page);
            }
            assert!(tables.translate(at).unwrap().pte.is_dirty());
            let page = VirtRange::at(at + 5 * 4096, 4096).unwrap();
            let other = ground.frame();
            // SAFETY: only this test uses the frame.
            unsafe { ground.word(other).write(1000) };
            tables.unmap_range(page, &mut ground.pool.cpu(0), |_, _, _| {}).unwrap();
            tables.map(page.start(), other, PageSize::Size4K, WRITABLE, &mut ground.pool.cpu(0)).unwrap();
            cpu.flush();
            for number in 0..512 {
                assert_eq!(read(at + number * 4096), if number == 5 { 1000 } else { number });
            }
        })
        .unwrap();
}

/// Maps each page on its first access.
fn on_demand(_: Cpu, _: &mut TrapFrame, address: u64) -> Outcome {
    let Some(ground) = GROUND.get() else { return Outcome::Pass };
    if !ground.range(2).contains(address) {
        return Outcome::Pass;
    }
    let (Some(slot), Some(frame)) = (ground.tables.slot(address, PageSize::Size4K), ground.pool.take(0))
    else {
        return Outcome::Pass;
    };
    let page = bedplate_ring0::paging::Pte::leaf(frame, PageSize::Size4K, WRITABLE);
    let mapped = slot.update(|pte| (!pte.is_present()).then_some(page));
    FAULTS.fetch_add(1, SeqCst);
    if mapped.is_ok() { Outcome::Handled } else { Outcome::Pass }
}

#[test]
fn pages_come_on_demand_without_leaving_the_guest() {
    let (ground, _guard) = exclusive!();
    let range = ground.range(2);
    for table in (range.start()..range.end()).step_by(2 << 20) {
        ground.tables.slot_or_add(table, PageSize::Size4K, &mut ground.pool.cpu(0)).unwrap();
    }
    handlers::set_page_fault_handler(Some(on_demand));
    let exits = ground.process.run(|cpu| {
        let before = cpu.statistics();
        for page in (range.start()..range.end()).step_by(4096) {
            write(page, page);
        }
        let exits = (cpu.statistics() - before).exits;
        for page in (range.start()..range.end()).step_by(4096) {
            assert_eq!(read(page), page);
        }
        exits
    });
    assert_eq!((exits.unwrap(), FAULTS.load(SeqCst)), (0, PAGES));
    let mut dirty = 0;
    ground.tables.harvest(range, PteFlags::DIRTY, |_, _, _| dirty += 1);
    assert_eq!(dirty, PAGES);
    let give = |_, pte: bedplate_ring0::paging::Pte, _| ground.pool.give(0, pte.frame()).unwrap();
    ground.tables.unmap_range(range, &mut ground.pool.cpu(0), give).unwrap();
}

/// The snapshot's topmost table, for the handler below.
static SNAPSHOT: AtomicU64 = AtomicU64::new(0);

/// Prioritized copy-on-write: the snapshot gets the copy, and the writer keeps its frame.
fn copy_for_snapshot(cpu: Cpu, frame: &mut TrapFrame, address: u64) -> Outcome {
    let Some(ground) = GROUND.get() else { return Outcome::Pass };
    if !ground.range(3).contains(address) || !frame.is_write() || !frame.is_present() {
        return Outcome::Pass;
    }
    let root = Frame::containing(SNAPSHOT.load(SeqCst));
    // SAFETY: the snapshot's tables exist while this handler is set.
    let snapshot = unsafe { PageTables::from_root(ground.process.physical_memory(), root) };
    let (Some(theirs), Some(mine), Some(copy)) = (
        snapshot.slot(address, PageSize::Size4K),
        ground.tables.slot(address, PageSize::Size4K),
        ground.pool.take(0),
    ) else {
        return Outcome::Pass;
    };
    // SAFETY: this handler owns the new frame. The old frame is read-only for all until its entry changes.
    unsafe { copy_frame(ground.word(copy).cast(), ground.word(mine.load().frame()).cast()) };
    let redirected = theirs.update(|pte| Some(pte.at(copy)));
    let allowed = mine.update(|pte| Some(pte.with(WRITABLE)));
    cpu.flush_page(address);
    FAULTS.fetch_add(1, SeqCst);
    if redirected.is_ok() && allowed.is_ok() { Outcome::Handled } else { Outcome::Pass }
}

#[test]
fn a_copy_of_the_tables_is_a_snapshot() {
    let (ground, _guard) = exclusive!();
    let (tables, range) = (ground.tables, ground.range(3));
    let pages = || (range.start()..range.end()).step_by(4096);
    for page in pages() {
        tables.map(page, ground.frame(), PageSize::Size4K, WRITABLE, &mut ground.pool.cpu(0)).unwrap();
    }
    let in_use = |ground: &Ground| ground.pool.statistics().taken - ground.pool.statistics().given;
    ground.process.run(|_| pages().for_each(|page| write(page, page))).unwrap();
    let before = in_use(ground);
    let copy = tables.create_sharing(ground.slot, &mut ground.pool.cpu(0)).unwrap();
    tables.clone_range(&copy, range, Protect::BothQuiesced, &mut ground.pool.cpu(0)).unwrap();
    SNAPSHOT.store(copy.root().address(), SeqCst);
    handlers::set_page_fault_handler(Some(copy_for_snapshot));
    ground
        .process
        .run(|cpu| {
            cpu.flush();
            for page in pages().step_by(2) {
                write(page, 1);
            }
            let own = cpu.root();
            // SAFETY: the copy shares everything but the range of this test.
            unsafe { cpu.set_root(copy.root().address()) }.unwrap();
            for page in pages() {
                assert_eq!(read(page), page, "the snapshot has changed");
            }
            // SAFETY: the processor's previous tables.
            unsafe { cpu.set_root(own) }.unwrap();
            for (number, page) in pages().enumerate() {
                assert_eq!(read(page), if number % 2 == 0 { 1 } else { page });
            }
        })
        .unwrap();
    assert_eq!(FAULTS.load(SeqCst), PAGES / 2);
    copy.for_each(range, |address, leaf| {
        let original = tables.translate(address).unwrap().pte.frame();
        if leaf.pte.frame() != original {
            ground.pool.give(0, leaf.pte.frame()).unwrap();
        }
    });
    // SAFETY: no processor uses the copy any more, and the range belongs to it.
    unsafe {
        copy.free_range(ground.slot, bedplate_ring0::paging::Which::All, &mut ground.pool.cpu(0));
        copy.free_root(&mut ground.pool.cpu(0));
    }
    assert_eq!(in_use(ground), before);
}
