//! Which of the program's mappings are in the region, and where.
//!
//! The region is reserved once, larger than the machine's memory; mappings take addresses in it, the lowest that are
//! free, and give them back with their memory.
//!
//! A forked child that becomes a daemon gets a region of its own for what it maps from then on. What it had before stays
//! where it is, in the *inherited* region, of which it sees what was when it was forked.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use bedplate_snapshot::uffd::{Options, Refusal, Region, Service};
use bedplate_snapshot::{Error, PAGE};

use crate::forks;

/// Mappings from this size on are placed in the region, unless told otherwise.
const MINIMUM: usize = 1 << 20;
/// Addresses are aligned to so many pages, that the kernel may use huge ones, and to fewer for small mappings.
const ALIGNED: usize = 512;
const SMALL_ALIGNED: usize = 16;
/// The region's size in addresses: four times the memory, within these.
const SMALLEST: usize = 64 << 30;
const LARGEST: usize = 1 << 40;

/// How many regions a process can have: one, and one for each time that it or who forked it became a daemon.
const MOST: usize = 4;

/// The regions, from the first mapping on; the first one without threads until the program is about to begin.
static HEAPS: [OnceLock<Result<Heap, Refusal>>; MOST] = [const { OnceLock::new() }; MOST];
/// Which of them is for new mappings. Those before it are inherited.
static LATEST: AtomicUsize = AtomicUsize::new(0);
static MINIMUM_BYTES: AtomicUsize = AtomicUsize::new(MINIMUM);

pub struct Heap {
    service: Service,
}

/// Makes the region. The allocator may be waiting for it, so nothing is allocated on the way to success; what is not
/// available is found out before.
fn make() -> Result<Heap, Refusal> {
    Region::probe()?;
    if let Some(bytes) =
        crate::variable(c"BEDPLATE_SNAPSHOT_MINIMUM").and_then(|v| v.to_str().ok()?.parse().ok())
    {
        MINIMUM_BYTES.store(usize::max(bytes, PAGE), Ordering::Relaxed);
    }
    let bytes = memory_of_machine().saturating_mul(4).clamp(SMALLEST, LARGEST);
    let huge_pages = crate::variable(c"BEDPLATE_SNAPSHOT_HUGE_PAGES") != Some(c"0");
    let region = Region::new(Options { bytes, base: None, huge_pages, claimed: false });
    let region = region.map_err(|error| match error {
        Error::System { source, .. } => Refusal::Other(source),
        _ => Refusal::Kernel,
    })?;
    Ok(Heap { service: Service::new(region) })
}

fn memory_of_machine() -> usize {
    let mut info = std::mem::MaybeUninit::<libc::sysinfo>::zeroed();
    // SAFETY: fills in the structure, for which zeros are a value.
    let info = unsafe {
        libc::sysinfo(info.as_mut_ptr());
        info.assume_init()
    };
    info.totalram as usize * info.mem_unit as usize
}

fn latest() -> usize {
    LATEST.load(Ordering::Acquire)
}

fn heap() -> Option<&'static Heap> {
    HEAPS[latest()].get_or_init(make).as_ref().ok()
}

fn existing(index: usize) -> Option<&'static Region> {
    HEAPS[index].get()?.as_ref().ok().map(|heap| &*heap.service)
}

/// The region for new mappings, if there is one already.
pub fn region() -> Option<&'static Region> {
    existing(latest())
}

/// The regions that this process inherited before it had its own, the oldest first.
pub fn inherited() -> impl Iterator<Item = &'static Region> {
    (0..latest()).filter_map(existing)
}

/// The region that an address is in, and whether this process is its owner.
pub fn region_of(address: usize) -> Option<(&'static Region, bool)> {
    let latest = latest();
    let index = (0..=latest).find(|&index| existing(index).is_some_and(|region| region.contains(address)))?;
    Some((existing(index)?, index == latest && !forks::is_snapshot()))
}

/// Starts the region's threads: the program is about to begin, and may allocate.
pub fn start() -> Result<(), Error> {
    start_threads(latest())
}

/// Another region for what is mapped from now on, in a process that is not the owner of the latest one.
///
/// # Errors
/// All is as before.
pub fn begin_again() -> Result<(), Error> {
    let next = latest() + 1;
    if next == MOST {
        return Err(Error::OfASnapshot);
    }
    start_threads(next)?;
    LATEST.store(next, Ordering::Release);
    Ok(())
}

fn start_threads(index: usize) -> Result<(), Error> {
    match HEAPS[index].get_or_init(make) {
        Ok(heap) => heap.service.start_threads(),
        Err(refusal) => Err(Region::unavailable(*refusal)),
    }
}

/// Pages of the region that a range of addresses covers wholly, if it is in the region.
pub fn pages(region: &Region, address: usize, len: usize) -> Option<Range<usize>> {
    let end = address.checked_add(len)?;
    let start = address.checked_sub(region.base())?;
    let pages = start.div_ceil(PAGE)..(end - region.base()) / PAGE;
    (region.contains(address) && pages.end <= region.pages() && pages.start <= pages.end).then_some(pages)
}

/// An address for a new mapping, if it is to be in the region.
pub fn map(hint: usize, len: usize) -> Option<usize> {
    if len < MINIMUM_BYTES.load(Ordering::Relaxed) || forks::is_snapshot() {
        return None;
    }
    let region = &heap()?.service;
    let count = len.div_ceil(PAGE);
    let wanted = pages(region, hint, count * PAGE).filter(|_| hint.is_multiple_of(PAGE));
    if let Some(wanted) = wanted
        && region.claim_exactly(wanted)
    {
        return Some(hint);
    }
    let align = if count >= ALIGNED { ALIGNED } else { SMALL_ALIGNED };
    region.claim_anywhere(count, align).map(|pages| region.base() + pages.start * PAGE)
}
