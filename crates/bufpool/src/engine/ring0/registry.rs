//! Which addresses are pools': what the handler that takes threads into ring 0 asks, which knows nothing but the address.

use std::sync::atomic::{AtomicU64, Ordering};

use bedplate_ring0::handlers;

/// The first entry of the topmost page table that pools use, and how many they use: one each. (Snapshots' are the 16
/// behind them.)
const FIRST_ENTRY: usize = 96;
const ENTRIES: usize = 16;
/// Bits of an address below those that choose the entry.
const ENTRY_SHIFT: u32 = 39;

/// How many bytes of an entry are a pool's. One means that it is being made.
static BYTES: [AtomicU64; ENTRIES] = [const { AtomicU64::new(0) }; ENTRIES];

/// An entry that is taken.
pub struct Place(usize);

/// Takes an entry that no pool has.
pub fn take() -> Option<Place> {
    let free = |bytes: &AtomicU64| bytes.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    BYTES.iter().position(free).map(Place)
}

impl Place {
    /// Which entry of the topmost page table.
    pub fn entry(&self) -> usize {
        FIRST_ENTRY + self.0
    }

    /// From now on, threads that touch its first bytes are taken into ring 0.
    pub fn open(&self, bytes: u64) -> bedplate_ring0::Result<()> {
        handlers::take_in(is_ours)?;
        BYTES[self.0].store(bytes, Ordering::Release);
        Ok(())
    }

    /// They are not any more.
    pub fn close(&self) {
        BYTES[self.0].store(1, Ordering::Release);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        BYTES[self.0].store(0, Ordering::Release);
    }
}

fn is_ours(address: u64) -> bool {
    let number = ((address >> ENTRY_SHIFT) as usize).wrapping_sub(FIRST_ENTRY);
    let bytes = BYTES.get(number).map_or(0, |bytes| bytes.load(Ordering::Acquire));
    address & ((1 << ENTRY_SHIFT) - 1) < bytes && bytes > 1
}
