//! An archive in the kernel's format (cpio "newc"). Every folder precedes its contents.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use cpio::newc::{Builder, ModeFileType, trailer};

use crate::{Error, Result};

pub(super) struct Archive {
    out: BufWriter<File>,
    path: PathBuf,
    /// The names of all entries, so that no entry is added twice.
    names: HashSet<PathBuf>,
    inode: u32,
}

impl Archive {
    pub(super) fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).map_err(Error::io(format!("create {}", path.display())))?;
        Ok(Archive {
            out: BufWriter::with_capacity(1 << 20, file),
            path: path.into(),
            names: HashSet::new(),
            inode: 0,
        })
    }

    /// Copies a file of the host. Symbolic links are followed.
    pub(super) fn add_file(&mut self, host: &Path, guest: &Path) -> Result<()> {
        let add = |archive: &mut Self| {
            let mut file = File::open(host)?;
            let meta = file.metadata()?;
            let size = u32::try_from(meta.len()).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
            let mode = meta.permissions().mode() & 0o7777;
            archive.add(guest, ModeFileType::Regular, mode, (0, 0), size, &mut file)
        };
        add(self).map_err(Error::io(format!("add {} to {}", host.display(), self.path.display())))
    }

    pub(super) fn add_bytes(&mut self, guest: &str, bytes: &[u8], mode: u32) -> Result<()> {
        let size = bytes.len() as u32;
        self.add(Path::new(guest), ModeFileType::Regular, mode, (0, 0), size, &mut &bytes[..])
            .map_err(self.failed())
    }

    pub(super) fn add_link(&mut self, guest: &str, target: &str) -> Result<()> {
        let size = target.len() as u32;
        let mut bytes = target.as_bytes();
        self.add(Path::new(guest), ModeFileType::Symlink, 0o777, (0, 0), size, &mut bytes)
            .map_err(self.failed())
    }

    /// Adds a character device.
    pub(super) fn add_node(&mut self, guest: &str, major: u32, minor: u32) -> Result<()> {
        let node = (major, minor);
        self.add(Path::new(guest), ModeFileType::Char, 0o600, node, 0, &mut io::empty())
            .map_err(self.failed())
    }

    fn failed(&self) -> impl FnOnce(io::Error) -> Error + use<> {
        Error::io(format!("write {}", self.path.display()))
    }

    fn add(
        &mut self,
        guest: &Path,
        kind: ModeFileType,
        mode: u32,
        (major, minor): (u32, u32),
        size: u32,
        bytes: &mut dyn io::Read,
    ) -> io::Result<()> {
        if !self.names.insert(guest.into()) {
            return Ok(());
        }
        if let Some(folder) = guest.parent().filter(|f| f.parent().is_some()) {
            self.add(folder, ModeFileType::Directory, 0o755, (0, 0), 0, &mut io::empty())?;
        }
        self.inode += 1;
        let name = guest.to_string_lossy();
        let mut entry = Builder::new(name.trim_start_matches('/'))
            .ino(self.inode)
            .nlink(1)
            .rdev_major(major)
            .rdev_minor(minor)
            .mode(mode)
            .set_mode_file_type(kind)
            .write(&mut self.out, size);
        let copied = io::copy(bytes, &mut entry)?;
        if copied != u64::from(size) {
            return Err(io::Error::other("a file changed its size meanwhile"));
        }
        entry.finish().map(drop)
    }

    pub(super) fn finish(mut self) -> Result<()> {
        let failed = self.failed();
        let mut finish = || {
            trailer(&mut self.out)?;
            self.out.flush()
        };
        finish().map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_come_first_and_nothing_twice() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("archive");
        let mut archive = Archive::create(&path).unwrap();
        archive.add_bytes("/a/b/c", b"1234567", 0o644).unwrap();
        archive.add_bytes("/a/b/d", b"", 0o755).unwrap();
        archive.add_bytes("/a/b/c", b"again", 0o644).unwrap();
        archive.add_link("/a/e", "b/c").unwrap();
        archive.finish().unwrap();
        let mut rest: Box<dyn io::Read> = Box::new(File::open(&path).unwrap());
        let mut seen = Vec::new();
        loop {
            let mut reader = cpio::newc::Reader::new(rest).unwrap();
            if reader.entry().is_trailer() {
                break;
            }
            let mut bytes = Vec::new();
            io::Read::read_to_end(&mut reader, &mut bytes).unwrap();
            seen.push((reader.entry().name().to_owned(), bytes));
            rest = reader.finish().unwrap();
        }
        let names: Vec<&str> = seen.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a", "a/b", "a/b/c", "a/b/d", "a/e"]);
        assert_eq!(seen[2].1, b"1234567");
        assert_eq!(seen[4].1, b"b/c");
    }
}
