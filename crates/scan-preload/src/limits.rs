//! Limits, and what happens at them.

use bedplate_scan::MAX_RANGES_HELD;

/// Maximum number of descriptors, exclusive. Reads by descriptors from this number on are left to the kernel.
pub const MAX_DESCRIPTORS: usize = 1 << 16;

/// Maximum number of files of a process that are served at a time. One more replaces the least recently read one.
pub const MAX_FILES: usize = 64;

/// Maximum number of sequential streams of a file. One more replaces the least recently read one.
pub const MAX_STREAMS: usize = 16;

/// Maximum number of readers of a file that a process's large reads share. A read that finds all of their ranges in use waits.
pub const MAX_LARGE_READERS: usize = 2;

/// Maximum number of readers of a process. Each has a descriptor. At the limit, files and streams that need another one are left
/// to the kernel.
pub const MAX_READERS: usize = 128;

/// Maximum number of blocks that a sequential stream fetches ahead of the one that the program reads.
pub const MAX_BLOCKS_AHEAD: usize = 4;
const _: () = assert!(MAX_BLOCKS_AHEAD + 2 <= MAX_RANGES_HELD);

/// Bytes that the program must read in sequence, or by large reads, before the library serves the file.
pub const RUN_BYTES: u64 = 1 << 20;

/// Minimum number of reads of a run, because a program with few long reads may read anywhere.
pub const RUN_READS: u32 = 4;

/// Bytes of a region, for which the library asks at once whether the page cache has them. A region is much larger than the kernel's
/// read-ahead, because the pages that the kernel has just read ahead do not make a file resident.
pub const REGION: u64 = 32 << 20;

/// Maximum number of regions of a file for which answers are remembered: 2 TiB. For later regions, the library asks the kernel
/// each time.
pub const MAX_REGIONS: u64 = 1 << 16;

/// Time for which large reads rely on an answer about a region.
pub const ANSWER_TIME: std::time::Duration = std::time::Duration::from_secs(1);

/// The largest gap, in bytes, between a read and the end of the run that it continues, in either direction.
pub const RUN_GAP: u64 = 64 << 10;

/// Maximum number of runs that are remembered for each descriptor. One more replaces the least recently continued one.
pub const MAX_RUNS: usize = 16;

/// Number of reads in a row that continue no run, after which a thread stops noting its reads for [`RUNS_UNNOTED`].
pub const MAX_STRAYS: u32 = 64;

/// Number of bytes that a thread then reads before it records a read again, in runs of [`RUN_BYTES`].
pub const RUNS_UNNOTED: u64 = 4;

/// Number of times in each run that the library asks for the position of a descriptor that is read by `read`.
pub const POSITIONS: u64 = 8;

/// Minimum number of bytes from the beginning of a stream to the end of its file. With fewer bytes, no stream begins.
pub const STREAM_BYTES: u64 = 8 << 20;

/// The size of a large read, in bytes. After [`RUN_BYTES`] of such reads, large reads are also served where there is no stream.
pub const LARGE_READ: u64 = 64 << 10;

/// Bytes that the program must read by a descriptor whose file is not served, before the library considers the file again.
pub const REST_BYTES: u64 = 64 << 20;

/// Maximum number of bytes that the kernel reads in one call.
pub const MOST: u64 = 0x7fff_f000;

/// Maximum number of parts of a read that the library serves. A read into more parts is left to the kernel, because a thread may
/// have a small stack.
pub const MOST_PARTS: usize = 64;

/// Minimum number of bytes of a read that is served. A shorter one is left to the kernel, because the check that the file is
/// unchanged takes longer than the copy.
pub const SHORT_READ: u64 = 4 << 10;

/// Maximum number of consecutive reads that are left to the kernel. Then the descriptor is no longer served.
pub const MAX_PASSED: u32 = 64;

/// The limit of the process's descriptors, divided by this, is the limit of its connections.
pub const DESCRIPTORS_PER_READER: usize = 4;

/// Smaller files are left to the kernel, unless the settings name another size.
pub const MINIMUM_BYTES: u64 = 64 << 20;

/// Maximum time of each step with the daemon. After that, the process leaves reads to the kernel for [`PAUSE`].
pub const PATIENCE: std::time::Duration = std::time::Duration::from_secs(2);

/// Maximum time that a thread waits for another one that is connecting to the daemon. Then the kernel serves its read.
pub const CONNECTING: std::time::Duration = std::time::Duration::from_millis(50);

/// Number of times that a thread checks during this wait.
pub const CONNECTING_STEPS: u32 = 250;

/// Time during which a process does not ask a daemon that did not answer.
pub const PAUSE: std::time::Duration = std::time::Duration::from_secs(60);

/// Time during which a process does not ask a daemon whose connection has ended.
pub const SHORT_PAUSE: std::time::Duration = std::time::Duration::from_millis(20);

/// Time after its last read at which a stream or a reader is idle. Idle ones are dropped when another stream or file begins.
pub const IDLE: std::time::Duration = std::time::Duration::from_secs(10);

/// Maximum number of buffers that each thread remembers as writable. One more replaces the oldest.
pub const KNOWN_BUFFERS: usize = 4;
