//! Verification finds each damage, names its position, and changes nothing.

#[path = "common/small_disk.rs"]
mod small_disk;

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use bedplate_btree::store::{Error, Store, Verification};
use bedplate_bufpool::{PAGE, PageId, Pool};

/// The first page of a pool that is not the pool's own.
const FIRST: u64 = 256;

fn open(folder: &Path) -> Store {
    Store::builder(folder).memory(64 * PAGE).capacity(64 << 20).open().unwrap()
}

/// A store with two trees of a few levels, long values, and free pages.
fn fill(store: &Store) {
    for name in ["first", "second"] {
        let tree = store.create_tree(name).unwrap();
        store
            .update(|transaction| {
                for n in 0..300u64 {
                    transaction.put(&tree, &n.to_be_bytes(), &vec![n as u8; (n % 7 * 90) as usize])?;
                }
                transaction.put(&tree, b"long", &[7; 20_000])
            })
            .unwrap();
    }
    store.create_tree("third").unwrap();
    store.create_tree("gone").unwrap();
    store.drop_tree("gone").unwrap();
}

fn verify(folder: &Path) -> Verification {
    Store::verify(folder, &mut |progress| assert!(progress.done <= progress.total)).unwrap()
}

/// The content of all files.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = folder.read_dir().unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

fn flip(path: &Path, at: u64) {
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x40], at).unwrap();
}

#[test]
fn a_sound_store_is_sound_closed_or_not_and_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    fill(&store);
    assert!(matches!(Store::verify(folder.path(), &mut |_| {}), Err(Error::InUse(_))));
    drop(store);
    for is_closed in [false, true] {
        if is_closed {
            open(folder.path()).close().unwrap();
        }
        let before = files(folder.path());
        let found = verify(folder.path());
        assert_eq!(found.damages, []);
        assert!(found.is_sound() && found.is_closed == is_closed);
        assert_eq!(files(folder.path()), before);
        let records: Vec<_> = found.trees.iter().map(|tree| (&*tree.name, tree.shape.records)).collect();
        assert_eq!(records, [("first", 301), ("second", 301), ("third", 0)]);
        let in_trees: u64 = found.trees.iter().map(|tree| tree.shape.pages()).sum();
        assert_eq!(in_trees + 1 + found.free_pages, found.pages, "all but the catalog's page");
        assert!(found.log.segments == 1 && found.log.torn_bytes == 0);
        assert!(is_closed || found.log.commits > 3);
    }
    assert!(matches!(Store::verify(folder.path().join("none"), &mut |_| {}), Err(Error::NoStore(_))));
    let empty = tempfile::tempdir().unwrap();
    assert!(matches!(Store::verify(empty.path(), &mut |_| {}), Err(Error::NoStore(_))));
}

#[test]
fn each_page_that_is_damaged_is_named_with_its_tree() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    fill(&store);
    store.close().unwrap();
    let whole = verify(folder.path());
    let file = folder.path().join("pages");
    let (mut in_trees, mut elsewhere) = (0, 0);
    for page in FIRST..FIRST + whole.pages {
        let at = page * PAGE as u64 + 30 + page % 4000;
        flip(&file, at);
        let found = verify(folder.path());
        assert!(!found.is_sound());
        let named: Vec<_> = found.damages.iter().filter(|damage| damage.page == Some(PageId(page))).collect();
        assert_eq!(named.len(), 1, "page {page}: {:?}", found.damages);
        assert!(named[0].to_string().contains(&format!("page {page}")), "{}", named[0]);
        match &named[0].tree {
            Some(tree) => {
                in_trees += 1;
                let tree = found.trees.iter().find(|found| found.name == *tree).unwrap();
                assert_eq!(tree.damages, 1);
            }
            None => elsewhere += 1,
        }
        flip(&file, at);
    }
    assert_eq!(verify(folder.path()), whole);
    let expected: u64 = whole.trees.iter().map(|tree| tree.shape.pages()).sum();
    assert_eq!((in_trees, elsewhere), (expected, whole.pages - expected));
    // There are several damages at once.
    let damaged: Vec<_> = (FIRST + 2..FIRST + whole.pages).step_by(9).collect();
    damaged.iter().for_each(|page| flip(&file, page * PAGE as u64 + 100));
    let found = verify(folder.path());
    for page in damaged {
        assert!(found.damages.iter().any(|damage| damage.page == Some(PageId(page))), "{page}");
    }
    for page in [0, 1] {
        flip(&file, page * PAGE as u64 + 100);
    }
    assert!(!verify(folder.path()).is_sound());
}

#[test]
fn a_damaged_log_is_damage_and_a_torn_end_is_none_after_a_crash() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    fill(&store);
    let tree = store.tree("third").unwrap();
    store.checkpoint().unwrap();
    store.update(|transaction| transaction.put(&tree, b"k", b"v")).unwrap();
    drop(store);
    let log = folder.path().join("log.00000000");
    let whole = std::fs::read(&log).unwrap();
    std::fs::write(&log, &whole[..whole.len() - 3]).unwrap();
    let found = verify(folder.path());
    assert_eq!(found.damages, []);
    assert!(found.log.torn_bytes > 0 && !found.is_closed);
    assert_eq!(found.trees[2].shape.records, 0);
    std::fs::write(&log, &whole).unwrap();
    assert_eq!(verify(folder.path()).trees[2].shape.records, 1);
    // The written pages are from commits that this log does not have.
    std::fs::write(&log, &whole[..5000]).unwrap();
    let found = verify(folder.path());
    assert!(found.damages.iter().any(|damage| damage.what.contains("lost its end")), "{:?}", found.damages);
    // A header has invalid content.
    std::fs::write(&log, &whole).unwrap();
    flip(&log, 9);
    let found = verify(folder.path());
    assert_eq!(found.damages.len(), 1, "{:?}", found.damages);
    assert_eq!(found.damages[0].segment, Some(0));
    flip(&log, 9);
    open(folder.path()).close().unwrap();
    let end = std::fs::metadata(&log).unwrap().len();
    flip(&log, end - 1);
    let found = verify(folder.path());
    assert!(found.is_closed);
    assert!(found.damages.iter().any(|damage| damage.segment == Some(0)), "{:?}", found.damages);
    std::fs::remove_file(&log).unwrap();
    assert!(!verify(folder.path()).is_sound());
}

#[test]
fn pages_that_nobody_has_and_pages_that_are_free_and_in_a_tree_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    fill(&store);
    store.close().unwrap();
    let whole = verify(folder.path());
    let pool = || Pool::builder(folder.path().join("pages")).capacity(64 << 20).open().unwrap();
    let open_pool = pool();
    let lost = open_pool.allocate().unwrap().page();
    open_pool.close().unwrap();
    drop(open_pool);
    let found = verify(folder.path());
    assert_eq!(found.damage_count, 1, "{:?}", found.damages);
    assert_eq!(found.damages[0].page, Some(lost));
    assert_eq!(found.free_pages, whole.free_pages - 1);
    let open_pool = pool();
    open_pool.free(open_pool.pin_exclusive(lost).unwrap()).unwrap();
    // This is a leaf of the first tree. The list of free pages is not written over the last leaves.
    let leaf = PageId(FIRST + 3);
    open_pool.free(open_pool.pin_exclusive(leaf).unwrap()).unwrap();
    open_pool.close().unwrap();
    drop(open_pool);
    let found = verify(folder.path());
    assert!(found.damages.iter().any(|damage| damage.page == Some(leaf)), "{:?}", found.damages);
}

/// The directory that [`reader`] verifies.
const READ: &str = "BEDPLATE_TEST_READ";

/// This is not a test: it runs in a process of a user who may only read.
#[test]
fn reader() {
    let Some(folder) = std::env::var_os(READ) else { return };
    let folder = Path::new(&folder);
    assert!(std::fs::write(folder.join("new"), "").is_err(), "this user may write");
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let found = verify(folder);
                assert!(found.is_sound() && found.trees.len() == 3, "{:?}", found.damages);
            });
        }
    });
}

#[test]
fn a_user_who_may_only_read_verifies_a_store() {
    let folder = tempfile::tempdir().unwrap();
    let set_mode = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    let program = folder.path().join("test");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    for (name, is_closed, has_lock) in [("a", true, true), ("b", false, true), ("c", false, false)] {
        let store = folder.path().join(name);
        let opened = open(&store);
        fill(&opened);
        if is_closed {
            opened.close().unwrap();
        } else {
            drop(opened);
        }
        if !has_lock {
            std::fs::remove_file(store.join("lock")).unwrap();
        }
        let before = files(&store);
        before.keys().for_each(|path| set_mode(path, 0o444));
        set_mode(&store, 0o555);
        set_mode(folder.path(), 0o755);
        let mut command = Command::new(&program);
        command.args(["reader", "--exact", "--nocapture"]).env(READ, &store);
        // SAFETY: the call has no preconditions.
        if unsafe { libc::geteuid() } == 0 {
            // Root may write everywhere.
            command.uid(65534).gid(65534);
        }
        let output = command.output().unwrap();
        set_mode(&store, 0o755);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(files(&store) == before);
    }
}

#[test]
fn a_store_on_a_read_only_file_system_is_verified() {
    let Some(disk) = small_disk::SmallDisk::mount(32) else { return };
    let store = disk.path().join("store");
    let opened = open(&store);
    fill(&opened);
    drop(opened);
    std::fs::remove_file(store.join("lock")).unwrap();
    // A child that another test forks has copies of the store's descriptors until it executes its program.
    let mut mount = Command::new("mount");
    mount.args(["-o", "remount,ro"]).arg(disk.path());
    let begin = Instant::now();
    while !mount.status().unwrap().success() {
        assert!(begin.elapsed() < Duration::from_secs(60), "the file system stays in use");
        thread::sleep(Duration::from_millis(20));
    }
    assert!(verify(&store).is_sound());
}
