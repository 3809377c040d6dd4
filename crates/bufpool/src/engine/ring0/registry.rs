//! The address ranges of all pools. The handler that takes threads into ring 0 knows only the address, and looks it up
//! here.

use std::sync::atomic::{AtomicU64, Ordering};

use bedplate_ring0::handlers;

/// The first entry of the topmost page table that pools use, and the number of such entries. Each pool uses one.
/// Snapshots use the 16 entries behind them.
const FIRST_ENTRY: usize = 96;
const ENTRIES: usize = 16;
/// Bits of an address below those that select the entry.
const ENTRY_SHIFT: u32 = 39;

/// Number of bytes that the pool of each entry uses. One means that the pool is not open.
static BYTES: [AtomicU64; ENTRIES] = [const { AtomicU64::new(0) }; ENTRIES];

/// An entry that belongs to a pool.
pub struct PoolEntry(usize);

/// Takes a free entry. Returns none if all are in use.
pub fn take() -> Option<PoolEntry> {
    let free = |bytes: &AtomicU64| bytes.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    BYTES.iter().position(free).map(PoolEntry)
}

impl PoolEntry {
    /// Index of the entry in the topmost page table.
    pub fn entry(&self) -> usize {
        FIRST_ENTRY + self.0
    }

    /// From now on, a thread that touches the first `bytes` bytes of the range is taken into ring 0.
    pub fn open(&self, bytes: u64) -> bedplate_ring0::Result<()> {
        handlers::take_in(is_ours)?;
        BYTES[self.0].store(bytes, Ordering::Release);
        Ok(())
    }

    /// From now on, the range takes no thread into ring 0.
    pub fn close(&self) {
        BYTES[self.0].store(1, Ordering::Release);
    }
}

impl Drop for PoolEntry {
    fn drop(&mut self) {
        BYTES[self.0].store(0, Ordering::Release);
    }
}

fn is_ours(address: u64) -> bool {
    let number = ((address >> ENTRY_SHIFT) as usize).wrapping_sub(FIRST_ENTRY);
    let bytes = BYTES.get(number).map_or(0, |bytes| bytes.load(Ordering::Acquire));
    address & ((1 << ENTRY_SHIFT) - 1) < bytes && bytes > 1
}
