//! The data directory: its owner, and the identity of its database.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bedplate_threads::outwait;
use rustix::fs::{FlockOperation, flock};

use super::disk::Dir;
use super::disk::real::RealDir;
use crate::random::secret_bytes;
use crate::{Error, Result};

const ID_HEAD: &str = "kerneldb 1\n";

/// An owned data directory. The lock is held until all clones are dropped (or the process dies).
#[derive(Clone)]
pub(crate) struct DataDir {
    path: PathBuf,
    pub(crate) id: [u8; 16],
    pub(crate) wal: Arc<dyn Dir>,
    pub(crate) checkpoint: Arc<dyn Dir>,
    /// `None` for directories that are not in a file system, which have one owner by contract.
    lock: Option<Arc<File>>,
}

impl DataDir {
    /// Opens a directory, and creates it and an identity if there is none yet.
    pub(crate) fn open_or_create(path: &Path) -> Result<DataDir> {
        Self::open(path, true)
    }

    /// Opens a directory that holds a database.
    pub(crate) fn open_existing(path: &Path) -> Result<DataDir> {
        if !path.join("id").exists() {
            let none = io::Error::new(io::ErrorKind::NotFound, "no database is in it");
            return Err(Error::io(format!("opening the data directory {}", path.display()), none));
        }
        Self::open(path, false)
    }

    /// Makes a directory for a new database; the directory must not hold one already.
    pub(crate) fn create(path: &Path) -> Result<DataDir> {
        if path.join("id").exists() {
            let some = io::Error::new(io::ErrorKind::AlreadyExists, "it holds a database");
            return Err(Error::io(format!("creating the data directory {}", path.display()), some));
        }
        Self::open(path, true)
    }

    fn open(path: &Path, create: bool) -> Result<DataDir> {
        let io = |e| Error::io(format!("opening the data directory {}", path.display()), e);
        if create {
            // Only the owner may read the directory, because it holds all clients' data.
            fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(io)?;
        }
        let path = path.canonicalize().map_err(io)?;
        let lock = lock(&path)?;
        let root = RealDir::open_existing(&path).map_err(io)?;
        let id = match read_id(&path)? {
            Some(id) => id,
            None => {
                for sub in ["wal", "checkpoint"] {
                    let used = fs::read_dir(path.join(sub)).is_ok_and(|mut d| d.next().is_some());
                    if used {
                        return Err(Error::Corrupt(format!(
                            "{} has data, but its file `id` is missing",
                            path.display()
                        )));
                    }
                }
                if !create {
                    return Err(io(io::ErrorKind::NotFound.into()));
                }
                let id = secret_bytes()?;
                write_id(&root, &path, &id).map_err(io)?;
                id
            }
        };
        let sub = |name: &str| -> Result<Arc<dyn Dir>> {
            Ok(Arc::new(RealDir::open_or_create(&path.join(name)).map_err(io)?))
        };
        Ok(DataDir { id, wal: sub("wal")?, checkpoint: sub("checkpoint")?, lock: Some(Arc::new(lock)), path })
    }

    /// Directories that are not in a file system.
    pub(crate) fn without_path(wal: Arc<dyn Dir>, checkpoint: Arc<dyn Dir>) -> DataDir {
        DataDir { path: "memory".into(), id: *b"kept by no disk.", wal, checkpoint, lock: None }
    }

    /// Where the libraries of procedures are, if the directory is in a file system.
    pub(crate) fn libraries(&self) -> Option<&Path> {
        self.lock.is_some().then_some(&self.path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

fn lock(path: &Path) -> Result<File> {
    let io = |e| Error::io(format!("locking the data directory {}", path.display()), e);
    let name = path.join("lock");
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(name).map_err(io)?;
    let attempt = || flock(&file, FlockOperation::NonBlockingLockExclusive);
    if let Err(e) = outwait(attempt, |e| *e == rustix::io::Errno::WOULDBLOCK) {
        if e != rustix::io::Errno::WOULDBLOCK {
            return Err(io(e.into()));
        }
        let mut owner = String::new();
        let _ = (&file).take(20).read_to_string(&mut owner);
        let owner = match owner.trim().parse::<u32>() {
            Ok(pid) => format!("process {pid} uses it"),
            Err(_) => "another process uses it".into(),
        };
        return Err(io(io::Error::new(io::ErrorKind::ResourceBusy, owner)));
    }
    // The number is only for the message above.
    let text = format!("{}\n", std::process::id());
    let _ = file.set_len(0).and_then(|()| file.write_all_at(text.as_bytes(), 0));
    Ok(file)
}

fn read_id(path: &Path) -> Result<Option<[u8; 16]>> {
    let text = match fs::read_to_string(path.join("id")) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io(format!("reading {}", path.join("id").display()), e)),
    };
    match text.strip_prefix(ID_HEAD).and_then(|hex| u128::from_str_radix(hex.trim(), 16).ok()) {
        Some(id) => Ok(Some(id.to_be_bytes())),
        None => Err(Error::Corrupt(format!("{} is damaged", path.join("id").display()))),
    }
}

fn write_id(root: &RealDir, path: &Path, id: &[u8; 16]) -> io::Result<()> {
    let mut file = File::create(path.join("id.tmp"))?;
    writeln!(file, "{ID_HEAD}{:032x}", u128::from_be_bytes(*id))?;
    file.sync_all()?;
    root.rename("id.tmp", "id")?;
    root.sync()?;
    // The directory's own entry may be new, too.
    match path.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_owner_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        let first = DataDir::open_or_create(&path).unwrap();
        let error = DataDir::open_or_create(&path).err().unwrap().to_string();
        assert!(error.contains(&format!("process {} uses it", std::process::id())), "{error}");
        let id = first.id;
        drop(first);
        assert_eq!(DataDir::open_existing(&path).unwrap().id, id);
        assert_eq!(DataDir::open_or_create(&path).unwrap().id, id);
        assert!(DataDir::create(&path).is_err());
    }

    #[test]
    fn a_lock_that_a_forked_child_holds_for_a_moment_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let first = DataDir::open_or_create(dir.path()).unwrap();
        // A descriptor of the same open file, such as a child process inherits.
        let inherited = first.lock.as_ref().unwrap().try_clone().unwrap();
        drop(first);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(100));
                drop(inherited);
            });
            DataDir::open_existing(dir.path()).unwrap();
        });
    }

    #[test]
    fn a_lost_identity_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        assert!(DataDir::open_existing(dir.path()).is_err());
        drop(DataDir::open_or_create(dir.path()).unwrap());
        fs::write(dir.path().join("id"), "something else").unwrap();
        assert!(matches!(DataDir::open_or_create(dir.path()), Err(Error::Corrupt(_))));
        fs::write(dir.path().join("wal/x.log"), "x").unwrap();
        fs::remove_file(dir.path().join("id")).unwrap();
        assert!(matches!(DataDir::open_or_create(dir.path()), Err(Error::Corrupt(_))));
    }

    #[test]
    fn identities_differ() {
        assert_ne!(secret_bytes::<16>().unwrap(), secret_bytes::<16>().unwrap());
    }
}
