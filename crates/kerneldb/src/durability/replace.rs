//! Replacement of a small file.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Writes a file whose contents are `parts`, in the place of one of the same name in `folder`. It is on disk when the function returns.
/// After a crash, the file is the old one or the new one. A file NAME.partial may be left, which the next call replaces.
///
/// # Errors
/// Those of the file system. After an error, the file is the old one or the new one, too.
pub fn replace_file(folder: &Path, name: &str, parts: &[&[u8]]) -> io::Result<()> {
    let partial = folder.join(format!("{name}.partial"));
    let write = || {
        let mut file = File::create(&partial)?;
        parts.iter().try_for_each(|part| file.write_all(part))?;
        file.sync_all()?;
        fs::rename(&partial, folder.join(name))?;
        File::open(folder)?.sync_all()
    };
    write().inspect_err(|_| drop(fs::remove_file(&partial)))
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
            replace_file(folder.path(), "a", parts).unwrap();
            assert_eq!((fs::read(folder.path().join("a")).unwrap(), names()), (parts.concat(), 1));
        }
        // No file can take the place of a folder.
        fs::create_dir(folder.path().join("b")).unwrap();
        assert!(replace_file(folder.path(), "b", &[b"x"]).is_err());
        assert!(folder.path().join("b").is_dir());
        assert_eq!(names(), 2);
    }
}
