//! The place where a new store is made. It has no store until the new one is complete and durable.
//!
//! In the file system, the store is made in the directory `NAME.partial` beside `NAME`. It has the file `incomplete` from the
//! beginning, and [`Builder::open`](super::Builder::open) refuses a directory that has it. When everything is durable, the file
//! is removed, and the directory gets its name. A crash at any point leaves no directory `NAME`, or a complete store in it. The
//! next attempt removes the files that an interrupted one has left.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bedplate_bufpool::storage::Storage;

use super::builder::{INCOMPLETE, PAGES, lock};
use super::disk::{Directory, Disk, create_directory, parent, sync_names};
use super::error::{Error, Result};

/// The place of new pages. Tests use devices that lose power instead.
pub(crate) trait Site {
    /// The storage of the pages, which are empty.
    fn pages(&mut self) -> Result<Box<dyn Storage>>;
    /// Publishes the pages, and a new log, as those of the store. They are durable, and the change is durable too.
    fn publish(&mut self) -> Result<()>;
}

/// The place of a new store.
pub(crate) trait StoreSite: Site {
    /// The disk of the log, which is empty.
    fn log(&self) -> Arc<dyn Disk>;
}

/// A directory that appears when it is complete.
pub(crate) struct NewDirectory {
    target: PathBuf,
    partial: PathBuf,
    is_published: bool,
    /// Prevents others from making the same store.
    _lock: File,
}

/// The directory that a path leads to, if it exists, and the path otherwise. `.` and symbolic links are resolved to the name that
/// will be replaced. A mount point is refused: it cannot be replaced, and a directory beside it is in another file system.
fn resolve(target: &Path) -> io::Result<PathBuf> {
    let found = match target.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(target.to_owned()),
        found => found?,
    };
    if found.metadata()?.dev() != parent(&found).metadata()?.dev() {
        return Err(io::Error::other("it is a mount point: choose a directory in it"));
    }
    Ok(found)
}

/// Removes the directory of an interrupted attempt. A directory that has other files stays.
fn remove_remains(partial: &Path) -> io::Result<()> {
    for entry in partial.read_dir()? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        if !([PAGES, "lock", INCOMPLETE].contains(&&*name) || name.starts_with("log.")) {
            let what = format!("{} has other files than those of a store", partial.display());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
        }
    }
    std::fs::remove_dir_all(partial)
}

impl NewDirectory {
    /// Begins to make a store in a directory that does not exist or is empty.
    pub fn begin(target: &Path) -> Result<Self> {
        let failed = |what| Error::directory(target, what);
        let target = &resolve(target).map_err(failed("find the directory"))?;
        match target.read_dir().map(|mut entries| entries.next().is_none()) {
            Ok(true) => {}
            Ok(false) => return Err(Error::NotEmpty(target.to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("read the directory")(error)),
        }
        let name = target.file_name().ok_or_else(|| Error::NotEmpty(target.to_owned()))?;
        let mut partial_name = name.to_owned();
        partial_name.push(".partial");
        let partial = target.with_file_name(partial_name);
        let parent = parent(target);
        create_directory(parent).map_err(failed("create the directory above it"))?;
        if partial.exists() {
            drop(lock(&partial)?);
            remove_remains(&partial).map_err(failed("remove an interrupted attempt"))?;
        }
        std::fs::create_dir(&partial).map_err(failed("create a directory beside it"))?;
        let marked = File::create(partial.join(INCOMPLETE)).and_then(|mark| {
            mark.sync_all()?;
            sync_names(&partial)?;
            sync_names(parent)
        });
        let lock = marked.map_err(failed("mark it as incomplete")).and_then(|()| lock(&partial));
        let lock = lock.inspect_err(|_| _ = std::fs::remove_dir_all(&partial))?;
        Ok(Self { target: target.to_owned(), partial, is_published: false, _lock: lock })
    }
}

impl Site for NewDirectory {
    fn pages(&mut self) -> Result<Box<dyn Storage>> {
        let file = bedplate_bufpool::storage::File::open(&self.partial.join(PAGES), true);
        Ok(Box::new(file.map_err(Error::directory(&self.target, "create its pages"))?))
    }

    fn publish(&mut self) -> Result<()> {
        let publish = || {
            sync_names(&self.partial)?;
            std::fs::remove_file(self.partial.join(INCOMPLETE))?;
            sync_names(&self.partial)?;
            std::fs::rename(&self.partial, &self.target)?;
            sync_names(parent(&self.target))
        };
        publish().map_err(Error::directory(&self.target, "give it its name"))?;
        self.is_published = true;
        Ok(())
    }
}

impl StoreSite for NewDirectory {
    fn log(&self) -> Arc<dyn Disk> {
        Arc::new(Directory(self.partial.clone()))
    }
}

impl Drop for NewDirectory {
    fn drop(&mut self) {
        if !self.is_published {
            // A directory that cannot be removed now is refused as incomplete. The next attempt removes it.
            let _ = std::fs::remove_dir_all(&self.partial);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;

    #[test]
    fn an_interrupted_attempt_is_refused_and_the_next_one_replaces_it() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("new");
        let partial = folder.path().join("new.partial");
        let mut site = NewDirectory::begin(&target).unwrap();
        assert!(matches!(NewDirectory::begin(&target), Err(Error::InUse(_))));
        assert!(matches!(Store::builder(&partial).open(), Err(Error::InUse(_))));
        drop(site.pages().unwrap());
        // The process dies before it removes the directory.
        site.is_published = true;
        drop(site);
        assert!(matches!(Store::builder(&partial).open(), Err(Error::Incomplete(_))));
        assert!(matches!(Store::verify(&partial, &mut |_| {}), Err(Error::Incomplete(_))));
        let mut site = NewDirectory::begin(&target).unwrap();
        assert!(!target.exists());
        site.publish().unwrap();
        drop(site);
        assert!(target.exists() && !partial.exists());
        assert!(matches!(NewDirectory::begin(&target), Err(Error::NotEmpty(_))));
    }

    #[test]
    fn an_error_leaves_nothing_and_files_of_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("above").join("new");
        drop(NewDirectory::begin(&target).unwrap());
        assert_eq!(folder.path().join("above").read_dir().unwrap().count(), 0);
        let partial = target.with_file_name("new.partial");
        std::fs::create_dir(&partial).unwrap();
        std::fs::write(partial.join("letter"), "to my sister").unwrap();
        assert!(NewDirectory::begin(&target).is_err());
        assert!(partial.join("letter").exists());
    }

    #[test]
    fn a_link_to_an_empty_directory_is_that_directory() {
        let folder = tempfile::tempdir().unwrap();
        let (target, link) = (folder.path().join("disk").join("new"), folder.path().join("link"));
        std::fs::create_dir_all(&target).unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let mut site = NewDirectory::begin(&link).unwrap();
        assert!(target.with_file_name("new.partial").exists(), "it is made beside the directory");
        drop(site.pages().unwrap());
        site.publish().unwrap();
        assert!(target.join(PAGES).exists() && link.join(PAGES).exists());
    }
}
