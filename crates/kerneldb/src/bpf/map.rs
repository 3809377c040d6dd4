//! Maps that no object creates.

use std::os::fd::{AsFd, OwnedFd};

use libbpf_rs::{MapHandle, MapType, libbpf_sys};

use super::kernel_error;
use crate::{Error, Result};

/// Creates a map with keys of `key` bytes and values of `value` bytes. Its name is the one in the objects, because libbpf finds a shared map
/// by the name that the kernel has for it.
pub(crate) fn create_map(
    kind: MapType,
    name: &str,
    key: usize,
    value: usize,
    entries: u32,
) -> Result<MapHandle> {
    let opts = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
        ..Default::default()
    };
    MapHandle::create(kind, Some(name), key as u32, value as u32, entries, &opts)
        .map_err(|error| kernel_error("cannot create the maps of procedures", error))
}

/// Duplicates a map's descriptor, for sharing the map with objects.
pub(crate) fn duplicate_map(map: &impl AsFd) -> Result<OwnedFd> {
    map.as_fd().try_clone_to_owned().map_err(|error| Error::io("cannot duplicate a map descriptor", error))
}
