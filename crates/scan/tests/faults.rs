//! Tests of failed reads, and of files that change during a scan. A page is right and current, or the worker gets a clear error.

mod common;

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bedplate_scan::{Channel, Choice, Error, FRAME, Kind, Scan, Service};
use common::{Fault, Faults, byte, content, folder, is_right, write};
use rustix::io::Errno;

fn service(faults: &Faults) -> Service {
    Service::builder().wrap(faults.around()).build().unwrap()
}

/// Reads all. Every page must be right. Returns the offsets of the frames that are errors, with their errors.
fn read_all(channel: &mut Channel, len: usize) -> Vec<(u64, Error)> {
    let (mut at, mut errors) = (0, Vec::new());
    loop {
        match channel.next_page() {
            Ok(Some(page)) => {
                assert_eq!(page.offset(), at);
                assert!(is_right(0, at, &page), "wrong bytes at {at}");
                at += page.len() as u64;
            }
            Ok(None) => break,
            Err(error) => {
                errors.push((at, error));
                at = (at + FRAME as u64).min(len as u64);
            }
        }
    }
    assert_eq!(at, len as u64);
    errors
}

#[test]
fn errors_of_the_device_are_errors_of_pages() {
    let folder = folder();
    let len = 12 * FRAME + 500;
    let path = write(folder.path(), 0, len);
    let faults = Faults::new(|read, _| {
        let frame = read.offset / FRAME as u64;
        [3, 4, 12].contains(&frame).then_some(Fault::Fails(Errno::IO))
    });
    let mut channel = service(&faults).open(Scan::of([&path])).unwrap();
    let errors = read_all(&mut channel, len);
    let places: Vec<_> = errors.iter().map(|(at, _)| at / FRAME as u64).collect();
    assert_eq!(places, [3, 4, 12]);
    for (at, error) in errors {
        assert!(
            matches!(error, Error::Read { file: 0, offset, source: Errno::IO } if offset == at),
            "{error}"
        );
    }
}

#[test]
fn what_comes_short_is_continued() {
    let folder = folder();
    let len = 6 * FRAME + 4097;
    let path = write(folder.path(), 0, len);
    // Reads are cut after any number of blocks, and some of them within a block.
    let faults = Faults::new(|read, n| {
        let blocks = 1 + (n * 37 % 97) as usize;
        (n % 3 != 0 && read.len > 8192).then_some(Fault::Short(blocks * 4096))
    });
    let service = service(&faults);
    assert!(read_all(&mut service.open(Scan::of([&path])).unwrap(), len).is_empty());
    assert!(faults.reads.load(Ordering::Relaxed) > 10);
}

#[test]
fn want_of_memory_passes_or_is_told() {
    let folder = folder();
    let len = 4 * FRAME;
    let path = write(folder.path(), 0, len);
    for (times, told) in [(4, false), (u64::MAX, true)] {
        let mut seen = 0;
        let faults = Faults::new(move |read, _| {
            let short = read.offset == FRAME as u64 && seen < times;
            seen += u64::from(short);
            short.then_some(Fault::Fails(Errno::NOMEM))
        });
        let errors = read_all(&mut service(&faults).open(Scan::of([&path])).unwrap(), len);
        assert_eq!(errors.len(), usize::from(told));
        assert!(
            errors.iter().all(|(_, e)| matches!(e, Error::Read { source: Errno::NOMEM, .. })),
            "{errors:?}"
        );
    }
}

#[test]
fn a_slow_device_is_waited_for() {
    let folder = folder();
    let len = 10 * FRAME;
    let path = write(folder.path(), 0, len);
    let faults = Faults::new(|_, n| Some(Fault::Slow(Duration::from_millis(n % 7 * 9))));
    let service = service(&faults);
    let mut channel = service.open(Scan::of([&path])).unwrap();
    assert!(read_all(&mut channel, len).is_empty());
    let statistics = channel.statistics();
    assert!(statistics.starved > 0 && statistics.starved_ns > 5_000_000, "{statistics:?}");
    // The control loop has granted rewards, and rewards are bounded.
    let most = faults.most.load(Ordering::Relaxed);
    assert!((2..=8).contains(&most), "{most} reads at once");
}

/// Channels close while reads are in flight. The reads end before the memory is used for another channel.
#[test]
fn channels_close_at_any_time() {
    let folder = folder();
    let path = write(folder.path(), 0, 8 * FRAME);
    let faults = Faults::new(|_, n| match n % 5 {
        0 => Some(Fault::Slow(Duration::from_millis(20))),
        1 => Some(Fault::Fails(Errno::AGAIN)),
        _ => None,
    });
    let service = service(&faults);
    for round in 0..40u64 {
        let mut channel = service.open(Scan::of([&path]).ring_bytes(3 * FRAME).unwrap()).unwrap();
        for _ in 0..round % 5 {
            let page = channel.next_page().unwrap().unwrap();
            assert!(is_right(0, page.offset(), &page), "round {round}");
        }
        if round % 3 == 0 {
            std::thread::sleep(Duration::from_millis(round % 7));
        }
    }
}

/// A worker that stops keeps little memory, rarely wakes the control loop, and can continue later.
#[test]
fn a_worker_may_rest() {
    let folder = folder();
    let len = 10 * FRAME;
    let path = write(folder.path(), 0, len);
    let service = Service::start().unwrap();
    let mut channel = service.open(Scan::of([&path])).unwrap();
    channel.next_page().unwrap().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let rounds = service.statistics().rounds;
    std::thread::sleep(Duration::from_millis(700));
    let awake = service.statistics().rounds - rounds;
    assert!(awake <= 10, "the loop was awake {awake} times for a worker that rests");
    let mut at = FRAME as u64;
    while let Some(page) = channel.next_page().unwrap() {
        assert!(is_right(0, at, &page));
        at += page.len() as u64;
    }
    assert_eq!(at, len as u64);
}

#[test]
fn a_truncated_file_is_an_error_where_it_ends() {
    let folder = folder();
    let path = write(folder.path(), 0, 20 * FRAME);
    for kind in [Kind::Uring, Kind::Threads] {
        let Ok(service) = Service::builder().engine(Choice::Only(kind)).build() else { continue };
        let mut channel = service.open(Scan::of([&path])).unwrap();
        let mut at = 0;
        let error = loop {
            match channel.next_page() {
                Ok(page) => {
                    let page = page.expect("the file has an end");
                    assert!(is_right(0, page.offset(), &page));
                    at = page.offset() + page.len() as u64;
                }
                Err(error) => break error,
            }
            if at == FRAME as u64 {
                let file = OpenOptions::new().write(true).open(&path).unwrap();
                file.set_len(4 * FRAME as u64 + 100).unwrap();
                // The service looks at files every second, so it notices that the pages read ahead are outdated.
                std::thread::sleep(Duration::from_millis(1200));
            }
        };
        let end = 4 * FRAME as u64 + 100;
        assert!(
            matches!(error, Error::Truncated { file: 0, offset } if offset == end),
            "{error}, after {at}"
        );
        assert_eq!(at, 4 * FRAME as u64);
        write(folder.path(), 0, 20 * FRAME);
    }
}

#[test]
fn a_file_that_grows_is_read_as_long_as_it_was() {
    let folder = folder();
    let len = 3 * FRAME + 777;
    let path = write(folder.path(), 0, len);
    let mut channel = Service::start().unwrap().open(Scan::of([&path])).unwrap();
    let file = OpenOptions::new().append(true).open(&path).unwrap();
    std::io::Write::write_all(&mut &file, &content(0, len as u64, 5000)).unwrap();
    assert!(read_all(&mut channel, len).is_empty());
}

#[test]
fn a_replaced_file_is_an_error() {
    let folder = folder();
    let path = write(folder.path(), 0, 30 * FRAME);
    let other = write(folder.path(), 1, 30 * FRAME);
    let mut channel = Service::start().unwrap().open(Scan::of([&path])).unwrap();
    channel.next_page().unwrap().unwrap();
    std::fs::rename(&other, &path).unwrap();
    std::thread::sleep(Duration::from_millis(1200));
    let error = loop {
        match channel.next_page() {
            // The page is of the old file, and was read before.
            Ok(page) => assert!(page.is_some_and(|page| is_right(0, page.offset(), &page)), "it ended"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Replaced { file: 0, .. }), "{error}");
}

/// Pages that were read ahead before a write are read again. A page that a worker takes a second after a write has the new
/// content.
#[test]
fn what_was_written_a_second_ago_is_seen() {
    let folder = folder();
    let len = 8 * FRAME;
    let path = write(folder.path(), 0, len);
    let mut channel = Service::start().unwrap().open(Scan::of([&path])).unwrap();
    channel.next_page().unwrap().unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert!(channel.statistics().unread > 0);
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let new: Vec<u8> = (0..len as u64).map(|offset| byte(9, offset)).collect();
    file.write_all_at(&new, 0).unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    let mut at = FRAME as u64;
    while let Some(page) = channel.next_page().unwrap() {
        assert!(is_right(9, at, &page), "old bytes at {at}");
        at += page.len() as u64;
    }
    assert!(channel.statistics().reclaimed > 0);
}

/// A writer overwrites frame after frame during the scan, each with one number everywhere. No page has two numbers.
#[test]
fn pages_are_not_torn() {
    let folder = folder();
    let path = folder.path().join("f");
    let frames = 4;
    std::fs::write(&path, vec![0; frames * FRAME]).unwrap();
    let service = Service::start().unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let writer = {
        let (over, path) = (over.clone(), path.clone());
        std::thread::spawn(move || {
            let file = OpenOptions::new().write(true).open(path).unwrap();
            for number in (1..=250u8).cycle() {
                for frame in 0..frames {
                    file.write_all_at(&vec![number; FRAME], (frame * FRAME) as u64).unwrap();
                }
                if over.load(Ordering::Relaxed) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(60));
            }
        })
    };
    let (mut numbers, mut whole) = (HashSet::new(), 0);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(4) {
        let mut channel = service.open(Scan::of([&path]).ring_bytes(4 * FRAME).unwrap()).unwrap();
        loop {
            match channel.next_page() {
                Ok(None) => break,
                Ok(Some(page)) => {
                    assert!(page.iter().all(|byte| *byte == page[0]), "a torn page at {}", page.offset());
                    numbers.insert(page[0]);
                    whole += 1;
                }
                Err(error) => assert!(matches!(error, Error::Changing { .. }), "{error}"),
            }
        }
    }
    over.store(true, Ordering::Relaxed);
    writer.join().unwrap();
    assert!(whole > 10 && numbers.len() > 1, "{whole} pages with {} numbers", numbers.len());
}

/// Workers of a service that has ended do not wait forever. (A service ends like this only if an engine panics.)
#[test]
fn a_service_that_dies_is_noticed() {
    let folder = folder();
    let path = write(folder.path(), 0, 40 * FRAME);
    let faults = Faults::new(|_, n| {
        assert!(n < 10, "the engine breaks, as this test wants");
        None
    });
    let service = service(&faults);
    let mut channel = service.open(Scan::of([&path])).unwrap();
    let error = loop {
        match channel.next_page() {
            Ok(page) => assert!(page.is_some()),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Gone), "{error}");
    let limit = Instant::now() + Duration::from_secs(10);
    while !matches!(channel.get_page(), Err(Error::Gone)) {
        assert!(Instant::now() < limit, "a worker that polls is not told");
    }
    assert!(matches!(service.open(Scan::of([&path])), Err(Error::Gone)));
}
