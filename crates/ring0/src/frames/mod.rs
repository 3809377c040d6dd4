//! Physical frames: preallocated, never zeroed, handed out through per-vCPU free lists (sections 5.2 and 6.1 of
//! the paper).
//!
//! [`HostMemory`] is the memory, mapped once, with the host's huge pages behind it where they can be had.
//! [`FramePool`] hands out its frames of 4 KiB, and runs of 512 of them for huge mappings. A [`Frame`] is a number of
//! guest-physical memory; [`FramePool::address`] says where the process sees it.
//!
//! Nothing is counted or owned beyond "handed out or not": who takes a frame gives it back, once.

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
