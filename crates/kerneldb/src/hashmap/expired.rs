//! Finding keys whose expiry has passed, by reading the index through system calls.
//!
//! As in the arena, what is read is a hint, and the operator that deletes a key decides.

use std::os::fd::AsFd;

use super::{HashStore, dump::BatchCursor, format::key_in};
use crate::{Result, expiry::Look, layout::MARKER};

/// A position in the index of a database.
pub(crate) struct IndexCursor(BatchCursor);

impl HashStore {
    /// A cursor before the first key.
    pub(crate) fn index_cursor(&self) -> IndexCursor {
        IndexCursor(BatchCursor::new(self.format.map_key() as usize, self.format.entry() as usize))
    }

    /// Reads the next batch of index entries into `look`. Returns whether there are more.
    pub(crate) fn look_at_batch(&self, cursor: &mut IndexCursor, look: &mut Look) -> Result<bool> {
        cursor.0.next(self.index.as_fd(), &mut |key, entry| {
            let committed = self.format.versions(entry).filter(|v| v.ts != 0 && v.ts & MARKER == 0);
            let newest = committed.max_by_key(|v| v.ts).filter(|v| v.vid != 0 && v.expire_ms != 0);
            if let Some(version) = newest {
                look.add(version.expire_ms, || Some(key_in(key).to_vec()));
            }
        })
    }
}
