//! Passing a child's page map to the owner's process.
//!
//! The child opens the page map itself and sends the descriptor. The owner's process could open `/proc/PID/pagemap`
//! only later. By then the child may have executed another program with `execve`, whose memory is not a snapshot.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::Pid;

const SPACE: usize = rustix::cmsg_space!(ScmRights(1));

/// The data that the owner's process gets from a child.
pub struct Introduced {
    pub pid: Pid,
    /// The child's page map, if the child could open it.
    pub page_map: Option<OwnedFd>,
}

/// Creates a channel. Returns the owner's end and the child's end.
pub fn channel() -> Result<(OwnedFd, OwnedFd), Errno> {
    socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
}

/// Reports from the child that it is ready. If the owner's process has ended, the message is lost; then no process
/// can change the memory either.
pub fn introduce(channel: &OwnedFd) {
    let pid = rustix::process::getpid().as_raw_nonzero().get().to_ne_bytes();
    let page_map =
        rustix::fs::open("/proc/self/pagemap", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok();
    let descriptors = page_map.as_ref().map(AsFd::as_fd);
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.as_slice().is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors.as_slice()));
    }
    while sendmsg(channel, &[IoSlice::new(&pid)], &mut ancillary, SendFlags::NOSIGNAL) == Err(Errno::INTR) {}
}

/// Waits until a child reports that it is ready. Returns `None` if it ended before that, or was never created.
pub fn wait(channel: &OwnedFd) -> Option<Introduced> {
    let mut pid = [0; 4];
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(channel, &mut [IoSliceMut::new(&mut pid)], &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            other => break other.ok()?,
        }
    };
    if received.bytes != pid.len() {
        return None;
    }
    let page_map = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Some(Introduced { pid: Pid::from_raw(i32::from_ne_bytes(pid))?, page_map })
}
