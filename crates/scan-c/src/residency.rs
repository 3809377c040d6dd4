//! What of a file is in the page cache.

use std::ffi::c_int;
use std::fs::File;

use bedplate_scan::{Error, Source, resident_bytes};

use crate::code::bp_scan_code::*;
use crate::code::{Refusal, answer};
use crate::input::{bp_scan_source, null, opened};

/// How many bytes of a range of a file are in the page cache, in whole pages of 4 KiB but never more than the range has. What is
/// there is read faster through it than past it. Nothing is read. The kernel says it to who may write the file or owns it; to
/// others it is BP_SCAN_ERROR_SYSTEM, with EPERM.
///
/// # Safety
/// `source` is readable or NULL, with a name that is a C string or NULL, and `bytes` is writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_scan_resident_bytes(
    source: *const bp_scan_source,
    start: u64,
    end: u64,
    bytes: *mut u64,
) -> c_int {
    answer(|| {
        if source.is_null() || bytes.is_null() {
            return Err(null("no file, or no place for the answer"));
        }
        if start > end {
            let text = format!("a range from {start} to {end}");
            return Err(Refusal::new(BP_SCAN_ERROR_INVALID, text));
        }
        // SAFETY: as the caller promised.
        let file = match unsafe { opened(source.read_unaligned()) }? {
            Source::Path(path) => File::open(&path).map_err(|source| Error::File { path, source })?,
            Source::Descriptor(descriptor) => File::from(descriptor),
        };
        let resident = resident_bytes(&file, start..end)?;
        // SAFETY: as the caller promised.
        unsafe { bytes.write_unaligned(resident) };
        Ok(BP_SCAN_OK)
    })
}
