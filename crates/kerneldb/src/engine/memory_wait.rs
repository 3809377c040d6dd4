//! How long a write waits at the memory limit for blocks that the log's reader still needs.
//!
//! Some memory comes back as soon as the reader is past what was overwritten, so giving up at once would be
//! wrong. But under a load that goes on there is always something that it needs, so waiting for that to end would
//! be wrong as well: perhaps nothing of it is of the size that this write wants. What decides is how often
//! everything that waited at one failed attempt had come back at a later one, and that was not enough either.

use std::{cell::Cell, sync::atomic::Ordering};

use super::control::StateView;

/// As often: the collector takes what waits in two steps, and others may be quicker to use what comes back.
const ROUNDS: u32 = 8;

/// What a write that found no memory at the limit can hope for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryPressure {
    /// Blocks wait for the log's reader.
    pub(crate) waiting: bool,
    /// The collector's next run may free some of them: the next attempt may get one.
    pub(crate) ready: bool,
    /// Timestamp of the newest commit: everything that waits now is of commits up to here.
    pub(crate) clock: u64,
    /// The reader is done with all commits up to here.
    pub(crate) drained: u64,
}

impl MemoryPressure {
    /// Asks with the timestamp that the log's reader has reached whether blocks wait for it, and whether some of them
    /// are ready.
    pub(crate) fn of(state: &StateView, blocks: impl FnOnce(u64) -> (bool, bool)) -> Self {
        // The clock after the blocks: what waits is of commits up to there.
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
}

impl MemoryWait {
    /// After an attempt for which there was no memory: whether another one makes sense.
    pub(crate) fn goes_on(&self, seen: MemoryPressure) -> bool {
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

    /// After an attempt that had memory.
    pub(crate) fn end(&self) {
        self.rounds.set(0);
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
        assert!(!MemoryWait::default().goes_on(MemoryPressure { waiting: false, ..seen(9, 5) }));
    }

    #[test]
    fn a_reader_that_stands_still_is_waited_for() {
        let wait = MemoryWait::default();
        assert!((0..1000).all(|i| wait.goes_on(seen(100 + i, 99))));
    }

    #[test]
    fn blocks_that_are_about_to_be_freed_are_waited_for() {
        let wait = MemoryWait::default();
        assert!((0..1000).all(|_| wait.goes_on(MemoryPressure { ready: true, ..seen(100, 100) })));
    }

    #[test]
    fn what_came_back_in_vain_ends_it() {
        let wait = MemoryWait::default();
        // The reader needs three attempts for what waits at one.
        let attempts =
            |wait: &MemoryWait| (0..).take_while(|i| wait.goes_on(seen(10 + i, 10 + i / 3 * 3 - 3))).count();
        let first = attempts(&wait);
        assert!((ROUNDS as usize..6 * ROUNDS as usize).contains(&first), "{first}");
        assert_eq!(attempts(&wait), first, "the next write waits as long");
        assert!(wait.goes_on(seen(10, 10)));
        wait.end();
        assert_eq!(attempts(&wait), first, "so does one after a success");
    }
}
