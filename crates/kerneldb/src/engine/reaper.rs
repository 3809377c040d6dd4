//! Rolls back transactions that have exceeded their age or idle limit, whichever side runs their operators.
//!
//! This module finds them by their contexts. In every partition in which such a transaction holds locks, the program
//! `kdb_call_reap` rolls it back, unless it has gone on meanwhile. One thread at a time does this.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::{
    Result,
    bpf::ArrayMapping,
    layout::{
        KDB_ERR_TX_TIMED_OUT, KDB_OK, KDB_TX_ACTIVE, KDB_TX_FAILED, KDB_TX_NONE, KDB_TX_READ_ONLY,
        KDB_TX_ROLLING_BACK, kdb_ctx,
    },
    limits::CLOCK_STEP_MAX,
};

/// The clock by which transactions and snapshots age. It is in the shared state, where operators read it without cost.
///
/// It advances by at most [`CLOCK_STEP_MAX`] at a time. If this process is stopped for long, transactions whose
/// operators the kernel went on running do therefore not look idle afterwards.
#[derive(Debug)]
pub(crate) struct CoarseClock {
    last: Mutex<Instant>,
}

impl CoarseClock {
    pub(crate) fn new(ns: &AtomicU64) -> CoarseClock {
        ns.store(1, Ordering::SeqCst);
        CoarseClock { last: Mutex::new(Instant::now()) }
    }

    /// Advances the clock; returns its new value.
    pub(crate) fn advance(&self, ns: &AtomicU64) -> u64 {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let step = now.duration_since(*last).min(CLOCK_STEP_MAX);
        *last = now;
        ns.fetch_add(step.as_nanos() as u64, Ordering::SeqCst) + step.as_nanos() as u64
    }
}

/// The words of a context that other threads may read while its owner changes them.
pub(crate) struct ContextView {
    pub(crate) state: u32,
    pub(crate) error: u32,
    pub(crate) partitions: u32,
    pub(crate) tx_seq: u64,
    begin_ns: u64,
    last_ns: u64,
}

impl ContextView {
    /// Reads the words one after the other, the state first.
    pub(crate) fn read(ctx: *mut kdb_ctx) -> ContextView {
        // SAFETY: `ctx` points to an element of the mapped contexts, whose fields are aligned; all of them are
        // accessed as whole words by the programs as well.
        unsafe {
            let word = |at: *mut u32| AtomicU32::from_ptr(at).load(Ordering::Acquire);
            let long = |at: *mut u64| AtomicU64::from_ptr(at).load(Ordering::Acquire);
            ContextView {
                state: word(&raw mut (*ctx).state),
                error: word(&raw mut (*ctx).error),
                partitions: word(&raw mut (*ctx).partitions),
                tx_seq: long(&raw mut (*ctx).tx_seq),
                begin_ns: long(&raw mut (*ctx).begin_ns),
                last_ns: long(&raw mut (*ctx).last_ns),
            }
        }
    }

    /// Whether the transaction is to be rolled back, given the limits (age, idleness) in nanoseconds.
    fn is_over(&self, now: u64, (age, idle): (u64, u64)) -> bool {
        match self.state {
            // The owner has interrupted the reaper: the remaining locks follow.
            KDB_TX_FAILED if self.error == KDB_ERR_TX_TIMED_OUT => self.partitions != 0,
            // The transaction holds no locks any more.
            KDB_TX_FAILED if self.partitions == 0 => false,
            KDB_TX_ACTIVE | KDB_TX_READ_ONLY | KDB_TX_FAILED => {
                now.saturating_sub(self.begin_ns) > age || now.saturating_sub(self.last_ns) > idle
            }
            _ => false,
        }
    }

    /// Whether the transaction `tx_seq` of this session (low bits, selected by `mask`) cannot commit any more unless
    /// its commit is in the log already.
    pub(crate) fn has_ended(&self, tx_seq: u64, mask: u64) -> bool {
        self.tx_seq & mask != tx_seq & mask
            || matches!(self.state, KDB_TX_NONE | KDB_TX_FAILED | KDB_TX_ROLLING_BACK)
    }
}

/// Rolls back every transaction that is over a limit (age, idleness, in nanoseconds) at `now`. `run` runs the program
/// of a partition with the given arguments.
pub(crate) fn reap(
    contexts: &ArrayMapping<kdb_ctx>,
    now: u64,
    limits: (u64, u64),
    run: &dyn Fn(u32, &mut [u64; 3]) -> Result<u32>,
) -> Result<()> {
    for session in 0..contexts.len() {
        let seen = ContextView::read(contexts.get(session));
        if !seen.is_over(now, limits) {
            continue;
        }
        let mut held = seen.partitions;
        loop {
            let partition = if held == 0 { 0 } else { held.trailing_zeros() };
            let mut args = [u64::from(session), seen.tx_seq, seen.last_ns];
            // Any other status: the owner goes on with the transaction, or has ended it.
            if run(partition, &mut args)? != KDB_OK {
                break;
            }
            held = ContextView::read(contexts.get(session)).partitions;
            if held == 0 {
                tracing::warn!(
                    session,
                    age_ms = now.saturating_sub(seen.begin_ns) / 1_000_000,
                    idle_ms = now.saturating_sub(seen.last_ns) / 1_000_000,
                    "rolled back a transaction that exceeded its time limit"
                );
                break;
            }
        }
    }
    Ok(())
}
