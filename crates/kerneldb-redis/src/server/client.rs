//! One connection as the event loop sees it: its socket, its dialogue, its unsent replies.
//!
//! Invariant: bytes are only sent while the connection is with user space (`handed != done`) and the
//! kernel's replies are all sent (`queued == sent`). [`Client::advance`] is the only place that sends
//! and the only one that gives the connection back.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;

use super::dialogue::Dialogue;
use super::event_loop::NO_ENDS;
use super::layout::srv_peer;
use super::table::Shared;
use crate::command::Progress;

/// Memory of sent replies that is given back.
const KEEP: usize = 1 << 20;

/// Longest reply with which the connection is given back in the same moment.
const RETURN_MAX: usize = 16 << 10;

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// More requests (or it is with the kernel).
    Input,
    /// The kernel's replies to be sent.
    Drain,
    /// Room in the send buffer.
    Write,
    /// A time.
    Until(Instant),
    /// A commit to be on disk.
    Durable(u64),
    /// Nothing: it is to be closed.
    Close,
}

/// What [`Client::advance`] asks of the loop beyond the new [`Wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Fine,
    /// A client wants the server to stop, after a checkpoint or without one.
    Shutdown {
        save: bool,
    },
}

pub(super) struct Client {
    pub(super) stream: TcpStream,
    pub(super) cookie: u64,
    pub(super) generation: u32,
    /// Its two ends, for the local fast path.
    pub(super) ends: srv_peer,
    pub(super) wait: Wait,
    /// What epoll watches it for.
    pub(super) interest: EventFlags,
    /// The client has shut its sending side down.
    pub(super) half_closed: bool,
    /// When user space last heard of it.
    pub(super) heard: Instant,
    dialogue: Dialogue,
    /// Number of the last record fed to the dialogue.
    seen: u64,
    /// The value last given back as `done`.
    done: u64,
    kernel_path: bool,
    /// Bytes of requests yet to come that were executed already.
    skip: usize,
    /// The socket is in the socket map: the kernel sees what arrives first.
    mapped: bool,
    /// It is closed when `out` is sent.
    last: bool,
    /// Bytes of requests that came while it could not work on them.
    backlog: usize,
    out: Vec<u8>,
    sent: usize,
}

impl Client {
    pub(super) fn new(
        stream: TcpStream,
        cookie: u64,
        generation: u32,
        dialogue: Dialogue,
        done: u64,
        kernel_path: bool,
    ) -> Self {
        Client {
            stream,
            cookie,
            generation,
            ends: NO_ENDS,
            wait: Wait::Input,
            interest: EventFlags::RDHUP,
            half_closed: false,
            heard: Instant::now(),
            dialogue,
            seen: 0,
            done,
            kernel_path,
            skip: 0,
            mapped: true,
            last: false,
            backlog: 0,
            out: Vec::new(),
            sent: 0,
        }
    }

    /// For a client that had shut its sending side down before its socket could be given to the kernel,
    /// which only takes established connections: reads all there is, the ordinary way.
    pub(super) fn serve_unmapped(&mut self) {
        self.mapped = false;
        self.half_closed = true;
        self.seen = 1;
        let mut buffer = vec![0; 64 << 10];
        while let Ok(n @ 1..) = self.stream.read(&mut buffer) {
            self.dialogue.feed(&buffer[..n]);
        }
    }

    /// The kernel has executed the next `skip` bytes of requests, with these replies.
    pub(super) fn executed(&mut self, replies: &[u8], skip: usize, handed: u64) {
        self.heard = Instant::now();
        self.seen = handed;
        self.skip += skip;
        self.dialogue.import(replies, &mut self.out);
    }

    /// The kernel has answered MULTI and queued these requests.
    pub(super) fn queued(&mut self, requests: &[u8], handed: u64) {
        self.seen = handed;
        self.dialogue.import_multi(requests);
    }

    /// Takes the request bytes of record number `handed`.
    pub(super) fn feed(&mut self, bytes: &[u8], handed: u64) {
        self.heard = Instant::now();
        self.seen = handed;
        let executed = self.skip.min(bytes.len());
        self.skip -= executed;
        let bytes = &bytes[executed..];
        if !self.last {
            self.dialogue.feed(bytes);
            self.backlog += bytes.len();
        }
    }

    /// Bytes of requests that came since it last could work.
    pub(super) fn backlog(&self) -> usize {
        self.backlog
    }

    /// Whether nothing of what the client sent is still to be answered.
    pub(super) fn is_idle(&self, shared: Shared<'_>) -> bool {
        let heard_all = !self.mapped || shared.handed() == self.seen;
        heard_all && shared.drained() && self.out.is_empty() && self.wait == Wait::Input
    }

    /// Whether another client has asked for this connection to be closed.
    pub(super) fn killed(&self) -> bool {
        self.dialogue.killed()
    }

    /// Works on the connection as far as possible and sets what it waits for next.
    pub(super) fn advance(&mut self, shared: Shared<'_>) -> Outcome {
        if shared.broken() != 0 {
            self.wait = Wait::Close;
            return Outcome::Fine;
        }
        if self.done == self.seen {
            // With the kernel.
            self.wait = Wait::Input;
            return Outcome::Fine;
        }
        if !shared.drained() {
            self.wait = Wait::Drain;
            return Outcome::Fine;
        }
        while self.flush() {
            if self.last {
                self.wait = Wait::Close;
                return Outcome::Fine;
            }
            self.backlog = 0;
            let progress = self.dialogue.process(&mut self.out);
            let sent_all = self.out.is_empty();
            match progress {
                Progress::FlushOutput => {}
                Progress::Close => self.last = true,
                Progress::Shutdown { save } => {
                    self.wait = Wait::Close;
                    return Outcome::Shutdown { save };
                }
                // Replies leave before anything is waited for.
                _ if !sent_all => {
                    if self.may_return(&progress) && self.return_with_reply(shared) {
                        break;
                    }
                    if !self.flush() {
                        break;
                    }
                    self.rest(progress, shared);
                    break;
                }
                _ => {
                    self.rest(progress, shared);
                    break;
                }
            }
        }
        Outcome::Fine
    }

    /// Nothing is left to send: waits for what the dialogue needs, or gives the connection back.
    fn rest(&mut self, progress: Progress, shared: Shared<'_>) {
        self.wait = match progress {
            Progress::RetryAfter(delay) => Wait::Until(Instant::now() + delay.max(Duration::from_micros(50))),
            Progress::WaitDurable(ts) => Wait::Durable(ts),
            _ => Wait::Input,
        };
        if self.may_return(&progress) {
            self.done = self.seen;
            shared.give_back(self.seen, self.dialogue.waits_for_disk());
        }
    }

    /// Whether the kernel may go on when all replies are sent.
    fn may_return(&self, progress: &Progress) -> bool {
        let waits = matches!(progress, Progress::RetryAfter(_) | Progress::WaitDurable(_));
        !waits && self.kernel_path && self.mapped && self.skip == 0 && self.dialogue.kernel_may_answer()
    }

    /// Sends the last replies and gives the connection back in the same moment: else the client's next
    /// request would be here before that, and make another round through user space. Returns whether it
    /// worked; if not, nothing has changed except that some bytes may be sent.
    fn return_with_reply(&mut self, shared: Shared<'_>) -> bool {
        let left = &self.out[self.sent..];
        if left.is_empty() || left.len() > RETURN_MAX {
            return false;
        }
        shared.offer(self.seen, self.dialogue.waits_for_disk(), left.len() as u32);
        let sent = self.stream.write(left).unwrap_or(0);
        let complete = sent == left.len();
        self.sent += sent;
        if !shared.taken() {
            return false;
        }
        self.done = self.seen;
        self.wait = Wait::Input;
        if complete {
            self.out.clear();
            self.sent = 0;
        } else {
            // The rest cannot follow any more. Only for want of memory: there was room.
            self.wait = Wait::Close;
        }
        true
    }

    /// The server did not stop as this client wished. [`Client::advance`] is to follow.
    pub(super) fn shutdown_failed(&mut self) {
        self.dialogue.shutdown_failed(&mut self.out);
        self.wait = Wait::Input;
    }

    /// Sends what there is; true if nothing is left, else `wait` says why.
    fn flush(&mut self) -> bool {
        while self.sent < self.out.len() {
            match self.stream.write(&self.out[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    self.wait = Wait::Write;
                    if self.sent > KEEP {
                        self.out.drain(..self.sent);
                        self.sent = 0;
                    }
                    return false;
                }
                Err(e) => {
                    tracing::debug!(error = %e, "sending failed");
                    self.wait = Wait::Close;
                    return false;
                }
            }
        }
        self.out.clear();
        self.sent = 0;
        if self.out.capacity() > KEEP {
            self.out = Vec::new();
        }
        true
    }
}

impl Client {
    /// Closes the socket and returns the dialogue, whose session is still open.
    pub(super) fn disconnect(self) -> Dialogue {
        drop(self.stream);
        self.dialogue
    }
}
