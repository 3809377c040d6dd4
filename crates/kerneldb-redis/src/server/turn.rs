//! The side whose turn it is on a connection, and the number of bytes that the verdict has passed. Both are one word,
//! shared with the eBPF programs. `bpf/layout.h` states the rules.

mod atomics;
#[cfg(test)]
mod model;
mod words;

use super::layout::{SRV_TURN_BYTE, SRV_TURN_SERVER};
pub(super) use words::TurnWords;

/// A value of `srv_conn.turn`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn(pub(super) u64);

const SERVER: u64 = SRV_TURN_SERVER as u64;
const BYTE: u64 = SRV_TURN_BYTE as u64;

impl Turn {
    /// The verdict's turn on a connection of which nothing was passed yet.
    pub(super) const VERDICT: Turn = Turn(0);
    /// The event loop's turn on a connection of which nothing was passed yet.
    pub(super) const EVENT_LOOP: Turn = Turn(SERVER);

    /// The event loop's turn after the verdict has passed this many bytes.
    pub(super) fn event_loop_after(passed_bytes: u64) -> Turn {
        Turn(passed_bytes.wrapping_mul(BYTE) | SERVER)
    }

    /// Whether it is the event loop's turn.
    pub(super) fn is_event_loop(self) -> bool {
        self.0 & SERVER != 0
    }

    /// Bytes passed by the verdict since the connection was opened.
    pub(super) fn passed_bytes(self) -> u64 {
        self.0 / BYTE
    }

    /// The verdict's turn after this one.
    pub(super) fn ended(self) -> Turn {
        Turn(self.0 & !SERVER)
    }
}
