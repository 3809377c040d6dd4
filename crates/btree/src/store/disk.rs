//! The files of a log: numbered segments in a directory.
//!
//! A segment appears in the directory complete and durable, with its initial bytes, or not at all. Afterwards it is only appended
//! to. Tests use a disk in memory instead, which loses power.
//!
//! Space for future appends is reserved behind the end of the file. So the size of the file does not change, and a reader sees
//! the appended bytes only. A crash keeps the reservation.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, retry_on_intr};

/// The place of the segments.
pub(crate) trait Disk: Send + Sync {
    /// The numbers of all segments, in ascending order.
    fn list(&self) -> io::Result<Vec<u64>>;
    /// The content of a segment.
    fn read(&self, number: u64) -> io::Result<Vec<u8>>;
    /// Creates a segment, or replaces it, atomically and durably. It has space for `reserve` bytes in total. If there is not
    /// enough space, it creates no segment.
    fn create(&self, number: u64, content: &[u8], reserve: u64) -> io::Result<Box<dyn Segment>>;
    /// Opens a segment to append to it. `content` is the result of [`Disk::read`], or the beginning of it: the bytes behind it
    /// are removed, and it is durable afterwards. This needs no space that the segment does not have.
    fn reopen(&self, number: u64, content: &[u8]) -> io::Result<Box<dyn Segment>>;
    /// Removes a segment durably.
    fn remove(&self, number: u64) -> io::Result<()>;
}

/// The segment that is appended to.
pub(crate) trait Segment: Send {
    /// Reserves space for `bytes` in total, so that appends up to there do not fail for lack of space, if the file system can
    /// promise that. An error may leave a part of the space reserved.
    fn reserve(&mut self, bytes: u64) -> io::Result<()>;
    /// Releases the space that was reserved and not used.
    fn trim(&mut self) -> io::Result<()>;
    /// Appends bytes.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Returns when the appended bytes are durable.
    fn sync(&mut self) -> io::Result<()>;
}

/// A directory of the file system.
pub(crate) struct Directory(pub PathBuf);

fn name_of(number: u64) -> String {
    format!("log.{number:08}")
}

impl Directory {
    fn path(&self, number: u64) -> PathBuf {
        self.0.join(name_of(number))
    }
}

/// Whether an error says that there is no space, so that the operation may succeed later.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// Makes the names in a directory durable.
pub(crate) fn sync_names(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// The directory that has the name of a file or a directory.
pub(crate) fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Creates a directory and those above it, and makes the name of each new one durable.
pub(crate) fn create_directory(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    create_directory(parent(path))?;
    match std::fs::create_dir(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists || !path.is_dir() => return Err(error),
        _ => {}
    }
    sync_names(parent(path))
}

impl Disk for Directory {
    fn list(&self) -> io::Result<Vec<u64>> {
        let mut numbers = Vec::new();
        for entry in self.0.read_dir()? {
            let name = entry?.file_name();
            let number: Option<u64> = name.to_str().and_then(|name| name.strip_prefix("log.")?.parse().ok());
            // Other files, such as `log.1`, do not belong to the store.
            numbers.extend(number.filter(|number| name.to_str() == Some(&*name_of(*number))));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn read(&self, number: u64) -> io::Result<Vec<u8>> {
        std::fs::read(self.path(number))
    }

    fn create(&self, number: u64, content: &[u8], reserve: u64) -> io::Result<Box<dyn Segment>> {
        let new = self.0.join("log.new");
        let write = || -> io::Result<File> {
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&new)?;
            file.reserve(reserve)?;
            file.write_all(content)?;
            file.sync_all()?;
            Ok(file)
        };
        let file = write().inspect_err(|_| {
            // The file may be the reason for a full disk. If it stays, the next segment replaces it.
            let _ = std::fs::remove_file(&new);
        })?;
        std::fs::rename(&new, self.path(number))?;
        // The segment exists now, so the log must not continue in the previous one, as it does on a full disk.
        sync_names(&self.0).map_err(|error| if is_full(&error) { io::Error::other(error) } else { error })?;
        Ok(Box::new(file))
    }

    /// Writes the same bytes again in their places. After a failed fsync, the page cache may have bytes that are not on the
    /// disk and that the kernel considers clean. The write makes these dirty again. The durable bytes do not change, so a crash
    /// in between does no harm, and the file takes no more space than before.
    fn reopen(&self, number: u64, content: &[u8]) -> io::Result<Box<dyn Segment>> {
        let mut file = OpenOptions::new().write(true).open(self.path(number))?;
        file.write_all(content)?;
        if file.metadata()?.len() > content.len() as u64 {
            file.set_len(content.len() as u64)?;
        }
        file.sync_all()?;
        file.seek(SeekFrom::Start(content.len() as u64))?;
        Ok(Box::new(file))
    }

    fn remove(&self, number: u64) -> io::Result<()> {
        match std::fs::remove_file(self.path(number)) {
            // An earlier removal may have failed after it had removed the name.
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        sync_names(&self.0)
    }
}

impl Segment for File {
    fn reserve(&mut self, bytes: u64) -> io::Result<()> {
        // A file system in memory returns early when a signal arrives.
        match retry_on_intr(|| fallocate(&*self, FallocateFlags::KEEP_SIZE, 0, bytes)) {
            // This file system cannot reserve space.
            Err(Errno::OPNOTSUPP) => Ok(()),
            done => Ok(done?),
        }
    }

    fn trim(&mut self) -> io::Result<()> {
        // Truncating a file to its own size frees the blocks behind its end.
        self.set_len(self.metadata()?.len())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_whose_name_is_gone_counts_as_removed() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Directory(folder.path().to_owned());
        drop(disk.create(3, b"segment", 100).unwrap());
        disk.remove(3).unwrap();
        // The state is as after a removal whose fsync of the directory failed.
        disk.remove(3).unwrap();
        assert!(disk.list().unwrap().is_empty());
    }

    #[test]
    fn only_names_that_segments_have_are_segments() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Directory(folder.path().to_owned());
        drop(disk.create(7, b"segment", 100).unwrap());
        drop(disk.create(123_456_789, b"segment", 100).unwrap());
        for name in ["log.8", "log.+00000009", "log.000000010", "log.new", "log.00000011.bak"] {
            std::fs::write(folder.path().join(name), "notes").unwrap();
        }
        assert_eq!(disk.list().unwrap(), [7, 123_456_789]);
    }
}
