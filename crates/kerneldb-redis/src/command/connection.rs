//! One connection from bytes to bytes: requests are run in order, and their replies leave in that order.
//!
//! A connection is used by one thread at a time and does no I/O. The server feeds it the received bytes and
//! sends the replies.
//!
//! With synchronous durability a reply must not reveal a commit that a crash can undo. The connection holds the reply
//! back, with everything behind it, until the newest commit that the request has made or observed is on disk. It runs
//! further requests meanwhile, so that a pipeline's commits share fsyncs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::clients::{Client, Peer};
use super::exec::{Ctx, Unfinished};
use super::multi::{self, Multi};
use super::operators::Operators;
use super::request::{Core, ReplyMode, Step};
use super::services::{Counters, ServerState, Services};
use super::spec;
use crate::resp::{Limits, Protocol, RequestParser, Writer};
use bedplate_kerneldb::Durability;

/// The step that the caller of [`Connection::process`] has to take before it calls again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Feed more input.
    NeedInput,
    /// Send the replies and call again, because they exceed the limit, or because the time is up.
    FlushOutput,
    /// Wait this long, and call again also without input. Nothing was answered out of order.
    RetryAfter(Duration),
    /// Wait until the commit with this timestamp is durable. More input may be fed and processed meanwhile.
    WaitDurable(u64),
    /// Send the replies and close the connection; there is no further call.
    Close,
    /// Stop the server; there is no further call.
    Shutdown,
}

/// A part of the held replies that may leave once a commit is durable.
#[derive(Clone, Copy, Debug)]
struct Held {
    ts: u64,
    /// End of the part, as a position in `held`.
    end: usize,
}

/// The state of one connection. Dropping it removes it from CLIENT LIST. The session's owner must roll the session's
/// transaction back.
pub struct Connection {
    pub(super) parser: RequestParser,
    pub(super) core: Core,
    pub(super) held: Vec<u8>,
    marks: VecDeque<Held>,
    /// Newest commit that this request has made or revealed so far.
    revealed_ts: u64,
    /// The work of this request's earlier attempts.
    unfinished: Unfinished,
    /// The last call of [`Connection::process`] has executed every complete request.
    drained: bool,
    pub(super) closing: bool,
}

impl Connection {
    /// A connection that was just accepted.
    pub fn new(services: &impl Services, peer: Peer) -> Connection {
        let server = Arc::clone(services.server());
        Counters::add(&server.counters.connections);
        let client = server.clients.register(peer, services.now().as_millis() as u64);
        Self::of_client(server, client)
    }

    /// The connection of a registered client.
    pub(super) fn of_client(server: Arc<ServerState>, client: Arc<Client>) -> Connection {
        let mut connection = Connection {
            parser: RequestParser::new(Limits::default()),
            core: Core::new(server, client),
            held: Vec::new(),
            marks: VecDeque::new(),
            revealed_ts: 0,
            unfinished: Unfinished::default(),
            drained: true,
            closing: false,
        };
        connection.update_limits();
        connection
    }

    /// Its entry in the registry.
    pub fn client(&self) -> &Arc<Client> {
        &self.core.client
    }

    /// State that all connections of the server share.
    pub fn server(&self) -> &Arc<ServerState> {
        &self.core.server
    }

    /// Takes bytes that were read from the socket.
    pub fn feed(&mut self, data: &[u8]) {
        self.core.server.counters.input_bytes.fetch_add(data.len() as u64, Relaxed);
        if !self.closing {
            self.parser.feed(data);
        }
    }

    /// Whether more should be read from the socket. False while complete requests are left, because they wait for
    /// something or because replies must leave first. False also once the connection is to be closed. A caller that
    /// reads only if this is true bounds the memory of the connection's input.
    pub fn wants_input(&self) -> bool {
        self.drained && !self.closing
    }

    /// Whether the kernel may answer the next request by itself: there is no partial request, nothing
    /// queued, watched or held back, plain replies are wanted, and the user has all rights. The session may have a transaction open.
    pub fn at_rest(&self) -> bool {
        self.parser.is_empty()
            && self.core.multi.is_none()
            && self.core.watched.is_empty()
            && self.core.pending.is_none()
            && self.core.authenticated
            && !self.core.is_monitor()
            && self.core.user.is_unrestricted()
            && self.core.reply_mode == ReplyMode::On
            && self.held.is_empty()
            && !self.closing
    }

    /// Whether it sees every command of all clients (MONITOR).
    pub fn is_monitor(&self) -> bool {
        self.core.is_monitor()
    }

    /// The protocol version in use.
    pub fn protocol(&self) -> Protocol {
        self.core.protocol
    }

    /// Whether a command is in the middle of its work on the database, beside an open transaction.
    pub fn is_at_work(&self) -> bool {
        self.core.is_at_work()
    }

    /// Must be called before the session's database is rebuilt. There is no open transaction, and no command is at work.
    pub fn leave_database<S: Operators>(&mut self, store: &mut S) {
        multi::leave_database(&mut self.core.watched, store);
    }

    /// Continues on a session of the new database. A connection that has not chosen its durability gets the new default.
    pub fn enter_database<S: Operators>(&mut self, store: &mut S) {
        if !self.core.has_chosen_durability {
            self.core.durability = self.core.server.settings.database_options().durability;
        }
        store.set_durability(self.core.durability);
        self.core.durability_applied = true;
        multi::enter_database(&mut self.core.watched, store);
    }

    /// The event that this connection's commits wait for.
    pub fn durability(&self) -> Durability {
        self.core.durability
    }

    /// Takes over a MULTI that the kernel has opened. `queue` has the queued requests as they were sent.
    /// If `broken`, one of them could not be queued, so EXEC has to refuse.
    pub fn import_multi(&mut self, queue: &[u8], broken: bool) {
        let mut multi = Multi::new(broken);
        let mut parser = RequestParser::new(self.parser.limits());
        parser.feed(queue);
        let limit = self.core.server.settings.input_limit();
        while let Ok(true) = parser.poll() {
            match spec::resolve(parser.args()) {
                Ok(resolved) => multi.broken |= multi.queue(resolved, parser.args(), limit).is_err(),
                Err(_) => multi.broken = true,
            }
            parser.consume();
        }
        multi.broken |= !parser.is_empty();
        self.core.multi = Some(multi);
    }

    /// Appends a reply that the kernel has made, behind all replies so far. With `ts` > 0 it waits for that commit.
    pub fn import_reply(&mut self, reply: &[u8], ts: u64, services: &impl Services, out: &mut Vec<u8>) {
        self.append(ts, services, out, |_, out| out.extend_from_slice(reply));
    }

    /// Appends what `write` writes behind all replies so far. With `ts` > 0 it waits for that commit.
    fn append(
        &mut self,
        ts: u64,
        services: &impl Services,
        out: &mut Vec<u8>,
        write: impl FnOnce(&Core, &mut Vec<u8>),
    ) {
        let target = if self.held.is_empty() { &mut *out } else { &mut self.held };
        let mark = target.len();
        write(&self.core, target);
        self.hold(ts, mark, services, out);
    }

    /// Runs requests and appends replies to `out` until something is needed. After `deadline` it runs no further request.
    pub fn process<S: Operators, V: Services>(
        &mut self,
        store: &mut S,
        services: &V,
        out: &mut Vec<u8>,
        deadline: Option<Instant>,
    ) -> Next {
        let before = out.len();
        let next = self.run(store, services, out, deadline);
        let state = &self.core.client.state;
        self.core.server.counters.output_bytes.fetch_add((out.len() - before) as u64, Relaxed);
        state.pending_output.store(out.len() as u64, Relaxed);
        state.buffered.store(self.parser.buffered() as u64, Relaxed);
        state.queued.store(self.core.multi.as_ref().map_or(0, |m| m.len() as u64 + 1), Relaxed);
        state.transaction.store(store.in_transaction(), Relaxed);
        state.resp.store(self.core.protocol.version() as u8, Relaxed);
        next
    }

    fn run<S: Operators, V: Services>(
        &mut self,
        store: &mut S,
        services: &V,
        out: &mut Vec<u8>,
        deadline: Option<Instant>,
    ) -> Next {
        if !self.core.durability_applied && !store.in_transaction() {
            store.set_durability(self.core.durability);
            self.core.durability_applied = true;
        }
        self.drained = false;
        loop {
            self.release(services, out);
            if self.core.is_monitor() && self.active(out).len() < self.core.server.settings.output_limit() {
                self.append(0, services, out, |core, out| core.server.monitors.take(core.client.id, out));
            }
            if self.core.client.killed() {
                return Next::Close;
            }
            let limit = self.core.server.settings.output_limit();
            if out.len() >= limit {
                return Next::FlushOutput;
            }
            if self.closing || self.held.len() >= limit {
                return self.pause(Next::Close);
            }
            match self.parser.poll() {
                Ok(true) => {}
                Ok(false) => {
                    self.drained = true;
                    if self.parser.buffered() > self.core.server.settings.input_limit() {
                        tracing::warn!(client = self.core.client.id, "closing: the input limit is exceeded");
                        self.closing = true;
                    }
                    return self.pause(if self.closing { Next::Close } else { Next::NeedInput });
                }
                Err(error) => {
                    self.closing = true;
                    let message = format!("ERR {error}");
                    self.append(0, services, out, |core, out| {
                        core.count_error(message.as_bytes());
                        Writer::new(out, Protocol::Resp2).error(message.as_bytes());
                    });
                    continue;
                }
            }
            match self.request(store, services, out) {
                Step::Done => {
                    self.parser.consume();
                    if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                        return Next::FlushOutput;
                    }
                }
                Step::Again(pause) => return Next::RetryAfter(pause),
                Step::Close => {
                    self.parser.consume();
                    self.closing = true;
                }
                Step::Shutdown => {
                    self.parser.consume();
                    return Next::Shutdown;
                }
            }
        }
    }

    /// Runs the complete request at the front of the input.
    fn request<S: Operators, V: Services>(&mut self, store: &mut S, services: &V, out: &mut Vec<u8>) -> Step {
        let core = &mut self.core;
        let reply_mode = core.reply_mode;
        if reply_mode == ReplyMode::SkipNext {
            core.reply_mode = ReplyMode::SkipCurrent;
        }
        let now_ms = services.now().as_millis() as u64;
        let target = if self.held.is_empty() { &mut *out } else { &mut self.held };
        let mark = target.len();
        // CLIENT LIST and CLIENT INFO report these numbers if they are this request.
        core.client.state.buffered.store(self.parser.buffered() as u64, Relaxed);
        core.client.state.pending_output.store(mark as u64, Relaxed);
        let mut ctx = Ctx {
            store,
            services,
            out: Writer::new(target, core.protocol),
            now_ms,
            commit_ts: 0,
            unfinished: &mut self.unfinished,
            lcs_cells: 0,
        };
        let step = core.request(&mut ctx, self.parser.args());
        let revealed_ts = ctx.commit_ts.max(ctx.store.take_observed_ts()).max(self.revealed_ts);
        self.revealed_ts = 0;
        if matches!(step, Step::Again(_)) {
            ctx.out.truncate(mark);
            core.reply_mode = reply_mode;
            self.revealed_ts = revealed_ts;
            return step;
        }
        core.client.state.active_ms.store(now_ms, Relaxed);
        Counters::add(&core.server.counters.commands);
        // CLIENT REPLY ON is answered in every mode.
        let silent = reply_mode != ReplyMode::On && core.reply_mode != ReplyMode::On;
        if core.reply_mode == ReplyMode::SkipCurrent {
            core.reply_mode = ReplyMode::On;
        }
        if silent {
            ctx.out.truncate(mark);
        }
        let sync = core.durability == Durability::Sync && services.logged();
        self.hold(if sync { revealed_ts } else { 0 }, mark, services, out);
        self.update_limits();
        step
    }

    /// The buffer for the next reply: `held` if it has replies, so that the reply stays behind them.
    fn active<'a>(&'a mut self, out: &'a mut Vec<u8>) -> &'a mut Vec<u8> {
        if self.held.is_empty() { out } else { &mut self.held }
    }

    /// Holds the reply that starts at `mark` of the active buffer back until `ts` is durable.
    fn hold(&mut self, ts: u64, mark: usize, services: &impl Services, out: &mut Vec<u8>) {
        let waits = ts > 0 && services.durable_ts() < ts;
        if self.held.is_empty() {
            if !waits || out.len() == mark {
                return;
            }
            self.held.extend(out.drain(mark..));
        }
        let end = self.held.len();
        let ts = if waits { ts } else { 0 };
        match self.marks.back_mut() {
            // Commits of one connection have rising timestamps; a reply that waits for nothing leaves
            // with the one before it.
            Some(last) if ts <= last.ts => last.end = end,
            _ => self.marks.push_back(Held { ts, end }),
        }
        if waits {
            services.request_durable(ts);
        }
    }

    /// Moves held replies whose commits are durable to `out`.
    fn release(&mut self, services: &impl Services, out: &mut Vec<u8>) {
        if self.marks.is_empty() {
            return;
        }
        let durable_ts = services.durable_ts();
        let mut end = 0;
        while self.marks.front().is_some_and(|held| held.ts <= durable_ts) {
            end = self.marks.pop_front().map_or(end, |held| held.end);
        }
        out.extend(self.held.drain(..end));
        self.marks.iter_mut().for_each(|held| held.end -= end);
    }

    /// Waits for held replies first.
    fn pause(&self, otherwise: Next) -> Next {
        self.marks.front().map_or(otherwise, |held| Next::WaitDurable(held.ts))
    }

    pub(super) fn update_limits(&mut self) {
        let limits = Limits {
            bulk_bytes: self.core.server.settings.bulk_limit() as i64,
            unauthenticated: self.core.needs_authentication(),
            ..Limits::default()
        };
        self.parser.set_limits(limits);
    }
}
