//! The file of the libraries of functions in a data directory, `functions`: a line with the number of its format, and the bytes of
//! FUNCTION DUMP, which end with a checksum.

use std::fs;
use std::io;
use std::path::Path;

use bedplate_kerneldb::{Error, Result, replace_file};

const NAME: &str = "functions";

/// The first line.
const HEAD: &[u8] = b"bedplate functions 1\n";

/// Writes the libraries in the place of those before. After an error the next start may find the old ones or the new ones.
pub(super) fn write(data: &Path, payload: &[u8]) -> Result<()> {
    let failed = |error| Error::io(format!("cannot write {}", data.join(NAME).display()), error);
    replace_file(data, NAME, &[HEAD, payload], 0o644).map_err(failed)
}

/// The bytes of the libraries; `None` if there is no file.
pub(super) fn read(data: &Path) -> Result<Option<Vec<u8>>> {
    let path = data.join(NAME);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(format!("cannot read {}", path.display()), error)),
    };
    match text.strip_prefix(HEAD) {
        Some(payload) => Ok(Some(payload.to_vec())),
        None => Err(damaged(data, "it begins with another line")),
    }
}

/// The error of a file that cannot be used.
pub(super) fn damaged(data: &Path, reason: &str) -> Error {
    let path = data.join(NAME);
    Error::Corrupt(format!(
        "{} cannot be loaded: {reason}; without it, there are no functions",
        path.display()
    ))
}
