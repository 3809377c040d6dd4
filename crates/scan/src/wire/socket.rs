//! A socket of packets that carries descriptors.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg,
    sendmsg, shutdown, socket_with,
};

use super::{DESCRIPTORS, MESSAGE, Message, malformed};
use crate::{Error, Result};

/// One end of a connection.
#[derive(Debug)]
pub struct Socket(OwnedFd);

/// A message, and the descriptors that came with it.
#[derive(Debug)]
pub struct Received<M> {
    /// What was said.
    pub message: M,
    /// What came with it.
    pub descriptors: Vec<OwnedFd>,
}

impl Socket {
    /// Connects to who listens at a path. Nothing on it takes longer than `patience`, which is not for ever.
    pub fn connect(path: &Path, patience: Duration) -> std::result::Result<Self, Errno> {
        let socket = Self::unnamed()?;
        socket.set_patience(Some(patience))?;
        retry_on_intr(|| connect(&socket, &SocketAddrUnix::new(path)?))?;
        Ok(socket)
    }

    /// A socket that is not connected.
    pub fn unnamed() -> rustix::io::Result<Self> {
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).map(Self)
    }

    /// How long sending and receiving may take; `None`: as long as the other side is there.
    pub fn set_patience(&self, patience: Option<Duration>) -> rustix::io::Result<()> {
        set_socket_timeout(&self.0, Timeout::Recv, patience)?;
        set_socket_timeout(&self.0, Timeout::Send, patience)
    }

    /// Says something.
    ///
    /// # Errors
    /// [`Error::Gone`]: nobody is there any more.
    pub fn send(&self, message: &impl Message, descriptors: &[BorrowedFd<'_>]) -> Result<()> {
        let packet = message.encode();
        if packet.len() > MESSAGE || descriptors.len() > DESCRIPTORS {
            return Err(malformed("is too long to be sent"));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(malformed("has too many descriptors"));
        }
        let data = [IoSlice::new(&packet)];
        match retry_on_intr(|| sendmsg(&self.0, &data, &mut control, SendFlags::NOSIGNAL)) {
            Ok(_) => Ok(()),
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => Err(Error::Gone),
            Err(error) => {
                Err(Error::System { what: "talking to the scan service", source: impatient(error) })
            }
        }
    }

    /// Says something if that takes no time. If there is no room for it, much is still to be heard.
    pub fn send_now(&self, message: &impl Message) {
        let _ = rustix::net::send(&self.0, &message.encode(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }

    /// Hears something.
    ///
    /// # Errors
    /// [`Error::Gone`]: nobody is there any more. [`Error::Protocol`]: it makes no sense.
    pub fn receive<M: Message>(&self) -> Result<Received<M>> {
        let mut packet = vec![0; MESSAGE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = retry_on_intr(|| {
            let mut data = [IoSliceMut::new(&mut packet)];
            recvmsg(&self.0, &mut data, &mut control, RecvFlags::CMSG_CLOEXEC)
        });
        let received = match received {
            Ok(received) => received,
            Err(Errno::CONNRESET | Errno::PIPE | Errno::NOTCONN) => return Err(Error::Gone),
            Err(error) => {
                return Err(Error::System { what: "hearing the other side", source: impatient(error) });
            }
        };
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(more) = message {
                descriptors.extend(more);
            }
        }
        // No message is empty, so this is the end.
        if received.bytes == 0 {
            return Err(Error::Gone);
        }
        if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(malformed("is too long, or has too many descriptors"));
        }
        Ok(Received { message: M::decode(&packet[..received.bytes])?, descriptors })
    }

    /// Whether the other side is there.
    pub fn is_alive(&self) -> bool {
        let mut this = [PollFd::new(&self.0, PollFlags::RDHUP)];
        let over = PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR | PollFlags::NVAL;
        match poll(&mut this, Some(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Ok(_) => !this[0].revents().intersects(over),
            Err(_) => true,
        }
    }

    /// Ends the connection, for all who use it.
    pub fn end(&self) {
        let _ = shutdown(&self.0, Shutdown::Both);
    }
}

/// What the kernel says of a time that is over is not what it means here.
fn impatient(error: Errno) -> Errno {
    if error == Errno::AGAIN { Errno::TIMEDOUT } else { error }
}

impl From<OwnedFd> for Socket {
    fn from(socket: OwnedFd) -> Self {
        Self(socket)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
