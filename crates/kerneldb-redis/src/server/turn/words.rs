//! The event loop's operations on the words of the turn of one connection. `bpf/layout.h` states the rules.

use super::Turn;
use super::atomics::{AtomicU32, AtomicU64, Ordering, fence};

/// The words of one connection that the turn depends on. They are fields of `srv_conn`.
#[derive(Clone, Copy)]
pub(in crate::server) struct TurnWords<'a> {
    pub(in crate::server) turn: &'a AtomicU64,
    pub(in crate::server) queued: &'a AtomicU64,
    pub(in crate::server) sent: &'a AtomicU64,
    pub(in crate::server) want_drained: &'a AtomicU32,
    pub(in crate::server) flags: &'a AtomicU32,
    pub(in crate::server) give: &'a AtomicU64,
    pub(in crate::server) give_len: &'a AtomicU32,
}

impl TurnWords<'_> {
    /// Replies that the kernel has queued so far.
    pub(in crate::server) fn queued(self) -> u64 {
        self.queued.load(Ordering::Acquire)
    }

    /// Replies of the kernel that TCP has taken so far.
    pub(in crate::server) fn sent(self) -> u64 {
        self.sent.load(Ordering::Acquire)
    }

    /// The side whose turn it is now, and the number of passed bytes.
    pub(in crate::server) fn turn(self) -> Turn {
        Turn(self.turn.load(Ordering::Acquire))
    }

    /// Whether every reply of the kernel has been sent. If not, the connection's signal is raised when it has.
    pub(in crate::server) fn drained(self) -> bool {
        if self.sent() == self.queued() {
            return true;
        }
        self.want_drained.store(1, Ordering::Relaxed);
        // sk_msg counts, then looks at `want_drained`; one of both sides notices the other.
        fence(Ordering::SeqCst);
        if self.sent() != self.queued() {
            return false;
        }
        self.want_drained.store(0, Ordering::Relaxed);
        true
    }

    /// Ends the event loop's turn `turn`, whose passed bytes are all read and answered. Returns false if more bytes were
    /// passed in the meantime; then the turn continues. `flags` are the connection's in the verdict's turn.
    pub(in crate::server) fn end_turn(self, turn: Turn, flags: u32) -> bool {
        self.want_drained.store(0, Ordering::Relaxed);
        self.flags.store(flags, Ordering::Relaxed);
        self.turn.compare_exchange(turn.0, turn.ended().0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Asks for the same as [`TurnWords::end_turn`], in the moment in which a reply of `reply_bytes` leaves. The
    /// caller must send that reply next, and then call [`TurnWords::turn_ended_with_reply`].
    pub(in crate::server) fn end_turn_with_reply(self, turn: Turn, flags: u32, reply_bytes: u32) {
        self.want_drained.store(0, Ordering::Relaxed);
        self.flags.store(flags, Ordering::Relaxed);
        self.give.store(turn.0, Ordering::Relaxed);
        self.give_len.store(reply_bytes, Ordering::Release);
    }

    /// Whether the event loop's turn has ended with the reply that was sent.
    pub(in crate::server) fn turn_ended_with_reply(self) -> bool {
        self.give_len.swap(0, Ordering::AcqRel) == 0
    }
}
