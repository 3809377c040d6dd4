//! Keys that are built to collide must not meet in one hash chain.

mod common;

use std::collections::HashSet;

use bedplate_kerneldb::{Config, Database, SetOptions};
use common::{can_run, has_arenas, small};
use xxhash_rust::xxh64::xxh64;

const PRIME_1: u64 = 0x9E37_79B1_85EB_CA87;
const PRIME_2: u64 = 0xC2B2_AE3D_27D4_EB4F;

/// The number whose product with the odd number `x` is 1, modulo 2^64.
fn inverse(x: u64) -> u64 {
    (0..6).fold(x, |inverse, _| inverse.wrapping_mul(2u64.wrapping_sub(x.wrapping_mul(inverse))))
}

/// Keys of 64 bytes that XXH64 maps to one value for nearly every seed, `steps`^4 of them.
///
/// A lane of XXH64 computes `rotate_left(lane + word * PRIME_2, 31) * PRIME_1` for each word. Adding `d << 33` to
/// the sum adds `d` to the rotated sum unless its lower 31 bits overflow. A second word that
/// subtracts `d * PRIME_1` from its sum therefore restores the lane, whatever the seed is. The four lanes are
/// independent.
fn colliding_stripes(steps: u64) -> Vec<Vec<u8>> {
    let (inverse_2, mut keys) = (inverse(PRIME_2), Vec::new());
    for number in 0..steps.pow(4) {
        let digits = [0, 1, 2, 3].map(|lane| number / steps.pow(lane) % steps);
        let first = digits.map(|d| (d << 33).wrapping_mul(inverse_2));
        let second = digits.map(|d| d.wrapping_mul(PRIME_1).wrapping_mul(inverse_2).wrapping_neg());
        keys.push(first.iter().chain(&second).flat_map(|word| word.to_le_bytes()).collect());
    }
    keys
}

/// Pairs of 16-byte keys that XXH64 maps to one value for every seed.
///
/// XXH64 mixes a word `k` by `rotate_left(hash ^ round(k), 27) * PRIME_1 + PRIME_4`. A difference that the rotation
/// moves to the highest bit stays exactly there, and the same difference of the next word removes it.
fn colliding_words(pairs: u64) -> Vec<[Vec<u8>; 2]> {
    let round = |k: u64| k.wrapping_mul(PRIME_2).rotate_left(31).wrapping_mul(PRIME_1);
    let unround = |r: u64| r.wrapping_mul(inverse(PRIME_1)).rotate_right(31).wrapping_mul(inverse(PRIME_2));
    let key = |a: u64, b: u64| [a.to_le_bytes(), b.to_le_bytes()].concat();
    let partner =
        |a: u64, b: u64| key(unround(round(a) ^ (1u64 << 63).rotate_right(27)), unround(round(b) ^ 1 << 63));
    (0..pairs).map(|i| [key(i, i * 7), partner(i, i * 7)]).collect()
}

fn database() -> Option<Database> {
    (can_run() && has_arenas()).then(|| Database::create(small()).unwrap())
}

#[test]
fn keys_built_to_collide_under_xxh64_spread_over_buckets() {
    let keys = colliding_stripes(8);
    assert_eq!(keys.iter().collect::<HashSet<_>>().len(), 4096);
    for seed in [0, 1, 0x0123_4567_89ab_cdef, 0x5555_5555_5555_5555] {
        let hashes: HashSet<u64> = keys.iter().map(|key| xxh64(key, seed)).collect();
        assert_eq!(hashes.len(), 1, "the construction is wrong for the seed {seed:#x}");
    }
    let Some(database) = database() else { return };
    let mut session = database.session().unwrap();
    for key in &keys {
        session.set(key, b"v", SetOptions::default()).unwrap();
    }
    let verified = database.verify().unwrap();
    assert_eq!(verified.entries, 4096);
    // 4,096 keys in 262,144 buckets: random chains of more than five keys are practically impossible.
    assert!(verified.longest_chain < 8, "{} keys share a bucket", verified.longest_chain);
}

#[test]
fn short_keys_built_to_collide_under_xxh64_do_not_collide() {
    let pairs = colliding_words(100);
    for seed in [0, 1, 0x0123_4567_89ab_cdef, u64::MAX] {
        for [a, b] in &pairs {
            assert!(a != b && xxh64(a, seed) == xxh64(b, seed), "the construction is wrong");
        }
    }
    let Some(database) = database() else { return };
    let mut session = database.session().unwrap();
    // Only one pair is stored at a time, so a chain of two keys is a collision within the pair.
    let mut collisions = 0;
    for [a, b] in &pairs {
        session.set(a, b"v", SetOptions::default()).unwrap();
        session.set(b, b"v", SetOptions::default()).unwrap();
        collisions += u32::from(database.verify().unwrap().longest_chain > 1);
        session.delete(a).unwrap();
        session.delete(b).unwrap();
    }
    assert!(collisions < 5, "{collisions} of 100 pairs share a bucket");
}

/// The programs and user space agree on the hash of keys of every length. Verification recomputes the
/// bucket, the tag and the partition of every entry.
#[test]
fn programs_and_user_space_compute_the_same_hash() {
    if !can_run() || !has_arenas() {
        return;
    }
    let database = Database::create(Config { partitions: 3, memory_bytes: 96 << 20, ..small() }).unwrap();
    let mut session = database.session().unwrap();
    let mut keys = 0;
    for len in 1..=255usize {
        for fill in [0u8, 1, 0x7f, 0xff, len as u8] {
            let key: Vec<u8> = (0..len).map(|i| fill.wrapping_mul(i as u8 | 1)).collect();
            let fresh = session.get(&key).unwrap().is_none();
            session.set(&key, &[fill], SetOptions::default()).unwrap();
            assert_eq!(session.get(&key).unwrap().unwrap().data, [fill], "{len} bytes");
            keys += u64::from(fresh);
        }
    }
    assert_eq!(database.verify().unwrap().keys, keys);
}
