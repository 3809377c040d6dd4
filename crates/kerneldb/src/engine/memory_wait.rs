//! Decides how long a write waits at the memory limit for blocks that the log's reader still needs.
//!
//! Some memory comes back as soon as the reader has passed overwritten values, so giving up at once would be wrong.
//! Under a continuous load, however, the reader always needs some blocks, perhaps none of them of the size that this
//! write needs. Waiting until it needs none would therefore be wrong as well. The limit is on rounds. A round ends
//! when all blocks that waited at one failed attempt have come back at a later attempt that fails, too.
//!
//! While keys can be evicted, memory comes back as well, perhaps when the log's reader or a snapshot is done with it. A write
//! waits for that for a limited time.

use std::{cell::Cell, sync::atomic::Ordering, time::Instant};

use super::control::StateView;
use crate::limits::EVICTION_PATIENCE;

/// Number of rounds. The collector frees waiting blocks in two steps, and other writers may take them first.
const ROUNDS: u32 = 8;

/// The state of the memory for a write that found none at the limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryPressure {
    /// Blocks wait for the log's reader.
    pub(crate) waiting: bool,
    /// The collector's next run may free some of them, so the next attempt may get one.
    pub(crate) ready: bool,
    /// Timestamp of the newest commit: all blocks that wait now belong to commits up to here.
    pub(crate) clock: u64,
    /// The reader is done with all commits up to here.
    pub(crate) drained: u64,
}

impl MemoryPressure {
    /// Calls `blocks` with the timestamp that the log's reader has reached. It returns whether blocks wait for the
    /// reader, and whether some of them are ready.
    pub(crate) fn of(state: &StateView, blocks: impl FnOnce(u64) -> (bool, bool)) -> Self {
        // The clock is read after the blocks, because the waiting blocks belong to commits up to it.
        let drained = state.drained_ts.load(Ordering::SeqCst);
        let (waiting, ready) = blocks(drained);
        MemoryPressure { waiting, ready, drained, clock: state.clock.load(Ordering::SeqCst) }
    }
}

/// The failed attempts of a session, since the last one that did not fail for memory.
#[derive(Debug, Default)]
pub(crate) struct MemoryWait {
    until: Cell<u64>,
    rounds: Cell<u32>,
    /// The time of the first attempt.
    since: Cell<Option<Instant>>,
}

impl MemoryWait {
    /// Called after an attempt that found no memory; returns whether another one makes sense. `evicts`: some keys can still be
    /// evicted.
    pub(crate) fn goes_on(&self, seen: MemoryPressure, evicts: bool) -> bool {
        let since = self.since.get().unwrap_or_else(Instant::now);
        self.since.set(Some(since));
        if evicts && since.elapsed() < EVICTION_PATIENCE {
            return true;
        }
        if !seen.waiting || self.rounds.get() > ROUNDS {
            self.end();
            return false;
        }
        let came_back = seen.drained >= self.until.get() && !seen.ready;
        if self.rounds.get() == 0 || came_back {
            self.rounds.set(self.rounds.get() + 1);
            self.until.set(seen.clock);
        }
        true
    }

    /// Called after an attempt that found memory.
    pub(crate) fn end(&self) {
        self.rounds.set(0);
        self.since.set(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(clock: u64, drained: u64) -> MemoryPressure {
        MemoryPressure { waiting: true, ready: false, clock, drained }
    }

    #[test]
    fn nothing_to_wait_for() {
        assert!(!MemoryWait::default().goes_on(MemoryPressure { waiting: false, ..seen(9, 5) }, false));
    }

    #[test]
    fn a_reader_that_stands_still_is_waited_for() {
        let wait = MemoryWait::default();
        assert!((0..1000).all(|i| wait.goes_on(seen(100 + i, 99), false)));
    }

    #[test]
    fn blocks_that_are_about_to_be_freed_are_waited_for() {
        let wait = MemoryWait::default();
        assert!((0..1000).all(|_| wait.goes_on(MemoryPressure { ready: true, ..seen(100, 100) }, false)));
    }

    #[test]
    fn what_came_back_in_vain_ends_it() {
        let wait = MemoryWait::default();
        // The reader needs three attempts to finish the blocks that wait at one.
        let attempts = |wait: &MemoryWait| {
            (0..).take_while(|i| wait.goes_on(seen(10 + i, 10 + i / 3 * 3 - 3), false)).count()
        };
        let first = attempts(&wait);
        assert!((ROUNDS as usize..6 * ROUNDS as usize).contains(&first), "{first}");
        assert_eq!(attempts(&wait), first, "the next write waits as long");
        assert!(wait.goes_on(seen(10, 10), false));
        wait.end();
        assert_eq!(attempts(&wait), first, "so does one after a success");
    }

    #[test]
    fn eviction_is_waited_for() {
        let (wait, none) = (MemoryWait::default(), MemoryPressure { waiting: false, ..seen(9, 5) });
        assert!((0..1000).all(|_| wait.goes_on(none, true)));
        wait.since.set(Instant::now().checked_sub(EVICTION_PATIENCE));
        assert!(!wait.goes_on(none, true), "not for ever");
        assert!(wait.goes_on(none, true), "the next write waits as long");
    }
}
