//! The memory in which the service delivers pages and ranges: memfds that the service reads into and workers map read-only.
//!
//! A memory consists of frames. [`Frames`] have all their pages from the beginning. A [`Segment`] gets its pages one frame at a
//! time. Scans never map or unmap frames while they run. The memfds are sealed, so a process that receives one from the service
//! cannot map it writable.

mod frames;
mod mapping;
mod memfd;
mod segment;

pub use frames::{Frames, Pages};
pub use mapping::{Access, Buffer, Mapping};
pub use segment::{Segment, SegmentView};

/// Size of a frame in bytes: a huge page of x86-64, and the unit of device requests (paper 3.3.2).
pub const FRAME: usize = 2 << 20;
