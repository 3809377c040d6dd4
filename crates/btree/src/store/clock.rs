//! Timestamps, and the active snapshots.
//!
//! Committed transactions are numbered in their order. A load that adds several trees takes several numbers, because each tree
//! has one as its id. A snapshot at timestamp `s` sees the commits up to `s`. A commit becomes *visible* when all of it is in the
//! trees, and *durable* when its record is. Both happen in the order of timestamps, so `durable <= visible`.
//!
//! The *horizon* is the least timestamp that an active or a future snapshot can have. It never falls, because a new snapshot
//! begins at `durable` or at `visible`. No snapshot needs the values that were superseded at or before the horizon.
//!
//! Lock: `state`, a leaf.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Whether a snapshot sees commits that a crash could still undo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sees {
    Durable,
    Visible,
}

#[derive(Default)]
pub(crate) struct Clock {
    state: Mutex<State>,
    reopened: Condvar,
}

#[derive(Default)]
struct State {
    visible: u64,
    durable: u64,
    active: Active,
    /// Whether no snapshot may begin now.
    closed: bool,
}

impl State {
    fn horizon(&self) -> u64 {
        self.active.oldest().map_or(self.durable, |oldest| self.durable.min(oldest))
    }
}

/// The timestamps of the active snapshots in ascending order, with the number of snapshots at each. New snapshots have the last
/// timestamps, and most snapshots are short, so the list is short and changes at its end. It keeps its memory, so that a snapshot
/// allocates nothing.
#[derive(Default)]
struct Active(Vec<(u64, usize)>);

impl Active {
    fn add(&mut self, timestamp: u64) {
        let end = self.0.iter().rposition(|(of, _)| *of <= timestamp).map_or(0, |last| last + 1);
        match end.checked_sub(1).map(|last| &mut self.0[last]) {
            Some((of, count)) if *of == timestamp => *count += 1,
            _ => self.0.insert(end, (timestamp, 1)),
        }
    }

    fn remove(&mut self, timestamp: u64) {
        if let Ok(at) = self.0.binary_search_by_key(&timestamp, |(of, _)| *of) {
            self.0[at].1 -= 1;
            if self.0[at].1 == 0 {
                self.0.remove(at);
            }
        }
    }

    fn oldest(&self) -> Option<u64> {
        self.0.first().map(|(timestamp, _)| *timestamp)
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Clock {
    /// A clock whose next commit follows this timestamp. All commits up to it are durable.
    pub fn at(timestamp: u64) -> Self {
        let state = State { visible: timestamp, durable: timestamp, ..State::default() };
        Self { state: Mutex::new(state), reopened: Condvar::new() }
    }

    /// Begins a snapshot. Returns its timestamp.
    pub fn begin(&self, sees: Sees) -> u64 {
        let mut state = self
            .reopened
            .wait_while(self.lock(), |state| state.closed)
            .unwrap_or_else(PoisonError::into_inner);
        let timestamp = match sees {
            Sees::Durable => state.durable,
            Sees::Visible => state.visible,
        };
        state.active.add(timestamp);
        timestamp
    }

    /// Ends a snapshot. Returns the horizon.
    pub fn end(&self, timestamp: u64) -> u64 {
        let mut state = self.lock();
        state.active.remove(timestamp);
        state.horizon()
    }

    /// The timestamp of the last visible commit.
    pub fn visible(&self) -> u64 {
        self.lock().visible
    }

    /// Records that all of a commit is in the trees.
    pub fn set_visible(&self, timestamp: u64) {
        self.lock().visible = timestamp;
    }

    /// Records that a visible commit, and so all before it, are durable. Returns the horizon.
    pub fn set_durable(&self, timestamp: u64) -> u64 {
        let mut state = self.lock();
        state.durable = state.durable.max(timestamp);
        state.horizon()
    }

    /// Lets no snapshot begin until the guard is dropped. Returns none if snapshots are active.
    pub fn close(&self) -> Option<Closed<'_>> {
        let mut state = self.lock();
        if !state.active.is_empty() || state.closed {
            return None;
        }
        state.closed = true;
        Some(Closed(self))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// While this exists, no snapshot is active, and none begins.
pub(crate) struct Closed<'c>(&'c Clock);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.lock().closed = false;
        self.0.reopened.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::collections::BTreeMap;

    use proptest::prelude::*;

    proptest! {
        #[test]
        fn active_snapshots_are_a_sorted_map_of_counts(steps in prop::collection::vec((any::<bool>(), 0u64..8), 0..60)) {
            let (mut active, mut model) = (Active::default(), BTreeMap::<u64, usize>::new());
            for (is_added, timestamp) in steps {
                if is_added {
                    active.add(timestamp);
                    *model.entry(timestamp).or_default() += 1;
                } else if let Some(count) = model.get_mut(&timestamp) {
                    active.remove(timestamp);
                    *count -= 1;
                    if *count == 0 {
                        model.remove(&timestamp);
                    }
                }
                prop_assert_eq!(&active.0, &model.clone().into_iter().collect::<Vec<_>>());
                prop_assert_eq!(active.oldest(), model.keys().next().copied());
                prop_assert_eq!(active.is_empty(), model.is_empty());
            }
        }
    }

    #[test]
    fn the_horizon_is_the_oldest_snapshot_or_the_last_durable_commit() {
        let clock = Clock::at(5);
        clock.set_visible(6);
        assert_eq!((clock.begin(Sees::Durable), clock.begin(Sees::Visible)), (5, 6));
        assert!(clock.close().is_none());
        assert_eq!(clock.set_durable(6), 5);
        assert_eq!(clock.end(5), 6);
        assert_eq!(clock.set_durable(4), 6, "it does not fall");
        clock.set_visible(7);
        assert_eq!(clock.set_durable(7), 6);
        assert_eq!(clock.end(6), 7);
        assert!(clock.close().is_some_and(|_closed| clock.close().is_none()));
        assert_eq!(clock.begin(Sees::Visible), 7);
    }
}
