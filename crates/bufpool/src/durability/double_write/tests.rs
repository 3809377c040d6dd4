//! One thread's batches, fsyncs that fail, and sectors that are bad.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::area::{MOST_BAD_PAGES, REGIONS};
use super::*;
use crate::durability::page_store::PageStore;
use crate::durability::superblock::Superblock;
use crate::page::{self, PAGE};
use crate::storage::{Read, Write};

type Sealed = [u8; PAGE];

#[derive(Default)]
struct Disk {
    pages: Mutex<BTreeMap<u64, Sealed>>,
    bad: Mutex<BTreeSet<u64>>,
    fsyncs_fail: AtomicBool,
}

fn failure() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

impl Storage for Disk {
    fn read(&self, reads: &mut [Read<'_>]) {
        for read in reads {
            let image = self.pages.lock().unwrap().get(&read.page()).copied().unwrap_or([0; PAGE]);
            // SAFETY: the memory of a page, which only the storage writes during the read.
            unsafe { read.memory().copy_from_nonoverlapping(image.as_ptr(), PAGE) };
        }
    }

    fn write(&self, writes: &mut [Write<'_>]) {
        for write in writes {
            for (page, image) in (write.page()..).zip(write.images().iter()) {
                if self.bad.lock().unwrap().contains(&page) {
                    write.result = Err(failure());
                    break;
                }
                self.pages.lock().unwrap().insert(page, image.try_into().unwrap());
            }
        }
    }

    fn sync(&self) -> io::Result<()> {
        if self.fsyncs_fail.load(Ordering::Relaxed) { Err(failure()) } else { Ok(()) }
    }

    fn grow(&self, _: Range<u64>) -> io::Result<()> {
        Ok(())
    }
}

fn new_area(disk: &Disk) -> DoubleWrite {
    DoubleWrite::new(restore(disk, PageSize::MIN, true).unwrap(), PageSize::MIN)
}

/// A page with this content.
fn sealed(page: u64, content: u8) -> Sealed {
    let mut image = [content; PAGE];
    page::seal(&mut image, PageId(page));
    image
}

/// The pages of a range that could not be written.
fn write(store: &PageStore, pages: Range<u64>, content: u8) -> Vec<u64> {
    let images: Vec<Sealed> = pages.clone().map(|page| sealed(page, content)).collect();
    let pages: Vec<PageId> = pages.map(PageId).collect();
    let failed = store
        .write(&pages, Images::new(images.as_flattened(), PageSize::MIN))
        .into_iter()
        .filter(|write| write.result.is_err());
    failed.flat_map(|write| write.page()..write.page() + write.images().len() as u64).collect()
}

fn unplaced(store: &PageStore) -> Vec<u64> {
    store.double.as_ref().unwrap().state().unplaced.keys().map(|page| page.0).collect()
}

fn doubtful(store: &PageStore) -> Vec<u64> {
    let mut pages: Vec<u64> = store.pages_since_sync().doubtful().into_iter().map(|page| page.0).collect();
    pages.sort();
    pages
}

fn new_store(disk: &Arc<Disk>) -> PageStore {
    PageStore::new(
        disk.clone(),
        Some(new_area(disk)),
        Superblock { clean: false, ..Superblock::empty(PageSize::MIN) },
    )
}

#[test]
fn a_failed_fsync_puts_the_pages_written_since_the_last_success_in_doubt() {
    let disk = Arc::new(Disk::default());
    let store = new_store(&disk);
    assert!(write(&store, 300..310, 1).is_empty());
    store.sync().unwrap();
    assert!(write(&store, 310..320, 1).is_empty());
    assert!(write(&store, 315..317, 2).is_empty());
    // The second batch's fsync has made the first eight durable, and not the two that it writes itself.
    disk.fsyncs_fail.store(true, Ordering::Relaxed);
    // The places of a batch whose copies are not durable are not written.
    assert_eq!(write(&store, 320..330, 1), Vec::from_iter(320..330));
    assert!(!disk.pages.lock().unwrap().contains_key(&320));
    assert_eq!((unplaced(&store), doubtful(&store)), (vec![315, 316], vec![315, 316]));
    assert_eq!(store.copy(PageId(315)).as_deref(), Some(&sealed(315, 2)[..]));
    disk.fsyncs_fail.store(false, Ordering::Relaxed);
    // The kernel has dropped one write.
    disk.pages.lock().unwrap().insert(315, sealed(315, 1));
    store.retry().unwrap();
    assert!(unplaced(&store).is_empty());
    assert_eq!(disk.pages.lock().unwrap()[&315], sealed(315, 2));
}

/// A retry whose fsync fails does not count.
#[test]
fn pages_stay_in_doubt_until_an_fsync_succeeds_after_the_retry() {
    let disk = Arc::new(Disk::default());
    let store = new_store(&disk);
    assert!(write(&store, 300..310, 1).is_empty());
    disk.fsyncs_fail.store(true, Ordering::Relaxed);
    for _ in 0..3 {
        store.sync().unwrap_err();
        assert_eq!(unplaced(&store), Vec::from_iter(300..310));
        store.retry().unwrap();
        assert!(unplaced(&store).is_empty());
    }
    disk.fsyncs_fail.store(false, Ordering::Relaxed);
    store.sync().unwrap();
    disk.fsyncs_fail.store(true, Ordering::Relaxed);
    store.sync().unwrap_err();
    assert!(unplaced(&store).is_empty());
}

#[test]
fn bad_pages_have_regions_of_their_own_up_to_the_limit() {
    let disk = Arc::new(Disk::default());
    let store = new_store(&disk);
    let most = MOST_BAD_PAGES as u64;
    disk.bad.lock().unwrap().extend(300..300 + most);
    let bad = Vec::from_iter(300..300 + most);
    let kept = |store: &PageStore| {
        let state = store.double.as_ref().unwrap().state();
        (0..REGIONS).filter(|index| state.regions[*index].status == state::Status::Kept).collect::<Vec<_>>()
    };
    // Newer contents need no more regions.
    for content in 1..10 {
        assert_eq!(write(&store, 290..340, content), bad);
        store.sync().unwrap();
        assert_eq!(kept(&store), Vec::from_iter(BATCHES..REGIONS));
    }
    // Each crash has the newest content of all pages, and the limit is unchanged.
    for page in 300..300 + most {
        disk.pages.lock().unwrap().insert(page, [7; PAGE]);
    }
    drop(store);
    let store = new_store(&disk);
    assert_eq!(kept(&store), Vec::from_iter(BATCHES..REGIONS));
    for page in 300..300 + most {
        assert_eq!(store.copy(PageId(page)).as_deref(), Some(&sealed(page, 9)[..]));
    }
    // One more keeps its batch's region, and others are written.
    disk.bad.lock().unwrap().insert(400);
    assert_eq!(write(&store, 400..410, 1), [400]);
    for content in 10..20 {
        assert!(write(&store, 340..399, content).is_empty());
        store.sync().unwrap();
        assert_eq!(kept(&store).iter().filter(|region| **region < BATCHES).count(), 1);
    }
    // The bad pages now keep all regions for batches.
    disk.bad.lock().unwrap().extend([401, 402]);
    assert_eq!(write(&store, 401..402, 1), [401]);
    assert_eq!(write(&store, 402..403, 1), [402]);
    assert_eq!(write(&store, 340..342, 20), [340, 341]);
    // A place that can be written again frees a region.
    disk.bad.lock().unwrap().remove(&401);
    assert!(write(&store, 340..342, 20).is_empty());
    assert!(!unplaced(&store).contains(&401));
    let (page, _) = store.double.as_ref().unwrap().retry(&*disk).1.unwrap();
    assert_eq!(page, PageId(300));
}

/// A bad sector in the area is avoided.
#[test]
fn a_region_that_cannot_be_written_costs_no_page() {
    let disk = Arc::new(Disk::default());
    let store = new_store(&disk);
    disk.bad.lock().unwrap().insert(area::first(1) + 3);
    for content in 1..20 {
        assert!(write(&store, 300..310, content).is_empty());
    }
    assert!(store.double.as_ref().unwrap().state().regions[1].errors < 2);
}
