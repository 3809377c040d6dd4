//! The random numbers of scripts. As in Redis, they are the same ones after each start of the server.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// `drand48`'s generator. One script runs at a time, so no two threads use it.
pub(super) struct Random(AtomicU64);

fn seeded(seed: u32) -> u64 {
    u64::from(seed) << 16 | 0x330E
}

impl Default for Random {
    fn default() -> Random {
        Random(AtomicU64::new(seeded(0x1234_ABCD)))
    }
}

impl Random {
    pub fn seed(&self, seed: u32) {
        self.0.store(seeded(seed), Relaxed);
    }

    /// The next number, from 0 to `i32::MAX`.
    pub fn next(&self) -> u32 {
        let next = self.0.load(Relaxed).wrapping_mul(0x5_DEEC_E66D).wrapping_add(0xB) & 0xFFFF_FFFF_FFFF;
        self.0.store(next, Relaxed);
        (next >> 17) as u32
    }
}
