//! What a pool promises to who has a log.

mod common;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bedplate_bufpool::{Error, HEADER, Kind, Log, PAGE, PAYLOAD};
use common::{builder, fill, version};

/// Everything in it is durable.
struct Durable;

impl Log for Durable {
    fn durable_lsn(&self) -> u64 {
        u64::MAX
    }

    fn make_durable(&self, _: u64) -> io::Result<()> {
        Ok(())
    }
}

/// Commits may be in the log alone from the moment the pool is open.
#[test]
fn a_pool_with_a_log_asks_for_it_unless_it_was_closed() {
    let folder = tempfile::tempdir().unwrap();
    let open = || builder(&folder, Kind::Stock, 64).log(Arc::new(Durable)).open().unwrap();
    assert!(!open().needs_recovery(), "it is new");
    let pool = open();
    assert!(pool.needs_recovery());
    pool.close().unwrap();
    drop(pool);
    assert!(!open().needs_recovery());
    assert!(open().needs_recovery());
}

/// The record that frees a page may be lost when those about its content are not needed any more.
#[test]
fn a_page_that_was_changed_and_freed_is_in_storage_after_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let pool = builder(&folder, Kind::Stock, 64).log(Arc::new(Durable)).open().unwrap();
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

/// What makes room for more pages has the roots with it.
#[test]
fn a_root_of_a_page_that_was_never_written_is_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    let pool = builder(&folder, Kind::Stock, 8192).open().unwrap();
    for _ in 0..5000 {
        let page = pool.allocate().unwrap();
        pool.set_root(0, page.page().0);
    }
    assert_eq!(pool.statistics().written, 0);
    drop(pool);
    assert!(matches!(builder(&folder, Kind::Stock, 8192).open(), Err(Error::Unclean)));
}
