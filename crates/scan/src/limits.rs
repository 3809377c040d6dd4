//! Limits, and what happens at them.

use std::time::Duration;

use crate::memory::FRAME;

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

/// How long each step with a daemon may take, unless [`Service::connect_within`](crate::Service::connect_within) says something else:
/// most of it is for memory to be found. Then it is an error, whose number is that of a time that is over (`ETIMEDOUT`).
pub const DEFAULT_PATIENCE: Duration = Duration::from_secs(30);

/// The shortest time that [`Service::connect_within`](crate::Service::connect_within) takes. Less is refused.
pub const MIN_PATIENCE: Duration = Duration::from_millis(1);

/// The longest time that [`Service::connect_within`](crate::Service::connect_within) takes. More is refused.
pub const MAX_PATIENCE: Duration = Duration::from_secs(3600);

/// Ranges of one channel that may be announced and not read yet, of which each announcement counts as one more, and what a
/// cancellation leaves of a range as many as there are pieces. More are refused. A daemon counts their memory as that of its
/// clients, but for the first 4096 of a connection.
pub const MAX_PENDING_RANGES: usize = 1 << 20;

/// Bytes of memory for each chunk of 2 MiB of a pool's files, all of which are listed. A daemon counts them as memory of its
/// clients, but for the first 4096 of a connection, and makes no pool for which there is not as much.
pub(crate) const POOL_CHUNK_BYTES: usize = 128;

/// Ranges and chunks of each connection whose memory is not counted: the connection itself takes as much.
pub(crate) const UNCOUNTED: usize = 4096;

/// Bytes of the longest range that a [`RangeReader`](crate::RangeReader) fetches: a frame, when its ends are rounded outwards to the
/// reader's alignment. A longer one is refused.
pub const MAX_RANGE_BYTES: usize = FRAME;

/// Ranges of one [`RangeReader`](crate::RangeReader) that are fetched and not released. One more is refused with
/// [`Error::Held`](crate::Error::Held).
pub const MAX_RANGES_HELD: usize = 8;

/// Frames by which the memory that a cached file may have grows, when a reader begins for which there is no room.
pub(crate) const FRAMES_PER_SEGMENT: usize = 16;

/// Segments of the memory of one cached file: 1 GiB. They are enough for 63 readers of a file; one more is refused.
pub(crate) const MAX_SEGMENTS: usize = MAX_FRAMES / FRAMES_PER_SEGMENT;

/// While there are readers, the service makes memory that no reader waits for in 1/`MAKER_SHARE` of a processor's time.
pub(crate) const MAKER_SHARE: u32 = 4;

/// How long memory that nobody waits for is not made after there was none.
pub(crate) const MAKER_REST: Duration = Duration::from_secs(1);

/// A frame is made fast if it takes less: not much longer than a device takes to read it.
pub(crate) const FAST_FRAME: Duration = Duration::from_millis(2);

/// A daemon keeps a segment ready if its budget is at least this number of segments.
pub(crate) const SEGMENTS_FOR_A_READY_ONE: u64 = 8;

/// How long a cached file keeps its memory when no reader is left.
pub(crate) const IDLE_TIME: Duration = Duration::from_secs(5);

/// A file that was changed more recently is not cached. A single write past the page cache that takes longer may go unnoticed.
pub const SETTLING_TIME: Duration = Duration::from_secs(10);

/// Descriptors of a client's connections to a daemon have this number or a higher one, where the process may have such.
pub(crate) const CLIENT_DESCRIPTORS: i32 = 768;
