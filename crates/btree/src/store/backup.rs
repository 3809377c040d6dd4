//! Hot backup: a copy of the store that opens as a store, made while transactions commit.
//!
//! The copy consists of pages and log, as a crash would leave them, and opening it recovers it. A copy of a snapshot would keep
//! all values in memory that commits replace meanwhile, and would fail on a busy store with `SnapshotTooOld`. Copying pages and
//! log needs no memory except a buffer. Commits wait for a page only while it is copied, and all trees are copied at the speed of
//! the disk.
//!
//! 1. A checkpoint is made, so that little of the log is needed. Recovery starts from its LSN `S`, and the log from there on is
//!    held: later checkpoints do not remove segments that end after `S`.
//! 2. Every page is read through the pool, and written to the copy with its log sequence number.
//! 3. The log is made durable up to its end `E`, and copied from the segment that has `S` up to `E`. Each record's checksum is
//!    verified.
//! 4. A checkpoint record for `S` is appended to the copy, so that recovery does not start from a later checkpoint, which the
//!    pages that were copied before it do not have.
//! 5. The copy is synced, and then published (`site`).
//!
//! *Why recovery of the copy is right.* The proof in `recovery` requires that each page in storage is as the sync after `S` wrote
//! it, or later, and that no page is ahead of the log. Step 2 reads the page after that sync, from memory if it is newer there.
//! `E` is taken after all pages were read, and a page's number is at most the end of the log at that time. A page that is
//! allocated behind the last one that was copied is not in use as of `S`, so the log has an image of it. The root slot of the
//! catalog does not change.
//!
//! *Damage.* The pool verifies each page that it reads, and step 3 each record. So damage ends the backup with an error that
//! names it, and is not copied. A page that is damaged in storage while memory has it is copied from memory.

use std::path::Path;

use bedplate_bufpool::{PageId, Pool, TornPages};

use super::Store;
use super::builder::MAX_CAPACITY;
use super::error::{Error, Result};
use super::progress::Progress;
use super::record;
use super::site::{NewDirectory, StoreSite};
use super::trees::CATALOG_SLOT;

/// Bytes of pages in memory that wait to be written to the copy.
const MEMORY: usize = 4 << 20;
/// Pages that are read at once.
const TOGETHER: u64 = 64;

/// The amounts that [`Store::backup`] copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backup {
    /// Number of pages, in use or free.
    pub pages: u64,
    /// Bytes of the copy: pages and log.
    pub bytes: u64,
    /// Bytes of the log in it, which opening the copy repeats.
    pub log_bytes: u64,
}

impl Store {
    /// Makes a copy of the store in a directory that does not exist or is empty, while transactions run. The copy opens as a
    /// store, with all commits that were visible when the copying of pages ended.
    ///
    /// The directory appears when the copy is complete and durable. After an error there is none. Until the backup ends, the
    /// log keeps all records from its beginning on, so it may need space for them.
    pub fn backup(&self, directory: impl AsRef<Path>, progress: &mut dyn FnMut(Progress)) -> Result<Backup> {
        self.check()?;
        self.backup_to(&mut NewDirectory::begin(directory.as_ref())?, progress)
    }

    pub(crate) fn backup_to(
        &self,
        site: &mut dyn StoreSite,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Backup> {
        self.checkpoint()?;
        let (checkpoint, _hold) = {
            let last = self.last_checkpoint();
            (*last, self.log.hold(last.redo_from))
        };
        let copy = Pool::builder(Path::new(""))
            .memory(MEMORY)
            .page_size(self.pool.page_size().bytes())
            .capacity(MAX_CAPACITY)
            // The copy becomes visible only after all of it is durable.
            .torn_pages(TornPages::Detect)
            .storage(site.pages()?)
            .open()?;
        copy.set_root(CATALOG_SLOT, self.pool.root(CATALOG_SLOT));
        let pages = self.copy_pages(&copy, progress)?;
        copy.sync()?;
        drop(copy);
        let log_bytes = self.copy_log(&*site.log(), checkpoint)?;
        // The log has a commit that was interrupted meanwhile, which may or may not be durable there.
        self.check()?;
        site.publish()?;
        Ok(Backup { pages, bytes: pages * self.pool.page_size().bytes() as u64 + log_bytes, log_bytes })
    }

    fn copy_pages(&self, copy: &Pool, progress: &mut dyn FnMut(Progress)) -> Result<u64> {
        let first = self.pool.pages().start;
        let mut next = first;
        let mut payload = vec![0; self.pool.page_size().payload()];
        loop {
            let end = self.pool.pages().end;
            progress(Progress::new(next - first, end - first));
            if next == end {
                return Ok(end - first);
            }
            let together: Vec<_> = (next..(next + TOGETHER).min(end)).map(PageId).collect();
            self.pool.fetch(&together);
            for page in together {
                // The page is not held while the copy makes room.
                let lsn = {
                    let found = self.pool.pin_shared(page)?;
                    payload.copy_from_slice(&found[..]);
                    found.lsn()
                };
                let mut to = copy.allocate()?;
                if to.page() != page {
                    return Err(Error::Missing("the copy has pages already"));
                }
                to.write(0, &payload);
                to.set_lsn(lsn);
                next += 1;
            }
        }
    }

    /// Copies the log from a checkpoint on, and makes that the last checkpoint of the copy.
    fn copy_log(&self, to: &dyn super::disk::Disk, checkpoint: record::Checkpoint) -> Result<u64> {
        let end = self.log.end();
        self.log.make_durable(end).map_err(Error::Log)?;
        let mut bytes = 0;
        self.log.each_segment(checkpoint.redo_from, end, |number, mut segment, is_last| {
            if is_last {
                record::encode_checkpoint(&mut segment, end, checkpoint);
            }
            bytes += segment.len() as u64;
            to.create(number, &segment, segment.len() as u64)
                .map_err(Error::io("write the log of the copy"))?;
            Ok(())
        })?;
        Ok(bytes)
    }
}
