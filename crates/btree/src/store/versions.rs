//! The values that snapshots need and that the trees no longer have.
//!
//! For each key, there is an ordered list of entries. An entry has the timestamp at which a commit superseded the value, and the
//! value, or none if the key was absent. The trees have the newest values only.
//!
//! # The read rule
//!
//! A committer with timestamp `c` inserts the entries of *all* keys that it writes before it changes the first of them in a
//! tree. A reader at snapshot `s` reads the key in the tree first, and then the overlay. If the overlay has entries of the key
//! that were superseded after `s`, the value is the old value of the earliest of them. Otherwise it is that of the tree.
//!
//! *Why it is right.* Commits run one after the other under the commit mutex, and a snapshot at `s` begins only after all
//! commits up to `s` are in the trees. Let `c` be the first commit after `s` that writes the key. The old value of its entry is
//! the key's value after all commits before `c`, which is the value at `s`.
//!
//! - If the reader sees an entry of the key after `s`, the earliest is that of `c`: entries of one key are inserted in the order
//!   of timestamps, and none that is newer than an active snapshot is removed. So the reader returns the value at `s`.
//! - If it sees none, `c` had not inserted its entry when the reader looked, which was after it had read the tree. The
//!   insertion comes before the change of the tree, and the change before any later one. So the tree had no change of
//!   the key after `s` when it was read, and it had all before: the reader returns the value at `s`.
//!
//! The opposite order would be wrong: the committer could insert and change between the two reads.
//!
//! *Scans* obey the same rule key by key. A scan returns each key at most once, and each key that is in the tree during the whole
//! scan. A key of the range that the scan passed without returning it was absent from the tree at a moment before the
//! overlay is asked for that part of the range. A key that the scan returned was in the tree at such a moment.
//!
//! *Validation.* The same entries tell whether a key, or any key of a range, was written after a snapshot. So the validation of
//! ranges detects phantoms.
//!
//! *`newest`* is the timestamp of the last commit that has inserted entries. A reader whose snapshot is not older needs no
//! lock. It is stored before the entries and hence before the change of the tree, and loaded after the tree was read; the
//! page's latch orders the two.
//!
//! *The limit.* Beyond it the entries of the oldest commits are removed, and `floor` rises to the timestamp of the last one
//! removed. A snapshot below `floor` may lack an entry, so all its lookups fail from then on.
//!
//! Lock: `state`, a leaf.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::error::{Error, Result};
use super::limits::VERSION_OVERHEAD;
use crate::scan::Direction;

/// A previous value of a key, or none.
pub(crate) type Old = Option<Arc<[u8]>>;

/// A write, as the overlay sees it.
pub(crate) struct Superseded {
    pub tree: u64,
    pub key: Arc<[u8]>,
    pub old: Old,
}

pub(crate) struct Versions {
    newest: AtomicU64,
    /// The timestamp of the oldest entry, or the maximum number if there is none. It changes under `state`.
    oldest: AtomicU64,
    limit: usize,
    state: RwLock<State>,
}

type Keys = BTreeMap<Arc<[u8]>, VecDeque<(u64, Old)>>;

#[derive(Default)]
struct State {
    trees: BTreeMap<u64, Keys>,
    /// All entries in the order of timestamps.
    order: VecDeque<(u64, u64, Arc<[u8]>)>,
    bytes: usize,
    floor: u64,
}

impl State {
    /// Removes the oldest entry.
    fn pop(&mut self) {
        let Some((_, tree, key)) = self.order.pop_front() else { return };
        let Some(keys) = self.trees.get_mut(&tree) else { return };
        let Some(entries) = keys.get_mut(&key) else { return };
        if let Some((_, old)) = entries.pop_front() {
            self.bytes -= cost(&key, &old);
        }
        if entries.is_empty() {
            keys.remove(&key);
        }
        if keys.is_empty() {
            self.trees.remove(&tree);
        }
    }

    fn oldest(&self) -> Option<u64> {
        self.order.front().map(|(timestamp, ..)| *timestamp)
    }
}

fn cost(key: &[u8], old: &Old) -> usize {
    VERSION_OVERHEAD + key.len() + old.as_ref().map_or(0, |old| old.len())
}

fn seen(entries: &VecDeque<(u64, Old)>, snapshot: u64) -> Option<Old> {
    // Timestamps rise. A key that is written often has many entries while an old snapshot is active.
    let at = entries.partition_point(|(timestamp, _)| *timestamp <= snapshot);
    entries.get(at).map(|(_, old)| old.clone())
}

impl Versions {
    /// An empty overlay that keeps at most this number of bytes.
    pub fn new(limit: usize) -> Self {
        Self { newest: AtomicU64::new(0), oldest: AtomicU64::new(u64::MAX), limit, state: RwLock::default() }
    }

    /// Must be called before the commit with this timestamp changes the trees.
    pub fn insert(&self, timestamp: u64, entries: impl IntoIterator<Item = Superseded>) {
        let mut state = self.write();
        self.newest.store(timestamp, Ordering::SeqCst);
        for Superseded { tree, key, old } in entries {
            state.bytes += cost(&key, &old);
            state.order.push_back((timestamp, tree, Arc::clone(&key)));
            state.trees.entry(tree).or_default().entry(key).or_default().push_back((timestamp, old));
        }
        while state.bytes > self.limit
            && let Some(oldest) = state.oldest().filter(|oldest| *oldest < timestamp)
        {
            state.floor = oldest;
            state.pop();
        }
        self.note_oldest(&state);
    }

    /// Removes the entries that no snapshot at or after this timestamp needs.
    pub fn prune(&self, horizon: u64) {
        // Every snapshot calls this at its end. An entry that is inserted at the same time is left to a later call.
        if self.oldest.load(Ordering::Relaxed) > horizon {
            return;
        }
        let mut state = self.write();
        while state.oldest().is_some_and(|oldest| oldest <= horizon) {
            state.pop();
        }
        self.note_oldest(&state);
    }

    fn note_oldest(&self, state: &State) {
        self.oldest.store(state.oldest().unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Bytes that are kept.
    pub fn bytes(&self) -> usize {
        self.read().bytes
    }

    /// Whether no commit after a snapshot had begun to change the trees when this was called. If so, the snapshot sees the
    /// records that were read from the trees before.
    pub fn is_newest(&self, snapshot: u64) -> bool {
        self.newest.load(Ordering::SeqCst) <= snapshot
    }

    /// Whether a snapshot can still be read.
    pub fn check(&self, snapshot: u64) -> Result<()> {
        self.needed(snapshot).map(drop)
    }

    /// The state, if a snapshot needs it.
    fn needed(&self, snapshot: u64) -> Result<Option<RwLockReadGuard<'_, State>>> {
        if self.is_newest(snapshot) {
            return Ok(None);
        }
        let state = self.read();
        if snapshot < state.floor { Err(Error::SnapshotTooOld) } else { Ok(Some(state)) }
    }

    /// The value of a key at a snapshot, if it is not the value in the tree, which the caller has read before.
    pub fn get(&self, tree: u64, key: &[u8], snapshot: u64) -> Result<Option<Old>> {
        let Some(state) = self.needed(snapshot)? else { return Ok(None) };
        Ok(state.trees.get(&tree).and_then(|keys| seen(keys.get(key)?, snapshot)))
    }

    /// The first key of a range, in a direction, whose value at a snapshot is not that of the tree, with the value. The caller
    /// has read the range in the tree before.
    pub fn first(
        &self,
        tree: u64,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
        snapshot: u64,
    ) -> Result<Option<(Arc<[u8]>, Old)>> {
        let Some(state) = self.needed(snapshot)? else { return Ok(None) };
        let Some(keys) = state.trees.get(&tree) else { return Ok(None) };
        if crate::scan::is_empty(range.0, range.1) {
            return Ok(None);
        }
        let mut keys = keys.range::<[u8], _>(range);
        let visible = |(key, entries): (&Arc<[u8]>, &VecDeque<_>)| {
            seen(entries, snapshot).map(|old| (Arc::clone(key), old))
        };
        Ok(match direction {
            Direction::Up => keys.find_map(visible),
            Direction::Down => keys.rev().find_map(visible),
        })
    }

    /// Whether a commit after a snapshot wrote a key.
    pub fn is_changed(&self, tree: u64, key: &[u8], snapshot: u64) -> Result<bool> {
        Ok(self.get(tree, key, snapshot)?.is_some())
    }

    /// Whether a commit after a snapshot wrote a key of a range.
    pub fn is_range_changed(
        &self,
        tree: u64,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        snapshot: u64,
    ) -> Result<bool> {
        Ok(self.first(tree, range, Direction::Up, snapshot)?.is_some())
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &str, old: Option<&str>) -> Superseded {
        let bytes = |text: &str| Arc::from(text.as_bytes());
        Superseded { tree: 1, key: bytes(key), old: old.map(bytes) }
    }

    fn get(versions: &Versions, key: &str, snapshot: u64) -> Option<Option<String>> {
        let old = versions.get(1, key.as_bytes(), snapshot).unwrap()?;
        Some(old.map(|old| String::from_utf8(old.to_vec()).unwrap()))
    }

    #[test]
    fn a_snapshot_takes_the_earliest_value_that_was_superseded_after_it() {
        let versions = Versions::new(1 << 20);
        versions.insert(5, [entry("a", None), entry("b", Some("b4"))]);
        versions.insert(7, [entry("a", Some("a5"))]);
        assert_eq!(get(&versions, "a", 4), Some(None));
        assert_eq!(get(&versions, "a", 5), Some(Some("a5".into())));
        assert_eq!(get(&versions, "a", 6), Some(Some("a5".into())));
        assert_eq!(get(&versions, "a", 7), None);
        assert_eq!(get(&versions, "b", 5), None);
        let range = (Bound::Excluded(&b"a"[..]), Bound::Unbounded);
        let first = |snapshot| versions.first(1, range, Direction::Up, snapshot).unwrap();
        assert_eq!(&*first(4).unwrap().0, b"b");
        assert!(first(5).is_none());
        versions.prune(5);
        assert_eq!(get(&versions, "b", 4), None);
        assert_eq!(get(&versions, "a", 6), Some(Some("a5".into())));
        versions.prune(7);
        assert_eq!(versions.bytes(), 0);
    }

    #[test]
    fn beyond_the_limit_the_oldest_snapshots_fail_and_the_last_commit_is_kept() {
        let one = cost(b"a", &Some(Arc::from(&b"12345678"[..])));
        let versions = Versions::new(2 * one);
        for timestamp in 1..=2 {
            versions.insert(timestamp, [entry("a", Some("12345678"))]);
        }
        assert!(get(&versions, "a", 0).is_some(), "at the limit nothing is lost");
        versions.insert(3, [entry("a", Some("12345678"))]);
        assert!(matches!(versions.get(1, b"a", 0), Err(Error::SnapshotTooOld)));
        assert!(matches!(versions.get(1, b"other", 0), Err(Error::SnapshotTooOld)));
        assert!(get(&versions, "a", 1).is_some());
        versions.insert(4, (0..9).map(|_| entry("b", Some("12345678"))));
        assert_eq!(versions.bytes(), 9 * one);
        assert!(get(&versions, "b", 3).is_some());
        assert!(matches!(versions.get(1, b"a", 2), Err(Error::SnapshotTooOld)));
    }
}
