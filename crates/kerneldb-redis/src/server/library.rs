//! Files with procedures.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use bedplate_kerneldb::limits::LIBRARY_BYTES_MAX;
use bedplate_kerneldb::{Error, Result};

/// Reads an object; returns the name of its library, which is the file's name up to the first dot, and its content. A longer file than
/// [`LIBRARY_BYTES_MAX`] is cut off one byte past it, and refused when it is loaded.
pub fn read(file: &Path) -> Result<(String, Vec<u8>)> {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let library = name.split('.').next().unwrap_or_default().to_owned();
    let mut elf = Vec::new();
    File::open(file)
        .and_then(|opened| opened.take(LIBRARY_BYTES_MAX as u64 + 1).read_to_end(&mut elf))
        .map_err(|error| Error::io(format!("cannot read {}", file.display()), error))?;
    Ok((library, elf))
}
