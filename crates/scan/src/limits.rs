//! Limits, and what happens at them.

use std::time::Duration;

use crate::memory::FRAME;

/// Maximum number of frames in the memory of a channel or pool: 1 GiB. More are refused.
pub(crate) const MAX_FRAMES: usize = 512;

/// Number of frames of a channel's memory in addition to those of its pages that may be out, so that the service can read while
/// all of them are out. A channel with less memory is not opened.
pub const SPARE_FRAMES: usize = 2;

/// Maximum number of pages of one channel that may be out at a time: the number that fits into the largest memory. More are
/// refused ([`Scan::pages_held`](crate::Scan::pages_held)).
pub const MAX_PAGES_HELD: usize = MAX_FRAMES - SPARE_FRAMES;

/// Number of frames of a pool in addition to those of its workers' pages that may be out. A pool of N frames whose workers hold H
/// pages each takes (N - 3) / H workers, rounded down: 29 workers of one page in 64 MiB. One more is refused
/// ([`Service::join`](crate::Service::join)).
pub(crate) const POOL_SPARE_FRAMES: usize = 3;

/// Maximum number of pages of each worker of a pool that may be out at a time: the number that fits into the largest pool with
/// one worker. More are refused ([`PoolOptions::pages_held`](crate::PoolOptions::pages_held)).
pub const MAX_POOL_PAGES_HELD: usize = MAX_FRAMES - POOL_SPARE_FRAMES;

/// Maximum time of each step with a daemon, unless [`Service::connect_within`](crate::Service::connect_within) sets another one.
/// Most of it is for the daemon to find memory. A longer step is an error with the number `ETIMEDOUT`.
pub const DEFAULT_PATIENCE: Duration = Duration::from_secs(30);

/// Minimum time for [`Service::connect_within`](crate::Service::connect_within). Less is refused.
pub const MIN_PATIENCE: Duration = Duration::from_millis(1);

/// Maximum time for [`Service::connect_within`](crate::Service::connect_within). More is refused.
pub const MAX_PATIENCE: Duration = Duration::from_secs(3600);

/// Maximum number of ranges of one channel that are announced and not read yet. Each announcement counts as one more, and a range
/// that a cancellation splits counts as its pieces. More are refused. A daemon counts their memory as that of its clients, except
/// for the first 4096 of a connection.
pub const MAX_PENDING_RANGES: usize = 1 << 20;

/// Bytes of memory for each chunk of 2 MiB of a pool's files, all of which are listed. A daemon counts them as memory of its
/// clients, except for the first 4096 of a connection. It makes no pool for which there is not enough memory.
pub(crate) const POOL_CHUNK_BYTES: usize = 128;

/// Number of ranges and chunks of each connection whose memory is not counted, because the connection itself takes as much.
pub(crate) const UNCOUNTED: usize = 4096;

/// Maximum number of bytes of a range that a [`RangeReader`](crate::RangeReader) fetches: a frame, when its ends are rounded
/// outwards to the reader's alignment. A longer range is refused.
pub const MAX_RANGE_BYTES: usize = FRAME;

/// Maximum number of ranges of one [`RangeReader`](crate::RangeReader) that are fetched and not released. One more is refused
/// with [`Error::Held`](crate::Error::Held).
pub const MAX_RANGES_HELD: usize = 8;

/// Number of frames by which the memory that a cached file may have grows, when a reader begins for which there is no room.
pub(crate) const FRAMES_PER_SEGMENT: usize = 16;

/// Maximum number of segments of the memory of one cached file: 1 GiB. They are enough for 63 readers of a file. One more is
/// refused.
pub(crate) const MAX_SEGMENTS: usize = MAX_FRAMES / FRAMES_PER_SEGMENT;

/// While there are readers, the service makes memory that no reader waits for in 1/`MAKER_SHARE` of a processor's time.
pub(crate) const MAKER_SHARE: u32 = 4;

/// Time after a failure during which the service makes no memory that no reader waits for.
pub(crate) const MAKER_REST: Duration = Duration::from_secs(1);

/// A frame is made fast if it takes less than this: not much longer than a device takes to read it.
pub(crate) const FAST_FRAME: Duration = Duration::from_millis(2);

/// A daemon keeps a segment ready if its budget is at least this number of segments.
pub(crate) const SEGMENTS_FOR_A_READY_ONE: u64 = 8;

/// Time for which a cached file without readers keeps its memory.
pub(crate) const IDLE_TIME: Duration = Duration::from_secs(5);

/// A file that was changed more recently is not cached. A single write past the page cache that takes longer may go unnoticed.
pub const SETTLING_TIME: Duration = Duration::from_secs(10);

/// Minimum number of the descriptors of a client's connections to a daemon, if the process may have such numbers.
pub(crate) const CLIENT_DESCRIPTORS: i32 = 768;
