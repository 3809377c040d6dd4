//! Tests of sectors that cannot be read. Each makes only the pages that have it unreadable.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bedplate_scan::{Channel, Choice, Daemon, Error, FRAME, Kind, Options, Range, Scan, Service};
use common::{Fault, Faults, folder, is_right, write};
use rustix::io::Errno;

const SECTOR: u64 = 4096;

/// The faults of a device with these bad sectors: a read that touches one of them fails.
fn bad(sectors: &[u64]) -> Faults {
    let sectors = sectors.to_vec();
    Faults::new(move |read, _| {
        let touched = read.offset / SECTOR..(read.offset + read.len as u64).div_ceil(SECTOR);
        sectors.iter().any(|sector| touched.contains(sector)).then_some(Fault::Fails(Errno::IO))
    })
}

fn services(faults: &Faults) -> impl Iterator<Item = Service> {
    let build = |kind| Service::builder().engine(Choice::Only(kind)).wrap(faults.around()).build().ok();
    [Kind::Uring, Kind::Threads].into_iter().filter_map(build)
}

/// The pages that a channel delivers: offsets with lengths, and the pages that are errors.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    pages: BTreeMap<u64, u64>,
    errors: BTreeSet<u64>,
}

fn read_all(channel: &mut Channel, ordered: bool) -> Seen {
    let (page_size, mut seen, mut last) = (channel.page_size() as u64, Seen::default(), None);
    loop {
        let page = match channel.next_page() {
            Ok(None) => return seen,
            Ok(Some(page)) => {
                assert!(is_right(0, page.offset(), &page), "wrong bytes at {}", page.offset());
                let (offset, len) = (page.offset(), page.len() as u64);
                assert!(seen.pages.insert(offset, len).is_none(), "{offset} came twice");
                offset / page_size
            }
            Err(Error::Read { file: 0, offset, source: Errno::IO }) => {
                assert!(seen.errors.insert(offset), "{offset} failed twice");
                offset / page_size
            }
            Err(error) => panic!("{error}"),
        };
        assert!(!ordered || last.is_none_or(|last| last < page), "{page} after {last:?}");
        last = Some(page);
    }
}

/// The pages that a channel should deliver of a file.
fn expected(len: u64, page_size: u64, sectors: &[u64]) -> Seen {
    let mut seen = Seen::default();
    for page in (0..len).step_by(page_size as usize) {
        let end = (page + page_size).min(len);
        if sectors.iter().any(|sector| (page..end).contains(&(sector * SECTOR))) {
            seen.errors.insert(page);
        } else {
            seen.pages.insert(page, end - page);
        }
    }
    seen
}

/// Bad sectors that are alone, adjacent, at either end of a frame, in a shorter page, and throughout a whole frame.
fn sectors() -> Vec<u64> {
    let frame = FRAME as u64 / SECTOR;
    let mut sectors = vec![0, 7, 8, frame - 1, 2 * frame + 100, 6 * frame];
    sectors.extend(3 * frame..4 * frame);
    sectors.sort_unstable();
    sectors
}

const LEN: usize = 6 * FRAME + 500;

#[test]
fn a_bad_sector_costs_its_page() {
    let folder = folder();
    let path = write(folder.path(), 0, LEN);
    for page_size in [4096, 16_384, FRAME] {
        let faults = bad(&sectors());
        for service in services(&faults) {
            let mut channel = service.open(Scan::of([&path]).page_size(page_size).unwrap()).unwrap();
            let seen = read_all(&mut channel, true);
            assert!(seen == expected(LEN as u64, page_size as u64, &sectors()), "pages of {page_size}");
        }
    }
}

/// The search for one bad sector takes two reads each time that a frame is halved. It takes none where pages are whole frames.
#[test]
fn what_is_bad_is_found_soon() {
    let folder = folder();
    let path = write(folder.path(), 0, 4 * FRAME);
    // The file system must place the file now. Extents cost reads, too, and both scans must have the same extents.
    std::fs::File::open(&path).unwrap().sync_all().unwrap();
    for (page_size, most) in [(4096, 18), (65_536, 10), (FRAME, 0)] {
        let reads = |faults: &Faults, errors: usize| {
            let read = |service: Service| {
                let before = faults.reads.load(Ordering::Relaxed);
                let mut channel = service.open(Scan::of([&path]).page_size(page_size).unwrap()).unwrap();
                assert_eq!(read_all(&mut channel, true).errors.len(), errors);
                faults.reads.load(Ordering::Relaxed) - before
            };
            services(faults).map(read).collect::<Vec<u64>>()
        };
        let (clean, faulty) = (reads(&bad(&[]), 0), reads(&bad(&[700]), 1));
        let more = clean.iter().zip(&faulty).all(|(clean, faulty)| *faulty <= clean + most);
        assert!(more, "{faulty:?} reads, and {clean:?} of good sectors, for pages of {page_size}");
    }
}

/// The ranges share a frame and do not begin at page boundaries. Bad sectors outside the ranges lie beside them.
#[test]
fn ranges_beside_bad_sectors_are_read() {
    let folder = folder();
    let path = write(folder.path(), 0, 4 * FRAME);
    let faults = bad(&[10, 20, 31, 40]);
    // The second range has the end of sector 20, and the third has a part of 31. No range has 10 or 40.
    let ranges =
        [(11, 0, 15, 9), (20, 5, 24, 0), (29, 77, 33, 50), (41, 0, 60, 4095)].map(|(a, more, b, less)| {
            Range { file: 0, start: a * SECTOR + more, end: b * SECTOR + SECTOR - less }
        });
    for service in services(&faults) {
        let scan = Scan::of([&path]).ranges(ranges).page_size(4096).unwrap();
        let seen = read_all(&mut service.open(scan).unwrap(), true);
        assert_eq!(seen.errors, BTreeSet::from([20 * SECTOR + 5, 31 * SECTOR]));
        let bytes: u64 = seen.pages.values().sum();
        let all: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        assert_eq!(bytes, all - (SECTOR - 5) - SECTOR);
    }
}

#[test]
fn members_of_a_pool_miss_the_same_bytes() {
    let folder = folder();
    let path = write(folder.path(), 0, LEN);
    let faults = bad(&sectors());
    for service in services(&faults) {
        let pool = service.create_pool([&path], 8 * FRAME).unwrap();
        members(&service, pool.key());
    }
}

/// Runs workers with several page sizes and paces in threads.
fn members(service: &Service, key: bedplate_scan::AccessKey) {
    let wrong = Mutex::new(BTreeSet::new());
    std::thread::scope(|scope| {
        for (number, page_size) in [4096, 4096, 65_536, FRAME].into_iter().enumerate() {
            let wrong = &wrong;
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(number as u64 * 5));
                let mut channel = service.join(key, page_size).unwrap();
                if read_all(&mut channel, false) != expected(LEN as u64, page_size as u64, &sectors()) {
                    wrong.lock().unwrap().insert(page_size);
                }
            });
        }
    });
    assert_eq!(*wrong.lock().unwrap(), BTreeSet::new());
}

#[test]
fn a_daemon_tells_which_pages_are_bad() {
    let folder = folder();
    let path = write(folder.path(), 0, LEN);
    let faults = bad(&sectors());
    for service in services(&faults) {
        let socket = folder.path().join("socket");
        let daemon = Daemon::bind(service, &socket, &Options::default()).unwrap();
        let stopper = daemon.stopper();
        let thread = std::thread::spawn(move || daemon.run());
        let client = Service::connect(&socket).unwrap();
        let mut channel = client.open(Scan::of([&path]).page_size(8192).unwrap()).unwrap();
        assert!(read_all(&mut channel, true) == expected(LEN as u64, 8192, &sectors()));
        let pool = client.create_pool([&path], 8 * FRAME).unwrap();
        members(&client, pool.key());
        stopper.stop();
        thread.join().unwrap().unwrap();
    }
}

/// Every error takes 50 ms, so the search for bad sectors is slow. A worker that leaves does not wait for it.
#[test]
fn who_leaves_does_not_wait_for_bad_sectors() {
    let folder = folder();
    let path = write(folder.path(), 0, 2 * FRAME);
    let faults = Faults::new(|read, _| match read.offset / FRAME as u64 {
        0 => Some(Fault::Late(Errno::IO, Duration::from_millis(50))),
        _ => None,
    });
    for service in services(&faults) {
        let mut channel = service.open(Scan::of([&path]).page_size(4096).unwrap()).unwrap();
        assert!(!channel.wait(Some(Duration::from_millis(200))).unwrap());
        let start = std::time::Instant::now();
        drop((channel, service));
        // Reading all sectors of the frame one after the other would take 50 s.
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    }
}

/// The remaining bytes of a truncated file come. Each page behind them is an error.
#[test]
fn a_truncated_file_is_read_up_to_its_end() {
    let folder = folder();
    let path = write(folder.path(), 0, 4 * FRAME);
    for kind in [Kind::Uring, Kind::Threads] {
        let Ok(service) = Service::builder().engine(Choice::Only(kind)).build() else { continue };
        write(folder.path(), 0, 4 * FRAME);
        let range = |start, end| Range { file: 0, start, end };
        let scan = Scan::of([&path]).ranges([]).page_size(8192).unwrap();
        let mut channel = service.open(scan).unwrap();
        let end = FRAME as u64 + 5 * 8192 + 4196;
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(end).unwrap();
        channel.notify_ranges(&[range(FRAME as u64, 3 * FRAME as u64)]).unwrap();
        for page in 0..5 {
            let page_at = FRAME as u64 + page * 8192;
            let page = channel.next_page().unwrap().unwrap();
            assert_eq!((page.offset(), page.len()), (page_at, 8192));
            assert!(is_right(0, page.offset(), &page));
        }
        for page in 5..512 {
            let missing = end.max(FRAME as u64 + page * 8192);
            let error = channel.next_page().err();
            let right = matches!(error, Some(Error::Truncated { file: 0, offset }) if offset == missing);
            assert!(right, "page {page}: {error:?}");
        }
        assert!(channel.next_page().unwrap().is_none());
    }
}
