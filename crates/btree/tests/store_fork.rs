//! A process that forks while it has a store open.

use bedplate_btree::store::{Durability, Store};

#[test]
fn a_child_that_drops_its_copy_of_a_store_leaves_the_log_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Store::builder(folder.path()).memory(1 << 20).durability(Durability::Async).open().unwrap();
    let mut store = Some(open());
    let tree = store.as_ref().unwrap().create_tree("t").unwrap();
    let put = |store: &Option<Store>, key: &[u8]| {
        store.as_ref().unwrap().update(|transaction| transaction.put(&tree, key, b"value")).unwrap();
    };
    // This commit is in memory when the process forks.
    put(&store, b"before");
    // SAFETY: the child takes no lock that another thread of this test may hold, and does not return.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let is_refused = store.as_ref().unwrap().sync().is_err();
        drop(store.take());
        // SAFETY: it ends this process.
        unsafe { libc::_exit(if is_refused { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: `status` is writable.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    put(&store, b"after");
    // Without `close`, the next opening recovers the store from its log.
    drop(store.take());
    let store = open();
    let tree = store.tree("t").unwrap();
    let snapshot = store.read().unwrap();
    for key in [&b"before"[..], b"after"] {
        assert!(snapshot.contains(&tree, key).unwrap(), "{}", String::from_utf8_lossy(key));
    }
    assert_eq!(status, 0, "the child was told");
}

/// The child has a copy of the lock's descriptor until it ends.
#[test]
fn a_store_is_opened_again_although_a_child_was_forked_before_it_was_closed() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::builder(folder.path()).memory(1 << 20).open().unwrap();
    // SAFETY: the child only waits and exits.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: the calls touch no memory, and the second one ends this process.
        unsafe {
            libc::usleep(100_000);
            libc::_exit(0);
        }
    }
    store.close().unwrap();
    let opened = Store::builder(folder.path()).memory(1 << 20).open();
    let mut status = 0;
    // SAFETY: `status` is writable.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    opened.unwrap().close().unwrap();
}
