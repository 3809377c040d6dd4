//! The dialogue with one client in user space: the command layer's connection with its session.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::backend::Backend;
use super::table::ConnMode;
use crate::command::{AdminTaskTicket, CarriedConnection, Connection, Next, Peer, Services};
use crate::limits::REQUESTS_TIME;
use bedplate_kerneldb::{Durability, Error, Result, Session};

/// The state of a dialogue that another process continues.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct CarriedDialogue {
    connection: CarriedConnection,
    /// A transaction is open that has failed: because of a time limit, or not.
    failed_by_timeout: Option<bool>,
}

impl CarriedDialogue {
    /// Whether the client sees every command of all clients.
    pub(super) fn is_monitor(&self) -> bool {
        self.connection.is_monitor()
    }
}

/// A connection of the command layer and the session that it shares with the kernel. Both run that
/// session's operators, but never at the same time (`bpf/layout.h` states the rules).
pub(super) struct Dialogue {
    connection: Connection,
    /// There is none while the database is rebuilt.
    session: Option<Session>,
    /// The reason for which the transaction had failed that was open when the rebuild began.
    failure: Option<Error>,
    backend: Arc<Backend>,
}

impl Dialogue {
    /// Opens a session for a client that was just accepted.
    pub(super) fn open(backend: &Arc<Backend>, peer: Peer) -> Result<Self> {
        let mut session = backend.database().session()?;
        let durability = backend.server().settings.database_options().durability;
        // The kernel may write before the first command reaches user space.
        session.set_logged(durability != Durability::Off);
        Ok(Dialogue {
            connection: Connection::new(&**backend, peer),
            session: Some(session),
            failure: None,
            backend: backend.clone(),
        })
    }

    /// Ends the dialogue here, after [`Dialogue::leave_database`] and when all commits are durable. Appends the replies that waited to
    /// `out`. `None` if nobody can continue it.
    pub(super) fn into_carried(
        self,
        upgrade: &Arc<AdminTaskTicket>,
        out: &mut Vec<u8>,
    ) -> Option<CarriedDialogue> {
        let failed_by_timeout = self.failure.map(|failure| matches!(failure, Error::TimedOut));
        Some(CarriedDialogue { connection: self.connection.into_carried(upgrade, out)?, failed_by_timeout })
    }

    /// Continues a dialogue of another process. `upgraded` is the outcome of the upgrade, for the client that has asked for it.
    pub(super) fn continued(
        backend: &Arc<Backend>,
        peer: Peer,
        carried: CarriedDialogue,
        upgraded: std::result::Result<(), &str>,
        out: &mut Vec<u8>,
    ) -> Result<Self> {
        let failure =
            carried.failed_by_timeout.map(|timeout| if timeout { Error::TimedOut } else { Error::Aborted });
        let connection = Connection::continued(&**backend, peer, carried.connection, upgraded, out);
        let mut dialogue = Dialogue { connection, session: None, failure, backend: backend.clone() };
        dialogue.enter_database()?;
        Ok(dialogue)
    }

    /// Index of the session's context.
    pub(super) fn session(&self) -> u32 {
        self.session.as_ref().map_or(0, Session::index)
    }

    /// Whether the database cannot be rebuilt yet: a transaction is open that has not failed, or a command is in the middle of its work.
    pub(super) fn holds_database(&self) -> bool {
        let is_open = |session: &Session| session.in_transaction() && !session.is_failed();
        self.session.as_ref().is_some_and(is_open) || self.connection.is_at_work()
    }

    /// Whether a task has ended of which the client was not told yet.
    pub(super) fn has_news(&self) -> bool {
        self.connection.has_news()
    }

    /// Closes the session, because the database is rebuilt.
    pub(super) fn leave_database(&mut self) {
        if let Some(mut session) = self.session.take() {
            if session.is_failed() {
                self.failure = Some(session.failure());
                let _ = session.rollback();
            }
            self.connection.leave_database(&mut session);
        }
    }

    /// Opens a session on the new database. A transaction that had failed is a failed one there.
    pub(super) fn enter_database(&mut self) -> Result<()> {
        let mut session = self.backend.database().session()?;
        self.connection.enter_database(&mut session);
        if let Some(failure) = self.failure.take() {
            session.begin_failed(&failure)?;
        }
        self.session = Some(session);
        Ok(())
    }

    /// Takes request bytes.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.connection.feed(bytes);
    }

    /// Counts request bytes that arrive here although the kernel has executed them.
    pub(super) fn skip(&mut self, bytes: usize) {
        self.connection.server().counters.input_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Whether there is no complete request left to execute, so that more bytes are needed to continue.
    pub(super) fn wants_input(&self) -> bool {
        self.connection.wants_input()
    }

    /// Executes complete requests, for [`REQUESTS_TIME`] or a little more, and appends the replies that may leave to `out`.
    pub(super) fn process(&mut self, out: &mut Vec<u8>) -> Next {
        let session = self.session.as_mut().expect("the event loop rebuilds the database between requests");
        self.connection.process(session, &*self.backend, out, Some(Instant::now() + REQUESTS_TIME))
    }

    /// Appends replies that the kernel has made, behind all so far.
    pub(super) fn import(&mut self, replies: &[u8], out: &mut Vec<u8>) {
        self.connection.server().counters.output_bytes.fetch_add(replies.len() as u64, Ordering::Relaxed);
        self.connection.import_reply(replies, 0, &*self.backend, out);
    }

    /// Takes over a MULTI with its queued requests.
    pub(super) fn import_multi(&mut self, requests: &[u8]) {
        self.connection.import_multi(requests, false);
    }

    /// Whether the kernel may answer the next requests: nothing waits, and the connection has no state that
    /// the kernel does not know.
    pub(super) fn kernel_may_answer(&self) -> bool {
        self.connection.at_rest()
    }

    /// The way in which the kernel answers this client.
    pub(super) fn mode(&self) -> ConnMode {
        let waits_for_disk = self.connection.durability() == Durability::Sync && self.backend.logged();
        ConnMode { waits_for_disk, protocol: self.connection.protocol() }
    }

    /// Number of connections that clients have killed so far, on the whole server.
    pub(super) fn kills(&self) -> u64 {
        self.connection.server().clients.kills()
    }

    /// Whether the client sees every command of all clients.
    pub(super) fn is_monitor(&self) -> bool {
        self.connection.is_monitor()
    }

    /// Whether a client has asked for this connection to be closed.
    pub(super) fn killed(&self) -> bool {
        self.connection.client().killed()
    }
}
