//! The files and ranges that C programs pass.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use bedplate_c_support::input::array;
use bedplate_scan::{Range, Source};

use crate::code::Refusal;
use crate::code::bp_scan_code::*;

/// A file of a scan: a name, or an open descriptor.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_scan_source {
    /// The name; NULL with BP_SCAN_FD.
    pub path: *const c_char,
    /// With BP_SCAN_FD: a descriptor that is open for reading. The library opens the file again, so the descriptor stays
    /// unchanged and may be closed.
    pub fd: c_int,
    /// 0 or BP_SCAN_FD.
    pub flags: u32,
}

/// Bytes of one file.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_scan_range {
    /// The first byte.
    pub start: u64,
    /// The byte after the last.
    pub end: u64,
    /// The file of the scan, counted from 0.
    pub file: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// Whether the flags of options request that files are not watched.
pub fn is_unwatched(flags: u32) -> Result<bool, Refusal> {
    /// BP_SCAN_UNWATCHED
    const UNWATCHED: u32 = 1;
    match flags {
        0 => Ok(false),
        UNWATCHED => Ok(true),
        _ => Err(Refusal::new(BP_SCAN_ERROR_INVALID, format!("flags {flags:#x} of the options"))),
    }
}

/// The number of pages that may be out. 0 means 1.
pub fn held(pages: u32) -> usize {
    pages.max(1) as usize
}

pub fn null(what: &'static str) -> Refusal {
    Refusal::new(BP_SCAN_ERROR_NULL, what)
}

/// Reads the files of a scan.
///
/// # Safety
/// `pointer` is NULL or points to `count` files, whose names are C strings or NULL.
pub unsafe fn sources(pointer: *const bp_scan_source, count: usize) -> Result<Vec<Source>, Refusal> {
    // SAFETY: the caller guarantees this.
    let sources = unsafe { array(pointer, count, "no files") }?;
    if sources.is_empty() {
        return Err(Refusal::new(BP_SCAN_ERROR_INVALID, "no files to scan"));
    }
    // SAFETY: the caller guarantees this.
    sources.into_iter().map(|source| unsafe { opened(source) }).collect()
}

/// Reads one file. A descriptor is duplicated.
///
/// # Safety
/// The file's name is a C string or NULL.
pub unsafe fn opened(source: bp_scan_source) -> Result<Source, Refusal> {
    const FD: u32 = 1;
    let bp_scan_source { path, fd, flags } = source;
    match flags {
        0 if path.is_null() => Err(null("a file has no name, and no BP_SCAN_FD")),
        0 => {
            // SAFETY: the caller guarantees this.
            let name = unsafe { CStr::from_ptr(path) };
            Ok(Source::Path(PathBuf::from(OsStr::from_bytes(name.to_bytes()))))
        }
        FD if path.is_null() => {
            // SAFETY: the kernel refuses a descriptor that is not open.
            let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
            if copy < 0 {
                return Err(Refusal::system(BP_SCAN_ERROR_FILE, &format!("file descriptor {fd}")));
            }
            // SAFETY: the descriptor is new, and nothing else owns it.
            Ok(Source::Descriptor(unsafe { OwnedFd::from_raw_fd(copy) }))
        }
        FD => Err(Refusal::new(BP_SCAN_ERROR_INVALID, "a file has a name and BP_SCAN_FD")),
        _ => Err(Refusal::new(BP_SCAN_ERROR_INVALID, format!("flags {flags:#x} of a file"))),
    }
}

/// Reads byte ranges.
///
/// # Safety
/// `pointer` is NULL or points to `count` ranges.
pub unsafe fn ranges(pointer: *const bp_scan_range, count: usize) -> Result<Vec<Range>, Refusal> {
    // SAFETY: the caller guarantees this.
    let ranges = unsafe { array(pointer, count, "no ranges") }?;
    let range = |bp_scan_range { start, end, file, .. }: &bp_scan_range| Range {
        file: *file,
        start: *start,
        end: *end,
    };
    Ok(ranges.iter().map(range).collect())
}
