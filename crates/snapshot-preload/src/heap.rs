//! Which of the program's mappings are in the region, and where.
//!
//! The region is reserved once, larger than the machine's memory; mappings take addresses in it, the lowest that are
//! free, and give them back with their memory.

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

/// The region, from the first mapping on; without threads until the program is about to begin.
static HEAP: OnceLock<Result<Heap, Refusal>> = OnceLock::new();
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
    let huge_pages = crate::variable(c"BEDPLATE_SNAPSHOT_HUGE_PAGES") == Some(c"1");
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

fn heap() -> Option<&'static Heap> {
    HEAP.get_or_init(make).as_ref().ok()
}

/// The region, if there is one already.
pub fn region() -> Option<&'static Region> {
    HEAP.get()?.as_ref().ok().map(|heap| &*heap.service)
}

/// Starts the region's threads: the program is about to begin, and may allocate.
pub fn start() -> Result<(), Error> {
    match HEAP.get_or_init(make) {
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
