//! The guarantees of a pool to a user with a log.

mod common;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bedplate_bufpool::{Error, HEADER, Log, PAGE, PAYLOAD};
use common::{builder, fill, kind_of_here, version};

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

/// As soon as the pool is open, commits may be in the log only.
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
