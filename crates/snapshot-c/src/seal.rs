//! Seals: numbers beside values that a program keeps for the library, by which the library recognizes its own values.
//!
//! A seal depends on a secret of the process, on the address of the sealed words, and on the words. It detects mistakes. It does
//! not protect against a malicious program.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The process's secret. A forked child has its parent's, because it has its parent's blocks. There is no lock, because a lock
/// that another thread holds during a `fork` stays locked in the child.
fn secret() -> u64 {
    static SECRET: AtomicU64 = AtomicU64::new(0);
    match SECRET.load(Relaxed) {
        0 => {
            let new = RandomState::new().hash_one(0u64).max(1);
            SECRET.compare_exchange(0, new, Relaxed, Relaxed).map_or_else(|first| first, |_| new)
        }
        secret => secret,
    }
}

/// Mixes the bits of a number, as SplitMix64 does.
fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

/// The seal of words at an address. It is never 0.
pub fn seal(place: u64, words: &[u64]) -> u64 {
    let start = mix(secret() ^ place.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    words.iter().fold(start, |seal, word| mix(seal ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15)).max(1)
}
