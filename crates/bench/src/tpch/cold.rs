//! Files that are in no cache, and the bytes that a device reads.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use bedplate_scan::resident_bytes;
use rustix::fs::{Advice, fadvise, major, minor};

use crate::{Error, Result};

/// Drops the files below a folder from the page cache, and makes sure that it has nothing of them. The server must not
/// run.
pub fn forget(folder: &Path) -> Result<()> {
    let mut left = 0;
    each_file(folder, &mut |file| {
        left += forget_file(file)?;
        Ok(())
    })
    .map_err(Error::io("empty the page cache"))?;
    match left {
        0 => Ok(()),
        _ => Err(Error::engine(format!("{left} bytes of {} stay in the page cache", folder.display()))),
    }
}

/// Drops a file from the page cache. Returns the number of its bytes that stay there.
pub fn forget_file(file: &File) -> io::Result<u64> {
    file.sync_all()?;
    fadvise(file, 0, None, Advice::DontNeed)?;
    resident_bytes(file, 0..file.metadata()?.len()).map_err(io::Error::other)
}

/// The bytes of all files below a folder.
pub fn bytes(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    each_file(folder, &mut |file| {
        bytes += file.metadata()?.len();
        Ok(())
    })
    .map_err(Error::io("find the size of files"))?;
    Ok(bytes)
}

/// Reads all files below a folder, so that the page cache has as much of them as it has room for.
pub fn warm(folder: &Path) -> Result<()> {
    each_file(folder, &mut |file| io::copy(&mut { file }, &mut io::sink()).map(drop))
        .map_err(Error::io("fill the page cache"))
}

/// Calls a function with every file below a folder.
fn each_file(folder: &Path, visit: &mut impl FnMut(&File) -> io::Result<()>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        match entry.file_type()? {
            kind if kind.is_dir() => each_file(&entry.path(), visit)?,
            kind if kind.is_file() => visit(&File::open(entry.path())?)?,
            _ => {}
        }
    }
    Ok(())
}

/// The bytes that the device of a folder has read so far, for all processes. `None` if the file system is not on a single
/// device.
pub fn device_bytes(folder: &Path) -> Option<u64> {
    let device = fs::metadata(folder).ok()?.dev();
    let path = format!("/sys/dev/block/{}:{}/stat", major(device), minor(device));
    sectors(&fs::read_to_string(path).ok()?).map(|sectors| sectors * 512)
}

/// The third field of a device's statistics: sectors of 512 bytes that were read.
fn sectors(text: &str) -> Option<u64> {
    text.split_whitespace().nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_are_the_third_field() {
        assert_eq!(sectors("  100 5 4096 7 0 0 0 0"), Some(4096));
        assert_eq!(sectors(""), None);
    }

    #[test]
    fn a_folder_is_forgotten_and_warmed() {
        let folder = tempfile::tempdir_in(".").unwrap();
        fs::create_dir(folder.path().join("inner")).unwrap();
        let path = folder.path().join("inner/file");
        fs::write(&path, vec![7; 1 << 20]).unwrap();
        let resident = || resident_bytes(&File::open(&path).unwrap(), 0..1 << 20).unwrap();
        forget(folder.path()).unwrap();
        assert_eq!(resident(), 0);
        assert_eq!(bytes(folder.path()).unwrap(), 1 << 20);
        warm(folder.path()).unwrap();
        assert_eq!(resident(), 1 << 20);
    }
}
