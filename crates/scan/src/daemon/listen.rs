//! The socket that is listened at, and its name in the file system.

use std::fs::Permissions;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, SocketFlags, accept_with, bind, listen};

use crate::wire::Socket;
use crate::{Error, Result};

/// Who connects while so many wait has to try again.
const BACKLOG: i32 = 256;

/// A socket that is listened at; it loses its name when it is dropped.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    path: PathBuf,
    /// Device and inode of the name.
    name: (u64, u64),
}

impl Listener {
    /// Listens at a path, for the owner and maybe a group.
    pub fn bind(path: &Path, group: Option<u32>) -> Result<Self> {
        let failed = |error: std::io::Error| Error::File { path: path.to_owned(), source: error };
        let system = |error: Errno| failed(error.into());
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        // Two that start at once: the later one looks after the earlier one listens.
        let lock = std::fs::File::open(folder).map_err(failed)?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive).map_err(system)?;
        make_room(path)?;
        let socket = Socket::unnamed().map_err(system)?;
        bind(&socket, &SocketAddrUnix::new(path).map_err(system)?).map_err(system)?;
        let bound = || {
            if group.is_some() {
                std::os::unix::fs::chown(path, None, group)?;
            }
            std::fs::set_permissions(
                path,
                Permissions::from_mode(if group.is_some() { 0o660 } else { 0o600 }),
            )?;
            // Nobody can connect before this, with whatever rights the name had at first.
            listen(&socket, BACKLOG)?;
            let flags = rustix::fs::fcntl_getfl(&socket)?;
            rustix::fs::fcntl_setfl(&socket, flags | rustix::fs::OFlags::NONBLOCK)?;
            std::fs::symlink_metadata(path)
        };
        match bound() {
            Ok(name) => Ok(Self { socket, path: path.to_owned(), name: (name.dev(), name.ino()) }),
            Err(error) => {
                let _ = std::fs::remove_file(path);
                Err(failed(error))
            }
        }
    }

    /// Its name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Who connects; `None`: nobody does any more, or there are no descriptors for it now.
    pub fn accept(&self) -> Result<Option<OwnedFd>> {
        match accept_with(&self.socket, SocketFlags::CLOEXEC) {
            Ok(socket) => Ok(Some(socket)),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS)) => {
                tracing::warn!("a connection has to wait: {error}");
                // Who ends makes room; asking at once would find none.
                std::thread::sleep(Duration::from_millis(50));
                Ok(None)
            }
            Err(error) => Err(Error::system("accepting connections")(error)),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Another daemon may have taken the name after somebody removed it.
        if std::fs::symlink_metadata(&self.path).is_ok_and(|name| (name.dev(), name.ino()) == self.name) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Removes a socket that nobody listens at.
fn make_room(path: &Path) -> Result<()> {
    let is_socket = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata.file_type().is_socket(),
        Err(_) => return Ok(()),
    };
    if !is_socket {
        return Err(Error::Invalid(format!(
            "{} is there and is no socket: use another path",
            path.display()
        )));
    }
    match Socket::connect(path, Duration::from_secs(1)) {
        Err(Errno::CONNREFUSED) => {
            std::fs::remove_file(path).map_err(|source| Error::File { path: path.to_owned(), source })
        }
        Err(Errno::NOENT) => Ok(()),
        // Somebody is there, even if it cannot take more connections or is of another kind.
        _ => Err(Error::Invalid(format!(
            "somebody listens at {} already: stop that, or use another path",
            path.display()
        ))),
    }
}
