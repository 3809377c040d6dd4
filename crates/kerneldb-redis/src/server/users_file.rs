//! The ACL file: users with their rules, one on a line.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use crate::limits::ACL_BYTES_MAX;
use bedplate_kerneldb::{Error, Result, replace_file};

/// The permissions of a file that is made anew: it has hashes of passwords.
const MODE: u32 = 0o600;

/// Reads the file. A file with more than [`ACL_BYTES_MAX`] is an error.
pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    let failed = |error| Error::io(format!("cannot read the ACL file {}", path.display()), error);
    if !fs::metadata(path).map_err(failed)?.is_file() {
        return Err(failed(io::Error::other("it is not a regular file")));
    }
    let mut text = Vec::new();
    File::open(path)
        .and_then(|file| file.take(ACL_BYTES_MAX as u64 + 1).read_to_end(&mut text))
        .map_err(failed)?;
    if text.len() > ACL_BYTES_MAX {
        return Err(failed(io::Error::other(format!("it has more than {ACL_BYTES_MAX} bytes"))));
    }
    Ok(text)
}

/// Writes the file in the place of the one before. It is on disk when the function returns. After a crash or an error, it is the old one
/// or the new one.
pub(super) fn write(path: &Path, text: &[u8]) -> Result<()> {
    let failed = |error| Error::io(format!("cannot write the ACL file {}", path.display()), error);
    // Behind a symbolic link, the file itself is replaced.
    let path = match fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => std::path::absolute(path),
        found => found,
    };
    let path = path.map_err(failed)?;
    let name = path.file_name().and_then(|name| name.to_str());
    match (path.parent(), name) {
        (Some(folder), Some(name)) => replace_file(folder, name, &[text], MODE).map_err(failed),
        _ => Err(failed(io::Error::other("its name is not text in UTF-8"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_is_replaced_also_behind_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users.acl");
        assert!(read(&path).unwrap_err().to_string().contains("users.acl"));
        write(&path, b"one").unwrap();
        assert_eq!(read(&path).unwrap(), b"one");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        write(&link, b"two").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        assert!(write(folder.path(), b"x").is_err());
        assert!(read(folder.path()).is_err());
    }

    #[test]
    fn one_byte_past_the_limit_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users.acl");
        write(&path, &vec![b' '; ACL_BYTES_MAX]).unwrap();
        assert_eq!(read(&path).unwrap().len(), ACL_BYTES_MAX);
        write(&path, &vec![b' '; ACL_BYTES_MAX + 1]).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("more than 1048576 bytes"));
    }
}
