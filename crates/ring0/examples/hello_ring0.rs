//! A page of memory that exists only in ring 0. A page-fault handler maps it on demand, and Linux does not know of
//! it.
//!
//! On a machine with real ring 0, run it with `cargo run -p bedplate-ring0 --example hello_ring0`. Elsewhere, run
//! `bedplate vm run -- target/debug/examples/hello_ring0`.

use std::sync::atomic::{AtomicU64, Ordering};

use bedplate_ring0::frames::Frame;
use bedplate_ring0::paging::{NoTables, PageSize, PagingError, PteFlags};
use bedplate_ring0::{Cpu, Outcome, Process, TrapFrame, handlers, is_ring0};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// A private gigabyte of ring 0, and the frame that all its pages map.
static REGION: AtomicU64 = AtomicU64::new(0);
static FRAME: AtomicU64 = AtomicU64::new(0);
const GIGABYTE: u64 = 1 << 30;

/// Maps the page of a fault in the region, and passes all other faults.
fn fault(cpu: Cpu, frame: &mut TrapFrame, address: u64) -> Outcome {
    let region = REGION.load(Ordering::Relaxed);
    if !(region..region + GIGABYTE).contains(&address) || frame.is_present() {
        return Outcome::Pass;
    }
    let shown = Frame::containing(FRAME.load(Ordering::Relaxed));
    // SAFETY: the region is private, so no other code changes its entries or relies on them.
    let tables = unsafe { cpu.process().page_tables() };
    // The tables down to the last level exist already, so no frame for a table is needed.
    match tables.map(address & !4095, shown, PageSize::Size4K, PteFlags::WRITABLE, &mut NoTables) {
        // Another thread may have mapped the page first.
        Ok(()) | Err(PagingError::AlreadyMapped { .. }) => Outcome::Handled,
        Err(_) => Outcome::Pass,
    }
}

fn reserve(bytes: u64, protection: ProtFlags) -> Result<u64, rustix::io::Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let address = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes as usize, protection, flags) }?;
    Ok(address as u64)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let process = Process::builder().build()?;

    // Memory of this process with contiguous physical addresses in ring 0: one frame for the pages, and the rest
    // for tables.
    let memory = reserve(1 << 21, ProtFlags::READ | ProtFlags::WRITE)?;
    // SAFETY: the memory stays mapped as long as the program runs.
    let attached = unsafe { process.attach(memory, 1 << 21) }?;
    FRAME.store(attached.physical, Ordering::Relaxed);
    let mut spare =
        Spare((1..16).map(|number| Frame::containing(attached.physical + number * 4096)).collect());

    // Reserves addresses for ring 0, so that Linux maps nothing there.
    let region = reserve(2 * GIGABYTE, ProtFlags::empty())?.next_multiple_of(GIGABYTE);
    process.keep_private(region, GIGABYTE)?;
    REGION.store(region, Ordering::Relaxed);
    // SAFETY: the region is private.
    unsafe { process.page_tables() }.slot_or_add(region, PageSize::Size4K, &mut spare)?;
    handlers::set_page_fault_handler(Some(fault));

    process.run(|cpu| {
        println!("ring {}, processor {}", if is_ring0() { 0 } else { 3 }, cpu.number());
        let before = cpu.statistics();
        for page in 0..512 {
            // SAFETY: the handler maps the page.
            unsafe { ((region + page * 4096) as *mut u64).add(page as usize).write_volatile(page) };
        }
        let done = cpu.statistics() - before;
        println!("{} pages mapped by faults, {} exits", done.page_faults_handled, done.exits);
    })?;
    // All pages map the same frame, which is also memory of this process.
    // SAFETY: the mapping made above.
    let sum: u64 = (0..512).map(|index| unsafe { (memory as *const u64).add(index).read() }).sum();
    println!("sum {sum}, seen from ring {}", if is_ring0() { 0 } else { 3 });
    Ok(())
}

/// Frames for tables.
struct Spare(Vec<Frame>);

impl bedplate_ring0::paging::TableSource for Spare {
    fn take(&mut self) -> Option<Frame> {
        self.0.pop()
    }

    fn give(&mut self, frame: Frame) {
        self.0.push(frame);
    }
}
