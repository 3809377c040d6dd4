//! Limits, and what happens at them.

/// A file with fewer bytes is left to the default reader: starting a scan of it costs more than it saves.
pub const MIN_FILE_BYTES: u64 = 16 << 20;

/// Bytes that one stream fetches ahead of its decoder. What does not fit is fetched when something that was fetched is taken.
pub const READ_AHEAD_BYTES: u64 = 32 << 20;

/// Readers of one stream, each of which may hold [`MAX_RANGES_HELD`](bedplate_scan::MAX_RANGES_HELD) ranges. A stream that would need
/// more fetches less ahead.
pub const MAX_READERS_PER_STREAM: usize = 4;

/// Readers of one file in this process, from which on a stream gets one reader only. The service refuses a file's 64th reader, and
/// the stream that asked for it reads by the default reader.
pub const MANY_READERS_OF_A_FILE: usize = 24;

/// Bytes between two column chunks that are fetched together at most. If there are more, the chunks are fetched apart.
pub const MAX_GAP_BYTES: u64 = 128 << 10;

/// At most one in so many bytes of what is fetched together lies between chunks that the decoder asks for.
pub const MAX_GAP_PART: u64 = 8;

/// A range with fewer bytes is copied and released at once: the copy costs less than a range that is held for long.
pub const MIN_PINNED_BYTES: u64 = 64 << 10;

/// Bytes of buffers for copies that are kept for later copies. Buffers above it are freed.
pub const KEPT_BUFFER_BYTES: usize = 64 << 20;

/// A file is left to the default reader when this part of what a stream reads first is in the page cache.
pub const RESIDENT_PART: f64 = 0.5;

/// Ranges of a file for which the kernel is asked what of them is in the page cache, when a stream begins.
pub const RESIDENCY_SAMPLES: usize = 64;
