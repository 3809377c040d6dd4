//! Models the eBPF programs, as far as the turn is concerned, and the kernel around them.

use loom::sync::Arc;

use super::atomics::{Ordering, fence};
use super::{Command, ConnModel, Kind, Mutant, Step};
use crate::server::turn::{BYTE, SERVER};

/// An atomic operation of a program, which is also a full barrier.
pub(super) fn locked<T>(operation: impl FnOnce() -> T) -> T {
    fence(Ordering::SeqCst);
    let result = operation();
    fence(Ordering::SeqCst);
    result
}

/// Models the eBPF programs and the kernel around them.
pub(super) struct Kernel {
    conn: Arc<ConnModel>,
    /// Number of the next command that arrives.
    next: u32,
}

impl Kernel {
    pub(super) fn new(conn: Arc<ConnModel>) -> Self {
        Kernel { conn, next: 0 }
    }

    /// Does all steps, and then lets the event loop end.
    pub(super) fn run(mut self, steps: &[Step]) {
        for step in steps {
            match step {
                Step::Packet(kinds) => self.packet(kinds),
                Step::Send => while self.send() {},
            }
        }
        self.conn.wake(|events| events.ended = true);
    }

    fn packet(&mut self, kinds: &[Kind]) {
        let packet: Vec<Command> = (self.next..).zip(kinds.iter().copied()).collect();
        self.next += packet.len() as u32;
        if self.verdict(&packet) {
            // The verdict counts passed bytes some time before the event loop can read them.
            self.conn.socket.lock().unwrap().receive_buffer.extend(packet);
            self.conn.wake(|events| events.readable |= events.watched);
        }
    }

    /// srv_receive(). Returns whether the packet is passed.
    fn verdict(&self, packet: &[Command]) -> bool {
        let conn = &*self.conn;
        let mut socket = conn.socket.lock().unwrap();
        let bytes = packet.len() as u64 * BYTE;
        // srv_pass_in_turn()
        let turn = conn.turn.load(Ordering::Acquire);
        if turn & SERVER != 0 {
            if conn.mutant == Mutant::PassWithoutComparing {
                locked(|| conn.turn.fetch_add(bytes, Ordering::AcqRel));
                return true;
            }
            let (expected, new) = (turn, turn + bytes);
            let passed =
                locked(|| conn.turn.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire));
            if passed.is_ok() {
                return true;
            }
        }
        assert!(socket.receive_buffer.is_empty(), "the turn was ended while passed bytes are unread");
        let simple = packet.iter().take_while(|(_, kind)| *kind == Kind::Simple);
        let replies: Vec<u32> = simple.map(|command| conn.execute(*command)).collect();
        if replies.len() == packet.len() {
            // srv_queue()
            socket.carriers.push_back(replies);
            locked(|| conn.queued.fetch_add(1, Ordering::AcqRel));
            return false;
        }
        let leave = || {
            conn.with_left(|left| {
                left.skip = replies.len();
                left.replies = replies.clone();
            });
        };
        // srv_leave_replies(), srv_begin_turn()
        if conn.mutant != Mutant::LeaveRepliesAfterTurn {
            leave();
        }
        locked(|| conn.turn.fetch_add(bytes + SERVER, Ordering::AcqRel));
        if conn.mutant == Mutant::LeaveRepliesAfterTurn {
            leave();
        }
        self.signal();
        true
    }

    /// srv_send() for the oldest redirected packet. Returns false if there is none.
    fn send(&self) -> bool {
        let conn = &*self.conn;
        let mut socket = conn.socket.lock().unwrap();
        let Some(replies) = socket.carriers.pop_front() else { return false };
        let sent = conn.sent.load(Ordering::Acquire);
        assert!(sent < conn.queued.load(Ordering::Acquire), "a carrier without a reply");
        socket.received.extend(replies);
        let early = conn.mutant == Mutant::CheckWantDrainedBeforeCounting;
        let wanted_before = early && conn.want_drained.load(Ordering::Acquire) != 0;
        locked(|| conn.sent.fetch_add(1, Ordering::AcqRel));
        let wanted = if early { wanted_before } else { conn.want_drained.load(Ordering::Acquire) != 0 };
        if wanted && sent + 1 == conn.queued.load(Ordering::Acquire) {
            self.signal();
        }
        true
    }

    /// srv_signal()
    fn signal(&self) {
        if locked(|| self.conn.signal.fetch_or(1, Ordering::AcqRel)) == 0 {
            self.conn.wake(|events| events.bell = true);
        }
    }
}
