//! The part of a file that is in the page cache.

use std::ffi::c_int;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::PathBuf;

use bedplate_scan::{Error, Source, resident_bytes};

use crate::code::bp_scan_code::*;
use crate::code::{Refusal, answer};
use crate::input::{bp_scan_source, null, opened};

/// Counts the bytes of a range of a file that are in the page cache, in whole pages of 4 KiB, but never more than the range has.
/// A program reads these bytes faster through the page cache than past it. The call reads no data. The kernel only answers a
/// process that may write the file or owns it; to others the result is BP_SCAN_ERROR_SYSTEM, with EPERM. If the file is neither a
/// regular file nor a block device, the result is BP_SCAN_ERROR_FILE.
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
        // SAFETY: the caller guarantees this.
        let file = with_content(unsafe { opened(source.read_unaligned()) }?)?;
        let resident = resident_bytes(&file, start..end)?;
        // SAFETY: the caller guarantees this.
        unsafe { bytes.write_unaligned(resident) };
        Ok(BP_SCAN_OK)
    })
}

/// Opens a file that has pages in the page cache: a regular one, or a block device.
fn with_content(source: Source) -> Result<File, Error> {
    // Opening a FIFO must not block. The FIFO is refused below.
    let open =
        |path| OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path);
    let (file, path) = match source {
        Source::Path(path) => (open(&path), path),
        Source::Descriptor(descriptor) => {
            let path = PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_raw_fd()));
            (Ok(File::from(descriptor)), path)
        }
    };
    let checked = file.and_then(|file| {
        let kind = file.metadata()?.file_type();
        if kind.is_file() || kind.is_block_device() {
            return Ok(file);
        }
        let error = if kind.is_dir() { libc::EISDIR } else { libc::ESPIPE };
        Err(io::Error::from_raw_os_error(error))
    });
    checked.map_err(|source| Error::File { path, source })
}
