//! Limits, and what happens at them.

use bedplate_scan::MAX_RANGES_HELD;

/// Reads by descriptors from this number on are left to the kernel.
pub const MAX_DESCRIPTORS: usize = 1 << 16;

/// Files of a process that are served at a time. One more takes the place of the one that was read least recently.
pub const MAX_FILES: usize = 64;

/// Sequential streams of a file. One more takes the place of the one that was read least recently.
pub const MAX_STREAMS: usize = 16;

/// Readers of a file that a process's large reads share. A read that finds all of their ranges in use waits.
pub const MAX_LARGE_READERS: usize = 2;

/// Readers of a process. Each has a descriptor. When there are so many, files and streams that need another are left to the kernel.
pub const MAX_READERS: usize = 128;

/// Blocks that a sequential stream fetches ahead of the one that the program reads.
pub const MAX_BLOCKS_AHEAD: usize = 4;
const _: () = assert!(MAX_BLOCKS_AHEAD + 2 <= MAX_RANGES_HELD);

/// Bytes that the program must read in sequence, or by large reads, before the library serves the file.
pub const RUN_BYTES: u64 = 1 << 20;

/// Reads that a run has at least, because a program with few long reads may read anywhere.
pub const RUN_READS: u32 = 4;

/// Bytes of a region, for which the library asks at once whether the page cache has them. A region is much larger than the kernel's
/// read-ahead, because the pages that the kernel has just read ahead do not make a file resident.
pub const REGION: u64 = 32 << 20;

/// Regions of a file for which answers are remembered: 2 TiB. For regions behind them the kernel is asked each time.
pub const MAX_REGIONS: u64 = 1 << 16;

/// How long large reads rely on an answer about a region.
pub const ANSWER_TIME: std::time::Duration = std::time::Duration::from_secs(1);

/// The largest gap, in bytes, between a read and the end of the run that it continues, in either direction.
pub const RUN_GAP: u64 = 64 << 10;

/// Runs that are remembered for each descriptor. One more takes the place of the one that was continued least recently.
pub const MAX_RUNS: usize = 16;

/// Number of reads in a row that continue no run, after which a thread stops noting its reads for [`RUNS_UNNOTED`].
pub const MAX_STRAYS: u32 = 64;

/// How much a thread reads then before it notes a read again, in runs of [`RUN_BYTES`].
pub const RUNS_UNNOTED: u64 = 4;

/// How often in each run the library asks for the position of a descriptor that is read by `read`.
pub const POSITIONS: u64 = 8;

/// The bytes of a file that must be left where a stream begins. For fewer bytes no stream begins.
pub const STREAM_BYTES: u64 = 8 << 20;

/// The size of a large read, in bytes. After [`RUN_BYTES`] of such reads, large reads are served also where no stream is.
pub const LARGE_READ: u64 = 64 << 10;

/// Bytes that the program must read by a descriptor whose file is not served, before the library considers the file again.
pub const REST_BYTES: u64 = 64 << 20;

/// Bytes that the kernel reads at most in one call.
pub const MOST: u64 = 0x7fff_f000;

/// Parts of a read that the library serves. A read into more of them is left to the kernel, because a thread may have a small stack.
pub const MOST_PARTS: usize = 64;

/// A read of fewer bytes is left to the kernel: asking whether the file is unchanged takes longer than copying them.
pub const SHORT_READ: u64 = 4 << 10;

/// Consecutive reads that are left to the kernel before the descriptor is not served any more.
pub const MAX_PASSED: u32 = 64;

/// The limit of the process's descriptors, divided by this, is the limit of its connections.
pub const DESCRIPTORS_PER_READER: usize = 4;

/// Smaller files are left to the kernel, unless the settings name another size.
pub const MINIMUM_BYTES: u64 = 64 << 20;

/// How long each step with the daemon may take. After that the process leaves reads to the kernel for [`PAUSE`].
pub const PATIENCE: std::time::Duration = std::time::Duration::from_secs(2);

/// How long a thread waits at most for another one that is connecting to the daemon. Then the kernel serves its read.
pub const CONNECTING: std::time::Duration = std::time::Duration::from_millis(50);

/// How often a thread that waits so long looks.
pub const CONNECTING_STEPS: u32 = 250;

/// How long a process does not ask a daemon that did not answer.
pub const PAUSE: std::time::Duration = std::time::Duration::from_secs(60);

/// How long a process does not ask a daemon whose connection has ended.
pub const SHORT_PAUSE: std::time::Duration = std::time::Duration::from_millis(20);

/// How long no read uses a stream or a reader before it is idle. Idle ones are dropped when another stream or file begins.
pub const IDLE: std::time::Duration = std::time::Duration::from_secs(10);

/// Buffers that each thread remembers as writable. One more takes the place of the one that was remembered first.
pub const KNOWN_BUFFERS: usize = 4;
