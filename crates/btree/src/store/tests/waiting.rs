//! Operations that wait for storage, and others that must not wait for them.

use std::sync::mpsc;

use bedplate_bufpool::PAGE;

use super::blocking::{Blocking, LIMIT};
use super::devices::Devices;
use crate::store::{Durability, Store};

#[test]
fn a_commit_that_waits_for_a_leaf_holds_up_no_other_commit() {
    let directory = tempfile::tempdir().unwrap();
    let (devices, storage) = (Devices::new(1), Blocking::new(&directory.path().join("pages")));
    let open = || {
        let builder = Store::builder(directory.path()).memory(64 * PAGE).capacity(64 << 20);
        let log = std::sync::Arc::new(devices.log.clone());
        builder.durability(Durability::Async).devices(Box::new(storage.clone()), log).open().unwrap()
    };
    let store = open();
    let tree = store.create_tree("t").unwrap();
    for n in 0..400u64 {
        store.update(|transaction| transaction.put(&tree, &n.to_be_bytes(), &[1; 900])).unwrap();
    }
    store.close().unwrap();
    let store = open();
    let tree = store.tree("t").unwrap();
    let (absent, present) = (0u64.to_be_bytes(), 399u64.to_be_bytes());
    store.read().unwrap().get(&tree, &present).unwrap();
    storage.shut(0..1000);
    std::thread::scope(|scope| {
        let put = |key: [u8; 8]| store.update(|transaction| transaction.put(&tree, &key, b"new"));
        scope.spawn(move || put(absent).unwrap());
        storage.waiting().unwrap();
        let (sender, committed) = mpsc::channel();
        scope.spawn(move || {
            put(present).unwrap();
            sender.send(()).unwrap();
        });
        let outcome = committed.recv_timeout(LIMIT);
        storage.open_all();
        outcome.expect("the second commit waits for the first one's leaf");
    });
    let snapshot = store.read().unwrap();
    for key in [absent, present] {
        assert_eq!(snapshot.get(&tree, &key).unwrap().as_deref(), Some(&b"new"[..]));
    }
}
