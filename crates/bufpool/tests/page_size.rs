//! Pages of other sizes than 4 KiB.

mod common;
#[path = "common/faulty.rs"]
mod faulty;
#[path = "common/wal.rs"]
mod wal;

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bedplate_bufpool::{Choice, Error, HEADER, Kind, PAGE, PageId, PageSize, Pool, TornPages};
use common::{allocate, builder_for, has_size, kinds, stored_version, write};
use faulty::Faulty;
use tempfile::TempDir;
use wal::Wal;

/// The byte of a superblock's record where the page size begins.
const SIZE_AT: usize = HEADER + 8;

fn path(folder: &TempDir) -> std::path::PathBuf {
    folder.path().join("pool")
}

#[test]
fn every_engine_has_every_size_and_the_file_keeps_it() {
    for size in PageSize::ALL {
        let folder = tempfile::tempdir().unwrap();
        let first = kinds().find(|kind| has_size(*kind, size)).unwrap();
        let pool = builder_for(&folder, first, 32, size).page_size(size.bytes()).open().unwrap();
        assert_eq!((pool.page_size(), pool.statistics().frames), (size, 32));
        let pages = allocate(&pool, 100);
        assert_eq!(pool.pin_shared(pages[0]).unwrap().len(), size.bytes() - HEADER);
        pool.close().unwrap();
        drop(pool);
        for (version, kind) in (2..).zip(kinds().filter(|kind| has_size(*kind, size))) {
            // The builder does not set a size.
            let pool = builder_for(&folder, kind, 32, size).open().unwrap();
            assert_eq!((pool.page_size(), pool.statistics().frames), (size, 32));
            // There are more pages than frames, so that they are evicted and read again.
            write(&pool, &pages, version);
            for page in &pages {
                assert_eq!(stored_version(&pool, *page), version, "{kind}, {size}");
            }
            assert!(pool.statistics().evicted > 0 && pool.statistics().read > 0, "{kind}, {size}");
            // Pages of the free list are as large as the others.
            for page in &pages[..4] {
                pool.free(pool.pin_exclusive(*page).unwrap()).unwrap();
            }
            pool.close().unwrap();
            drop(pool);
            let pool = builder_for(&folder, kind, 32, size).page_size(size.bytes()).open().unwrap();
            assert_eq!(pool.pages_in_use(), 96);
            assert_eq!(allocate(&pool, 4), pages[..4]);
            pool.close().unwrap();
        }
        let length = std::fs::metadata(path(&folder)).unwrap().len();
        assert!(length >= 356 * size.bytes() as u64 && length.is_multiple_of(size.bytes() as u64));
    }
}

#[cfg(feature = "ring0")]
#[test]
fn ring0_refuses_sizes_that_it_does_not_have_and_says_which_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let builder = builder_for(&folder, Kind::Ring0, 32, PageSize::MAX).page_size(65536);
    let error = builder.open().map(drop).unwrap_err();
    assert!(matches!(error, Error::Unavailable { engine: Kind::Ring0, .. }), "{error}");
    assert!(
        error.to_string().contains("choose pages of 4 KiB") && !error.to_string().contains('\n'),
        "{error}"
    );
}

#[test]
fn other_sizes_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let open = |bytes| Pool::builder(path(&folder)).memory(4 << 20).page_size(bytes).open();
    for bytes in [0, 1, 2048, 4095, 4097, 12288, 65535, 131072, usize::MAX] {
        let error = open(bytes).map(drop).unwrap_err();
        assert!(matches!(error, Error::Setting { what: "a page size", .. }), "{error}");
        assert!(!path(&folder).exists(), "nothing was created");
    }
    drop(open(16384).unwrap());
    for bytes in [4096, 8192, 65536] {
        let error = open(bytes).map(drop).unwrap_err();
        let sizes = (PageSize::new(bytes).unwrap(), PageSize::new(16384).unwrap());
        assert!(matches!(error, Error::PageSize { asked, found } if (asked, found) == sizes), "{error}");
        assert!(!error.to_string().contains('\n'), "{error}");
    }
    assert_eq!(open(16384).unwrap().page_size().bytes(), 16384);
    // With the pool's own size, this memory is too little.
    let small = Pool::builder(path(&folder)).memory(128 << 10);
    assert!(matches!(small.open().map(drop), Err(Error::Setting { what: "memory", .. })));
}

/// The superblock has the size at the position where programs that only know 4 KiB wrote and verify it. So they refuse other
/// pools, and this version opens their pools.
#[test]
fn the_superblock_says_the_size_where_it_always_did() {
    for size in PageSize::ALL {
        let folder = tempfile::tempdir().unwrap();
        let pool = builder_for(&folder, Kind::Array, 32, size).page_size(size.bytes()).open().unwrap();
        allocate(&pool, 10);
        pool.close().unwrap();
        drop(pool);
        let bytes = std::fs::read(path(&folder)).unwrap();
        for block in 0..2 {
            let record = &bytes[block * PAGE..][..PAGE];
            assert_eq!(record[SIZE_AT..SIZE_AT + 8], (size.bytes() as u64).to_le_bytes());
            let sum = crc32c::crc32c_append(crc32c::crc32c(&record[..16]), &record[20..]);
            assert_eq!(record[16..20], sum.to_le_bytes(), "a record is one block");
        }
        // Either block alone is enough to open the pool.
        for block in 0..2 {
            let mut damaged = bytes.clone();
            damaged[block * PAGE + 100] ^= 1;
            std::fs::write(path(&folder), damaged).unwrap();
            let pool = builder_for(&folder, Kind::Array, 32, size).recover(true).open().unwrap();
            assert_eq!(pool.page_size(), size);
        }
    }
}

#[test]
fn a_size_in_the_superblock_that_cannot_be_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    drop(builder_for(&folder, Kind::Array, 32, PageSize::MIN).open().unwrap());
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path(&folder)).unwrap();
    for block in 0..2 {
        let mut record = [0; PAGE];
        file.read_exact_at(&mut record, block * PAGE as u64).unwrap();
        record[SIZE_AT..SIZE_AT + 8].copy_from_slice(&5000u64.to_le_bytes());
        let sum = crc32c::crc32c_append(crc32c::crc32c(&record[..16]), &record[20..]);
        record[16..20].copy_from_slice(&sum.to_le_bytes());
        file.write_all_at(&record, block * PAGE as u64).unwrap();
    }
    let error = builder_for(&folder, Kind::Array, 32, PageSize::MIN).open().map(drop).unwrap_err();
    assert!(error.to_string().contains("5000 bytes"), "{error}");
}

/// A crash tears a page between any two of its sectors, and the double-write area has a copy of it.
#[test]
fn a_large_page_that_is_torn_anywhere_is_restored() {
    let size = PageSize::new(32768).unwrap();
    let blocks = size.bytes() as u64 / PAGE as u64;
    for torn in 0..blocks {
        let disk = Faulty::new(torn);
        let wal = Arc::new(Wal::default());
        let open = || {
            Pool::builder("")
                .storage(Box::new(disk.clone()))
                .memory(32 * size.bytes())
                .page_size(size.bytes())
                .engine(Choice::Only(Kind::Array))
                .log(wal.clone())
                .torn_pages(TornPages::DoubleWrite)
                .open()
                .unwrap()
        };
        let pool = open();
        let mut page = pool.allocate().unwrap();
        let id = page.page();
        wal.begin(&mut page, 1, 7);
        drop(page);
        pool.sync().unwrap();
        drop(pool);
        disk.damage(id.0 * blocks + torn);
        let pool = open();
        assert_eq!(pool.statistics().restored, 1);
        assert_eq!(pool.pin_shared(id).unwrap()[8], 7);
    }
}

/// A page that is not in memory and is damaged anywhere causes an error.
#[test]
fn damage_in_any_block_of_a_page_shows() {
    let disk = Faulty::new(1);
    let size = PageSize::MAX;
    let builder = || Pool::builder("").storage(Box::new(disk.clone())).memory(16 * size.bytes());
    let pool = builder().page_size(size.bytes()).open().unwrap();
    let pages = allocate(&pool, 16);
    pool.close().unwrap();
    drop(pool);
    for (block, page) in pages.iter().enumerate() {
        disk.damage(size.bytes() as u64 / PAGE as u64 * page.0 + block as u64);
    }
    let pool = builder().open().unwrap();
    for page in pages {
        let found = pool.pin_shared(page).map(drop);
        assert!(matches!(found, Err(Error::Damaged { page: PageId(number), .. }) if number == page.0));
    }
}
