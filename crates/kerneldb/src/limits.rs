//! The crate's limits, and what happens at each. Limits that the eBPF programs share are defined in
//! `bpf/include/bedplate/layout.h`.

/// Smallest arena in bytes; a smaller memory limit is raised to it.
pub(crate) const MIN_ARENA: u64 = 16 << 20;
/// Bytes of an arena for each bucket of its index. The buckets take 8 bytes of so many, whatever the keys
/// take; a full arena of the smallest keys has about four keys in a bucket.
pub(crate) const BYTES_PER_BUCKET: u64 = 512;
/// Free slabs are scarce below this share of all slabs: then user space begins to reclaim memory.
pub(crate) const SCARCE_SLABS_SHARE: u64 = 16;
/// Times that a write which finds no memory reclaims some and tries again, before it fails.
pub(crate) const RECLAIM_ATTEMPTS: u32 = 3;
/// Slabs of a partition that are being emptied at once. More wait for their turn.
pub(crate) const MAX_EVACUATING_SLABS: usize = 256;
