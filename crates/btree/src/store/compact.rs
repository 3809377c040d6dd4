//! Compaction: rewrites the store into as few pages as it needs, in a file that is no longer than that.
//!
//! A compaction has exclusive use of the store. It rebuilds all trees (`build`) in the file `pages.new` beside `pages`. Then one
//! rename replaces the old file. The log stays.
//!
//! *Why the log matches either file.* Before the rename, the store makes a checkpoint and closes its pool, and no commit follows.
//! So the log has nothing to repeat after the checkpoint's LSN, and no record of it is about the new pages. They have log
//! sequence numbers of 0, so every later record is newer. The ids of trees stay, because a later recovery finds trees by them.
//!
//! *A crash or an error* before the rename leaves the old store, and after it the new one. The rename is durable before the
//! compaction ends. The next opening removes a file `pages.new` that a crash has left.
//!
//! *Space* for all of the new file is reserved before the first page is written, so a full disk is an error at the beginning.

use std::ops::Bound;
use std::path::PathBuf;

use bedplate_bufpool::storage::Storage;

use super::Store;
use super::build::Build;
use super::builder::{Builder, NEW_PAGES, PAGES};
use super::disk::sync_names;
use super::error::{Error, Result};
use super::progress::Progress;
use super::site::Site;
use crate::scan::{Direction, Range};

/// Number of records that are copied between two calls of the progress.
const PROGRESS_RECORDS: u64 = 1000;

/// The extent of a compaction, planned or done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Compaction {
    /// Bytes of the pages before.
    pub bytes_before: u64,
    /// Bytes of the pages afterwards. In a plan, this is the maximum. Until the compaction ends, this space is needed in addition
    /// to the old pages.
    pub bytes_after: u64,
    /// Records of all trees.
    pub records: u64,
}

/// The new pages of a store during its compaction.
struct NewPages {
    directory: PathBuf,
    /// Whether there is a file to remove. Before the store is open, such a file belongs to another process.
    is_partial: bool,
}

impl Site for NewPages {
    fn pages(&mut self) -> Result<Box<dyn Storage>> {
        self.is_partial = true;
        let path = self.directory.join(NEW_PAGES);
        let open = || {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            bedplate_bufpool::storage::File::open(&path, true)
        };
        Ok(Box::new(open().map_err(Error::directory(&self.directory, "create its new pages"))?))
    }

    fn publish(&mut self) -> Result<()> {
        let rename = || {
            std::fs::rename(self.directory.join(NEW_PAGES), self.directory.join(PAGES))?;
            sync_names(&self.directory)
        };
        rename().map_err(Error::directory(&self.directory, "put its new pages in place"))?;
        self.is_partial = false;
        Ok(())
    }
}

impl Drop for NewPages {
    fn drop(&mut self) {
        if self.is_partial {
            // If this fails, the next opening removes the file.
            let _ = std::fs::remove_file(self.directory.join(NEW_PAGES));
        }
    }
}

impl Builder {
    /// Opens the store, which must exist, writes it into as few pages as possible, and closes it. `planned` gets the space that
    /// this needs before the first page is written. The compaction continues if `planned` returns `true`.
    ///
    /// A crash at any point leaves the old store or the new one, and an error the old one. The result is none if `planned`
    /// returned `false`.
    pub fn compact(
        self,
        planned: &mut dyn FnMut(&Compaction) -> bool,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Option<Compaction>> {
        let mut new = NewPages { directory: self.directory().to_owned(), is_partial: false };
        self.compact_to(&mut new, planned, progress)
    }

    pub(crate) fn compact_to(
        self,
        new: &mut dyn Site,
        planned: &mut dyn FnMut(&Compaction) -> bool,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Option<Compaction>> {
        let memory = self.memory_bytes();
        let store = self.create_if_missing(false).open()?;
        let mut pages = store.catalog.check()?.pages();
        let mut records = 0;
        for name in store.trees() {
            let shape = store.handle(&store.tree(&name)?.0).walk(&mut |_| {})?;
            pages += shape.pages();
            records += shape.records;
        }
        let all = store.pool.pages();
        let page_bytes = store.pool.page_size().bytes() as u64;
        let (first, bytes_before) = (all.start, all.end * page_bytes);
        // A leaf can be fuller than a loaded one, because its neighbours give it a longer prefix. This adds few pages, as a rule.
        // Otherwise the pages are built once more.
        for spare in [pages / 16 + 64, pages + 1024] {
            let bytes_after = (first + pages + spare) * page_bytes;
            let plan = Compaction { bytes_before, bytes_after, records };
            if !planned(&plan) {
                break;
            }
            match store.rebuild(new, memory, plan, progress) {
                Err(Error::Tree(crate::Error::Pool(bedplate_bufpool::Error::Full { .. }))) => {}
                done => return done.map(Some),
            }
        }
        store.close()?;
        Ok(None)
    }
}

impl Store {
    fn rebuild(
        &self,
        new: &mut dyn Site,
        memory: usize,
        plan: Compaction,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Compaction> {
        let mut build = Build::begin(new.pages()?, memory, plan.bytes_after, self.pool.page_size())?;
        let page_bytes = self.pool.page_size().bytes() as u64;
        let reserved = plan.bytes_after / page_bytes - build.pool().pages().end;
        build.pool().reserve(reserved)?;
        let mut copied = 0;
        for name in self.trees() {
            let tree = self.tree(&name)?;
            let unbounded = || Bound::Unbounded;
            let handle = self.handle(&tree.0);
            let mut scan = Range::new(handle, &tree.0.density, Direction::Up, unbounded(), unbounded());
            let mut error = None;
            let records = std::iter::from_fn(|| match scan.try_next() {
                Ok(record) => {
                    copied += u64::from(record.is_some());
                    if copied.is_multiple_of(PROGRESS_RECORDS) {
                        progress(Progress::new(copied, plan.records));
                    }
                    record.map(|(key, value)| (key.to_vec(), value.to_vec()))
                }
                Err(found) => {
                    error = Some(found);
                    None
                }
            });
            build.tree(&name, tree.0.id, records)?;
            error.map_or(Ok(()), Err)?;
        }
        if copied != plan.records {
            return Err(Error::Missing("the scan of the trees has another number of records than they have"));
        }
        let bytes_after = build.pool().pages().end * page_bytes;
        build.finish()?;
        // No transaction commits after this.
        self.checkpoint()?;
        self.pool.close()?;
        new.publish()?;
        Ok(Compaction { bytes_after, ..plan })
    }
}
