//! The ACL file: users with their rules, one on a line.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use crate::limits::ACL_BYTES_MAX;
use bedplate_kerneldb::{Error, Result};

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

/// Writes the file in the place of the one before, with the same owner and permissions. It is on disk when the function returns. After a crash or an
/// error, it is the old one or the new one.
pub(super) fn write(path: &Path, text: &[u8]) -> Result<()> {
    let failed = |error| Error::io(format!("cannot write the ACL file {}", path.display()), error);
    // Behind a symbolic link, the file itself is replaced.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    };
    let mut partial = path.clone().into_os_string();
    partial.push(".partial");
    let replace = || {
        let present = fs::metadata(&path).ok();
        let mode = present.as_ref().map_or(MODE, |present| present.permissions().mode() & 0o777);
        match fs::remove_file(&partial) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(&partial)?;
        file.write_all(text)?;
        if let Some(present) = &present {
            // A process without privileges may not give files away, and only to its own groups.
            for (user, group) in [(Some(present.uid()), None), (None, Some(present.gid()))] {
                match fchown(&file, user, group) {
                    Err(error) if error.kind() != io::ErrorKind::PermissionDenied => return Err(error),
                    _ => {}
                }
            }
        }
        file.set_permissions(Permissions::from_mode(mode))?;
        file.sync_all()?;
        fs::rename(&partial, &path)?;
        File::open(&folder)?.sync_all()
    };
    replace().inspect_err(|_| drop(fs::remove_file(&partial))).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_with_its_owner_and_permissions() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users.acl");
        assert!(read(&path).unwrap_err().to_string().contains("users.acl"));
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        write(&path, b"one").unwrap();
        assert_eq!((read(&path).unwrap(), mode()), (b"one".to_vec(), 0o600));
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        fs::write(folder.path().join("users.acl.partial"), "rest of a write that a crash has ended").unwrap();
        write(&path, b"two").unwrap();
        assert_eq!((read(&path).unwrap(), mode()), (b"two".to_vec(), 0o640));
        // Only root may give files away; another user keeps the file.
        let owner = || {
            let present = fs::metadata(&path).unwrap();
            (present.uid(), present.gid())
        };
        let given = std::os::unix::fs::chown(&path, Some(1), Some(2));
        let before = owner();
        assert_eq!(given.is_ok(), before == (1, 2));
        write(&path, b"two").unwrap();
        assert_eq!((owner(), mode()), (before, 0o640));
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        write(&link, b"three").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(read(&path).unwrap(), b"three");
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
