//! The keys of a hash-map database as eviction sees them. A piece is a bucket of the index.
//!
//! As in the arena, the results are hints, and the operator that evicts a key decides.

use std::os::fd::AsFd;

use super::{
    HashStore,
    dump::BatchCursor,
    format::{class_of, key_in, value_cost},
};
use crate::{
    Result,
    engine::eviction::{Candidate, EvictionSource, FoundKey},
    layout::MARKER,
};

/// Number of elements that are read at a time.
const BATCH: usize = 256;

/// The keys of the database.
pub(super) struct IndexCandidates<'db>(pub &'db HashStore);

impl EvictionSource for IndexCandidates<'_> {
    fn pieces(&self) -> u64 {
        u64::from(self.0.buckets)
    }

    fn has_keys(&self, _bucket: u64) -> bool {
        self.0.entries() > 0
    }

    fn read(&mut self, bucket: u64, found: FoundKey<'_>) -> Result<u64> {
        self.read_batch(bucket, BATCH, found)
    }

    fn sample(&mut self, bucket: u64, keys: u64, _random: u64, found: FoundKey<'_>) -> Result<()> {
        self.read_batch(bucket, keys as usize, found).map(drop)
    }
}

impl IndexCandidates<'_> {
    /// Reads the keys of some buckets, and returns the bucket that follows.
    fn read_batch(&self, bucket: u64, keys: usize, found: FoundKey<'_>) -> Result<u64> {
        let format = &self.0.format;
        let (key_bytes, entry_bytes) = (format.map_key() as usize, format.entry() as usize);
        let mut batches = BatchCursor::at_bucket(key_bytes, entry_bytes, bucket as u32, keys);
        let more = batches.read(self.0.index.as_fd())?;
        for (key, entry) in batches.batch() {
            let committed = format.versions(entry).filter(|v| v.ts != 0 && v.ts & MARKER == 0);
            let Some(version) = committed.max_by_key(|v| v.ts).filter(|v| v.vid != 0) else { continue };
            let candidate = Candidate {
                usage: 0,
                expire_at_ms: (version.expire_ms != 0).then_some(version.expire_ms),
                commit_ts: version.ts,
                bytes: format.entry_cost() + value_cost(class_of(version.len)),
            };
            found(candidate, &|| Some(key_in(key).to_vec()));
        }
        Ok(if more { batches.bucket().into() } else { self.pieces() })
    }
}
