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

/// Calls `f` with key and value of every element of a map. An element that exists during the whole
/// call is seen once with [`DumpMethod::Batched`], and at least once otherwise.
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

/// Reads one element; returns whether it exists.
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
    let mut cursor = BatchCursor::new(key_bytes, value_bytes);
    while cursor.next(map, f)? {}
    Ok(())
}

/// A position in a hash map that is read batch by batch.
pub(super) struct BatchCursor {
    key_bytes: usize,
    value_bytes: usize,
    /// The position. It is a bucket number, but the kernel copies as many bytes as a key has.
    from: Vec<u8>,
    to: Vec<u8>,
    first: bool,
    keys: Vec<u8>,
    values: Vec<u8>,
    /// Number of elements in the last batch.
    count: usize,
}

impl BatchCursor {
    /// A cursor before the first element of a map with keys and values of these sizes.
    pub(super) fn new(key_bytes: usize, value_bytes: usize) -> Self {
        BatchCursor::with_room(key_bytes, value_bytes, BATCH)
    }

    /// A cursor before the first element of a bucket, which reads about `room` elements at a time.
    pub(super) fn at_bucket(key_bytes: usize, value_bytes: usize, bucket: u32, room: usize) -> Self {
        let mut cursor = BatchCursor::with_room(key_bytes, value_bytes, room.min(BATCH));
        cursor.from[..4].copy_from_slice(&bucket.to_ne_bytes());
        cursor.first = bucket == 0;
        cursor
    }

    fn with_room(key_bytes: usize, value_bytes: usize, room: usize) -> Self {
        let room = room.min((8 << 20) / value_bytes).max(16);
        BatchCursor {
            key_bytes,
            value_bytes,
            from: vec![0; key_bytes.max(8)],
            to: vec![0; key_bytes.max(8)],
            first: true,
            keys: vec![0; room * key_bytes],
            values: vec![0; room * value_bytes],
            count: 0,
        }
    }

    /// The bucket before which the cursor is.
    pub(super) fn bucket(&self) -> u32 {
        let bytes = self.from.first_chunk().expect("it has 8 bytes or more");
        if self.first { 0 } else { u32::from_ne_bytes(*bytes) }
    }

    /// Calls `f` with the elements of the next batch. Returns whether there are more; after the last
    /// batch the cursor is before the first element again.
    pub(super) fn next(&mut self, map: BorrowedFd<'_>, f: &mut dyn FnMut(&[u8], &[u8])) -> Result<bool> {
        let more = self.read(map)?;
        self.batch().for_each(|(key, value)| f(key, value));
        Ok(more)
    }

    /// The elements that the last [`BatchCursor::read`] has read: all those of some buckets.
    pub(super) fn batch(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let (keys, values) =
            (self.keys.chunks_exact(self.key_bytes), self.values.chunks_exact(self.value_bytes));
        keys.zip(values).take(self.count)
    }

    /// Reads the next batch. Returns whether there are more; after the last batch the cursor is before the first element again.
    pub(super) fn read(&mut self, map: BorrowedFd<'_>) -> Result<bool> {
        loop {
            let room = self.keys.len() / self.key_bytes;
            let mut count = room as u32;
            let position = if self.first { std::ptr::null_mut() } else { self.from.as_mut_ptr().cast() };
            // SAFETY: the buffers have room for `count` keys and values.
            let result = unsafe {
                libbpf_sys::bpf_map_lookup_batch(
                    map.as_raw_fd(),
                    position,
                    self.to.as_mut_ptr().cast(),
                    self.keys.as_mut_ptr().cast(),
                    self.values.as_mut_ptr().cast(),
                    &mut count,
                    std::ptr::null(),
                )
            };
            let errno = if result == 0 { None } else { io::Error::last_os_error().raw_os_error() };
            match errno {
                None | Some(libc::ENOENT) => {}
                Some(libc::ENOSPC) => {
                    // A bucket has more elements than there is room for; the kernel returned none.
                    self.keys = vec![0; 2 * room * self.key_bytes];
                    self.values = vec![0; 2 * room * self.value_bytes];
                    continue;
                }
                Some(libc::EINTR) => continue,
                Some(_) => return Err(error("batch")),
            }
            self.count = count as usize;
            std::mem::swap(&mut self.from, &mut self.to);
            self.first = errno.is_some();
            return Ok(!self.first);
        }
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
