//! Versions of the storage format.

mod common;
#[path = "common/wal.rs"]
mod wal;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bedplate_bufpool::{Error, Kind, Log, PAGE, PageId, Pool, TornPages};
use common::builder;
use tempfile::TempDir;
use wal::{Wal, words};

const HEADER: usize = 24;
const VERSION_AT: usize = HEADER + 7;
/// The words that version 2 has in addition to version 1.
const NEW_WORDS: std::ops::Range<usize> = HEADER + 15 * 8..HEADER + 17 * 8;
const COPIES: std::ops::Range<usize> = 0..2;

fn path(folder: &TempDir) -> PathBuf {
    folder.path().join("pool")
}

/// Changes pages of a file, and gives them valid checksums.
fn change(path: &Path, pages: impl Iterator<Item = usize>, change: impl Fn(&mut [u8])) {
    let mut bytes = std::fs::read(path).unwrap();
    for page in pages {
        let image = &mut bytes[page * PAGE..][..PAGE];
        if image.iter().any(|byte| *byte != 0) {
            change(image);
            let sum = crc32c::crc32c_append(crc32c::crc32c(&image[..16]), &image[20..]);
            image[16..20].copy_from_slice(&sum.to_le_bytes());
        }
    }
    std::fs::write(path, bytes).unwrap();
}

fn versions(path: &Path) -> [u8; 2] {
    let bytes = std::fs::read(path).unwrap();
    [bytes[VERSION_AT], bytes[PAGE + VERSION_AT]]
}

/// Creates a closed pool of version 1 with its log. It has one page in use, and one free page, which contains the free
/// list.
fn version_1() -> (TempDir, Arc<Wal>, PageId, PageId) {
    let folder = tempfile::tempdir().unwrap();
    let wal = Arc::new(Wal::keeping_all());
    let pool = open(&folder, &wal).unwrap();
    let [used, free] = [7, 8].map(|value| {
        let mut page = pool.allocate().unwrap();
        wal.begin(&mut page, 0, value);
        page.page()
    });
    let mut page = pool.pin_exclusive(free).unwrap();
    wal.free(&mut page);
    pool.free(page).unwrap();
    pool.close().unwrap();
    drop(pool);
    change(&path(&folder), COPIES, |image| {
        image[VERSION_AT] = 1;
        image[NEW_WORDS].fill(0);
    });
    change(&path(&folder), std::iter::once(free.0 as usize), |image| image[8..16].fill(0));
    assert_eq!(versions(&path(&folder)), [1, 1]);
    (folder, wal, used, free)
}

fn open(folder: &TempDir, wal: &Arc<Wal>) -> Result<Pool, Error> {
    builder(folder, Kind::Hashtable, 64).log(wal.clone()).torn_pages(TornPages::Detect).open()
}

#[test]
fn a_closed_pool_of_version_1_becomes_one_of_version_2() {
    let (folder, wal, used, free) = version_1();
    let pool = open(&folder, &wal).unwrap();
    assert!(!pool.needs_recovery());
    assert_eq!(pool.pages_in_use(), 1);
    assert_eq!(words(&pool.pin_shared(used).unwrap())[0], 7);
    // The pool is not closed. So recovery replays records from before the close on the page with the free list.
    drop(pool);
    assert_eq!(versions(&path(&folder)), [2, 2]);
    let pool = open(&folder, &wal).unwrap();
    assert!(pool.needs_recovery());
    assert_eq!(pool.pin_for_redo(free).unwrap().0.lsn(), wal.durable_lsn());
}

#[test]
fn a_pool_of_version_1_that_was_not_closed_is_recovered() {
    let (folder, wal, used, _) = version_1();
    const CLEAN_AT: usize = HEADER + 6 * 8;
    change(&path(&folder), COPIES, |image| image[CLEAN_AT] = 0);
    let pool = open(&folder, &wal).unwrap();
    assert!(pool.needs_recovery());
    wal.redo(&pool);
    assert_eq!(words(&pool.pin_shared(used).unwrap())[0], 7);
    pool.reclaim(|page| page == used);
    pool.close().unwrap();
    drop(pool);
    assert!(!open(&folder, &wal).unwrap().needs_recovery());
    assert_eq!(versions(&path(&folder)), [2, 2]);
}

#[test]
fn a_pool_of_a_later_version_is_refused() {
    let (folder, wal, ..) = version_1();
    change(&path(&folder), COPIES, |image| image[VERSION_AT] = 3);
    let error = open(&folder, &wal).map(drop).unwrap_err().to_string();
    assert!(error.contains("version 3") && !error.contains('\n'), "{error}");
}
