//! The guarantees of a pool to a user with a log.

mod common;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bedplate_bufpool::{Error, HEADER, Log, PAGE, PAYLOAD, PageId, Pool};
use common::{builder, fill, kind_of_here, version};
use tempfile::TempDir;

/// A log in which everything is durable.
struct Durable;

impl Log for Durable {
    fn durable_lsn(&self) -> u64 {
        u64::MAX
    }

    fn make_durable(&self, _: u64) -> io::Result<()> {
        Ok(())
    }
}

/// A log that is durable up to the number with which it was opened, and up to any number that is requested later.
struct Until(AtomicU64);

impl Log for Until {
    fn durable_lsn(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn make_durable(&self, up_to: u64) -> io::Result<()> {
        self.0.fetch_max(up_to, Ordering::Relaxed);
        Ok(())
    }
}

/// A pool with a log that is durable up to this number.
fn with_log(folder: &TempDir, lsn: u64) -> Result<Pool, Error> {
    builder(folder, kind_of_here(), 64).log(Arc::new(Until(lsn.into()))).open()
}

/// Stores a page with this version and this number.
fn change(pool: &Pool, page: PageId, version: u64, lsn: u64) {
    let mut page = pool.pin_exclusive(page).unwrap();
    let id = page.page();
    fill(&mut page, id.0, version);
    page.set_lsn(lsn);
}

#[test]
fn a_log_that_ends_before_the_superblock_is_refused_and_nothing_changes() {
    for is_closed in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let pool = with_log(&folder, 0).unwrap();
        let page = pool.allocate().unwrap().page();
        change(&pool, page, 1, 90);
        if is_closed {
            pool.close().unwrap();
        } else {
            pool.sync().unwrap();
        }
        drop(pool);
        let content = || std::fs::read(folder.path().join("pool")).unwrap();
        let before = content();
        assert!(matches!(with_log(&folder, 89), Err(Error::LogTooShort { log_end: 89, pages: 90 })));
        assert!(content() == before);
        let pool = with_log(&folder, 90).unwrap();
        assert_eq!(pool.needs_recovery(), !is_closed);
        assert_eq!(version(&pool.pin_shared(page).unwrap(), page.0), 1);
    }
}

/// Pages that were written after the last sync are ahead of the superblock.
#[test]
fn a_page_that_is_ahead_of_the_log_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let pool = with_log(&folder, 0).unwrap();
    let [old, new] = [(); 2].map(|()| pool.allocate().unwrap().page());
    change(&pool, old, 1, 80);
    change(&pool, new, 1, 81);
    pool.sync().unwrap();
    change(&pool, new, 2, 90);
    pool.flush().unwrap();
    drop(pool);
    let pool = with_log(&folder, 89).unwrap();
    assert_eq!(version(&pool.pin_shared(old).unwrap(), old.0), 1);
    let is_ahead =
        |error| matches!(error, Error::PageAheadOfLog { page, lsn: 90, log_end: 89 } if page == new);
    assert!(pool.pin_shared(new).is_err_and(is_ahead));
    assert!(pool.pin_for_redo(new).is_err_and(is_ahead));
    assert!(pool.optimistic(new).is_err_and(is_ahead));
    // A page that has changed since then may have any number, even after it was evicted.
    change(&pool, old, 3, 95);
    pool.flush().unwrap();
    for _ in 0..200 {
        let _ = pool.allocate().unwrap();
    }
    assert_eq!(version(&pool.pin_shared(old).unwrap(), old.0), 3);
    drop(pool);
    assert_eq!(version(&with_log(&folder, 95).unwrap().pin_shared(new).unwrap(), new.0), 2);
}

/// Once the pool is open, there may be commits that only the log has.
#[test]
fn a_pool_with_a_log_asks_for_it_unless_it_was_closed() {
    let folder = tempfile::tempdir().unwrap();
    let open = || builder(&folder, kind_of_here(), 64).log(Arc::new(Durable)).open().unwrap();
    assert!(!open().needs_recovery(), "it is new");
    let pool = open();
    assert!(pool.needs_recovery());
    pool.close().unwrap();
    drop(pool);
    assert!(!open().needs_recovery());
    assert!(open().needs_recovery());
}

/// A crash may lose the record that frees a page, after a checkpoint has made the records about its content obsolete.
#[test]
fn a_page_that_was_changed_and_freed_is_in_storage_after_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let pool = builder(&folder, kind_of_here(), 64).log(Arc::new(Durable)).open().unwrap();
    let mut page = pool.allocate().unwrap();
    let id = page.page();
    fill(&mut page, id.0, 9);
    page.set_lsn(90);
    drop(page);
    pool.free(pool.pin_exclusive(id).unwrap()).unwrap();
    pool.sync().unwrap();
    let mut payload = [0; PAYLOAD];
    let file = File::open(folder.path().join("pool")).unwrap();
    file.read_exact_at(&mut payload, id.0 * PAGE as u64 + HEADER as u64).unwrap();
    assert_eq!(version(&payload, id.0), 9);
}

/// The growth of the file writes the superblock, with the roots.
#[test]
fn a_root_of_a_page_that_was_never_written_is_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    let pool = builder(&folder, kind_of_here(), 8192).open().unwrap();
    for _ in 0..5000 {
        let page = pool.allocate().unwrap();
        pool.set_root(0, page.page().0);
    }
    assert_eq!(pool.statistics().written, 0);
    drop(pool);
    assert!(matches!(builder(&folder, kind_of_here(), 8192).open(), Err(Error::Unclean)));
}
