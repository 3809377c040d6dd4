//! Limits, and what happens at them.

/// Frames of the largest memory of a channel or pool: 1 GiB. More are refused.
pub(crate) const MAX_FRAMES: usize = 512;

/// Frames that a channel's memory has beside those in which its pages may be out, so that reading goes on while all of them are.
/// A channel with less memory is not opened.
pub const SPARE_FRAMES: usize = 2;

/// Pages of one channel that may be out at a time: as many as the largest memory has room for. More are refused
/// ([`Scan::pages_held`](crate::Scan::pages_held)).
pub const MAX_PAGES_HELD: usize = MAX_FRAMES - SPARE_FRAMES;

/// Frames that a pool has beside those in which its workers' pages may be out. A pool of N frames whose workers hold H pages each
/// takes (N - 3) / H workers, rounded down: 29 of one page in 64 MiB. One more is refused ([`Service::join`](crate::Service::join)).
pub(crate) const POOL_SPARE_FRAMES: usize = 3;

/// Pages of each worker of a pool that may be out at a time: as many as the largest pool has room for with one worker. More are
/// refused ([`PoolOptions::pages_held`](crate::PoolOptions::pages_held)).
pub const MAX_POOL_PAGES_HELD: usize = MAX_FRAMES - POOL_SPARE_FRAMES;
