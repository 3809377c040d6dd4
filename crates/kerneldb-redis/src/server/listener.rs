//! The listening socket, and the options of every accepted one.

use std::io::{self, ErrorKind, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::limits::CONNECTIONS_WAITING;
use bedplate_kerneldb::{Error, Result};

/// Redis's text.
const TOO_MANY: &[u8] = b"-ERR max number of clients reached\r\n";

pub(super) struct Listener {
    socket: TcpListener,
    addr: SocketAddr,
}

impl Listener {
    /// Takes an address, without listening on it yet. Clients are refused.
    pub(super) fn bind(addr: SocketAddr) -> Result<Self> {
        let bound = || -> rustix::io::Result<OwnedFd> {
            let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
            sockopt::set_socket_reuseaddr(&socket, true)?;
            rustix::net::bind(&socket, &addr)?;
            Ok(socket)
        };
        let failed = |e| Error::io(format!("listen on {addr}"), e);
        let socket = TcpListener::from(bound().map_err(|e| failed(e.into()))?);
        let addr = socket.local_addr().map_err(failed)?;
        Ok(Listener { socket, addr })
    }

    /// Takes a socket that listens already, at the address or at any port of it. The socket is given back if it has another address.
    pub(super) fn of(socket: TcpListener, addr: SocketAddr) -> std::result::Result<Self, TcpListener> {
        match socket.local_addr() {
            Ok(bound) if bound.ip() == addr.ip() && (addr.port() == 0 || bound.port() == addr.port()) => {
                Ok(Listener { socket, addr: bound })
            }
            _ => Err(socket),
        }
    }

    /// Takes a socket that listens already, whatever its address is.
    pub(super) fn at_its_address(socket: TcpListener) -> Result<Self> {
        let addr = socket.local_addr().map_err(|e| Error::io("asking for the address of a socket", e))?;
        Ok(Listener { socket, addr })
    }

    /// A further descriptor of the socket.
    pub(super) fn try_clone(&self) -> io::Result<TcpListener> {
        self.socket.try_clone()
    }

    /// Lets clients connect.
    pub(super) fn listen(&self) -> Result<()> {
        rustix::net::listen(&self.socket, CONNECTIONS_WAITING)
            .map_err(|e| Error::io(format!("listen on {}", self.addr), e.into()))
    }

    pub(super) fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The next connection; `None` if there is none now.
    pub(super) fn accept(&self) -> io::Result<Option<(TcpStream, SocketAddr)>> {
        match self.socket.accept() {
            Ok((stream, peer)) => {
                stream.set_nonblocking(true)?;
                Ok(Some((stream, peer)))
            }
            Err(e) => match e.kind() {
                ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted => Ok(None),
                _ => Err(e),
            },
        }
    }
}

/// Sets an accepted socket up and returns its cookie.
pub(super) fn prepare(stream: &TcpStream, keepalive: Option<Duration>) -> io::Result<u64> {
    stream.set_nodelay(true)?;
    if let Some(idle) = keepalive {
        sockopt::set_socket_keepalive(stream, true)?;
        sockopt::set_tcp_keepidle(stream, idle.max(Duration::from_secs(1)))?;
        sockopt::set_tcp_keepintvl(stream, (idle / 3).max(Duration::from_secs(1)))?;
        sockopt::set_tcp_keepcnt(stream, 3)?;
    }
    Ok(sockopt::socket_cookie(stream)?)
}

/// Tells a client that there is no place for it. Best effort: it is closed in any case.
pub(super) fn refuse(mut stream: TcpStream) {
    let _ = stream.write(TOO_MANY);
}

/// Makes the kernel run the verdict on data that has already arrived. Nothing else does so for bytes that
/// arrived before the socket was in the map.
pub(super) fn kick(stream: &TcpStream) -> io::Result<()> {
    let one: libc::c_int = 1;
    // SAFETY: The option takes an int, which lives across the call.
    let r = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            (&raw const one).cast(),
            size_of_val(&one) as libc::socklen_t,
        )
    };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
