//! The process's memory as ring 0 sees it: every gigabyte of virtual addresses that has memory in it is a window,
//! and lies somewhere in guest-physical memory. See [`windows`].

pub mod mapping;
pub mod maps;
pub mod reserved;
pub mod windows;

/// Bytes of a window.
pub const WINDOW: u64 = 1 << 30;
/// The end of a process's addresses: Linux leaves the last page below 2^47 out.
pub const ADDRESS_END: u64 = 0x7fff_ffff_f000;
