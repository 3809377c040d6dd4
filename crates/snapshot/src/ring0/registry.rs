//! The registry of memories: the memory that contains an address. Handlers, which know only the address, ask it
//! first.

use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use bedplate_ring0::paging::VirtRange;
use bedplate_ring0::shootdown::MOST_CPUS;

use super::space::Space;

/// The first entry of the topmost page table that this engine uses.
pub const FIRST_ENTRY: usize = 112;
/// Number of entries used, one for each memory.
pub const ENTRIES: usize = 16;

/// Number of address bits below those that select the entry.
const ENTRY_SHIFT: u32 = 39;

static SPACES: [AtomicPtr<Space>; ENTRIES] = [const { AtomicPtr::new(std::ptr::null_mut()) }; ENTRIES];
/// Held while memories are created or dropped.
pub static CHANGING: Mutex<()> = Mutex::new(());
/// For each processor, the snapshot that it uses: 0 for none, or `1 + memory * 256 + slot`.
static ON: [AtomicU64; MOST_CPUS] = [const { AtomicU64::new(0) }; MOST_CPUS];

/// The addresses of all possible memories. A snapshot's tables map only its own memory there.
pub fn all() -> Option<VirtRange> {
    let start = (FIRST_ENTRY as u64) << ENTRY_SHIFT;
    VirtRange::at(start, (ENTRIES as u64) << ENTRY_SHIFT).ok()
}

/// The memory that contains an address.
#[inline]
pub fn at<'a>(address: u64) -> Option<&'a Space> {
    let number = ((address >> ENTRY_SHIFT) as usize).wrapping_sub(FIRST_ENTRY);
    // SAFETY: a memory is removed before it is dropped, and no thread touches its addresses then.
    let space = unsafe { SPACES.get(number)?.load(Ordering::Acquire).as_ref() }?;
    space.contains(address).then_some(space)
}

/// Whether an address is in the range of all possible memories.
#[inline]
pub fn is_near(address: u64) -> bool {
    ((address >> ENTRY_SHIFT) as usize).wrapping_sub(FIRST_ENTRY) < ENTRIES
}

/// Registers a memory, or removes it with a null pointer.
pub fn set(number: usize, space: *const Space) {
    SPACES[number].store(space.cast_mut(), Ordering::Release);
}

/// Whether no memory has this number.
pub fn is_free(number: usize) -> bool {
    SPACES[number].load(Ordering::Acquire).is_null()
}

/// Sets the snapshot that a processor uses: the memory's number and the slot.
pub fn set_snapshot(cpu: u32, on: Option<(usize, usize)>) {
    let value = on.map_or(0, |(space, slot)| 1 + (space * 256 + slot) as u64);
    ON[cpu as usize].store(value, Ordering::SeqCst);
}

/// The snapshot that a processor uses, or `None`.
#[inline]
pub fn snapshot_on(cpu: u32) -> Option<(usize, usize)> {
    let value = ON.get(cpu as usize)?.load(Ordering::Relaxed).checked_sub(1)? as usize;
    Some((value / 256, value % 256))
}
