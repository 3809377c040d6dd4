//! The server's counters.

use std::sync::atomic::{AtomicU64, Ordering};

use super::layout::srv_stats;

/// Counters of the event loop; shared with the handle.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) clients: AtomicU64,
    pub(super) accepted: AtomicU64,
    pub(super) refused: AtomicU64,
}

/// Figures of a running server. All but `clients` count from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerStats {
    /// Connections now.
    pub clients: u64,
    /// Connections accepted.
    pub accepted: u64,
    /// Connections refused because of the maximum of clients or sessions.
    pub refused: u64,
    /// Packets seen by the kernel's side.
    pub packets: u64,
    /// Request bytes received.
    pub request_bytes: u64,
    /// Commands answered in the kernel.
    pub kernel_commands: u64,
    /// Those among them that were answered in the client's send call (local fast path).
    pub local_commands: u64,
    /// Packets that carried replies of the kernel.
    pub kernel_replies: u64,
    /// Reply bytes sent by the kernel.
    pub kernel_reply_bytes: u64,
    /// Packets passed to the event loop, because the kernel could not answer all of their commands.
    pub passed: u64,
    /// Bytes of those packets.
    pub passed_bytes: u64,
    /// Packets passed because no buffer was free in the kernel.
    pub no_buffer: u64,
    /// Packets passed because a client's send buffer was too full.
    pub back_pressure: u64,
    /// Connections that the kernel gave up, for instance because it had no memory for a reply.
    pub broken: u64,
}

impl ServerStats {
    pub(super) fn new(kernel: &srv_stats, user: &Counters) -> Self {
        ServerStats {
            clients: user.clients.load(Ordering::Relaxed),
            accepted: user.accepted.load(Ordering::Relaxed),
            refused: user.refused.load(Ordering::Relaxed),
            packets: kernel.packets,
            request_bytes: kernel.bytes,
            kernel_commands: kernel.commands,
            local_commands: kernel.local,
            kernel_replies: kernel.replies,
            kernel_reply_bytes: kernel.reply_bytes,
            passed: kernel.passed,
            passed_bytes: kernel.passed_bytes,
            no_buffer: kernel.no_buffer,
            back_pressure: kernel.back_pressure,
            broken: kernel.broken,
        }
    }
}
