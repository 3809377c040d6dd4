//! A socket of packets that carries descriptors.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, fcntl_dupfd_cloexec, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg,
    sendmsg, shutdown, socket_with,
};
use rustix::time::Timespec;

use super::guarded::Guarded;
use super::{DESCRIPTORS, MESSAGE, Message, malformed};
use crate::limits::CLIENT_DESCRIPTORS;
use crate::{Error, Result};

/// Maximum time that the kernel is asked to wait at once.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// One end of a connection.
#[derive(Debug)]
pub struct Socket {
    socket: Guarded,
    /// Maximum time to send or receive one message, in nanoseconds; 0: until the other side is gone.
    patience_ns: AtomicU64,
}

/// A message, and the descriptors that came with it.
#[derive(Debug)]
pub struct Received<M> {
    /// The message.
    pub message: M,
    /// The descriptors that came with the message.
    pub descriptors: Vec<OwnedFd>,
}

impl Socket {
    /// Connects to the process that listens at a path. Connecting takes at most `patience`, and so does sending or receiving one
    /// message.
    pub fn connect(path: &Path, patience: Duration) -> std::result::Result<Self, Errno> {
        let (socket, address) = (unnamed()?, SocketAddrUnix::new(path)?);
        // Programs expect low numbers for the files that they open. If the process has few numbers, the socket keeps its number.
        let this = Self::from(fcntl_dupfd_cloexec(&socket, CLIENT_DESCRIPTORS).unwrap_or(socket));
        this.set_patience(Some(patience));
        let end = Deadline::after(patience);
        // While the listener's queue is full, there is no event to poll for. So the kernel enforces the time limit.
        loop {
            set_socket_timeout(this.socket.get()?, Timeout::Send, Some(end.left()?))?;
            match connect(this.socket.get()?, &address) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(Errno::TIMEDOUT),
                Err(error) => return Err(error),
            }
        }
        set_socket_timeout(this.socket.get()?, Timeout::Send, None)?;
        Ok(this)
    }

    /// A socket that is not connected.
    pub fn unnamed() -> rustix::io::Result<Self> {
        unnamed().map(Self::from)
    }

    /// Sets the maximum time to send or receive one message. `None`: until the other side is gone.
    pub fn set_patience(&self, patience: Option<Duration>) {
        let ns = patience.map_or(0, |patience| u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX).max(1));
        self.patience_ns.store(ns, Ordering::Relaxed);
    }

    /// Runs `step`, which gets whether it may wait, until it succeeds or the time is over. Signals do not extend the time.
    fn wait_for<T>(
        &self,
        events: PollFlags,
        mut step: impl FnMut(bool) -> rustix::io::Result<T>,
    ) -> rustix::io::Result<T> {
        let patience = self.patience_ns.load(Ordering::Relaxed);
        if patience == 0 {
            return retry_on_intr(|| step(true));
        }
        let end = Deadline::after(Duration::from_nanos(patience));
        loop {
            match step(false) {
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {}
                result => return result,
            }
            let left = end.left()?;
            let time = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            match poll(&mut [PollFd::from_borrowed_fd(self.socket.get()?, events)], Some(&time)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends a message.
    ///
    /// # Errors
    /// [`Error::Gone`]: the other side is gone.
    pub fn send(&self, message: &impl Message, descriptors: &[BorrowedFd<'_>]) -> Result<()> {
        let packet = message.encode();
        if packet.len() > MESSAGE {
            return Err(malformed("is too long to be sent"));
        }
        let sent = self.wait_for(PollFlags::OUT, |waits| {
            let flags = if waits { SendFlags::empty() } else { SendFlags::DONTWAIT };
            self.send_packet(&packet, descriptors, flags)
        });
        match sent {
            Ok(_) => Ok(()),
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN | Errno::BADF) => Err(Error::Gone),
            Err(error) => Err(Error::System { what: "talking to the scan service", source: error }),
        }
    }

    fn send_packet(
        &self,
        packet: &[u8],
        descriptors: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> rustix::io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(Errno::TOOMANYREFS);
        }
        sendmsg(self.socket.get()?, &[IoSlice::new(packet)], &mut control, SendFlags::NOSIGNAL | flags)
    }

    /// Sends a message if this needs no wait. `false`: the other side is gone, or has not received earlier messages.
    pub fn send_now(&self, message: &impl Message, descriptors: &[BorrowedFd<'_>]) -> bool {
        self.send_packet(&message.encode(), descriptors, SendFlags::DONTWAIT).is_ok()
    }

    /// Like [`receive`](Self::receive), but returns `None` instead of waiting for a message.
    ///
    /// # Errors
    /// Likewise.
    pub fn receive_now<M: Message>(&self) -> Result<Option<Received<M>>> {
        self.receive_if(false)
    }

    /// Receives a message.
    ///
    /// # Errors
    /// [`Error::Gone`]: the other side is gone. [`Error::Protocol`]: the message is malformed.
    pub fn receive<M: Message>(&self) -> Result<Received<M>> {
        Ok(self.receive_if(true)?.expect("it was waited for"))
    }

    fn receive_if<M: Message>(&self, may_wait: bool) -> Result<Option<Received<M>>> {
        let mut packet = vec![0; MESSAGE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut step = |waits| {
            let flags = if waits { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
            let mut data = [IoSliceMut::new(&mut packet)];
            recvmsg(self.socket.get()?, &mut data, &mut control, RecvFlags::CMSG_CLOEXEC | flags)
        };
        let received = match may_wait {
            true => self.wait_for(PollFlags::IN, step),
            false => retry_on_intr(|| step(false)),
        };
        let received = match received {
            Ok(received) => received,
            Err(Errno::AGAIN) if !may_wait => return Ok(None),
            Err(Errno::CONNRESET | Errno::PIPE | Errno::NOTCONN | Errno::BADF) => return Err(Error::Gone),
            Err(error) => return Err(Error::System { what: "hearing the other side", source: error }),
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
        Ok(Some(Received { message: M::decode(&packet[..received.bytes])?, descriptors }))
    }

    /// Whether the other side is there.
    pub fn is_alive(&self) -> bool {
        let Ok(socket) = self.socket.get() else { return false };
        let mut this = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
        let over = PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR | PollFlags::NVAL;
        match poll(&mut this, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Ok(_) => !this[0].revents().intersects(over),
            Err(_) => true,
        }
    }

    /// Ends the connection, for all threads and processes that use it.
    pub fn end(&self) {
        if let Ok(socket) = self.socket.get() {
            let _ = shutdown(socket, Shutdown::Both);
        }
    }
}

fn unnamed() -> rustix::io::Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// The time at which waiting ends, if it ends.
struct Deadline(Option<Instant>);

impl Deadline {
    /// A time too far away to be represented is no deadline.
    fn after(patience: Duration) -> Self {
        Self(Instant::now().checked_add(patience))
    }

    /// The time that is left, which is more than 0.
    fn left(&self) -> rustix::io::Result<Duration> {
        let left = self.0.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
        if left.is_zero() { Err(Errno::TIMEDOUT) } else { Ok(left.min(LONGEST)) }
    }
}

impl From<OwnedFd> for Socket {
    fn from(socket: OwnedFd) -> Self {
        Self { socket: socket.into(), patience_ns: AtomicU64::new(0) }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.number()
    }
}
