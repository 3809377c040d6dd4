//! The hash of keys, as `bpf/engine/hash.h` computes it.

use siphasher::sip::SipHasher13;

/// The 128-bit secret of the key hash, as the words that [`crate::layout::kdb_config`] holds.
pub(crate) type HashKey = [u64; 2];

/// The hash of a key. The top 16 bits choose the partition; the lower half chooses bucket and tag.
pub(crate) fn hash(secret: HashKey, key: &[u8]) -> u64 {
    SipHasher13::new_with_keys(secret[0], secret[1]).hash(key)
}

/// The partition of a key with this hash.
pub(crate) fn partition_of(hash: u64, partitions: u32) -> u32 {
    (((hash >> 48) * u64::from(partitions)) >> 16) as u32
}
