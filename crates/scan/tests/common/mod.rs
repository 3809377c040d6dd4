//! The common parts of the tests of scans: files whose every byte depends on its position, and engines that inject faults.

#![allow(dead_code, reason = "every test uses some of it")]

mod faults;
#[cfg(target_arch = "x86_64")]
pub mod ioctls;

use std::path::{Path, PathBuf};

#[allow(unused_imports, reason = "likewise")]
pub use faults::{Fault, Faults};

/// The byte at an offset of a file. Files differ, and so do pages, and bytes within pages.
pub fn byte(file: u32, offset: u64) -> u8 {
    let mixed = (offset / 512 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(file) << 32;
    (mixed >> 40) as u8 ^ (offset as u8).wrapping_mul(31)
}

/// The bytes of a file from an offset on.
pub fn content(file: u32, from: u64, len: usize) -> Vec<u8> {
    (from..from + len as u64).map(|offset| byte(file, offset)).collect()
}

/// Whether bytes are the content of a file at an offset.
pub fn is_right(file: u32, offset: u64, bytes: &[u8]) -> bool {
    bytes.iter().zip(offset..).all(|(seen, offset)| *seen == byte(file, offset))
}

/// Writes a file of `len` such bytes.
pub fn write(folder: &Path, file: u32, len: usize) -> PathBuf {
    let path = folder.join(format!("file{file}"));
    std::fs::write(&path, content(file, 0, len)).unwrap();
    path
}

/// A new folder on the disk of the build, because `/tmp` may be in memory.
pub fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}
