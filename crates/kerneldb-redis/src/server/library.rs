//! Files with procedures.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use bedplate_kerneldb::limits::LIBRARY_BYTES_MAX;
use bedplate_kerneldb::{Error, Result};

/// Reads an object; returns the name of its library, which is the file's name up to the first dot, and its content. A longer file than
/// [`LIBRARY_BYTES_MAX`] is cut off one byte past it, and refused when it is loaded.
pub fn read(file: &Path) -> Result<(String, Vec<u8>)> {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let library = name.split('.').next().unwrap_or_default().to_owned();
    let mut elf = Vec::new();
    // A pipe would block the thread until somebody writes to it.
    let open = || -> io::Result<File> {
        let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(file)?;
        match opened.metadata()?.is_file() {
            true => Ok(opened),
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")),
        }
    };
    open()
        .and_then(|opened| opened.take(LIBRARY_BYTES_MAX as u64 + 1).read_to_end(&mut elf))
        .map_err(|error| Error::io(format!("cannot read {}", file.display()), error))?;
    Ok((library, elf))
}
