//! Commits and loads allocate pages at the same time. Each of them has its own reservation, and leaves the pages of others alone.

use bedplate_bufpool::PAGE;

use super::builder;
use super::devices::Devices;
use super::load::dump;
use crate::store::{Durability, Error, LoadPolicy, Store};

const PAGES: u64 = 2000;
/// With this many pages reserved, the load and the commit of these tests do not find enough.
const RESERVED: u64 = 1600;

fn is_full(error: &Error) -> bool {
    matches!(error, Error::Tree(crate::Error::Pool(bedplate_bufpool::Error::Full { .. })))
}

/// Runs work, which must fail while the pages are reserved for another user, and must succeed afterwards.
fn check(work: impl Fn(&Store) -> crate::store::Result<()>) {
    let lock = tempfile::tempdir().unwrap();
    let devices = Devices::new(1);
    let builder = builder(lock.path(), &devices, Durability::Async).capacity(PAGES * PAGE as u64);
    let store = builder.open().unwrap();
    store.create_tree("t").unwrap();
    let reserved = store.reserve_pages(RESERVED).unwrap();
    let error = work(&store).unwrap_err();
    assert!(is_full(&error), "{error}");
    drop(reserved);
    work(&store).unwrap();
}

#[test]
fn a_load_takes_no_page_that_is_reserved() {
    let (dump, _) = dump();
    check(|store| store.load(&dump[..], LoadPolicy::Refuse, &mut |_| {}).map(drop));
}

#[test]
fn a_commit_takes_no_page_that_is_reserved() {
    check(|store| {
        let tree = store.tree("t")?;
        store.update(|transaction| transaction.put(&tree, b"key", &vec![1; 250 * PAGE]))
    });
}
