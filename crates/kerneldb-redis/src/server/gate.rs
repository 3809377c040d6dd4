//! The words that keep the kernel from answering, while clients are paused or while every command is reported (`struct srv_gate`).

use std::sync::atomic::{AtomicU64, Ordering};

use super::layout::srv_gate;
use bedplate_kerneldb::attach::ArrayMapping;
use bedplate_kerneldb::{Database, Result};

/// The mapped gate of a server.
pub(super) struct Gate {
    words: ArrayMapping<srv_gate>,
}

impl Gate {
    pub(super) fn new(words: ArrayMapping<srv_gate>) -> Gate {
        Gate { words }
    }

    /// Whether a time is set, even if its time is over. Meanwhile the programs read the clock for each
    /// command.
    pub(super) fn is_closed(&self) -> bool {
        let [all, writes] = self.words();
        all.load(Ordering::Relaxed) | writes.load(Ordering::Relaxed) != 0
    }

    fn words(&self) -> [&AtomicU64; 2] {
        let gate = self.words.get(0);
        // SAFETY: within the mapped array, which `self` keeps; aligned, and only accessed atomically.
        unsafe {
            [
                AtomicU64::from_ptr(&raw mut (*gate).all_until_ns),
                AtomicU64::from_ptr(&raw mut (*gate).writes_until_ns),
            ]
        }
    }

    /// Lets the event loop execute all commands, and those that write, until these times of CLOCK_MONOTONIC; 0 = the kernel answers
    /// them. When it returns, no command that began before is still running in the kernel.
    pub(super) fn set(&self, database: &Database, all_until_ns: u64, writes_until_ns: u64) -> Result<()> {
        let [all, writes] = self.words();
        if (all.load(Ordering::SeqCst), writes.load(Ordering::SeqCst)) == (all_until_ns, writes_until_ns) {
            return Ok(());
        }
        all.store(all_until_ns, Ordering::SeqCst);
        writes.store(writes_until_ns, Ordering::SeqCst);
        if all_until_ns.max(writes_until_ns) > 0 {
            database.wait_for_programs()?;
        }
        Ok(())
    }
}
