//! Which object stores are folders of this machine, and how a file of one is opened for the service.

use std::fs::{File, Metadata};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use bedplate_scan::{FileVersion, RangeReader, Service, resident_bytes};
use object_store::ObjectMeta;
use object_store::local::LocalFileSystem;

use crate::limits::RESIDENT_PART;

/// An object store whose objects are files below a folder.
#[derive(Debug)]
pub struct Root {
    /// How the URL of the store begins, as `file://`.
    pub url: String,
    store: LocalFileSystem,
}

impl Root {
    /// The whole file system, which DataFusion knows as `file://`.
    pub fn file_system() -> Self {
        Self { url: "file://".to_owned(), store: LocalFileSystem::new() }
    }

    /// A folder, as the store of a URL.
    ///
    /// # Errors
    /// It is no folder.
    pub fn folder(url: &str, folder: &Path) -> object_store::Result<Self> {
        let store = LocalFileSystem::new_with_prefix(folder)?;
        Ok(Self { url: url.trim_end_matches('/').to_owned(), store })
    }

    /// Whether this is the store of a URL.
    pub fn is_of(&self, url: &str) -> bool {
        url.trim_end_matches('/') == self.url.trim_end_matches('/')
    }

    /// Where a file is.
    pub fn path(&self, object: &ObjectMeta) -> Option<PathBuf> {
        self.store.path_to_filesystem(&object.location).ok()
    }
}

/// A file that is read by the service, in the version that a table listed.
#[derive(Debug)]
pub struct Opened {
    file: File,
    pub version: FileVersion,
    pub readers: Vec<RangeReader>,
}

impl Opened {
    /// Opens a file that a table listed, with so many readers or fewer. `None`: the default reader is to read it, because the
    /// service does not, or because it is in the page cache, or not the file that was listed. `samples` are ranges that are read soon.
    pub fn open(
        service: &Service,
        path: &Path,
        listed: &ObjectMeta,
        samples: &[Range<u64>],
        count: usize,
    ) -> Option<Self> {
        let file = File::open(path).ok()?;
        if is_resident(&file, samples) {
            return None;
        }
        let reader = service.reader_of(&file).ok()?;
        let version = *reader.version();
        // The version is older than this look at the file, so a file that is current later is what was listed.
        if !is_listed(&file.metadata().ok()?, listed) || version.size() != listed.size {
            return None;
        }
        let mut readers = vec![reader];
        while readers.len() < count {
            match service.reader_of(&file) {
                Ok(reader) if *reader.version() == version => readers.push(reader),
                // One is enough.
                _ => break,
            }
        }
        Some(Self { file, version, readers })
    }

    /// Whether the file is still what was listed: then whatever has arrived is, too.
    pub fn is_current(&self) -> bool {
        self.version.is_current(&self.file).unwrap_or(false)
    }
}

/// Whether enough of the ranges is in the page cache. A process that the kernel does not tell reads by the service.
fn is_resident(file: &File, samples: &[Range<u64>]) -> bool {
    let (mut resident, mut all) = (0, 0);
    for sample in samples {
        let Ok(bytes) = resident_bytes(file, sample.clone()) else { return false };
        resident += bytes;
        all += sample.end - sample.start;
    }
    all > 0 && resident as f64 >= all as f64 * RESIDENT_PART
}

/// Whether a file is the one that a table listed: its size, the time of its last change and, if the table knows it, its tag. A plan
/// that another process made has no tags.
fn is_listed(file: &Metadata, listed: &ObjectMeta) -> bool {
    let Ok(modified) = file.modified() else { return false };
    let since = modified.duration_since(UNIX_EPOCH).unwrap_or_default();
    let times = (listed.last_modified.timestamp(), listed.last_modified.timestamp_subsec_nanos());
    if file.len() != listed.size || times != (since.as_secs() as i64, since.subsec_nanos()) {
        return false;
    }
    // As LocalFileSystem makes tags. A tag of another store is never equal, and then its own reader reads.
    let tag = || format!("{:x}-{:x}-{:x}", file.ino(), since.as_micros(), file.len());
    listed.e_tag.as_ref().is_none_or(|listed| *listed == tag())
}

#[cfg(test)]
mod tests {
    use object_store::path::Path as Location;
    use object_store::{ObjectStore, ObjectStoreExt};

    use super::*;

    #[test]
    fn a_file_is_the_listed_one_until_it_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a b");
        std::fs::write(&path, "one").unwrap();
        let root = Root::folder("bedplate://data/", folder.path()).unwrap();
        assert!(root.is_of("bedplate://data") && root.is_of("bedplate://data/") && !root.is_of("file://"));
        let store: &dyn ObjectStore = &root.store;
        let head = || futures::executor::block_on(store.head(&Location::from("a b"))).unwrap();
        let listed = head();
        assert_eq!(root.path(&listed).unwrap(), path);
        let look = || std::fs::metadata(&path).unwrap();
        assert!(is_listed(&look(), &listed));
        assert!(is_listed(&look(), &ObjectMeta { e_tag: None, ..listed.clone() }));
        assert!(!is_listed(&look(), &ObjectMeta { e_tag: Some("other".into()), ..listed.clone() }));
        assert!(!is_listed(&look(), &ObjectMeta { size: 4, e_tag: None, ..listed.clone() }));
        // Another file of the same size takes the name.
        let modified = look().modified().unwrap();
        std::fs::write(folder.path().join("new"), "two").unwrap();
        std::fs::File::options()
            .write(true)
            .open(folder.path().join("new"))
            .unwrap()
            .set_modified(modified)
            .unwrap();
        std::fs::rename(folder.path().join("new"), &path).unwrap();
        assert!(!is_listed(&look(), &listed), "its tag differs");
        let listed = head();
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(UNIX_EPOCH).unwrap();
        assert!(!is_listed(&look(), &listed));
    }
}
