//! Limits, and what happens at them.

use bedplate_scan::MAX_RANGES_HELD;

/// Descriptors with numbers from this one on are left to the kernel.
pub const MAX_DESCRIPTORS: usize = 1 << 16;

/// Files of a process that are served at a time. One more takes the place of the one that was read least recently.
pub const MAX_FILES: usize = 64;

/// Sequential streams of a file. One more takes the place of the one that was read least recently.
pub const MAX_STREAMS: usize = 16;

/// Large reads of a file that are served at a time. One more goes to the kernel.
pub const MAX_LARGE_READS: usize = 16;

/// Readers of a process, each of which has a descriptor. One more read stream goes to the kernel.
pub const MAX_READERS: usize = 128;

/// Blocks that a sequential stream has beside the one that the program reads.
pub const MAX_BLOCKS_AHEAD: usize = 4;
const _: () = assert!(MAX_BLOCKS_AHEAD + 2 <= MAX_RANGES_HELD);

/// Bytes that are read one after the other, or by large reads, before a file is served.
pub const RUN_BYTES: i64 = 1 << 20;

/// A sequential stream is worth so many bytes of its file, or more.
pub const SHORT_REST_BYTES: u64 = 16 << 20;

/// A read of so many bytes is large: it is served also where no stream is.
pub const LARGE_READ: usize = 256 << 10;

/// Bytes that are read by a descriptor whose file is not served, before that is looked at again.
pub const REST_BYTES: i64 = 64 << 20;

/// Files that are smaller are left to the kernel, unless told otherwise.
pub const MINIMUM_BYTES: u64 = 64 << 20;

/// How long each step with the daemon may take. Then the process does without it for [`PAUSE`].
pub const PATIENCE: std::time::Duration = std::time::Duration::from_secs(2);

/// How long a process does without a daemon that did not answer.
pub const PAUSE: std::time::Duration = std::time::Duration::from_secs(60);

/// A stream that was not read for so long gives its memory back, when the next one begins.
pub const IDLE: std::time::Duration = std::time::Duration::from_secs(10);
