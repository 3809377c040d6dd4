//! Operations drawn ahead of time, so that drawing them costs nothing while the engine is measured.

use crate::keys::{Distribution, KeyStream};

/// The operations of a workload, and their keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Keys `0..keys` exist; at most 2³¹.
    pub keys: u64,
    /// Bytes of every value.
    pub value_len: usize,
    /// Share of SETs in 100 operations; the others are GETs.
    pub set_percent: u32,
    /// Popularity of keys.
    pub distribution: Distribution,
}

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceOp(u32);

const SET: u32 = 1 << 31;

impl TraceOp {
    /// An operation on a key below 2³¹.
    pub fn new(key: u64, set: bool) -> Self {
        TraceOp(key as u32 & !SET | if set { SET } else { 0 })
    }

    /// The key's number.
    pub fn key(self) -> u64 {
        u64::from(self.0 & !SET)
    }

    /// Whether it is a SET.
    pub fn is_set(self) -> bool {
        self.0 & SET != 0
    }
}

/// Draws `len` operations.
pub fn draw(workload: &Workload, len: usize, seed: u64) -> Vec<TraceOp> {
    let mut stream = KeyStream::new(workload.distribution, workload.keys, seed);
    (0..len)
        .map(|_| {
            let set = stream.chance(workload.set_percent);
            TraceOp::new(stream.next_key(), set)
        })
        .collect()
}

/// Bytes of a key.
pub const KEY_LEN: usize = 16;

/// The key with a number: `key:` and twelve hexadecimal digits.
pub fn key(number: u64) -> [u8; KEY_LEN] {
    let mut key = *b"key:000000000000";
    let mut rest = number;
    for digit in key[4..].iter_mut().rev() {
        *digit = b"0123456789abcdef"[(rest & 15) as usize];
        rest >>= 4;
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_keep_key_and_kind() {
        for (k, s) in [(0, true), (5, false), ((1 << 31) - 1, true)] {
            let op = TraceOp::new(k, s);
            assert_eq!((op.key(), op.is_set()), (k, s));
        }
    }

    #[test]
    fn traces_have_the_workload_s_mix() {
        let w = Workload { keys: 1000, value_len: 16, set_percent: 90, distribution: Distribution::Uniform };
        let trace = draw(&w, 10_000, 1);
        let sets = trace.iter().filter(|o| o.is_set()).count();
        assert!((8_800..9_200).contains(&sets), "{sets}");
        assert!(trace.iter().all(|o| o.key() < 1000));
        assert_eq!(trace, draw(&w, 10_000, 1));
        assert_ne!(trace, draw(&w, 10_000, 2));
    }

    #[test]
    fn keys_are_distinct() {
        assert_eq!(&key(0xabc), b"key:000000000abc");
        assert_ne!(key(1), key(16));
    }
}
