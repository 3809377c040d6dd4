//! Maps that no object creates.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

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

/// Reads an element of an array. The result is none if the elements have another size. A handle of libbpf would need CAP_SYS_ADMIN, because
/// it finds a map by its number.
pub(crate) fn read_element(map: BorrowedFd<'_>, index: u32, bytes: usize) -> Result<Option<Vec<u8>>> {
    let failed = |what: &str, error: i32| {
        Error::io(format!("cannot read {what}"), io::Error::from_raw_os_error(error.unsigned_abs() as i32))
    };
    let mut info = libbpf_sys::bpf_map_info::default();
    let mut size = size_of_val(&info) as u32;
    // SAFETY: the descriptor is open, and the kernel writes at most `size` bytes, the size of `info`.
    let r = unsafe { libbpf_sys::bpf_map_get_info_by_fd(map.as_raw_fd(), &raw mut info, &raw mut size) };
    if r < 0 {
        return Err(failed("the properties of a map", r));
    }
    if info.key_size as usize != size_of_val(&index) || info.value_size as usize != bytes {
        return Ok(None);
    }
    let mut value = vec![0; bytes.next_multiple_of(8)];
    let (key, to) = (&raw const index, value.as_mut_ptr());
    // SAFETY: the key has the size of the map's keys, and the kernel writes a value, which has `bytes` bytes, rounded up to 8.
    let r = unsafe { libbpf_sys::bpf_map_lookup_elem(map.as_raw_fd(), key.cast(), to.cast()) };
    if r < 0 {
        return Err(failed("an element of a map", r));
    }
    value.truncate(bytes);
    Ok(Some(value))
}
