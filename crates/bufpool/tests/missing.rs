//! Storage that loses pages: it returns zeros for pages that were written. The pool reports damage, not empty pages.

mod common;
#[path = "common/wal.rs"]
mod wal;

use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;

use bedplate_bufpool::{Builder, Damage, Error, Kind, PAGE, PageId, Pool, Redo, TornPages};
use common::{builder, fill, kinds, stored, version};
use tempfile::TempDir;
use wal::{Wal, words};

fn path(folder: &TempDir) -> PathBuf {
    folder.path().join("pool")
}

/// Punches a hole into the file at a page.
fn punch(folder: &TempDir, page: PageId) {
    let file = std::fs::OpenOptions::new().write(true).open(path(folder)).unwrap();
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let at = (page.0 * PAGE as u64) as i64;
    // SAFETY: the descriptor refers to an open file, and the call accesses no memory.
    let result = unsafe { libc::fallocate(file.as_raw_fd(), mode, at, PAGE as i64) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

fn is_missing<T>(result: Result<T, Error>, page: PageId) -> bool {
    matches!(result, Err(Error::Damaged { page: told, damage: Damage::Missing }) if told == page)
}

fn logged(folder: &TempDir, kind: Kind, wal: &Arc<Wal>) -> Builder {
    builder(folder, kind, 64).log(wal.clone()).torn_pages(TornPages::Detect)
}

#[test]
fn a_page_that_storage_lost_is_damaged() {
    for kind in kinds() {
        let (pool, folder, pages) = stored(kind, 64, 200);
        drop(pool);
        let [lost, also_lost] = [pages[70], pages[199]];
        punch(&folder, lost);
        punch(&folder, also_lost);
        let pool = builder(&folder, kind, 64).open().unwrap();
        pool.fetch(&[lost]);
        pool.prefetch(&[also_lost]);
        for page in [lost, also_lost] {
            assert!(is_missing(pool.pin_shared(page).map(drop), page), "{kind}");
            assert!(is_missing(pool.pin_exclusive(page).map(drop), page), "{kind}");
            assert!(is_missing(pool.optimistic(page).map(drop), page), "{kind}");
        }
        for page in pages.iter().filter(|page| ![lost, also_lost].contains(page)) {
            assert_eq!(version(&pool.pin_shared(*page).unwrap(), page.0), 3);
        }
    }
}

#[test]
fn redo_restores_a_page_that_storage_lost() {
    for kind in kinds() {
        let folder = tempfile::tempdir().unwrap();
        let wal = Arc::new(Wal::keeping_all());
        let pool = logged(&folder, kind, &wal).open().unwrap();
        let pages: Vec<PageId> = (0..8)
            .map(|value| {
                let mut page = pool.allocate().unwrap();
                wal.begin(&mut page, 3, value + 1);
                page.page()
            })
            .collect();
        pool.close().unwrap();
        drop(pool);
        // The pool is not closed, so this is a crash.
        drop(logged(&folder, kind, &wal).open().unwrap());
        punch(&folder, pages[5]);
        let pool = logged(&folder, kind, &wal).open().unwrap();
        assert!(pool.needs_recovery());
        assert!(is_missing(pool.pin_shared(pages[5]).map(drop), pages[5]), "{kind}");
        assert_eq!(wal.redo(&pool), 1, "{kind}");
        for (page, value) in pages.iter().zip(1..) {
            assert_eq!(words(&pool.pin_shared(*page).unwrap())[3], value);
        }
    }
}

#[test]
fn pages_that_were_not_written_before_a_crash_are_empty_in_recovery() {
    for kind in kinds() {
        let folder = tempfile::tempdir().unwrap();
        let wal = Arc::new(Wal::keeping_all());
        let pool = logged(&folder, kind, &wal).open().unwrap();
        let mut page = pool.allocate().unwrap();
        wal.begin(&mut page, 0, 1);
        let before = page.page();
        drop(page);
        pool.sync().unwrap();
        for _ in 0..20 {
            drop(pool.allocate().unwrap());
        }
        assert_eq!(pool.statistics().written, 1);
        drop(pool);
        let pool = logged(&folder, kind, &wal).open().unwrap();
        // Pages between two pages of the log exist too.
        let [first, between, last] = [1, 4, 9].map(|distance| PageId(before.0 + distance));
        for page in [first, last] {
            let (found, redo) = pool.pin_for_redo(page).unwrap();
            assert_eq!((redo, found.lsn()), (Redo::Intact, 0), "{kind}");
            assert!(found.iter().all(|byte| *byte == 0));
        }
        assert!(pool.pin_shared(between).unwrap().iter().all(|byte| *byte == 0));
        // A sync during recovery does not change that.
        pool.sync().unwrap();
        drop(pool);
        let pool = logged(&folder, kind, &wal).open().unwrap();
        assert_eq!(pool.pin_for_redo(last).unwrap().1, Redo::Intact, "{kind}");
        pool.close().unwrap();
        drop(pool);
        // After the close they are ordinary pages.
        let open = || logged(&folder, kind, &wal).open().unwrap();
        assert!(open().pin_shared(between).unwrap().iter().all(|byte| *byte == 0));
        punch(&folder, between);
        assert!(is_missing(open().pin_shared(between).map(drop), between), "{kind}");
        assert_eq!(open().pin_for_redo(between).unwrap().1, Redo::Torn, "{kind}");
    }
}

#[test]
fn free_pages_that_were_never_written_can_be_used() {
    for kind in kinds() {
        let folder = tempfile::tempdir().unwrap();
        let open = || builder(&folder, kind, 64).open().unwrap();
        let pool = open();
        let pages: Vec<PageId> = (0..40).map(|_| pool.allocate().unwrap().page()).collect();
        for page in &pages {
            pool.free(pool.pin_exclusive(*page).unwrap()).unwrap();
        }
        pool.close().unwrap();
        drop(pool);
        let pool = open();
        assert!(pool.optimistic(pages[30]).is_ok(), "a reader that is too late may look at a free page");
        for page in &pages {
            let mut again = pool.allocate().unwrap();
            assert_eq!(again.page(), *page);
            fill(&mut again, page.0, 1);
        }
        // A page that was not changed after its allocation is also written.
        let empty = pool.allocate().unwrap().page();
        pool.close().unwrap();
        drop(pool);
        let pool: Pool = open();
        assert!(pool.pin_shared(empty).unwrap().iter().all(|byte| *byte == 0));
        assert_eq!(version(&pool.pin_shared(pages[7]).unwrap(), pages[7].0), 1);
    }
}
