//! The local fast path: attaches the programs that answer clients on this machine inside their own
//! send calls.
//!
//! Security: the programs run in the context of any process below the cgroup2 root, regardless of its owner.
//! They run when the process opens or uses a connection to the server's port within the server's network namespace.
//! Such a process can execute only the commands that it can execute over the network, with the same authentication
//! and on the same data. The CPU time is its own. The programs do not touch connections to other servers or in other
//! network namespaces.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;

use libbpf_rs::{Link, MapHandle};

use bedplate_kerneldb::attach::LoadedObject;
use bedplate_kerneldb::{Error, Result};

/// The attached programs; dropping it detaches them.
pub(super) struct LocalPath {
    _link: Link,
    maps: [(&'static str, MapHandle); 2],
}

impl LocalPath {
    /// Attaches the programs of a loaded object, which may be dropped then.
    pub(super) fn attach(object: &LoadedObject) -> Result<LocalPath> {
        let root = cgroup_root()?;
        let cgroup = File::open(&root).map_err(|e| Error::io(format!("open {}", root.display()), e))?;
        object.attach_to_sockmap("srv_local_entry", object.map("srv_locals")?.as_fd())?;
        let link = object.attach_to_cgroup("srv_sockops", cgroup.as_fd())?;
        let maps = [("srv_locals", object.map("srv_locals")?), ("srv_bases", object.map("srv_bases")?)];
        Ok(LocalPath { _link: link, maps })
    }

    /// The map with the sockets of the clients.
    pub(super) fn fastpath_sockets(&self) -> Result<OwnedFd> {
        let [(_, fastpath_sockets), _] = &self.maps;
        let fd = fastpath_sockets.as_fd().try_clone_to_owned();
        fd.map_err(|e| Error::io("cannot duplicate a map descriptor", e))
    }

    /// The maps that a later object has to share with the attached one.
    pub(super) fn maps(&self) -> impl Iterator<Item = (&'static str, &MapHandle)> {
        self.maps.iter().map(|(name, map)| (*name, map))
    }
}

/// Mount point of cgroup2.
fn cgroup_root() -> Result<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").map_err(|e| Error::io("read the mounts", e))?;
    mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .find(|fields| fields.get(2) == Some(&"cgroup2"))
        .map(|fields| PathBuf::from(fields[1]))
        .ok_or_else(|| Error::Config("the local fast path needs cgroup2, which is not mounted".into()))
}

/// Cookie of the network namespace of a socket.
pub(super) fn netns_cookie(socket: impl AsFd) -> Result<u64> {
    let mut cookie = 0u64;
    let mut length = size_of_val(&cookie) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, the size of `cookie`.
    let r = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &mut length,
        )
    };
    if r == 0 {
        Ok(cookie)
    } else {
        Err(Error::io("identify the network namespace", std::io::Error::last_os_error()))
    }
}
