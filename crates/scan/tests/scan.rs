//! Tests of scans of real files with both engines. Every page comes once, in order, with the right bytes.

mod common;

use std::time::Duration;

use bedplate_scan::{Choice, Error, FRAME, Got, Kind, Range, Scan, Service};
use common::{byte, folder, is_right, write};
use proptest::prelude::*;

/// Creates a service for each engine that works here.
fn services() -> Vec<Service> {
    let build = |kind| Service::builder().engine(Choice::Only(kind)).build();
    let services: Vec<_> =
        [Kind::Uring, Kind::Threads].into_iter().filter_map(|kind| build(kind).ok()).collect();
    assert!(services.iter().any(|service| service.engine() == Kind::Threads));
    services
}

/// Reads all of a scan, and checks that it delivers exactly these ranges.
fn check(service: &Service, scan: Scan, expected: &[Range]) -> Result<(), TestCaseError> {
    let mut channel = service.open(scan).unwrap();
    let size = channel.page_size() as u64;
    let mut expected = expected.iter().copied().filter(|range| range.start < range.end);
    let mut current: Option<Range> = None;
    while let Some(page) = channel.next_page().unwrap() {
        let range = current.get_or_insert_with(|| expected.next().expect("more pages than there should be"));
        prop_assert_eq!((page.file(), page.offset()), (range.file, range.start));
        prop_assert!(is_right(page.file(), page.offset(), &page));
        range.start += page.len() as u64;
        prop_assert!(range.start <= range.end);
        prop_assert!(range.start == range.end || range.start.is_multiple_of(size));
        prop_assert!(page.len() as u64 <= size);
        if range.start == range.end {
            current = None;
        }
    }
    prop_assert!(current.is_none() && expected.next().is_none(), "fewer pages than there should be");
    prop_assert_eq!(channel.get_page().unwrap(), Got::End);
    Ok(())
}

#[test]
fn files_of_every_size_are_read_whole() {
    let folder = folder();
    let sizes = [0, 1, 511, 4096, 4097, FRAME - 1, FRAME, FRAME + 1, 5 * FRAME + 12_345];
    let paths: Vec<_> = (0..).zip(sizes).map(|(file, size)| write(folder.path(), file, size)).collect();
    let expected: Vec<_> =
        (0..).zip(sizes).map(|(file, size)| Range { file, start: 0, end: size as u64 }).collect();
    for service in services() {
        for page_size in [4096, 8192, FRAME] {
            check(&service, Scan::of(&paths).page_size(page_size).unwrap(), &expected).unwrap();
        }
    }
}

#[test]
fn many_scans_at_once_do_not_mix() {
    let folder = folder();
    let paths: Vec<_> =
        (0..4).map(|file| write(folder.path(), file, 3 * FRAME + 4096 * file as usize)).collect();
    for service in services() {
        std::thread::scope(|scope| {
            for (file, path) in paths.iter().enumerate() {
                let service = &service;
                scope.spawn(move || {
                    for _ in 0..3 {
                        let scan = Scan::of([path]).page_size(16_384).unwrap().ring_bytes(2 * FRAME).unwrap();
                        let mut channel = service.open(scan).unwrap();
                        let mut at = 0;
                        while let Some(page) = channel.next_page().unwrap() {
                            assert_eq!(page.offset(), at);
                            assert!(is_right(file as u32, at, &page));
                            at += page.len() as u64;
                        }
                        assert_eq!(at, (3 * FRAME + 4096 * file) as u64);
                    }
                });
            }
        });
    }
}

#[test]
fn pages_come_one_at_a_time() {
    let folder = folder();
    let path = write(folder.path(), 0, 2 * FRAME);
    let service = Service::start().unwrap();
    let mut channel = service.open(Scan::of([&path])).unwrap();
    assert!(matches!(channel.put_page(), Err(Error::NotHeld)));
    assert!(channel.wait(Some(Duration::from_secs(10))).unwrap());
    let Got::Page(piece) = channel.get_page().unwrap() else { panic!("it was ready") };
    assert_eq!((piece.file, piece.offset, piece.len), (0, 0, FRAME));
    assert!(matches!(channel.get_page(), Err(Error::Held)));
    assert!(matches!(channel.wait(None), Err(Error::Held)));
    channel.put_page().unwrap();
    assert!(matches!(channel.put_page(), Err(Error::NotHeld)));
}

#[test]
fn ranges_may_be_added() {
    let folder = folder();
    let path = write(folder.path(), 0, 4 * FRAME);
    for service in services() {
        let mut channel = service.open(Scan::of([&path]).ranges([])).unwrap();
        assert_eq!(channel.get_page().unwrap(), Got::End);
        assert!(channel.notify_ranges(&[Range { file: 0, start: 0, end: 4 * FRAME as u64 + 1 }]).is_err());
        for start in [3 * FRAME as u64 + 5, 100, 0] {
            let end = start + 10_000;
            channel.notify_ranges(&[Range { file: 0, start, end }]).unwrap();
            let mut at = start;
            while let Some(page) = channel.next_page().unwrap() {
                assert_eq!(page.offset(), at);
                assert!(is_right(0, at, &page));
                at += page.len() as u64;
            }
            assert_eq!(at, end);
        }
    }
}

/// The service does not read data that no worker needs. For a worker that stops early it reads at most one window more. For a
/// worker that announces ranges it reads nothing else.
#[test]
fn nothing_is_read_in_vain() {
    let folder = folder();
    let path = write(folder.path(), 0, 64 * FRAME);
    let service = Service::start().unwrap();
    let before = service.statistics().bytes_read;
    let ranges: Vec<_> =
        (0..300).map(|i| Range { file: 0, start: i << 16, end: (i << 16) + (1 << 15) }).collect();
    check(&service, Scan::of([&path]).page_size(4096).unwrap().ranges(ranges.clone()), &ranges).unwrap();
    assert_eq!(service.statistics().bytes_read - before, 300 << 15);

    let before = service.statistics().bytes_read;
    let mut channel = service.open(Scan::of([&path]).ring_bytes(8 * FRAME).unwrap()).unwrap();
    channel.next_page().unwrap().unwrap();
    drop(channel);
    // The next scan ends after the reads in flight have ended.
    check(&service, Scan::of([&path]).ranges([]), &[]).unwrap();
    assert!(service.statistics().bytes_read - before <= 9 * FRAME as u64);
}

/// A worker makes no system call in steady state, which means that the device is faster than the worker.
#[test]
fn a_worker_that_finds_its_pages_calls_nobody() {
    let folder = folder();
    let path = write(folder.path(), 0, 40 * FRAME);
    let service = Service::start().unwrap();
    let mut channel = service.open(Scan::of([&path]).page_size(8192).unwrap()).unwrap();
    loop {
        let Some(page) = channel.next_page().unwrap() else { break };
        let over = (page.offset() + page.len() as u64).is_multiple_of(FRAME as u64);
        drop(page);
        if over {
            std::thread::sleep(Duration::from_millis(25));
        }
    }
    let end = channel.statistics();
    assert_eq!(end.frames, 40);
    // On a busy machine either side, or the device, may be delayed for a while. Then a worker waits, which takes some calls. Or
    // it has to wake a service that has not seen it for a long time.
    assert!(end.starved <= 20 && end.calls <= 4 * end.starved + 4, "{end:?}");
}

#[test]
fn what_cannot_be_is_refused() {
    assert!(Scan::of(["x"]).page_size(2048).is_err());
    assert!(Scan::of(["x"]).page_size(12_288).is_err());
    assert!(Scan::of(["x"]).page_size(2 * FRAME).is_err());
    assert!(Scan::of(["x"]).ring_bytes(FRAME).is_err());
    let service = Service::start().unwrap();
    assert!(matches!(service.open(Scan::of(["/no/such/file"])), Err(Error::File { .. })));
    let folder = folder();
    let path = write(folder.path(), 0, 10);
    let outside = Range { file: 0, start: 0, end: 11 };
    assert!(matches!(service.open(Scan::of([&path]).ranges([outside])), Err(Error::Invalid(_))));
    let all = Range { file: 0, start: 0, end: u64::MAX };
    assert!(matches!(service.open(Scan::of([&path]).ranges([all, all])), Err(Error::Invalid(_))));
    too_many_bytes_are_refused(&service);
}

/// The service refuses ranges that lie in their file, but have more bytes in total than 64 bits can count.
fn too_many_bytes_are_refused(service: &Service) {
    let Ok(file) = tempfile::tempfile_in("/dev/shm") else {
        println!("skipped: there is no /dev/shm");
        return;
    };
    if let Err(error) = file.set_len(i64::MAX as u64) {
        println!("skipped: no file has 2^63 - 1 bytes here: {error}");
        return;
    }
    let all = Range { file: 0, start: 0, end: i64::MAX as u64 };
    match service.open(Scan::of([file]).ranges([all; 3])) {
        Err(Error::Invalid(text)) => assert!(text.contains("2^64"), "{text}"),
        other => panic!("{other:?}"),
    }
}

/// A scan outlives the handle of its service. A service without scans ends.
#[test]
fn a_service_ends_with_its_last_channel() {
    let folder = folder();
    let path = write(folder.path(), 0, 3 * FRAME);
    let service = Service::start().unwrap();
    let mut channel = service.open(Scan::of([&path])).unwrap();
    drop(service);
    let mut bytes = 0;
    while let Some(page) = channel.next_page().unwrap() {
        assert_eq!(page[17], byte(0, page.offset() + 17));
        bytes += page.len();
    }
    assert_eq!(bytes, 3 * FRAME);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Scans random ranges of random files, with random page sizes and rings.
    #[test]
    fn random_ranges_of_random_files(
        sizes in prop::collection::vec(0usize..3 * FRAME, 1..4),
        ranges in prop::collection::vec((0u32..4, 0.0f64..1.0, 0.0f64..1.0, any::<bool>()), 0..60),
        shift in 12u32..=21,
        frames in 2usize..5,
    ) {
        let folder = folder();
        let paths: Vec<_> = (0..).zip(&sizes).map(|(file, size)| write(folder.path(), file, *size)).collect();
        let ranges: Vec<_> = ranges.into_iter().filter(|range| (range.0 as usize) < sizes.len()).map(|(file, a, b, small)| {
            let size = sizes[file as usize] as f64;
            let (start, other) = ((a * size) as u64, (b * size) as u64);
            let end = if small { (start + other % 20_000).min(size as u64) } else { other };
            Range { file, start: start.min(end), end: start.max(end) }
        }).collect();
        for service in services() {
            let scan = Scan::of(&paths).ranges(ranges.clone()).page_size(1 << shift).unwrap();
            check(&service, scan.ring_bytes(frames * FRAME).unwrap(), &ranges)?;
        }
    }
}

/// The threads of a service take no signals, because a host's signal handlers expect to run in the host's own threads.
#[test]
fn threads_of_a_service_take_no_signals() {
    let folder = folder();
    let path = write(folder.path(), 0, 3 * FRAME);
    for service in services() {
        let mut channel = service.open(Scan::of([&path])).unwrap();
        assert!(channel.next_page().unwrap().is_some());
        let is_its = |name: &str| name == "scan" || name.starts_with("scan-read-");
        let least = 1 + usize::from(service.engine() == Kind::Threads);
        let (threads, signals) = bedplate_threads::deliverable(least, is_its).unwrap();
        assert!(threads >= least);
        assert_eq!(signals, 0);
    }
}
