//! A registered snapshot of a hash-map database, read by system calls.
//!
//! Copies of entries are not atomic. The version that a registered snapshot needs, however, does not
//! change once it is committed, nor does its value. Everything else in the copy is newer, uncommitted, or
//! older than that version.

use std::os::fd::AsFd;

use super::{
    HashStore,
    dump::{BatchCursor, lookup},
    format::{CLASSES, class_of, key_in},
};
use crate::{
    Result,
    engine::{control::Control, storage::SnapshotItem},
    layout::MARKER,
};

/// Least number of elements that are read at a time. A system call costs as much as some elements.
const LEAST_BATCH: u32 = 32;

impl HashStore {
    /// Calls `f` for every key that the registered snapshot at `timestamp` sees in the index buckets from `from` on, up to a bucket at or
    /// after `to`. Returns that bucket. The kernel reports only the bucket at which a batch ends.
    pub(super) fn scan_buckets(
        &self,
        control: &Control,
        timestamp: u64,
        (from, to): (u32, u32),
        f: &mut dyn FnMut(SnapshotItem<'_>),
    ) -> Result<u32> {
        let mut buffer = vec![0; CLASSES[CLASSES.len() - 1] as usize];
        let (key_bytes, entry_bytes) = (self.format.map_key() as usize, self.format.entry() as usize);
        let room = (to - from).max(LEAST_BATCH) as usize;
        let mut batches = BatchCursor::at_bucket(key_bytes, entry_bytes, from, room);
        loop {
            let more = batches.read(self.index.as_fd())?;
            for (key, entry) in batches.batch() {
                self.visible(control, timestamp, key, entry, &mut buffer, f)?;
            }
            let next = if more { batches.bucket() } else { self.buckets };
            if next >= to {
                return Ok(next);
            }
        }
    }

    fn visible(
        &self,
        control: &Control,
        timestamp: u64,
        key: &[u8],
        entry: &[u8],
        buffer: &mut [u8],
        f: &mut dyn FnMut(SnapshotItem<'_>),
    ) -> Result<()> {
        let mut entry = std::borrow::Cow::Borrowed(entry);
        let version = loop {
            let resolved = self.format.versions(&entry).map(|mut version| {
                let marker = version.ts & MARKER != 0;
                if marker {
                    version.ts = control.resolve(version.ts);
                }
                (marker, version)
            });
            let seen: Vec<_> = resolved.collect();
            if seen.iter().any(|(marker, _)| *marker) {
                // A session's context belongs to its marker only while the marker is still there.
                let mut again = vec![0; entry.len()];
                if !lookup(self.index.as_fd(), key, &mut again)? {
                    return Ok(());
                }
                let same =
                    self.format.versions(&again).map(|v| v.ts).eq(self.format.versions(&entry).map(|v| v.ts));
                if !same {
                    entry = again.into();
                    continue;
                }
            }
            let visible = seen.into_iter().map(|(_, v)| v).filter(|v| v.ts != 0 && v.ts <= timestamp);
            break visible.max_by_key(|v| v.ts);
        };
        let Some(version) = version.filter(|v| v.vid != 0) else { return Ok(()) };
        let class = class_of(version.len);
        let value = &mut buffer[..CLASSES[class] as usize];
        if lookup(self.values[class].as_fd(), &version.vid.to_ne_bytes(), value)? {
            f(SnapshotItem {
                key: key_in(key),
                value: &value[..version.len as usize],
                expire_at_ms: (version.expire_ms != 0).then_some(version.expire_ms),
                commit_ts: version.ts,
            });
        }
        Ok(())
    }
}
