//! The listening socket, and its name in the file system.

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

/// Maximum number of connections that wait to be accepted. At this number, a client must try again.
const BACKLOG: i32 = 256;

/// A listening socket. Dropping it removes its name.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    path: PathBuf,
    /// The device and the inode of the socket's name.
    name: (u64, u64),
}

impl Listener {
    /// Listens at a path. The owner may connect, and the group if one is given.
    pub fn bind(path: &Path, group: Option<u32>) -> Result<Self> {
        let failed = |error: std::io::Error| Error::File { path: path.to_owned(), source: error };
        let system = |error: Errno| failed(error.into());
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        // If two daemons start at once, the lock makes the later one check after the earlier one listens.
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
            // No client can connect before this call, whatever permissions the name had at first.
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

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Accepts a connection. `None`: no client waits any more, or the process has no free descriptor or memory now.
    pub fn accept(&self) -> Result<Option<OwnedFd>> {
        match accept_with(&self.socket, SocketFlags::CLOEXEC) {
            Ok(socket) => Ok(Some(socket)),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS)) => {
                tracing::warn!("a connection has to wait: {error}");
                // A connection that ends frees a descriptor. An immediate retry would fail again.
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
        // The name may have been removed, and another daemon may have taken it.
        if std::fs::symlink_metadata(&self.path).is_ok_and(|name| (name.dev(), name.ino()) == self.name) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Removes a socket at which no process listens.
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
        // A process listens there, even if it accepts no more connections or has a socket of another kind.
        _ => Err(Error::Invalid(format!(
            "somebody listens at {} already: stop that, or use another path",
            path.display()
        ))),
    }
}
