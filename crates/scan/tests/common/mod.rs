//! What tests of scans share: files whose every byte says where it is, and engines that misbehave.

#![allow(dead_code, reason = "every test uses some of it")]

mod faults;
#[cfg(target_arch = "x86_64")]
pub mod ioctls;

use std::path::{Path, PathBuf};

#[allow(unused_imports, reason = "likewise")]
pub use faults::{Fault, Faults};

/// What is at an offset of a file. Files differ, and so do pages, and bytes within them.
pub fn byte(file: u32, offset: u64) -> u8 {
    let mixed = (offset / 512 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(file) << 32;
    (mixed >> 40) as u8 ^ (offset as u8).wrapping_mul(31)
}

/// Such content.
pub fn content(file: u32, from: u64, len: usize) -> Vec<u8> {
    (from..from + len as u64).map(|offset| byte(file, offset)).collect()
}

/// Whether bytes are those of a file at an offset.
pub fn is_right(file: u32, offset: u64, bytes: &[u8]) -> bool {
    bytes.iter().zip(offset..).all(|(seen, offset)| *seen == byte(file, offset))
}

/// Writes such a file.
pub fn write(folder: &Path, file: u32, len: usize) -> PathBuf {
    let path = folder.join(format!("file{file}"));
    std::fs::write(&path, content(file, 0, len)).unwrap();
    path
}

/// A folder on a disk: the tests' own, so that the files are where the build is.
pub fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}
