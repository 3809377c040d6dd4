//! The few file-system functions that the log and the checkpoints need, as two traits. Tests implement
//! them by a disk that fails and forgets (`faulty`); [`real`] is the operating system's, and [`memory`] is for data that is on no disk.
//!
//! An implementation promises for a crash what POSIX promises. Bytes of a file survive once
//! [`DiskFile::sync`] has returned `Ok` *for the first time since they were written*. A directory entry
//! (created, removed, renamed) survives once [`Dir::sync`] has returned `Ok`. After a failed sync the
//! unsynced bytes may be lost although a later sync succeeds. Callers therefore never repeat a sync:
//! they write the bytes again, into another file.

#[cfg(any(test, fuzzing, feature = "testing"))]
#[cfg_attr(not(test), allow(dead_code, reason = "fuzz targets and the feature `testing` use a part of it"))]
pub(crate) mod faulty;
pub(crate) mod memory;
pub(crate) mod real;

use std::io;

/// A directory of flat files.
pub(crate) trait Dir: Send + Sync {
    /// Creates a file; fails if it exists.
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    /// Opens an existing file for reading and writing.
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    /// Names of all files, in any order.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Renames a file, replacing `to`.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Makes the entries durable.
    fn sync(&self) -> io::Result<()>;
    /// For messages: the user's path of the directory, with `name` in it.
    fn path(&self, name: &str) -> std::path::PathBuf;
}

/// An open file. Methods take positions; there is no cursor.
pub(crate) trait DiskFile: Send {
    /// Writes all of `data` at `offset`.
    fn write_at(&mut self, offset: u64, data: &[u8]) -> io::Result<()>;
    /// Reads up to `buf.len()` bytes at `offset`; fewer only at the end of the file.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;
    /// Size in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Cuts the file to `len` bytes.
    fn truncate(&mut self, len: u64) -> io::Result<()>;
    /// Reserves space (zeros, the file grows); an optimization that may fail without consequence.
    fn allocate(&mut self, offset: u64, len: u64) -> io::Result<()>;
    /// Makes everything written so far durable.
    fn sync(&mut self) -> io::Result<()>;
}

/// Milliseconds since the Unix epoch; 0 if the clock is before it.
pub(crate) fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |d| d.as_millis() as u64)
}

/// Reads a file from its beginning to its end, as [`io::Read`].
pub(crate) struct Reader {
    file: Box<dyn DiskFile>,
    offset: u64,
}

impl Reader {
    pub(crate) fn new(file: Box<dyn DiskFile>) -> Self {
        Reader { file, offset: 0 }
    }
}

impl io::Read for Reader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read_at(self.offset, buf)?;
        self.offset += n as u64;
        Ok(n)
    }
}
