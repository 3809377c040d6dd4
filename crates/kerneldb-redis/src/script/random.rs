//! The random numbers of scripts. As in Redis, they are the same ones after each start of the server.

/// `drand48`'s generator.
#[derive(Clone, Copy)]
pub(super) struct Random(u64);

impl Default for Random {
    fn default() -> Random {
        Random::new(0x1234_ABCD)
    }
}

impl Random {
    pub fn new(seed: u32) -> Random {
        Random(u64::from(seed) << 16 | 0x330E)
    }

    /// The next number, from 0 to `i32::MAX`.
    pub fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(0x5_DEEC_E66D).wrapping_add(0xB) & 0xFFFF_FFFF_FFFF;
        (self.0 >> 17) as u32
    }
}
