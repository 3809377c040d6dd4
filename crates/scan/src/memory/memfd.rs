//! Memfds that only their creator can write to, through the mapping that it made before it sealed them.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::FRAME;
use super::mapping::{Access, Mapping};
use crate::{Error, Result};

/// Creates a memfd of `count` frames and maps it writable. It has no pages yet.
///
/// # Errors
/// The kernel cannot create, size, map or seal the memfd.
pub fn ordinary(count: usize) -> Result<(OwnedFd, Arc<Mapping>)> {
    create(count, MemfdFlags::empty())
}

/// Creates a memfd of huge pages that the administrator reserved, and maps it writable.
///
/// # Errors
/// Fewer than `count` reserved pages are available; otherwise as [`ordinary`].
pub fn reserved(count: usize) -> Result<(OwnedFd, Arc<Mapping>)> {
    create(count, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB)
}

fn create(count: usize, flags: MemfdFlags) -> Result<(OwnedFd, Arc<Mapping>)> {
    let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("bedplate-frames", flags).map_err(Error::system("creating frames"))?;
    let bytes = count * FRAME;
    ftruncate(&file, bytes as u64).map_err(Error::system("sizing frames"))?;
    let mapping = Mapping::of(&file, 0, bytes, Access::ReadWrite)?;
    mapping.ask_for_huge();
    // FUTURE_WRITE leaves the existing mapping writable.
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    fcntl_add_seals(&file, seals).map_err(Error::system("sealing frames"))?;
    Ok((file, Arc::new(mapping)))
}
