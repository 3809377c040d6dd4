//! The limits of the server: how much work and memory one connection gets before the others get their turn.
//!
//! A connection that reaches one of them waits; it is never closed for it. While it waits, the event loop does not
//! read from its socket, so TCP slows the client down.

use std::time::Duration;

/// Request bytes that the event loop reads from one connection and executes before it serves the next one.
pub(crate) const TURN_READ_BYTES: usize = 16 << 10;

/// Time for which connections with more requests are served before the event loop looks for events again.
pub(crate) const TURN_TIME: Duration = Duration::from_millis(2);

/// Connections accepted before the event loop serves others again.
pub(crate) const TURN_ACCEPTS: usize = 64;

/// Events taken from the kernel at a time.
pub(crate) const TURN_EVENTS: usize = 256;

/// Memory of sent replies that a connection keeps for the next ones.
pub(crate) const KEPT_OUTPUT_BYTES: usize = 1 << 20;

/// Longest reply with which the event loop's turn ends in the moment in which the reply leaves.
pub(crate) const TURN_END_REPLY_BYTES: usize = 16 << 10;

/// How often the event loop looks at every connection for what no event announces.
pub(crate) const SWEEP_INTERVAL: Duration = Duration::from_millis(500);

/// Shortest time for which a request waits before it is tried again.
pub(crate) const RETRY_MIN: Duration = Duration::from_micros(50);
