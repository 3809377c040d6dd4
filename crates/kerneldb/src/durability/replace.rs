//! Replacement of a small file.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;

/// Permissions of a file before its contents and its owner are complete.
const PARTIAL_MODE: u32 = 0o600;

/// Writes a file whose contents are `parts`, in the place of one of the same name in `folder`. It is on disk when the function returns.
/// After a crash, the file is the old one or the new one. A file NAME.partial may be left, which the next call replaces.
///
/// The permissions of the old file stay, and so do its owner and group as far as this process may set them. A file that is made anew has
/// the permissions `mode`.
///
/// # Errors
/// Those of the file system. After an error, the file is the old one or the new one, too.
pub fn replace_file(folder: &Path, name: &str, parts: &[&[u8]], mode: u32) -> io::Result<()> {
    let (path, partial) = (folder.join(name), folder.join(format!("{name}.partial")));
    let write = || {
        let present = fs::metadata(&path).ok();
        ignore(ErrorKind::NotFound, fs::remove_file(&partial))?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(PARTIAL_MODE).open(&partial)?;
        parts.iter().try_for_each(|part| file.write_all(part))?;
        if let Some(present) = &present {
            // A process without privileges may not give files away, and only to its own groups.
            ignore(ErrorKind::PermissionDenied, fchown(&file, Some(present.uid()), None))?;
            ignore(ErrorKind::PermissionDenied, fchown(&file, None, Some(present.gid())))?;
        }
        let mode = present.map_or(mode, |present| present.permissions().mode() & 0o777);
        file.set_permissions(Permissions::from_mode(mode))?;
        file.sync_all()?;
        fs::rename(&partial, &path)?;
        File::open(folder)?.sync_all()
    };
    write().inspect_err(|_| drop(fs::remove_file(&partial)))
}

fn ignore(kind: ErrorKind, result: io::Result<()>) -> io::Result<()> {
    if result.as_ref().is_err_and(|error| error.kind() == kind) { Ok(()) } else { result }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_or_stays() {
        let folder = tempfile::tempdir().unwrap();
        let names = || fs::read_dir(folder.path()).unwrap().count();
        fs::write(folder.path().join("a.partial"), "rest of a write that a crash has ended").unwrap();
        for parts in [&[&b"one"[..], b" two"][..], &[b"three"]] {
            replace_file(folder.path(), "a", parts, 0o644).unwrap();
            assert_eq!((fs::read(folder.path().join("a")).unwrap(), names()), (parts.concat(), 1));
        }
        // No file can take the place of a folder.
        fs::create_dir(folder.path().join("b")).unwrap();
        assert!(replace_file(folder.path(), "b", &[b"x"], 0o644).is_err());
        assert!(folder.path().join("b").is_dir());
        assert_eq!(names(), 2);
    }

    #[test]
    fn a_file_keeps_its_owner_and_permissions() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let seen = || {
            let present = fs::metadata(&path).unwrap();
            (present.permissions().mode() & 0o777, present.uid(), present.gid())
        };
        replace_file(folder.path(), "a", &[b"one"], 0o600).unwrap();
        assert_eq!(seen().0, 0o600);
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        // Only root may give files away; another user keeps the file.
        let given = std::os::unix::fs::chown(&path, Some(1), Some(2));
        let before = seen();
        assert_eq!(given.is_ok(), before == (0o640, 1, 2));
        replace_file(folder.path(), "a", &[b"two"], 0o600).unwrap();
        assert_eq!((seen(), fs::read(&path).unwrap()), (before, b"two".to_vec()));
    }
}
