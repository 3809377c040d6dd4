//! One connection as the event loop sees it: its socket, its dialogue, its unsent replies.
//!
//! Invariants:
//! - The event loop sends bytes only in its turn (`bpf/layout.h`) and when the kernel's replies are all
//!   sent. Only [`Client::advance`] reads, sends, and ends the turn.
//! - The event loop reads bytes only when every complete request is executed and every reply is sent. So a connection
//!   holds one incomplete request, one portion of input and one portion of output at most. Everything else stays
//!   in the socket, and TCP slows the client down.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::epoll::EventFlags;

use super::dialogue::Dialogue;
use super::ends::NO_ENDS;
use super::handover::{CarriedClient, CarriedTalk};
use super::layout::srv_peer;
use super::table::ConnSlot;
use super::turn::Turn;
use crate::command::{AdminTaskTicket, Next};
use crate::limits::{DRAIN_WAIT, KEPT_OUTPUT_BYTES, RETRY_MIN, TURN_END_REPLY_BYTES};

/// The event that a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaiting {
    /// More requests, or it is the verdict's turn.
    Input,
    /// The kernel's replies to be sent.
    Drain,
    /// Room in the send buffer.
    Write,
    /// A time.
    Until(Instant),
    /// A commit to be on disk.
    Durable(u64),
    /// The turn of other connections: it could continue at once.
    Others,
    /// Nothing, because it is to be closed.
    Close,
}

/// The request of [`Client::advance`] to the loop, beside the new [`Awaiting`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Fine,
    /// A request has killed connections. They must be closed before [`Client::advance`] is called again, which then sends the reply.
    Killed,
    /// A client wants the server to stop.
    Shutdown,
}

/// Result of one attempt to read.
enum Reading {
    /// Bytes came.
    Bytes,
    /// Nothing is there now; an event announces more, if there is more.
    Nothing,
}

pub(super) struct Client {
    pub(super) stream: TcpStream,
    pub(super) cookie: u64,
    pub(super) generation: u32,
    /// Its two ends, for the local fast path.
    pub(super) ends: srv_peer,
    pub(super) awaiting: Awaiting,
    /// The events for which epoll watches it.
    pub(super) interest: EventFlags,
    /// The client has shut its sending side down.
    pub(super) half_closed: bool,
    /// Time at which the event loop last read from it.
    pub(super) heard: Instant,
    /// It is in the event loop's list of connections that can continue at once.
    pub(super) runnable: bool,
    /// It is in the event loop's list of connections that wait for the disk.
    pub(super) waits_for_disk: bool,
    /// It is in the event loop's list of monitors.
    pub(super) is_listed_monitor: bool,
    dialogue: Dialogue,
    /// Passed bytes that were read.
    read: u64,
    /// It is the event loop's turn, and [`Client::take_over`] was called in it.
    my_turn: bool,
    kernel_path: bool,
    /// The kernel has no session for it, because its user lost rights in the verdict's turn.
    without_session: bool,
    /// Bytes of requests yet to come that the kernel has executed.
    skip: usize,
    /// The socket is in the socket map, so the server's programs see arriving data first.
    mapped: bool,
    /// All bytes that the client ever sent were read.
    ended: bool,
    /// It is closed when `out` is sent.
    last: bool,
    out: Vec<u8>,
    sent: usize,
}

impl Client {
    pub(super) fn new(
        stream: TcpStream,
        cookie: u64,
        generation: u32,
        dialogue: Dialogue,
        kernel_path: bool,
    ) -> Self {
        Client {
            stream,
            cookie,
            generation,
            ends: NO_ENDS,
            awaiting: Awaiting::Input,
            interest: EventFlags::RDHUP,
            half_closed: false,
            heard: Instant::now(),
            runnable: false,
            waits_for_disk: false,
            is_listed_monitor: false,
            dialogue,
            read: 0,
            my_turn: false,
            kernel_path,
            without_session: false,
            skip: 0,
            mapped: true,
            ended: false,
            last: false,
            out: Vec::new(),
            sent: 0,
        }
    }

    /// Makes the event loop read all data itself, because the socket is not in the socket map.
    pub(super) fn serve_unmapped(&mut self) {
        self.mapped = false;
        self.my_turn = true;
    }

    /// Whether everything that the client has sent is answered.
    pub(super) fn is_idle(&self, slot: ConnSlot<'_>) -> bool {
        let turn = slot.turn();
        let heard_all = if !self.mapped {
            self.ended
        } else if self.my_turn {
            turn.passed_bytes() == self.read
        } else {
            !turn.is_event_loop()
        };
        heard_all && slot.drained() && self.out.is_empty() && self.awaiting == Awaiting::Input
    }

    /// Whether a client has asked for this connection to be closed.
    pub(super) fn killed(&self) -> bool {
        self.dialogue.killed()
    }

    /// Whether the client sees every command of all clients.
    pub(super) fn is_monitor(&self) -> bool {
        self.dialogue.is_monitor()
    }

    /// Whether this connection keeps the database from being rebuilt.
    pub(super) fn holds_database(&self) -> bool {
        self.dialogue.holds_database()
    }

    /// Whether a task has ended of which the client was not told yet.
    pub(super) fn has_news(&self) -> bool {
        self.dialogue.has_news()
    }

    /// Keeps the kernel from answering it any more if it must not: its user has lost rights. The next packet begins the event loop's turn.
    /// The caller must then wait for the programs.
    pub(super) fn restrict(&mut self, slot: ConnSlot<'_>) {
        if !self.my_turn && !self.dialogue.kernel_may_answer() {
            slot.take_session();
            self.without_session = true;
        }
    }

    /// Whether the kernel has no session for it, since its user lost rights.
    pub(super) fn is_without_session(&self) -> bool {
        self.without_session
    }

    /// Its dialogue, for a rebuild of the database.
    pub(super) fn dialogue(&mut self) -> &mut Dialogue {
        &mut self.dialogue
    }

    /// Whether the kernel answers this connection now, as far as the event loop knows.
    pub(super) fn is_with_kernel(&self) -> bool {
        !self.my_turn
    }

    /// Works on the connection until it has to wait or others should get their turn, and sets [`Client::awaiting`].
    /// `buffer` is for reading; its length bounds the work.
    pub(super) fn advance(&mut self, slot: ConnSlot<'_>, buffer: &mut [u8]) -> Outcome {
        if slot.broken() != 0 {
            self.awaiting = Awaiting::Close;
            return Outcome::Fine;
        }
        let mut is_new_turn = false;
        if !self.my_turn {
            if !slot.turn().is_event_loop() {
                self.awaiting = Awaiting::Input;
                return Outcome::Fine;
            }
            self.take_over(slot);
            is_new_turn = true;
        }
        if let Awaiting::Until(at) = self.awaiting
            && Instant::now() < at
        {
            return Outcome::Fine;
        }
        if !slot.drained() {
            self.awaiting = Awaiting::Drain;
            return Outcome::Fine;
        }
        let mut reading = None;
        // In a new turn, the replies that the verdict has left leave together with the next ones.
        while std::mem::take(&mut is_new_turn) || self.flush() {
            if self.last {
                self.awaiting = Awaiting::Close;
                return Outcome::Fine;
            }
            if reading.is_none() && self.can_read(slot) {
                match self.read(buffer) {
                    Ok(done) => reading = Some(done),
                    Err(e) => {
                        tracing::debug!(error = %e, "receiving failed");
                        self.awaiting = Awaiting::Close;
                        return Outcome::Fine;
                    }
                }
            }
            let kills = self.dialogue.kills();
            let next = self.dialogue.process(&mut self.out);
            if self.dialogue.kills() != kills && next != Next::Shutdown {
                self.last = next == Next::Close;
                self.awaiting = Awaiting::Others;
                return Outcome::Killed;
            }
            match next {
                Next::FlushOutput => {
                    if self.flush() {
                        self.awaiting = Awaiting::Others;
                    }
                    return Outcome::Fine;
                }
                Next::Close => {
                    self.last = true;
                    continue;
                }
                Next::Shutdown => {
                    self.awaiting = Awaiting::Close;
                    return Outcome::Shutdown;
                }
                Next::NeedInput | Next::WaitDurable(_) | Next::RetryAfter(_) => {}
            }
            if self.can_read(slot) {
                match reading {
                    None => continue,
                    Some(Reading::Bytes) => {
                        if self.flush() {
                            self.awaiting = Awaiting::Others;
                        }
                        return Outcome::Fine;
                    }
                    Some(Reading::Nothing) => {}
                }
            }
            // The connection sends its replies before it waits for anything.
            if self.may_end_turn(&next, slot) && self.end_turn_with_reply(slot) {
                return Outcome::Fine;
            }
            if self.flush() {
                self.rest(next, slot);
            }
            return Outcome::Fine;
        }
        Outcome::Fine
    }

    /// Begins the event loop's turn: takes the replies and requests that the verdict has left.
    fn take_over(&mut self, slot: ConnSlot<'_>) {
        let taken = slot.take_over();
        self.my_turn = true;
        if std::mem::take(&mut self.without_session) {
            slot.give_session(self.dialogue.session());
        }
        self.heard = Instant::now();
        self.skip = taken.skip;
        if let Some(requests) = taken.queue {
            self.dialogue.import_multi(&requests);
        }
        if !taken.replies.is_empty() {
            self.dialogue.import(&taken.replies, &mut self.out);
        }
    }

    /// Called when nothing is left to send: waits for the event that the dialogue needs, or ends the turn.
    fn rest(&mut self, next: Next, slot: ConnSlot<'_>) {
        self.awaiting = match next {
            Next::RetryAfter(delay) => Awaiting::Until(Instant::now() + delay.max(RETRY_MIN)),
            Next::WaitDurable(ts) => Awaiting::Durable(ts),
            _ => Awaiting::Input,
        };
        if self.may_end_turn(&next, slot) {
            if slot.end_turn(self.turn(), self.dialogue.mode()) {
                self.my_turn = false;
            } else {
                self.awaiting = Awaiting::Others;
            }
        }
    }

    /// The value of the turn if all passed bytes were read.
    fn turn(&self) -> Turn {
        Turn::event_loop_after(self.read)
    }

    /// Whether the kernel may continue when all replies are sent.
    fn may_end_turn(&self, next: &Next, slot: ConnSlot<'_>) -> bool {
        let waits = matches!(next, Next::RetryAfter(_) | Next::WaitDurable(_));
        !waits
            && self.kernel_path
            && self.mapped
            && self.skip == 0
            && slot.turn() == self.turn()
            && self.dialogue.kernel_may_answer()
    }

    /// Sends the last replies and ends the turn in the same moment. Otherwise the client's next request would
    /// arrive before the turn ends, and be passed to the event loop as well. Returns whether the turn has ended; if not,
    /// nothing has changed except that some bytes may be sent.
    fn end_turn_with_reply(&mut self, slot: ConnSlot<'_>) -> bool {
        let left = &self.out[self.sent..];
        if left.is_empty() || left.len() > TURN_END_REPLY_BYTES {
            return false;
        }
        slot.end_turn_with_reply(self.turn(), self.dialogue.mode(), left.len() as u32);
        let sent = self.stream.write(left).unwrap_or(0);
        let complete = sent == left.len();
        self.sent += sent;
        if !slot.turn_ended_with_reply() {
            return false;
        }
        self.my_turn = false;
        self.awaiting = Awaiting::Input;
        if complete {
            self.out.clear();
            self.sent = 0;
        } else {
            // The rest cannot follow any more. This happens only if memory is short, because TCP had room.
            self.awaiting = Awaiting::Close;
        }
        true
    }

    /// Whether reading makes sense: the dialogue can take more, and passed bytes are unread.
    fn can_read(&self, slot: ConnSlot<'_>) -> bool {
        let has_input = if self.mapped { slot.turn().passed_bytes() != self.read } else { !self.ended };
        has_input && self.dialogue.wants_input()
    }

    /// Reads once and gives the bytes to the dialogue.
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<Reading> {
        let bytes = loop {
            match self.stream.read(buffer) {
                // The socket may report its end while passed bytes are still on their way from TCP to it.
                Ok(0) if self.mapped => return Ok(Reading::Nothing),
                Ok(0) => {
                    self.ended = true;
                    return Ok(Reading::Nothing);
                }
                Ok(n) => break &buffer[..n],
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(Reading::Nothing),
                Err(e) => return Err(e),
            }
        };
        self.heard = Instant::now();
        self.read += bytes.len() as u64;
        let executed = self.skip.min(bytes.len());
        self.skip -= executed;
        self.dialogue.skip(executed);
        self.dialogue.feed(&bytes[executed..]);
        Ok(Reading::Bytes)
    }

    /// Sends the output. Returns true if nothing is left; otherwise `awaiting` has the reason.
    fn flush(&mut self) -> bool {
        while self.sent < self.out.len() {
            match self.stream.write(&self.out[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    self.awaiting = Awaiting::Write;
                    if self.sent > KEPT_OUTPUT_BYTES {
                        self.out.drain(..self.sent);
                        self.sent = 0;
                    }
                    return false;
                }
                Err(e) => {
                    tracing::debug!(error = %e, "sending failed");
                    self.awaiting = Awaiting::Close;
                    return false;
                }
            }
        }
        self.sent = 0;
        empty_output(&mut self.out);
        true
    }

    /// Memory for replies in bytes, whether there are replies or not.
    #[cfg(test)]
    pub(super) fn output_capacity(&self) -> usize {
        self.out.capacity()
    }

    /// Reads all passed bytes, for another process. No packet passes any more. Returns whether that was possible.
    pub(super) fn drain(&mut self, slot: ConnSlot<'_>, buffer: &mut [u8]) -> bool {
        if !self.mapped {
            return true;
        }
        if !self.my_turn {
            self.take_over(slot);
        }
        let since = Instant::now();
        while slot.turn().passed_bytes() != self.read {
            match self.read(buffer) {
                Ok(Reading::Bytes) => {}
                // Passed bytes are still on their way to the socket.
                Ok(Reading::Nothing) if since.elapsed() < DRAIN_WAIT => std::thread::sleep(RETRY_MIN),
                _ => return false,
            }
        }
        slot.broken() == 0
    }

    /// Whether its socket is in the kernel's socket map.
    pub(super) fn is_mapped(&self) -> bool {
        self.mapped
    }

    /// Ends the connection here, for another process to continue. `None` if nobody can, which closes it.
    pub(super) fn into_carried(mut self, upgrade: &Arc<AdminTaskTicket>) -> Option<CarriedClient> {
        let mut output = self.out.split_off(self.sent);
        if self.awaiting == Awaiting::Close || self.dialogue.killed() {
            return None;
        }
        let dialogue = self.dialogue.into_carried(upgrade, &mut output)?;
        let talk = CarriedTalk { output: output.into(), skip: self.skip as u64, dialogue };
        Some(CarriedClient { stream: self.stream, talk })
    }

    /// Continues the connection of another process, in the event loop's turn.
    pub(super) fn continue_with(&mut self, output: Vec<u8>, skip: u64) {
        self.my_turn = true;
        self.out = output;
        self.skip = skip as usize;
    }

    /// Closes the socket and returns the dialogue, whose session is still open.
    pub(super) fn disconnect(self) -> Dialogue {
        drop(self.stream);
        self.dialogue
    }
}

/// Empties the output. Keeps its memory for the next replies, unless it is more than [`KEPT_OUTPUT_BYTES`].
fn empty_output(out: &mut Vec<u8>) {
    out.clear();
    if out.capacity() > KEPT_OUTPUT_BYTES {
        *out = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_keeps_memory_up_to_the_limit() {
        for (bytes, kept) in [(KEPT_OUTPUT_BYTES, KEPT_OUTPUT_BYTES), (KEPT_OUTPUT_BYTES + 1, 0)] {
            let mut out = Vec::with_capacity(bytes);
            assert_eq!(out.capacity(), bytes);
            out.push(1);
            empty_output(&mut out);
            assert_eq!((out.len(), out.capacity()), (0, kept));
        }
    }
}
