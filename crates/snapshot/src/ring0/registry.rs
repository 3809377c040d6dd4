//! Which memory an address belongs to: what handlers, which know nothing but the address, ask first.

use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use bedplate_ring0::paging::VirtRange;
use bedplate_ring0::shootdown::MOST_CPUS;

use super::space::Space;

/// The first of the entries of the topmost page table that this engine uses.
pub const FIRST_ENTRY: usize = 112;
/// How many it uses: one for each memory.
pub const ENTRIES: usize = 16;

/// Bits of an address below those that choose the entry.
const ENTRY_SHIFT: u32 = 39;

static SPACES: [AtomicPtr<Space>; ENTRIES] = [const { AtomicPtr::new(std::ptr::null_mut()) }; ENTRIES];
/// Held while memories are made or dropped.
pub static CHANGING: Mutex<()> = Mutex::new(());
/// For each processor, the snapshot it is on: 0, or `1 + memory * 256 + slot`.
static ON: [AtomicU64; MOST_CPUS] = [const { AtomicU64::new(0) }; MOST_CPUS];

/// The addresses of all memories that there can be. Tables of a snapshot have nothing there but its own memory.
pub fn all() -> Option<VirtRange> {
    let start = (FIRST_ENTRY as u64) << ENTRY_SHIFT;
    VirtRange::at(start, (ENTRIES as u64) << ENTRY_SHIFT).ok()
}

/// The memory that an address is in.
#[inline]
pub fn at<'a>(address: u64) -> Option<&'a Space> {
    let number = ((address >> ENTRY_SHIFT) as usize).wrapping_sub(FIRST_ENTRY);
    // SAFETY: a memory is taken out before it is dropped, and nobody touches addresses of a memory then.
    let space = unsafe { SPACES.get(number)?.load(Ordering::Acquire).as_ref() }?;
    space.contains(address).then_some(space)
}

/// Whether an address may be in a memory.
#[inline]
pub fn is_near(address: u64) -> bool {
    ((address >> ENTRY_SHIFT) as usize).wrapping_sub(FIRST_ENTRY) < ENTRIES
}

/// Puts a memory in, or takes it out.
pub fn set(number: usize, space: *const Space) {
    SPACES[number].store(space.cast_mut(), Ordering::Release);
}

/// Whether no memory has this number.
pub fn is_free(number: usize) -> bool {
    SPACES[number].load(Ordering::Acquire).is_null()
}

/// Says which snapshot a processor is on: the memory's number and the slot.
pub fn set_snapshot(cpu: u32, on: Option<(usize, usize)>) {
    let value = on.map_or(0, |(space, slot)| 1 + (space * 256 + slot) as u64);
    ON[cpu as usize].store(value, Ordering::SeqCst);
}

/// The snapshot a processor is on, if it is on one.
#[inline]
pub fn snapshot_on(cpu: u32) -> Option<(usize, usize)> {
    let value = ON.get(cpu as usize)?.load(Ordering::Relaxed).checked_sub(1)? as usize;
    Some((value / 256, value % 256))
}
