//! Takes the server apart so that another program can go on with its connections ([`super::super::handover`] has what it gets), and
//! continues connections of the program before.
//!
//! The steps up to the closing of the sessions are those of a rebuild (`rebuild.rs`). Then:
//!
//! 1. Packets are passed to the event loop, without a database. The kernel's replies are waited for until TCP has them. A client that does
//!    not read them for long is cut off.
//! 2. The sockets hold packets back (`handover/sockets.rs`), and the event loop reads everything that was passed.
//! 3. The sockets leave the kernel's map. They are ordinary sockets of TCP again, and packets pass.

use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use serde_bytes::ByteBuf;

use super::EventLoop;
use crate::command::{AdminTaskTicket, Peer, Services};
use crate::limits::REBUILD_WAIT;
use crate::server::backend::NO_STORE;
use crate::server::dialogue::Dialogue;
use crate::server::handover::{CarriedClient, CarriedState, CarriedTalk, Handover, sockets};
use crate::server::listener;
use crate::server::rebuild::Request;
use crate::server::turn::Turn;
use bedplate_kerneldb::{Error, Result, SuspendedHandler};

/// Interval at which the event loop looks whether TCP has all replies.
const LOOK: Duration = Duration::from_millis(1);

/// The kernel handles no packet for so long.
const PACKET_TIME: Duration = Duration::from_millis(100);

/// Parts of a handover that are ready before the sessions are closed.
struct Prepared {
    listener: TcpListener,
    /// Libraries of procedures that are in no data directory.
    libraries: Vec<(String, ByteBuf)>,
    handlers: Vec<SuspendedHandler>,
}

impl EventLoop {
    /// Ends the server for an upgrade. The inner error is the client's reply; the server goes on then.
    pub(super) fn hand_over(&mut self, request: &Request) -> Result<std::result::Result<Handover, String>> {
        let reply = |error: Error| format!("ERR {error}");
        let Prepared { listener, libraries, handlers } = match self.prepare_handover() {
            Ok(prepared) => prepared,
            Err(error) => return Ok(Err(error)),
        };
        for client in self.clients.iter_mut().flatten() {
            client.dialogue().leave_database();
        }
        if let Some(Err(error)) = self.kernel.programs.as_ref().map(|programs| programs.leave()) {
            self.backend.database().resume_handlers(handlers);
            self.enter_database(None)?;
            return Ok(Err(reply(error)));
        }
        self.stop_watching_log();
        self.wait_for_replies();
        let held: Vec<bool> = self
            .clients
            .iter()
            .map(|client| {
                client
                    .as_ref()
                    .is_some_and(|client| client.is_mapped() && sockets::hold_input(&client.stream).is_ok())
            })
            .collect();
        self.wait_for_packets();
        let mut clients = Vec::new();
        for (index, held) in (0..).zip(held) {
            let Some(client) = self.clients[index as usize].as_mut() else { continue };
            let can_leave = held || !client.is_mapped();
            if can_leave && client.drain(self.table.conn(index), &mut self.buffer) {
                clients.extend(self.carry(index, &request.ticket));
            } else {
                let_pass(&client.stream);
                self.close(index, "the next program cannot continue it");
            }
        }
        let server = self.backend.server();
        let changed =
            server.settings.changed().into_iter().map(|(name, value)| (name.to_owned(), value.into()));
        let (pause_until_ms, pause_reads_too) = server.clients.pause_of_clients();
        let state = CarriedState {
            changed: changed.collect(),
            databases: self.backend.rebuild_requests().count() + 1,
            last_client: server.clients.last_id(),
            pause_until_ms,
            pause_reads_too,
            libraries,
            scripts: server.scripts.texts().into_iter().map(ByteBuf::from).collect(),
            functions: Some(server.functions.payload().into()),
            users: Some(server.users_text().into()),
        };
        let fastpath_sockets = self.kernel.fastpath_sockets();
        Ok(Ok(Handover { listener, clients, state, handlers, fastpath_sockets, outcome: Ok(()) }))
    }

    /// Takes a checkpoint, and checks that nothing is in the way. Then it leaves the events of handlers to their stand-ins. The error is the
    /// client's reply; nothing has changed then.
    fn prepare_handover(&self) -> std::result::Result<Prepared, String> {
        let reply = |error: Error| format!("ERR {error}");
        // The next program could let nobody in otherwise.
        let checked = self.backend.server().check_users();
        checked.map_err(|error| format!("ERR the next program cannot read the users: {error}"))?;
        self.backend.database().wait_for_programs().map_err(reply)?;
        let store = self.backend.store().ok_or(NO_STORE)?;
        store.prepare_rebuild(store.config()).map_err(reply)?;
        let libraries = match store.data_dir() {
            Some(_) => Vec::new(),
            None => {
                let libraries = store.database().libraries().into_iter();
                libraries.map(|(name, file)| (name, ByteBuf::from(&*file))).collect()
            }
        };
        let listener = self.listener.try_clone();
        let listener = listener.map_err(|error| format!("ERR the listening socket stays here: {error}"))?;
        let handlers = store.database().suspend_handlers().map_err(reply)?;
        // The data that they have committed meanwhile is to be in the checkpoint as well.
        if let Err(error) = store.prepare_rebuild(store.config()) {
            store.database().resume_handlers(handlers);
            return Err(reply(error));
        }
        Ok(Prepared { listener, libraries, handlers })
    }

    /// Waits until TCP has all replies of the kernel. Closes connections whose clients do not read them.
    fn wait_for_replies(&mut self) {
        let since = Instant::now();
        for index in 0..self.clients.len() as u32 {
            if self.clients[index as usize].as_ref().is_none_or(|client| !client.is_mapped()) {
                continue;
            }
            while !self.table.conn(index).drained() && since.elapsed() < REBUILD_WAIT {
                thread::sleep(LOOK);
            }
            if !self.table.conn(index).drained() {
                self.close(index, "it has not read its replies, and the server is upgraded");
            }
        }
    }

    /// Waits until packets that were under way have passed.
    fn wait_for_packets(&self) {
        // The kernel handles a packet within an RCU read-side critical section, and this waits for all of them.
        if let Err(error) = self.backend.database().wait_for_programs() {
            tracing::warn!(%error, "packets under way are waited for by time");
            thread::sleep(PACKET_TIME);
        }
    }

    /// Takes a connection out of this server. It holds packets back if it is mapped.
    fn carry(&mut self, index: u32, upgrade: &Arc<AdminTaskTicket>) -> Option<CarriedClient> {
        let client = self.clients[index as usize].take()?;
        let unmapped = match &self.kernel.programs {
            Some(programs) if client.is_mapped() => {
                let unmapped = programs.unmap(index);
                let_pass(&client.stream);
                unmapped
            }
            _ => Ok(()),
        };
        self.table.lock(index);
        self.table.close(index);
        self.free.push(index);
        self.counters.clients.fetch_sub(1, Ordering::Relaxed);
        match unmapped.map(|()| client.into_carried(upgrade)) {
            Ok(Some(carried)) => return Some(carried),
            Ok(None) => {
                tracing::warn!(
                    connection = index,
                    "closed at the upgrade: the next program cannot continue it"
                )
            }
            Err(error) => tracing::warn!(connection = index, %error, "closed at the upgrade"),
        }
        None
    }

    /// Continues the connections of the program before.
    pub(in super::super) fn continue_clients(
        &mut self,
        carried: Vec<CarriedClient>,
        state: &CarriedState,
        upgraded: &std::result::Result<(), String>,
    ) {
        let server = self.backend.server().clone();
        let clients = &server.clients;
        clients.number_from(state.last_client);
        clients.pause(state.pause_until_ms, state.pause_reads_too);
        self.backend.rebuild_requests().count_from(state.databases);
        self.backend.pauses_changed();
        // Monitors come first, because they see the commands of all others.
        let (monitors, others): (Vec<_>, Vec<_>) =
            carried.into_iter().partition(|client| client.talk.dialogue.is_monitor());
        for clients in [monitors, others] {
            for CarriedClient { stream, talk } in clients {
                let told = upgraded.as_ref().copied().map_err(String::as_str);
                if let Err(error) = self.continue_client(stream, talk, told) {
                    tracing::warn!(%error, "a connection of the program before is closed");
                }
            }
            if server.monitors.exist() {
                self.backend.pauses_changed();
            }
        }
    }

    fn continue_client(
        &mut self,
        stream: TcpStream,
        talk: CarriedTalk,
        upgraded: std::result::Result<(), &str>,
    ) -> Result<()> {
        let failed = |e| Error::io("continue a connection", e);
        let peer = stream.peer_addr().map_err(failed)?;
        let cookie = listener::prepare(&stream, self.config.keepalive).map_err(failed)?;
        let index = self.free.pop().ok_or(Error::NoSession(self.config.max_clients))?;
        let mut output = talk.output.into_vec();
        let names = Peer {
            addr: peer.to_string(),
            local_addr: self.listener.addr().to_string(),
            fd: stream.as_raw_fd(),
        };
        let dialogue = Dialogue::continued(&self.backend, names, talk.dialogue, upgraded, &mut output);
        let registered = dialogue.and_then(|dialogue| {
            self.register(index, stream, peer, cookie, dialogue, Turn::EVENT_LOOP, |client| {
                client.continue_with(output, talk.skip);
            })
        });
        self.admitted(index, registered)
    }
}

/// Lets packets pass again, also before a connection is closed: its client has to hear of that.
fn let_pass(stream: &TcpStream) {
    if let Err(error) = sockets::release_input(stream) {
        tracing::debug!(%error, "a socket had no filter");
    }
}
