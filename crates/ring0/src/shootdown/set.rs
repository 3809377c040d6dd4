//! Sets of vCPUs.

/// The limit of vCPUs.
pub const MOST_CPUS: usize = 256;

/// A set of vCPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuSet([u64; MOST_CPUS / 64]);

impl CpuSet {
    /// Creates an empty set.
    pub const fn new() -> CpuSet {
        CpuSet([0; MOST_CPUS / 64])
    }

    /// The set of the vCPUs from 0 up to, but not including, `count`.
    pub const fn first(count: usize) -> CpuSet {
        let mut set = CpuSet::new();
        let mut cpu = 0;
        while cpu < count {
            set.insert(cpu);
            cpu += 1;
        }
        set
    }

    /// Adds a vCPU. Numbers from [`MOST_CPUS`] on are ignored.
    pub const fn insert(&mut self, cpu: usize) {
        if cpu < MOST_CPUS {
            self.0[cpu / 64] |= 1 << (cpu % 64);
        }
    }

    /// Removes a vCPU.
    pub const fn remove(&mut self, cpu: usize) {
        if cpu < MOST_CPUS {
            self.0[cpu / 64] &= !(1 << (cpu % 64));
        }
    }

    /// Whether a vCPU is in the set.
    pub const fn contains(&self, cpu: usize) -> bool {
        cpu < MOST_CPUS && self.0[cpu / 64] & 1 << (cpu % 64) != 0
    }

    /// Iterates over the vCPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().flat_map(|(word, bits)| {
            let mut bits = *bits;
            std::iter::from_fn(move || {
                let bit = bits.trailing_zeros() as usize;
                bits &= bits.wrapping_sub(1);
                (bit < 64).then_some(word * 64 + bit)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_contain_inserted_vcpus() {
        let mut set = CpuSet::first(66);
        set.remove(3);
        set.insert(255);
        set.insert(256);
        let all: Vec<_> = set.iter().collect();
        assert_eq!(all.len(), 66);
        assert!(!set.contains(3) && set.contains(65) && set.contains(255) && !set.contains(256));
        assert_eq!(all.last(), Some(&255));
    }
}
