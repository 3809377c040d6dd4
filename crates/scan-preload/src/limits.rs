//! Limits, and what happens at them.

use bedplate_scan::MAX_RANGES_HELD;

/// Descriptors with numbers from this one on are left to the kernel.
pub const MAX_DESCRIPTORS: usize = 1 << 16;

/// Files of a process that are served at a time. One more takes the place of the one that was read least recently.
pub const MAX_FILES: usize = 64;

/// Sequential streams of a file. One more takes the place of the one that was read least recently.
pub const MAX_STREAMS: usize = 16;

/// Readers of a file that a process's large reads share. A read that finds all of their ranges in use waits.
pub const MAX_LARGE_READERS: usize = 2;

/// Readers of a process, each of which has a descriptor. One more read stream goes to the kernel.
pub const MAX_READERS: usize = 128;

/// Blocks that a sequential stream has beside the one that the program reads.
pub const MAX_BLOCKS_AHEAD: usize = 4;
const _: () = assert!(MAX_BLOCKS_AHEAD + 2 <= MAX_RANGES_HELD);

/// Bytes that are read one after the other, or by large reads, before a file is served.
pub const RUN_BYTES: u64 = 1 << 20;

/// Reads of a run at least: a program that reads much at a time may read anywhere.
pub const RUN_READS: u32 = 4;

/// Bytes of a file for which one answer says whether the page cache has them: much more than the kernel reads ahead, because what it has
/// just read ahead does not make a file resident.
pub const REGION: u64 = 32 << 20;

/// Regions of a file for which answers are remembered: 2 TiB. For those behind them the kernel is asked each time.
pub const MAX_REGIONS: u64 = 1 << 16;

/// How long an answer about a region holds for large reads.
pub const ANSWER_TIME: std::time::Duration = std::time::Duration::from_secs(1);

/// A read that begins so many bytes after the end of another, or before it, continues a run.
pub const RUN_GAP: u64 = 64 << 10;

/// Runs that are remembered for each descriptor. One more takes the place of the one that was continued least recently.
pub const MAX_RUNS: usize = 16;

/// How often a descriptor that is read by `read` is asked for its position in each run.
pub const POSITIONS: u64 = 8;

/// Bytes of a file that are left where a stream begins: fewer are not worth a stream.
pub const STREAM_BYTES: u64 = 8 << 20;

/// A read of so many bytes is large: it is served also where no stream is, when [`RUN_BYTES`] were read so.
pub const LARGE_READ: u64 = 64 << 10;

/// Bytes that are read by a descriptor whose file is not served, before that is looked at again.
pub const REST_BYTES: u64 = 64 << 20;

/// Bytes that the kernel reads at most at a time.
pub const MOST: u64 = 0x7fff_f000;

/// Parts of a read that the library serves. A read into more of them is left to the kernel, because a thread may have a small stack.
pub const MOST_PARTS: usize = 64;

/// A shorter read is left to the kernel: asking whether the file is unchanged takes longer than copying so few bytes.
pub const SHORT_READ: u64 = 4 << 10;

/// Reads one after the other that no stream and no large read serves, before the descriptor is one that is not served.
pub const MAX_PASSED: u32 = 64;

/// One in so many of the descriptors that the process may have is a connection at most.
pub const DESCRIPTORS_PER_READER: usize = 4;

/// Files that are smaller are left to the kernel, unless told otherwise.
pub const MINIMUM_BYTES: u64 = 64 << 20;

/// How long each step with the daemon may take. Then the process does without it for [`PAUSE`].
pub const PATIENCE: std::time::Duration = std::time::Duration::from_secs(2);

/// How long a process does without a daemon that did not answer.
pub const PAUSE: std::time::Duration = std::time::Duration::from_secs(60);

/// How long a process does without a daemon whose connection has ended.
pub const SHORT_PAUSE: std::time::Duration = std::time::Duration::from_millis(20);

/// A stream that was not read for so long gives its memory back, when the next one begins.
pub const IDLE: std::time::Duration = std::time::Duration::from_secs(10);

/// Buffers that each thread remembers as writable. One more takes the place of the one that was remembered first.
pub const KNOWN_BUFFERS: usize = 4;
