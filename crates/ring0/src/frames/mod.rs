//! Physical frames. They are preallocated, never zeroed, and handed out through free lists for each vCPU (sections
//! 5.2 and 6.1 of the paper).
//!
//! [`HostMemory`] is the memory. It is mapped once, and huge pages of the host back it where they are available.
//! [`FramePool`] hands out frames of 4 KiB, and runs of 512 frames for huge mappings. A [`Frame`] is a number in
//! guest-physical memory; [`FramePool::address`] returns the frame's address in the process.
//!
//! The pool records only whether a frame is handed out. It keeps no owner and no reference count: the taker of a
//! frame must give it back exactly once.

mod copy;
mod frame;
mod lists;
mod memory;
#[cfg(test)]
mod model;
mod pool;
mod stack;
#[cfg(test)]
mod tests;

pub use copy::copy_frame;
pub use frame::Frame;
pub use lists::{Statistics, WrongFrame};
pub use memory::{Backing, HostMemory, MemoryError};
pub use pool::{CpuFrames, FramePool, PoolError, RUN_FRAMES};
