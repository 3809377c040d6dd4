//! An image of a database in memory, from which another database is filled: for stores without a data directory. Another process can have
//! it, too.

use std::fmt;
use std::fs::File;
use std::io::{BufReader, Result as IoResult};
use std::ops::ControlFlow;
use std::sync::Arc;

use super::checkpoint::files;
use super::checkpoint::format::Decoder;
use super::checkpoint::source::DatabaseSnapshot;
use super::datadir::DataDir;
use super::disk::Reader;
use super::disk::memory::MemoryDir;
use crate::{Database, Error, Result};

/// An image leaves one part in this many of the available memory free, because the kernel only estimates what is available.
const SPARE_SHARE: u64 = 16;

/// A copy of the data of a [`Store`](super::Store) in memory, as [`Store::image`](super::Store::image) makes it.
/// [`Store::open_image`](super::Store::open_image) makes a store with the same data.
pub struct Image {
    dir: Arc<MemoryDir>,
    /// Timestamp of the newest commit.
    ts: u64,
}

impl Image {
    /// Copies all commits so far.
    pub(super) fn of(database: &Database) -> Result<Image> {
        let dir = Arc::new(MemoryDir::default());
        let source = Box::new(DatabaseSnapshot::take(database)?);
        let id = data_dir(&dir).id;
        let info = files::write(&*dir, source, id, None, &mut |_| ControlFlow::Continue(()))?;
        files::publish(&*dir, info.ts, 1)?;
        Ok(Image { dir, ts: info.ts })
    }

    /// Timestamp of the newest commit in it.
    pub(super) fn ts(&self) -> u64 {
        self.ts
    }

    /// A data directory in memory, with one checkpoint that is the image.
    pub(super) fn data_dir(&self) -> DataDir {
        data_dir(&self.dir)
    }

    /// A file with the image, in the format of checkpoints. It has no name in a file system, and is free when it is closed. The
    /// descriptor is closed at an exec.
    pub fn to_file(&self) -> IoResult<File> {
        self.dir.file(&files::checkpoint_name(self.ts))
    }

    /// The image in such a file.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] if the file does not begin as a checkpoint does; [`Error::Io`].
    pub fn from_file(file: File) -> Result<Image> {
        let dir = Arc::new(MemoryDir::default());
        let failed = |e| Error::io("reading an image", e);
        let reader = dir.add("image", file).map_err(failed)?;
        let ts = Decoder::new(BufReader::new(Reader::new(reader)))?.header().ts;
        super::disk::Dir::rename(&*dir, "image", &files::checkpoint_name(ts)).map_err(failed)?;
        Ok(Image { dir, ts })
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image").field("ts", &self.ts).finish_non_exhaustive()
    }
}

fn data_dir(dir: &Arc<MemoryDir>) -> DataDir {
    DataDir::without_path(Arc::new(MemoryDir::default()), dir.clone())
}

/// Checks that the machine has memory for an image of this much data. The database stays in memory while the image is written, and the
/// image stays while another database is filled.
pub(super) fn check_memory(data_bytes: u64) -> Result<()> {
    // Without the kernel's estimate, there is nothing to compare with.
    available_memory().map_or(Ok(()), |available| check_available(data_bytes, available))
}

fn check_available(data_bytes: u64, available: u64) -> Result<()> {
    let room = available - available / SPARE_SHARE;
    if data_bytes > room {
        return Err(Error::Config(format!(
            "the data takes {data_bytes} bytes, and the machine has memory for {room} bytes more, but the change needs a copy"
        )));
    }
    Ok(())
}

/// Bytes of memory that programs can still get, as the kernel estimates it; `None` if it cannot be read.
pub fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_needs_memory() {
        assert!(check_available(15 << 20, 16 << 20).is_ok());
        let error = check_available((15 << 20) + 1, 16 << 20).unwrap_err().to_string();
        assert!(error.contains("15728641 bytes") && error.contains("15728640 bytes more"), "{error}");
        assert!(available_memory().is_some_and(|bytes| bytes > 1 << 20));
    }
}
