//! Finding keys whose expiry has passed, by reading the index through system calls.
//!
//! As in the arena, the results are hints, and the operator that deletes a key decides.

use std::os::fd::AsFd;

use super::{HashStore, dump::BatchCursor, format::key_in};
use crate::{
    Result,
    engine::expiry::{ExpiryCursor, Look},
    layout::MARKER,
};

/// A position in the index of a database.
pub(super) struct IndexCursor<'db> {
    store: &'db HashStore,
    batches: BatchCursor,
}

impl<'db> IndexCursor<'db> {
    /// A position before the first key.
    pub(super) fn new(store: &'db HashStore) -> Self {
        let format = &store.format;
        IndexCursor { store, batches: BatchCursor::new(format.map_key() as usize, format.entry() as usize) }
    }
}

impl ExpiryCursor for IndexCursor<'_> {
    fn read(&mut self, look: &mut Look) -> Result<bool> {
        let format = &self.store.format;
        self.batches.next(self.store.index.as_fd(), &mut |key, entry| {
            let committed = format.versions(entry).filter(|v| v.ts != 0 && v.ts & MARKER == 0);
            let newest = committed.max_by_key(|v| v.ts).filter(|v| v.vid != 0 && v.expire_ms != 0);
            if let Some(version) = newest {
                look.add(version.expire_ms, || Some(key_in(key).to_vec()));
            }
        })
    }
}
