//! Memory of evicted keys that is not free yet: the log's reader or a snapshot still needs it.
//!
//! Without this account, the evictor would evict ever more keys while a checkpoint runs.

use std::collections::VecDeque;

/// The bytes of evicted keys, by the commit that deleted them.
#[derive(Default)]
pub(super) struct Pending {
    deleted: VecDeque<(u64, u64)>,
    bytes: u64,
}

impl Pending {
    /// Notes a key that a commit has deleted. Commits come in order.
    pub(super) fn add(&mut self, commit_ts: u64, bytes: u64) {
        self.deleted.push_back((commit_ts, bytes));
        self.bytes += bytes;
    }

    /// Forgets the keys whose memory is free: those that commits up to `released` have deleted.
    pub(super) fn settle(&mut self, released: u64) {
        while let Some((_, bytes)) = self.deleted.pop_front_if(|(commit_ts, _)| *commit_ts <= released) {
            self.bytes -= bytes;
        }
    }

    /// Bytes that are not free yet.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_released_in_the_order_of_commits() {
        let mut pending = Pending::default();
        pending.add(5, 100);
        pending.add(6, 10);
        pending.add(9, 1);
        pending.settle(4);
        assert_eq!(pending.bytes(), 111);
        pending.settle(6);
        assert_eq!(pending.bytes(), 1);
        pending.settle(u64::MAX);
        assert_eq!(pending.bytes(), 0);
    }
}
