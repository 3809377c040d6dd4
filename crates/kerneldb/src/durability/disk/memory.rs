//! [`Dir`] in memory: for an image of a database that has no data directory. The files have no names in the file system, and their memory
//! is free when the last of the directory and the open files is dropped.
//!
//! There is one lock, held for a change of the table of names.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{MemfdFlags, memfd_create};

use super::real::RealFile;
use super::{Dir, DiskFile};

/// A directory that this process alone has.
#[derive(Default)]
pub(crate) struct MemoryDir(Mutex<BTreeMap<String, File>>);

impl MemoryDir {
    fn files(&self) -> MutexGuard<'_, BTreeMap<String, File>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a file that exists; returns it.
    pub(crate) fn add(&self, name: &str, file: File) -> io::Result<Box<dyn DiskFile>> {
        let open = opened(&file)?;
        self.files().insert(name.into(), file);
        Ok(open)
    }

    /// A further descriptor of a file.
    pub(crate) fn file(&self, name: &str) -> io::Result<File> {
        self.files().get(name).ok_or(io::ErrorKind::NotFound)?.try_clone()
    }
}

fn opened(file: &File) -> io::Result<Box<dyn DiskFile>> {
    Ok(Box::new(RealFile(file.try_clone()?)))
}

impl Dir for MemoryDir {
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut files = self.files();
        if files.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let file = File::from(memfd_create("bedplate-kerneldb", MemfdFlags::CLOEXEC)?);
        let open = opened(&file)?;
        files.insert(name.into(), file);
        Ok(open)
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        opened(self.files().get(name).ok_or(io::ErrorKind::NotFound)?)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.files().keys().cloned().collect())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.files().remove(name).map(drop).ok_or(io::ErrorKind::NotFound.into())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut files = self.files();
        let file = files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        files.insert(to.into(), file);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from("memory").join(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_names_and_contents() {
        let dir = MemoryDir::default();
        let mut file = dir.create("a").unwrap();
        assert_eq!(dir.create("a").err().unwrap().kind(), io::ErrorKind::AlreadyExists);
        file.write_at(3, b"xyz").unwrap();
        dir.create("b").unwrap().write_at(0, b"gone").unwrap();
        dir.rename("a", "b").unwrap();
        assert_eq!(dir.list().unwrap(), ["b"]);
        let mut read = [0; 8];
        assert_eq!(dir.open("b").unwrap().read_at(0, &mut read).unwrap(), 6);
        assert_eq!(&read[..6], b"\0\0\0xyz");
        dir.remove("b").unwrap();
        for missing in [dir.open("b").err(), dir.remove("b").err(), dir.rename("b", "c").err()] {
            assert_eq!(missing.unwrap().kind(), io::ErrorKind::NotFound);
        }
        // An open file is there until it is closed.
        assert_eq!(file.len().unwrap(), 6);
    }
}
