//! Dumping a store: all trees at one snapshot, in a format that other versions and machines read (`dump_format`).

use std::io::Write;

use super::Store;
use super::dump_format::Writer;
use super::error::Result;
use super::progress::Progress;

/// The amounts that [`Store::dump`] wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dump {
    /// Trees.
    pub trees: u64,
    /// Records of all trees.
    pub records: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Number of records that are written between two calls of the progress.
const PROGRESS_RECORDS: u64 = 1000;

impl Store {
    /// Writes all trees and records, as of one moment, as a stream that [`Store::load`] and [`Store::create_from_dump`] read.
    ///
    /// The dump reads a snapshot. If the store changes meanwhile, memory keeps the values that are replaced. Beyond the limit of
    /// versions, the dump fails with [`Error::SnapshotTooOld`](super::Error::SnapshotTooOld). [`Store::backup`] has no such
    /// limit.
    pub fn dump(&self, output: impl Write, progress: &mut dyn FnMut(Progress)) -> Result<Dump> {
        let snapshot = self.read()?;
        let mut writer = Writer::new(output)?;
        for name in self.trees() {
            // No tree is dropped while a snapshot is active.
            let tree = self.tree(&name)?;
            if tree.0.id > snapshot.timestamp() {
                continue;
            }
            writer.tree(&name)?;
            let mut cursor = snapshot.cursor::<&[u8]>(&tree, ..)?;
            while let Some((key, value)) = cursor.try_next()? {
                writer.record(key, value)?;
                if writer.totals().records.is_multiple_of(PROGRESS_RECORDS) {
                    progress(Progress { done: writer.totals().bytes, total: 0 });
                }
            }
        }
        let totals = writer.finish()?;
        progress(Progress { done: totals.bytes, total: totals.bytes });
        Ok(Dump { trees: totals.trees, records: totals.records, bytes: totals.bytes })
    }
}
