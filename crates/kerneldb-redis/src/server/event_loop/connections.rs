//! Connections come and go: the event loop accepts clients, gives each of them an index and a session, hands its socket to the kernel, and
//! takes it apart at the end.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::Ordering;

use libbpf_rs::{ErrorKind, MapCore, MapFlags};
use rustix::event::epoll::{self, EventData, EventFlags};

use super::{EventLoop, LISTENER, io};
use crate::command::{Peer, Services};
use crate::limits::TURN_ACCEPTS;
use crate::server::client::Client;
use crate::server::dialogue::Dialogue;
use crate::server::ends::{NO_ENDS, ends_key, ends_of};
use crate::server::listener;
use crate::server::turn::Turn;
use bedplate_kerneldb::attach::kernel_error;
use bedplate_kerneldb::{Error, Result};

impl EventLoop {
    pub(super) fn accept(&mut self) {
        for _ in 0..TURN_ACCEPTS {
            match self.listener.accept() {
                Ok(Some((stream, peer))) => {
                    if let Err(e) = self.admit(stream, peer) {
                        tracing::debug!(%peer, error = %e, "connection refused");
                    }
                }
                Ok(None) => return,
                Err(e) => {
                    // The process is typically out of descriptors. The connection stays in the queue, so the event
                    // loop ignores the listener until the next sweep instead of spinning.
                    tracing::warn!(error = %e, "accepting a connection failed");
                    self.listen(false);
                    return;
                }
            }
        }
    }

    pub(super) fn listen(&mut self, on: bool) {
        let flags = if on { EventFlags::IN } else { EventFlags::empty() };
        if epoll::modify(&self.epoll, self.listener.fd(), EventData::new_u64(LISTENER), flags).is_ok() {
            self.listening = on;
        }
    }

    fn admit(&mut self, stream: TcpStream, peer: SocketAddr) -> Result<()> {
        let server = self.backend.server();
        let room = server.clients.len() < server.settings.max_clients() as usize;
        let Some(index) = self.free.pop_if(|_| room) else {
            self.refuse(stream);
            return Ok(());
        };
        let connected = self.connect(index, stream, peer);
        if connected.is_ok() {
            self.counters.accepted.fetch_add(1, Ordering::Relaxed);
        }
        self.admitted(index, connected)
    }

    /// Counts a connection, or takes it apart after an error.
    pub(super) fn admitted(&mut self, index: u32, connected: Result<()>) -> Result<()> {
        match connected {
            Ok(()) => {
                self.counters.clients.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(e) => {
                // If the client exists already, `dismantle` frees the index.
                if self.clients[index as usize].is_some() {
                    self.dismantle(index);
                } else {
                    self.free.push(index);
                }
                Err(e)
            }
        }
    }

    fn refuse(&self, stream: TcpStream) {
        self.counters.refused.fetch_add(1, Ordering::Relaxed);
        self.backend.server().counters.rejected_connections.fetch_add(1, Ordering::Relaxed);
        listener::refuse(stream);
    }

    /// Opens a session for a client that was accepted, and registers the connection.
    fn connect(&mut self, index: u32, stream: TcpStream, peer: SocketAddr) -> Result<()> {
        let failed = |e| Error::io("set up a connection", e);
        let cookie = listener::prepare(&stream, self.config.keepalive).map_err(failed)?;
        let names = Peer {
            addr: peer.to_string(),
            local_addr: self.listener.addr().to_string(),
            fd: stream.as_raw_fd(),
        };
        let dialogue = match Dialogue::open(&self.backend, names) {
            Ok(dialogue) => dialogue,
            Err(e) => {
                if matches!(e, Error::NoSession(_)) {
                    self.refuse(stream);
                }
                return Err(e);
            }
        };
        let with_kernel = self.config.kernel_path && dialogue.kernel_may_answer();
        let turn = if with_kernel { Turn::VERDICT } else { Turn::EVENT_LOOP };
        self.register(index, stream, peer, cookie, dialogue, turn, |_| ())
    }

    /// Gives the connection its index, and hands the socket to the kernel if there are programs. `prepare` is called with the new client
    /// before any work on it.
    #[allow(clippy::too_many_arguments, reason = "the parts of a connection")]
    pub(super) fn register(
        &mut self,
        index: u32,
        stream: TcpStream,
        peer: SocketAddr,
        cookie: u64,
        dialogue: Dialogue,
        turn: Turn,
        prepare: impl FnOnce(&mut Client),
    ) -> Result<()> {
        let failed = |e| Error::io("set up a connection", e);
        let ends = stream.local_addr().map_or(NO_ENDS, |local| ends_of(peer, local));
        let session = dialogue.session();
        let generation = self.table.open(index, session, turn, dialogue.mode(), ends);
        let key = index.to_ne_bytes();
        self.used.fetch_max(index + 1, Ordering::Relaxed);
        let token = EventData::new_u64(u64::from(generation) << 32 | u64::from(index));
        let on_sockets = |e| kernel_error("cannot hand a socket to the kernel", e);
        self.name_connection(cookie, index, session)
            .map_err(on_sockets)
            .and_then(|()| {
                epoll::add(&self.epoll, stream.as_fd(), token, EventFlags::RDHUP)
                    .map_err(io("watch a connection"))
            })
            .inspect_err(|_| {
                self.forget_connection(cookie);
                self.table.lock(index);
                self.table.close(index);
            })?;
        let fd = (stream.as_raw_fd() as u64).to_ne_bytes();
        let maps = self.kernel.programs.as_ref().map(|programs| programs.maps());
        let mapped = maps.map(|maps| maps.get("srv_socks").update(&key, &fd, MapFlags::ANY));
        let kernel_path = self.config.kernel_path;
        let mut client = Client::new(stream, cookie, generation, dialogue, kernel_path);
        prepare(&mut client);
        let mut kicked = Ok(());
        match mapped {
            None => client.serve_unmapped(),
            Some(Ok(())) => kicked = listener::kick(&client.stream).map_err(failed),
            // EOPNOTSUPP: the socket is not established any more. The socket map takes only established connections.
            Some(Err(e)) if matches!(e.kind(), ErrorKind::Unsupported | ErrorKind::Other) => {
                tracing::trace!(error = %e, "the client has shut down already");
                client.serve_unmapped();
                client.half_closed = true;
            }
            Some(Err(e)) => kicked = Err(on_sockets(e)),
        }
        client.ends = ends;
        self.clients[index as usize] = Some(client);
        kicked?;
        if self.config.local_fast_path && ends.client_port != 0 {
            let peers = self.kernel.maps.get("srv_peers");
            peers.update(&ends_key(&ends), &key, MapFlags::ANY).map_err(on_sockets)?;
        }
        self.advance(index);
        Ok(())
    }

    /// Lets procedures find the connection by its socket's cookie, if there are programs that call them.
    pub(super) fn name_connection(&self, cookie: u64, index: u32, session: u32) -> libbpf_rs::Result<()> {
        let Some(programs) = &self.kernel.programs else { return Ok(()) };
        programs.name_connection(cookie, index, session)
    }

    fn forget_connection(&self, cookie: u64) {
        if let Some(programs) = &self.kernel.programs {
            programs.forget_connection(cookie);
        }
    }

    pub(super) fn close(&mut self, index: u32, reason: &str) {
        if let Some(client) = &self.clients[index as usize] {
            tracing::debug!(connection = index, generation = client.generation, reason, "connection closed");
            if self.table.conn(index).broken() != 0 {
                tracing::warn!(connection = index, reason, "the kernel gave a connection up");
            }
            self.dismantle(index);
            self.counters.clients.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Takes a connection apart. The order matters. First, the lock keeps out the local fast path, and programs
    /// that call one another. Then its ends and its cookie are deleted, so that no new run finds it. Closing
    /// the socket waits for runs under way. After that, its shared state and its session are free.
    fn dismantle(&mut self, index: u32) {
        let Some(client) = self.clients[index as usize].take() else { return };
        self.table.lock(index);
        if self.config.local_fast_path {
            let _ = self.kernel.maps.get("srv_peers").delete(&ends_key(&client.ends));
        }
        self.forget_connection(client.cookie);
        let dialogue = client.disconnect();
        self.table.close(index);
        drop(dialogue);
        self.free.push(index);
    }
}

pub(super) fn broken_reason(why: u32) -> &'static str {
    use crate::server::layout::*;
    match why {
        SRV_CARRIER_SIZE => "an unexpected packet was to carry a reply",
        SRV_SHORT_SEND => "a reply was not sent completely",
        SRV_NO_JUMP => "a transaction did not release its locks",
        SRV_NO_PAGES => "no memory for a reply",
        SRV_LOAD => "a packet could not be read",
        _ => "unknown",
    }
}
