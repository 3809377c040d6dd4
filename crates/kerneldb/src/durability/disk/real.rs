//! [`Dir`] and [`DiskFile`] of the operating system.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};

use super::{Dir, DiskFile};

/// A directory that exists.
pub(crate) struct RealDir {
    path: PathBuf,
    /// The handle is kept open so that `sync` is possible when descriptors have run out.
    handle: File,
}

impl RealDir {
    /// Opens `path`, creating it (durably) if it is missing; the parent must exist.
    pub(crate) fn open_or_create(path: &Path) -> io::Result<RealDir> {
        match std::fs::create_dir(path) {
            Ok(()) => {
                if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
                    File::open(parent)?.sync_all()?;
                }
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
        Self::open_existing(path)
    }

    /// Opens `path`.
    pub(crate) fn open_existing(path: &Path) -> io::Result<RealDir> {
        if !std::fs::metadata(path)?.is_dir() {
            return Err(io::Error::from(io::ErrorKind::NotADirectory));
        }
        Ok(RealDir { path: path.to_path_buf(), handle: File::open(path)? })
    }
}

impl Dir for RealDir {
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(self.path.join(name))?;
        Ok(Box::new(RealFile(file)))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).open(self.path.join(name))?;
        Ok(Box::new(RealFile(file)))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            // Files whose names are not UTF-8 are not ours.
            if let Ok(name) = entry.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path.join(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.path.join(from), self.path.join(to))
    }

    fn sync(&self) -> io::Result<()> {
        self.handle.sync_all()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

/// A regular file.
pub(crate) struct RealFile(pub(crate) File);

impl DiskFile for RealFile {
    fn write_at(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }

    fn read_at(&self, mut offset: u64, mut buf: &mut [u8]) -> io::Result<usize> {
        let wanted = buf.len();
        while !buf.is_empty() {
            match self.0.read_at(buf, offset) {
                Ok(0) => break,
                Ok(n) => {
                    offset += n as u64;
                    buf = &mut buf[n..];
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(wanted - buf.len())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn allocate(&mut self, offset: u64, len: u64) -> io::Result<()> {
        Ok(fallocate(&self.0, FallocateFlags::empty(), offset, len)?)
    }

    fn sync(&mut self) -> io::Result<()> {
        // fdatasync writes size and extents, too; it leaves out only times.
        self.0.sync_data()
    }
}
