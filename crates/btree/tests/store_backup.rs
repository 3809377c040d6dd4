//! A backup in a directory, while threads commit.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use bedplate_btree::store::{Durability, Error, NamedTree, Result, Store, WriteTransaction};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

const KEYS: u64 = 4000;

/// Transaction `n` writes some keys, removes one, and stores its own number.
fn write(transaction: &mut WriteTransaction<'_>, tree: &NamedTree, n: u64) -> Result<()> {
    for (key, value) in records(n) {
        transaction.put(tree, &key, &value)?;
    }
    transaction.remove(tree, &(n * 31 % KEYS).to_be_bytes()).map(drop)
}

fn records(n: u64) -> Vec<(Vec<u8>, Vec<u8>)> {
    let value = |slot: u64| vec![(n + slot) as u8; [8, 300, 1200, 5000][((n + slot) % 4) as usize]];
    let random = |slot: u64| ((n * 13 + slot * 977) % KEYS).to_be_bytes().to_vec();
    let last = (b"last".to_vec(), n.to_be_bytes().to_vec());
    (1..5).map(|slot| (random(slot), value(slot))).chain([last]).collect()
}

/// The content after transaction `n`.
fn model(n: u64) -> Model {
    let mut model = Model::new();
    for n in 1..=n {
        model.extend(records(n));
        model.remove(&(n * 31 % KEYS).to_be_bytes()[..]);
    }
    model
}

fn content(store: &Store) -> Model {
    let tree = store.tree("t").unwrap();
    store.read().unwrap().range::<&[u8]>(&tree, ..).unwrap().map(Result::unwrap).collect()
}

#[test]
fn a_backup_has_all_commits_up_to_a_moment_and_writers_do_not_wait_for_it() {
    for durability in [Durability::Sync, Durability::Async] {
        let folder = tempfile::tempdir().unwrap();
        let builder = Store::builder(folder.path().join("store")).memory(1 << 20).capacity(1 << 30);
        let store = builder.durability(durability).checkpoint_bytes(3 << 20).open().unwrap();
        let tree = store.create_tree("t").unwrap();
        let (count, done) = (AtomicU64::new(0), AtomicBool::new(false));
        let mut backups = Vec::new();
        thread::scope(|scope| {
            let writer = scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let n = count.load(Ordering::Relaxed) + 1;
                    store.update(|transaction| write(transaction, &tree, n)).unwrap();
                    count.store(n, Ordering::SeqCst);
                }
            });
            let wait_for = |n| {
                while count.load(Ordering::SeqCst) < n && !writer.is_finished() {
                    thread::yield_now();
                }
            };
            wait_for(1000);
            for number in 0..3 {
                let before = count.load(Ordering::SeqCst);
                let target = folder.path().join(format!("copy{number}"));
                // The writer commits in the middle of the backup, or this loop never ends.
                let mut committed = false;
                let mut progress = |at: bedplate_btree::store::Progress| {
                    if !committed && at.done > at.total / 2 {
                        wait_for(count.load(Ordering::SeqCst) + 20);
                        committed = true;
                    }
                };
                let backup = store.backup(&target, &mut progress).unwrap();
                assert!(committed && backup.pages > 100, "{backup:?}");
                backups.push((target, before, count.load(Ordering::SeqCst) + 1));
            }
            done.store(true, Ordering::Relaxed);
            writer.join().unwrap();
        });
        for (target, before, after) in backups {
            let found = Store::verify(&target, &mut |_| {}).unwrap();
            assert_eq!(found.damages, []);
            let copy = Store::builder(&target).memory(1 << 20).open().unwrap();
            let content = content(&copy);
            let last = u64::from_be_bytes(content[&b"last"[..]][..].try_into().unwrap());
            assert!((before + 20..=after).contains(&last), "{before} {last} {after}");
            assert!(content == model(last), "the state after transaction {last}");
            copy.close().unwrap();
            assert!(Store::verify(&target, &mut |_| {}).unwrap().is_sound());
        }
        assert!(content(&store) == model(count.into_inner()));
    }
}

#[test]
fn a_backup_does_not_replace_anything() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::builder(folder.path().join("store")).open().unwrap();
    let same = store.backup(folder.path().join("store"), &mut |_| {});
    assert!(matches!(same, Err(Error::NotEmpty(_))), "{same:?}");
    // An empty directory is accepted.
    let target = folder.path().join("copy");
    std::fs::create_dir(&target).unwrap();
    store.backup(&target, &mut |_| {}).unwrap();
    assert!(matches!(store.backup(&target, &mut |_| {}), Err(Error::NotEmpty(_))));
    assert_eq!(folder.path().read_dir().unwrap().count(), 2, "nothing is left behind");
    drop(store);
    assert!(Store::builder(&target).open().unwrap().trees().is_empty());
}
