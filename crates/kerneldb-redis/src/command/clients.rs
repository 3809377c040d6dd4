//! The registry of connections, for CLIENT LIST, KILL and PAUSE.
//!
//! Any thread may read an entry; only the entry's own connection updates it. Lock order: the registry's map, then one
//! entry's text. Both are held for a few instructions only.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::acl::{Account, DEFAULT_USER};

/// The properties of a connection that the server knows when it accepts it.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// Address of the client, `ip:port`.
    pub addr: String,
    /// Address of the server that it connected to.
    pub local_addr: String,
    /// File descriptor.
    pub fd: i32,
}

/// A connection as others see it.
#[derive(Debug)]
pub struct Client {
    /// Number of the connection; never reused while the server runs.
    pub id: u64,
    /// Its two ends.
    pub peer: Peer,
    /// Time at which it was accepted, in milliseconds since the Unix epoch.
    pub(super) created_ms: u64,
    killed: AtomicBool,
    pub(super) state: ClientState,
    text: Mutex<ClientText>,
}

/// Numbers that change with every command.
#[derive(Debug, Default)]
pub(super) struct ClientState {
    pub active_ms: AtomicU64,
    /// Queued commands of MULTI, plus 1; 0 = no MULTI.
    pub queued: AtomicU64,
    pub buffered: AtomicU64,
    pub pending_output: AtomicU64,
    pub resp: AtomicU8,
    pub no_evict: AtomicBool,
    pub no_touch: AtomicBool,
    pub monitor: AtomicBool,
    pub transaction: AtomicBool,
}

/// The client's description of itself, and its last command.
#[derive(Clone, Debug, Default)]
pub(super) struct ClientText {
    pub name: String,
    pub lib_name: String,
    pub lib_ver: String,
    pub command: &'static str,
    pub subcommand: &'static str,
    /// The user for whom it acts.
    pub user: Option<Arc<Account>>,
}

impl Client {
    pub(super) fn text(&self) -> MutexGuard<'_, ClientText> {
        self.text.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the connection has to be closed because of CLIENT KILL. It executes no further command.
    pub fn killed(&self) -> bool {
        self.killed.load(Relaxed)
    }

    /// Whether it acts for this user.
    pub(super) fn has_user(&self, user: &Arc<Account>) -> bool {
        self.text().user.as_ref().is_some_and(|own| Arc::ptr_eq(own, user))
    }

    /// Its line in CLIENT LIST.
    pub fn describe(&self, now_ms: u64) -> String {
        let s = &self.state;
        let text = self.text().clone();
        let age = now_ms.saturating_sub(self.created_ms) / 1000;
        let idle = now_ms.saturating_sub(s.active_ms.load(Relaxed)) / 1000;
        let multi = s.queued.load(Relaxed) as i64 - 1;
        let mut flags = String::new();
        if s.monitor.load(Relaxed) {
            flags.push('O');
        }
        if multi >= 0 || s.transaction.load(Relaxed) {
            flags.push('x');
        }
        if s.no_evict.load(Relaxed) {
            flags.push('e');
        }
        if s.no_touch.load(Relaxed) {
            flags.push('T');
        }
        if flags.is_empty() {
            flags.push('N');
        }
        let mut line = format!(
            "id={} addr={} laddr={} fd={} name={} age={age} idle={idle} flags={flags} db=0 sub=0 psub=0 \
             ssub=0 multi={multi} qbuf={} qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl={} oll=0 \
             omem=0 tot-mem=0 events=r cmd={}",
            self.id,
            self.peer.addr,
            self.peer.local_addr,
            self.peer.fd,
            text.name,
            s.buffered.load(Relaxed),
            s.pending_output.load(Relaxed),
            if text.command.is_empty() { "NULL" } else { text.command },
        );
        if !text.subcommand.is_empty() {
            let _ = write!(line, "|{}", text.subcommand);
        }
        let _ = write!(
            line,
            " user={} redir=-1 resp={} lib-name={} lib-ver={}",
            String::from_utf8_lossy(text.user.as_ref().map_or(DEFAULT_USER, |user| user.name())),
            s.resp.load(Relaxed),
            text.lib_name,
            text.lib_ver
        );
        line
    }
}

/// All connections of a server.
#[derive(Debug, Default)]
pub struct Clients {
    last_id: AtomicU64,
    map: Mutex<BTreeMap<u64, Arc<Client>>>,
    kills: AtomicU64,
    pause_until_ms: AtomicU64,
    pause_reads_too: AtomicBool,
    shutdown_pause: AtomicBool,
    rebuild_pause: AtomicBool,
}

/// The times until which commands wait, in milliseconds since the Unix epoch; 0 = they do not wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pauses {
    /// All commands.
    pub all_until_ms: u64,
    /// Commands that write.
    pub writes_until_ms: u64,
}

impl Clients {
    /// Adds a connection.
    pub(super) fn register(&self, peer: Peer, now_ms: u64) -> Arc<Client> {
        self.insert(self.last_id.fetch_add(1, Relaxed) + 1, now_ms, peer)
    }

    /// Adds a connection that another process has accepted, with the number that it had there. This comes before all others.
    pub(super) fn register_again(&self, id: u64, created_ms: u64, peer: Peer) -> Arc<Client> {
        self.number_from(id);
        self.insert(id, created_ms, peer)
    }

    /// The largest number of a connection so far.
    pub fn last_id(&self) -> u64 {
        self.last_id.load(Relaxed)
    }

    /// Further connections have larger numbers than this.
    pub fn number_from(&self, id: u64) {
        self.last_id.fetch_max(id, Relaxed);
    }

    fn insert(&self, id: u64, created_ms: u64, peer: Peer) -> Arc<Client> {
        let state = ClientState { active_ms: created_ms.into(), resp: 2.into(), ..Default::default() };
        let client = Arc::new(Client {
            id,
            peer,
            created_ms,
            killed: AtomicBool::new(false),
            state,
            text: Mutex::default(),
        });
        self.map().insert(client.id, Arc::clone(&client));
        client
    }

    pub(super) fn unregister(&self, id: u64) {
        self.map().remove(&id);
    }

    fn map(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Client>>> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of connections.
    pub fn len(&self) -> usize {
        self.map().len()
    }

    /// Whether there is no connection.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All connections, oldest first.
    pub fn list(&self) -> Vec<Arc<Client>> {
        self.map().values().cloned().collect()
    }

    /// Marks a connection to be closed. False if it is gone.
    pub fn kill(&self, id: u64) -> bool {
        let Some(client) = self.map().get(&id).cloned() else { return false };
        client.killed.store(true, Relaxed);
        self.kills.fetch_add(1, Relaxed);
        true
    }

    /// Number of kills so far. When a command changes it, the server closes the connections that are [`Client::killed`] before it
    /// sends the command's reply.
    pub fn kills(&self) -> u64 {
        self.kills.load(Relaxed)
    }

    /// CLIENT PAUSE: writes wait until `until_ms`, and reads as well if `reads_too`. 0 ends the pause. The caller tells the kernel.
    pub fn pause(&self, until_ms: u64, reads_too: bool) {
        self.pause_reads_too.store(reads_too, Relaxed);
        self.pause_until_ms.store(until_ms, Relaxed);
    }

    /// The pause of CLIENT PAUSE: its end, and whether reads wait, too.
    pub fn pause_of_clients(&self) -> (u64, bool) {
        (self.pause_until_ms.load(Relaxed), self.pause_reads_too.load(Relaxed))
    }

    /// Writes wait while the server shuts down.
    pub(super) fn pause_for_shutdown(&self, on: bool) {
        self.shutdown_pause.store(on, Relaxed);
    }

    /// Commands that begin work on the database wait until it is rebuilt. The caller tells the kernel
    /// ([`Services::pauses_changed`](super::Services::pauses_changed)).
    pub fn pause_for_rebuild(&self, on: bool) {
        self.rebuild_pause.store(on, Relaxed);
    }

    /// Whether commands wait because the database is rebuilt.
    pub fn is_paused_for_rebuild(&self) -> bool {
        self.rebuild_pause.load(Relaxed)
    }

    /// Ends the pause of writes after a shutdown that did not stop the server.
    pub fn resume_after_shutdown(&self) {
        self.pause_for_shutdown(false);
    }

    /// The times until which the kernel must not answer commands.
    pub fn pauses(&self) -> Pauses {
        if self.is_paused_for_rebuild() {
            return Pauses { all_until_ms: u64::MAX, writes_until_ms: u64::MAX };
        }
        self.client_pauses()
    }

    fn client_pauses(&self) -> Pauses {
        let until = self.pause_until_ms.load(Relaxed);
        let all_until_ms = if self.pause_reads_too.load(Relaxed) { until } else { 0 };
        let shutdown = self.shutdown_pause.load(Relaxed);
        Pauses { all_until_ms, writes_until_ms: if shutdown { u64::MAX } else { until } }
    }

    /// Milliseconds that a command has to wait because of CLIENT PAUSE or a shutdown.
    pub(super) fn paused_ms(&self, now_ms: u64, writes: bool) -> u64 {
        let pauses = self.client_pauses();
        let until = if writes { pauses.writes_until_ms } else { pauses.all_until_ms };
        until.saturating_sub(now_ms)
    }
}
