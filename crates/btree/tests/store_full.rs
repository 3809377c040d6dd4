//! A store on a full disk: commits fail and change nothing, all other operations work, and the store can be opened.

#[path = "common/small_disk.rs"]
mod small_disk;

use std::collections::BTreeMap;
use std::path::Path;

use bedplate_btree::store::{Durability, LoadPolicy, NamedTree, Result, Store};
use small_disk::SmallDisk;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn open(folder: &Path, durability: Durability) -> Store {
    Store::builder(folder).memory(1 << 20).capacity(64 << 20).durability(durability).open().unwrap()
}

fn content(store: &Store, tree: &NamedTree) -> Model {
    let transaction = store.write().unwrap();
    transaction.range::<&[u8]>(tree, ..).unwrap().map(Result::unwrap).collect()
}

fn key(n: u64) -> [u8; 8] {
    (n * 7919 % 1000).to_be_bytes()
}

/// Commits until one fails. Returns the number of commits that succeeded, which are in the model.
fn fill(store: &Store, tree: &NamedTree, model: &mut Model, from: u64) -> u64 {
    for n in from.. {
        let value = vec![n as u8; [40, 900, 9000][(n % 3) as usize]];
        match store.update(|transaction| transaction.put(tree, &key(n), &value)) {
            Ok(()) => _ = model.insert(key(n).to_vec(), value),
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("space") || text.contains("room"), "{text}");
                return n;
            }
        }
        assert!(n < from + 1_000_000, "the disk is never full");
    }
    unreachable!()
}

#[test]
fn a_commit_that_finds_no_space_is_undone_and_the_store_goes_on() {
    for durability in [Durability::Sync, Durability::Async] {
        let Some(disk) = SmallDisk::mount(96) else { return };
        let folder = disk.path().join("store");
        let mut model = Model::new();
        let mut next = 0;
        let mut store = Some(open(&folder, durability));
        store.as_ref().unwrap().create_tree("t").unwrap();
        for round in 0..4 {
            let open_store = store.take().unwrap();
            let tree = open_store.tree("t").unwrap();
            disk.fill();
            let before = next;
            next = fill(&open_store, &tree, &mut model, next);
            assert!(round > 0 || next > before, "what was reserved is used");
            assert_eq!(content(&open_store, &tree), model);
            // The error repeats, and does no harm.
            assert_eq!(fill(&open_store, &tree, &mut model, next), next);
            open_store.checkpoint().unwrap();
            if round % 2 == 0 {
                drop(open_store)
            } else {
                open_store.close().unwrap()
            }
            let reopened = open(&folder, durability);
            let tree = reopened.tree("t").unwrap();
            assert_eq!(content(&reopened, &tree), model, "round {round}");
            disk.free();
            let value = vec![round; 9000];
            reopened.update(|transaction| transaction.put(&tree, &key(next), &value)).unwrap();
            model.insert(key(next).to_vec(), value);
            next += 1;
            store = Some(reopened);
        }
    }
}

#[test]
fn maintenance_without_space_leaves_everything_as_it_was() {
    let Some(disk) = SmallDisk::mount(96) else { return };
    let folder = disk.path().join("store");
    let builder = || Store::builder(&folder).memory(1 << 20).capacity(64 << 20);
    let store = builder().open().unwrap();
    let tree = store.create_tree("t").unwrap();
    let put = |transaction: &mut bedplate_btree::store::WriteTransaction<'_>| {
        (0..1000u64).try_for_each(|n| transaction.put(&tree, &n.to_be_bytes(), &[7; 5000]))
    };
    store.update(put).unwrap();
    let model = content(&store, &tree);
    let mut dump = Vec::new();
    store.dump(&mut dump, &mut |_| {}).unwrap();
    // The free space is less than any of them needs, or none.
    let reserve = disk.path().join("reserve");
    std::fs::write(&reserve, vec![0; 1 << 20]).unwrap();
    let others = disk.path().join("others");
    std::fs::create_dir(&others).unwrap();
    for has_some in [false, true] {
        // The checkpoint removes segments of the log, and so does each backup.
        store.checkpoint().unwrap();
        disk.fill();
        if has_some {
            std::fs::remove_file(&reserve).unwrap();
        }
        let (copy, new) = (others.join("copy"), others.join("new"));
        store.backup(&copy, &mut |_| {}).unwrap_err();
        Store::create_from_dump(&new, &dump[..], &mut |_| {}).unwrap_err();
        assert_eq!(others.read_dir().unwrap().count(), 0, "nothing is left behind");
        // The reserved space may be enough for a load. The dump has the same records.
        let _ = store.load(&dump[..], LoadPolicy::Replace, &mut |_| {});
        assert!(content(&store, &store.tree("t").unwrap()) == model);
    }
    store.close().unwrap();
    let size = || std::fs::metadata(folder.join("pages")).unwrap().len();
    let before = size();
    builder().compact(&mut |_| true, &mut |_| {}).unwrap_err();
    assert!(size() == before && !folder.join("pages.new").exists());
    // The file is as a crash would leave it.
    std::fs::write(folder.join("pages.new"), "").unwrap();
    let store = builder().open().unwrap();
    let tree = store.tree("t").unwrap();
    assert!(content(&store, &tree) == model && !folder.join("pages.new").exists());
    store.close().unwrap();
    disk.free();
    builder().compact(&mut |_| true, &mut |_| {}).unwrap().unwrap();
    assert!(size() < before);
    assert_eq!(Store::verify(&folder, &mut |_| {}).unwrap().damages, []);
}

#[test]
fn a_store_that_was_not_closed_is_recovered_on_a_full_disk() {
    let Some(disk) = SmallDisk::mount(96) else { return };
    let folder = disk.path().join("store");
    let store = open(&folder, Durability::Sync);
    let tree = store.create_tree("t").unwrap();
    let mut model = Model::new();
    disk.fill();
    let next = fill(&store, &tree, &mut model, 0);
    // No checkpoint covers the commits.
    drop(store);
    for _ in 0..3 {
        let store = open(&folder, Durability::Sync);
        let tree = store.tree("t").unwrap();
        assert_eq!(content(&store, &tree), model);
        assert!(next > 0 && model.len() > 1);
    }
}
