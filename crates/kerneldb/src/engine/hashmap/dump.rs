//! Reading hash maps by system calls: entry by entry, as `bpftool map dump` does, or in batches.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

use libbpf_rs::libbpf_sys;

use super::{
    HashStore,
    format::{CLASSES, key_in},
};
use crate::{Error, Result, engine::storage::DumpMethod};

/// Elements asked for in one call; grown when a bucket has more.
const BATCH: usize = 1024;

fn error(what: &str) -> Error {
    Error::io(format!("cannot read a hash map ({what})"), io::Error::last_os_error())
}

/// Calls `f` with every element of a map: key and value. Elements that are there all the time are seen
/// once with [`DumpMethod::Batched`], and at least once otherwise.
pub(super) fn dump(
    map: BorrowedFd<'_>,
    key_bytes: usize,
    value_bytes: usize,
    method: DumpMethod,
    f: &mut dyn FnMut(&[u8], &[u8]),
) -> Result<()> {
    match method {
        DumpMethod::EntryByEntry => one_by_one(map, key_bytes, value_bytes, f),
        DumpMethod::Batched => batched(map, key_bytes, value_bytes, f),
    }
}

/// Reads one element; whether it is there.
pub(super) fn lookup(map: BorrowedFd<'_>, key: &[u8], value: &mut [u8]) -> Result<bool> {
    // SAFETY: the buffers have the sizes of the map's keys and values, which the caller knows.
    let result = unsafe {
        libbpf_sys::bpf_map_lookup_elem(map.as_raw_fd(), key.as_ptr().cast(), value.as_mut_ptr().cast())
    };
    match result {
        0 => Ok(true),
        _ if io::Error::last_os_error().raw_os_error() == Some(libc::ENOENT) => Ok(false),
        _ => Err(error("lookup")),
    }
}

fn one_by_one(
    map: BorrowedFd<'_>,
    key_bytes: usize,
    value_bytes: usize,
    f: &mut dyn FnMut(&[u8], &[u8]),
) -> Result<()> {
    let (mut key, mut next, mut value) = (vec![0; key_bytes], vec![0; key_bytes], vec![0; value_bytes]);
    let mut first = true;
    loop {
        let from = if first { std::ptr::null() } else { key.as_ptr().cast() };
        // SAFETY: both keys have the size of the map's.
        let result =
            unsafe { libbpf_sys::bpf_map_get_next_key(map.as_raw_fd(), from, next.as_mut_ptr().cast()) };
        if result != 0 {
            return match io::Error::last_os_error().raw_os_error() {
                Some(libc::ENOENT) => Ok(()),
                _ => Err(error("next key")),
            };
        }
        std::mem::swap(&mut key, &mut next);
        first = false;
        if lookup(map, &key, &mut value)? {
            f(&key, &value);
        }
    }
}

fn batched(
    map: BorrowedFd<'_>,
    key_bytes: usize,
    value_bytes: usize,
    f: &mut dyn FnMut(&[u8], &[u8]),
) -> Result<()> {
    // The position is a bucket number, but the kernel copies as much as a key has.
    let (mut from, mut to) = (vec![0u8; key_bytes.max(8)], vec![0u8; key_bytes.max(8)]);
    let mut room = BATCH.min((8 << 20) / value_bytes).max(16);
    let mut first = true;
    loop {
        let (mut keys, mut values) = (vec![0; room * key_bytes], vec![0; room * value_bytes]);
        loop {
            let mut count = room as u32;
            let position = if first { std::ptr::null_mut() } else { from.as_mut_ptr().cast() };
            // SAFETY: the buffers have room for `count` keys and values.
            let result = unsafe {
                libbpf_sys::bpf_map_lookup_batch(
                    map.as_raw_fd(),
                    position,
                    to.as_mut_ptr().cast(),
                    keys.as_mut_ptr().cast(),
                    values.as_mut_ptr().cast(),
                    &mut count,
                    std::ptr::null(),
                )
            };
            let errno = if result == 0 { None } else { io::Error::last_os_error().raw_os_error() };
            match errno {
                None | Some(libc::ENOENT) => {}
                // A bucket has more elements than there is room for; nothing was handed over.
                Some(libc::ENOSPC) => break,
                Some(libc::EINTR) => continue,
                Some(_) => return Err(error("batch")),
            }
            let pairs = keys.chunks_exact(key_bytes).zip(values.chunks_exact(value_bytes));
            pairs.take(count as usize).for_each(|(key, value)| f(key, value));
            if errno.is_some() {
                return Ok(());
            }
            std::mem::swap(&mut from, &mut to);
            first = false;
        }
        room *= 2;
    }
}

impl HashStore {
    /// Reads all maps; returns the number of elements.
    pub(super) fn dump(&self, method: DumpMethod, f: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64> {
        use std::os::fd::AsFd;
        let mut elements = 0;
        let (key, entry) = (self.format.map_key() as usize, self.format.entry() as usize);
        dump(self.index.as_fd(), key, entry, method, &mut |key, entry| {
            elements += 1;
            f(key_in(key), entry);
        })?;
        for (map, bytes) in self.values.iter().zip(CLASSES) {
            dump(map.as_fd(), 8, bytes as usize, method, &mut |key, value| {
                elements += 1;
                f(key, value);
            })?;
        }
        Ok(elements)
    }
}
