//! The process's memory as seen by ring 0. Every gigabyte of virtual addresses that contains memory is a window,
//! and has a position in guest-physical memory. See [`windows`].

pub mod mapping;
pub mod maps;
pub mod reserved;
pub mod windows;

/// Size of a window in bytes.
pub const WINDOW: u64 = 1 << 30;
/// The end of a process's addresses. Linux does not use the last page below 2^47.
pub const ADDRESS_END: u64 = 0x7fff_ffff_f000;
