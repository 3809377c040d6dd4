//! Models the event loop with one connection, as far as the turn is concerned.

use std::collections::VecDeque;

use loom::sync::Arc;

use super::atomics::{Ordering, fence};
use super::words::TurnWords;
use super::{Command, ConnModel, Mutant, locked};
use crate::server::turn::{SERVER, Turn};

/// The event on the connection that the event loop waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaiting {
    Input,
    Drain,
    Others,
}

/// The event loop with its one connection.
pub(super) struct EventLoop {
    conn: Arc<ConnModel>,
    awaiting: Awaiting,
    my_turn: bool,
    /// Passed bytes that were read.
    read: u64,
    skip: usize,
    requests: VecDeque<Command>,
    out: Vec<u32>,
}

impl EventLoop {
    pub(super) fn new(conn: Arc<ConnModel>) -> Self {
        EventLoop {
            conn,
            awaiting: Awaiting::Input,
            my_turn: false,
            read: 0,
            skip: 0,
            requests: VecDeque::new(),
            out: Vec::new(),
        }
    }

    /// Works until the kernel has done all of its steps and nothing has woken the event loop.
    pub(super) fn run(mut self) {
        loop {
            let (bell, readable) = self.wait();
            let runnable = self.awaiting == Awaiting::Others;
            if !bell && !readable && !runnable {
                break;
            }
            if readable {
                self.advance();
                if !self.my_turn {
                    self.conn.events.lock().unwrap().watched = false;
                }
            }
            if bell {
                self.take_signal();
            }
            if runnable {
                self.advance();
            }
        }
        assert!(!self.my_turn && self.awaiting == Awaiting::Input, "the event loop's turn never ends");
    }

    /// Waits for events and returns whether there are signals, and whether data has arrived.
    fn wait(&self) -> (bool, bool) {
        let mut events = self.conn.events.lock().unwrap();
        while !(events.bell || events.readable || events.ended || self.awaiting == Awaiting::Others) {
            events = self.conn.woken.wait(events).unwrap();
        }
        (std::mem::take(&mut events.bell), std::mem::take(&mut events.readable))
    }

    /// `Signals::take`; the bell is empty already.
    fn take_signal(&mut self) {
        fence(Ordering::SeqCst);
        if self.conn.signal.load(Ordering::Relaxed) == 0 {
            return;
        }
        if self.conn.mutant == Mutant::ClearSignalAfterLooking {
            self.advance();
            self.conn.signal.swap(0, Ordering::AcqRel);
        } else if self.conn.signal.swap(0, Ordering::AcqRel) != 0 {
            self.advance();
        }
    }

    /// `EventLoop::advance`
    fn advance(&mut self) {
        self.awaiting = self.work();
        if self.my_turn && !std::mem::replace(&mut self.conn.events.lock().unwrap().watched, true) {
            // epoll also reports data that arrived before the watch began.
            let has_input = !self.conn.socket.lock().unwrap().receive_buffer.is_empty();
            self.conn.events.lock().unwrap().readable |= has_input;
        }
    }

    /// `Client::advance`
    fn work(&mut self) -> Awaiting {
        let conn = self.conn.clone();
        let words = conn.words();
        if !self.my_turn {
            if !words.turn().is_event_loop() {
                return Awaiting::Input;
            }
            self.my_turn = true;
            let left = conn.with_left(std::mem::take);
            self.skip = left.skip;
            self.out.extend(left.replies);
        }
        if !words.drained() {
            return Awaiting::Drain;
        }
        let mut reading = None;
        loop {
            if reading.is_none() && self.can_read(words) {
                reading = Some(self.receive());
            }
            while let Some(command) = self.requests.pop_front() {
                self.out.push(conn.execute(command));
            }
            if self.can_read(words) {
                match reading {
                    None => {
                        self.flush();
                        continue;
                    }
                    Some(true) => {
                        self.flush();
                        return Awaiting::Others;
                    }
                    Some(false) => {}
                }
            }
            if self.may_end_turn(words) && self.end_turn_with_reply(words) {
                return Awaiting::Input;
            }
            self.flush();
            return self.rest(words);
        }
    }

    fn turn(&self) -> Turn {
        Turn::event_loop_after(self.read)
    }

    fn can_read(&self, words: TurnWords<'_>) -> bool {
        words.turn().passed_bytes() != self.read
    }

    fn may_end_turn(&self, words: TurnWords<'_>) -> bool {
        self.skip == 0 && words.turn() == self.turn()
    }

    /// Reads the arrived bytes; returns whether there were any.
    fn receive(&mut self) -> bool {
        let arrived = std::mem::take(&mut self.conn.socket.lock().unwrap().receive_buffer);
        self.read += arrived.len() as u64;
        let skip = self.skip.min(arrived.len());
        self.skip -= skip;
        let any = !arrived.is_empty();
        self.requests.extend(arrived.into_iter().skip(skip));
        any
    }

    fn flush(&mut self) {
        if !self.out.is_empty() {
            self.send();
        }
    }

    /// Sends the output; on the way, srv_send() runs with the socket locked.
    fn send(&mut self) {
        let conn = &*self.conn;
        let mut socket = conn.socket.lock().unwrap();
        let (sent, queued) = (conn.sent.load(Ordering::Acquire), conn.queued.load(Ordering::Acquire));
        assert_eq!(sent, queued, "what the event loop sends is taken for a carrier");
        // srv_give_back()
        let turn = conn.give.load(Ordering::Acquire);
        let size = self.out.len() as u32;
        if conn.give_len.load(Ordering::Acquire) == size && conn.has_room {
            let new = turn & !SERVER;
            let ended = locked(|| {
                if conn.mutant == Mutant::GiveWithoutComparing {
                    conn.turn.fetch_and(!SERVER, Ordering::AcqRel);
                    return true;
                }
                conn.turn.compare_exchange(turn, new, Ordering::AcqRel, Ordering::Acquire).is_ok()
            });
            if ended {
                conn.give_len.store(0, Ordering::Release);
            }
        }
        socket.received.append(&mut self.out);
    }

    /// `Client::end_turn_with_reply`
    fn end_turn_with_reply(&mut self, words: TurnWords<'_>) -> bool {
        if self.out.is_empty() {
            return false;
        }
        words.end_turn_with_reply(self.turn(), 0, self.out.len() as u32);
        self.send();
        if !words.turn_ended_with_reply() {
            return false;
        }
        self.my_turn = false;
        true
    }

    /// `Client::rest`
    fn rest(&mut self, words: TurnWords<'_>) -> Awaiting {
        if self.may_end_turn(words) {
            let ended = if self.conn.mutant == Mutant::EndTurnWithoutComparing {
                self.conn.turn.fetch_and(!SERVER, Ordering::AcqRel);
                true
            } else {
                words.end_turn(self.turn(), 0)
            };
            if !ended {
                return Awaiting::Others;
            }
            self.my_turn = false;
        }
        Awaiting::Input
    }
}
