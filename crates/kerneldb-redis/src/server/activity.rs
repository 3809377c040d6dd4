//! Measures how busy the clients are, which decides whether replies are sent in batches ([`Batching::UnderLoad`]).
//!
//! Many clients that each wait for a reply gain from batches; a single client loses half of its rate. Batches
//! therefore need many active clients, a high rate of replies, and busy processors. If a processor is idle, the
//! scheduler moves a waiting worker to it for each reply, which takes longer than an interruption.
//!
//! [`Batching::UnderLoad`]: super::Batching::UnderLoad

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};

use super::idle::Idle;
use super::layout::srv_conn;
use bedplate_kerneldb::attach::ArrayMapping;

/// A busy time begins with this many active clients and replies per second, counted as packets with the kernel's
/// replies. It ends below half of either number.
const CLIENTS: u32 = 16;
const REPLIES_PER_S: u64 = 5_000;
/// A busy time begins when at most this percentage of the processors' time is idle. It ends above twice the number.
const IDLE: u64 = 5;

/// The load of the clients between two measurements.
#[derive(Clone, Copy, Debug)]
struct Load {
    /// Connections that sent something.
    active: u32,
    replies_per_s: u64,
}

impl Load {
    fn is_busy(self, was_busy: bool) -> bool {
        let part = if was_busy { 2 } else { 1 };
        self.active >= CLIENTS / part && self.replies_per_s >= REPLIES_PER_S / u64::from(part)
    }
}

/// Whether the processors have almost no idle time.
fn is_saturated(idle_percent: u64, was_busy: bool) -> bool {
    idle_percent <= if was_busy { 2 * IDLE } else { IDLE }
}

/// Measures the activity in the connection table, through a mapping of its own.
pub(super) struct Activity {
    conns: ArrayMapping<srv_conn>,
    /// Connections at and above this index were never in use.
    used: Arc<AtomicU32>,
    replies: u64,
    looked_ns: u64,
    idle: Idle,
    busy: bool,
}

impl Activity {
    pub(super) fn new(conns: ArrayMapping<srv_conn>, used: Arc<AtomicU32>) -> Self {
        Activity { conns, used, replies: 0, looked_ns: now_ns(), idle: Idle::default(), busy: false }
    }

    /// Whether the clients have been busy since the last call.
    pub(super) fn is_busy(&mut self) -> bool {
        let (before, now) = (self.looked_ns, now_ns());
        let (mut active, mut replies) = (0, 0u64);
        for index in 0..self.used.load(Ordering::Relaxed).min(self.conns.len()) {
            let conn = self.conns.get(index);
            // SAFETY: within the mapped table, which `self` keeps; aligned by the layout.
            let (last_ns, queued) = unsafe {
                (AtomicU64::from_ptr(&raw mut (*conn).last_ns), AtomicU64::from_ptr(&raw mut (*conn).queued))
            };
            active += u32::from(last_ns.load(Ordering::Relaxed) >= before);
            replies = replies.wrapping_add(queued.load(Ordering::Relaxed));
        }
        // A closed connection takes its replies out of the sum. If the sum falls, the rate counts as zero.
        let new = replies.saturating_sub(self.replies);
        let replies_per_s = new.saturating_mul(1_000_000_000) / (now - before).max(1);
        (self.replies, self.looked_ns) = (replies, now);
        // Reading the processors' times is expensive in the kernel, so they are read only while the clients are busy.
        self.busy = if (Load { active, replies_per_s }).is_busy(self.busy) {
            self.idle.percent().is_some_and(|idle| is_saturated(idle, self.busy))
        } else {
            self.idle = Idle::default();
            false
        };
        self.busy
    }
}

/// The clock of `srv_conn.last_ns`.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_busy_clients_it_takes() {
        let busy = |active, replies_per_s, was_busy| Load { active, replies_per_s }.is_busy(was_busy);
        assert!(busy(CLIENTS, REPLIES_PER_S, false));
        assert!(!busy(1, 100 * REPLIES_PER_S, false), "one client, however fast");
        assert!(!busy(100 * CLIENTS, REPLIES_PER_S / 10, false), "many that do little");
        assert!(busy(CLIENTS / 2, REPLIES_PER_S / 2, true), "it does not go to and fro");
        assert!(!busy(CLIENTS / 2 - 1, REPLIES_PER_S, true) && !busy(CLIENTS, 0, true));
    }

    #[test]
    fn and_processors_that_have_nothing_to_spare() {
        assert!(is_saturated(IDLE, false) && !is_saturated(IDLE + 1, false));
        assert!(
            is_saturated(2 * IDLE, true) && !is_saturated(2 * IDLE + 1, true),
            "it does not go to and fro"
        );
    }
}
