//! The names, bytes and ranges that C programs pass.

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bedplate_btree::store::prefix_range;

use crate::code::Refusal;

/// Bytes with their length.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_store_bytes {
    /// The first byte.
    pub data: *const c_void,
    /// The number of bytes.
    pub len: usize,
}

impl bp_store_bytes {
    /// The bytes of a slice. They are valid as long as the slice is.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self { data: bytes.as_ptr().cast(), len: bytes.len() }
    }
}

/// A range of keys: those that pass all three conditions. Set a condition that you do not use to {NULL, 0}.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_store_range {
    /// The keys from this one on.
    pub from: bp_store_bytes,
    /// The keys before this one.
    pub before: bp_store_bytes,
    /// The keys that begin with these bytes.
    pub prefix: bp_store_bytes,
}

/// The bounds of a range of keys.
pub type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// Bytes of the program's, for one call.
///
/// # Safety
/// `data` is NULL, or so many bytes are readable there until the call returns.
pub unsafe fn bytes<'c>(data: *const c_void, len: usize, what: &'static str) -> Result<&'c [u8], Refusal> {
    if len == 0 {
        return Ok(&[]);
    }
    if data.is_null() {
        return Err(Refusal::null(what));
    }
    if len > isize::MAX as usize {
        return Err(Refusal::invalid(format!("{what}: there cannot be {len} bytes")));
    }
    // SAFETY: as the caller promised, and no longer than memory can be.
    Ok(unsafe { std::slice::from_raw_parts(data.cast(), len) })
}

/// # Safety
/// As for [`bytes`].
unsafe fn condition<'c>(bytes: bp_store_bytes, what: &'static str) -> Result<Option<&'c [u8]>, Refusal> {
    if bytes.data.is_null() && bytes.len == 0 {
        return Ok(None);
    }
    // SAFETY: as the caller promised.
    unsafe { self::bytes(bytes.data, bytes.len, what) }.map(Some)
}

/// A range of the program's; NULL has all keys.
///
/// # Safety
/// `range` is NULL or points to a range whose bytes are readable.
pub unsafe fn bounds(range: *const bp_store_range) -> Result<Bounds, Refusal> {
    if range.is_null() {
        return Ok((Bound::Unbounded, Bound::Unbounded));
    }
    // SAFETY: as the caller promised.
    let bp_store_range { from, before, prefix } = unsafe { range.read_unaligned() };
    // SAFETY: as the caller promised.
    let (from, before, prefix) = unsafe {
        (
            condition(from, "the first key of a range")?,
            condition(before, "the end of a range")?,
            condition(prefix, "a prefix")?,
        )
    };
    let (mut low, mut high) = prefix.map_or((Bound::Unbounded, Bound::Unbounded), prefix_range);
    if let Some(from) = from
        && !matches!(&low, Bound::Included(low) if **low >= *from)
    {
        low = Bound::Included(from.to_vec());
    }
    if let Some(before) = before
        && !matches!(&high, Bound::Excluded(high) if **high <= *before)
    {
        high = Bound::Excluded(before.to_vec());
    }
    Ok((low, high))
}

/// A directory.
///
/// # Safety
/// `path` is NULL or a C string.
pub unsafe fn directory<'c>(path: *const c_char) -> Result<&'c Path, Refusal> {
    if path.is_null() {
        return Err(Refusal::null("no directory"));
    }
    // SAFETY: as the caller promised.
    let path = unsafe { CStr::from_ptr(path) };
    Ok(Path::new(OsStr::from_bytes(path.to_bytes())))
}

/// The name of a tree.
///
/// # Safety
/// `name` is NULL or a C string.
pub unsafe fn name<'c>(name: *const c_char) -> Result<&'c str, Refusal> {
    if name.is_null() {
        return Err(Refusal::null("no name of a tree"));
    }
    // SAFETY: as the caller promised.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_str().map_err(|error| Refusal::invalid(format!("the name of a tree is not UTF-8: {error}")))
}

/// Whether flags have a bit; bits that are not among `known` are refused.
pub fn has_flag(flags: u32, flag: u32, known: u32) -> Result<bool, Refusal> {
    if flags & !known != 0 {
        return Err(Refusal::invalid(format!("flags {flags:#x}: {known:#x} are known")));
    }
    Ok(flags & flag != 0)
}
