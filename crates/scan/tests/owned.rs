//! Tests of owned pages. A worker has several at once, and any thread returns them in any order, also after their channel is
//! closed.

mod common;

use std::collections::VecDeque;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bedplate_scan::{
    Channel, Daemon, Error, FRAME, MAX_PAGES_HELD, MAX_POOL_PAGES_HELD, Options, OwnedPage, PoolOptions,
    Scan, Service,
};
use common::{folder, is_right, write};

const FRAMES: usize = 40;

fn assert_is_kept<T: Send + Sync + 'static + AsRef<[u8]>>() {}

fn right(page: &OwnedPage) -> bool {
    is_right(page.file(), page.offset(), page)
}

/// Takes all pages, holds as many as it may, and returns them in an order that the seed determines. Returns the number of pages.
fn hold_all(channel: &mut Channel, most: usize, mut seed: u64) -> usize {
    let (mut out, mut count) = (Vec::new(), 0);
    loop {
        if out.len() == most {
            assert!(matches!(channel.get_owned(), Err(Error::Held)));
            assert!(matches!(channel.next_page(), Err(Error::Held)));
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            for _ in 0..1 + (seed >> 33) as usize % most {
                let page: OwnedPage = out.swap_remove((seed >> 40) as usize % out.len());
                assert!(right(&page), "at {}", page.offset());
            }
        }
        match channel.next_owned().unwrap() {
            Some(page) => out.push(page),
            None => break,
        }
        count += 1;
    }
    assert!(out.iter().all(right));
    count
}

/// A worker keeps the first page all the time, and holds as many others as it may. It reads a file many times as large as its
/// memory.
fn check(open: impl Fn(usize) -> Channel, page: usize) {
    for most in [1, 2, 3, 6] {
        let pages = hold_all(&mut open(most), most, 7 + most as u64);
        assert_eq!(pages, FRAMES * FRAME / page, "{most} at a time");
    }
    let mut channel = open(3);
    let (first, mut others, mut count) = (channel.next_owned().unwrap().unwrap(), VecDeque::new(), 1);
    while let Some(page) = channel.next_owned().unwrap() {
        others.push_back(page);
        if others.len() == 2 {
            assert!(right(&others.pop_front().unwrap()));
        }
        count += 1;
    }
    assert!(right(&first));
    assert_eq!(count, FRAMES * FRAME / page);
}

#[test]
fn readers_that_hold_pages_go_on() {
    assert_is_kept::<OwnedPage>();
    let folder = folder();
    let path = write(folder.path(), 0, FRAMES * FRAME);
    let service = Service::start().unwrap();
    for page in [FRAME, 64 << 10] {
        let scan = |most: usize| {
            // The ring has the least memory that is allowed.
            let frames = if most == 1 { 2 } else { most + 2 };
            Scan::of([&path])
                .page_size(page)
                .unwrap()
                .ring_bytes(frames * FRAME)
                .unwrap()
                .pages_held(most)
                .unwrap()
        };
        check(|most| service.open(scan(most)).unwrap(), page);
        check(
            |most| {
                let options = PoolOptions::of([&path]).memory_bytes(9 * FRAME).pages_held(most).unwrap();
                let pool = service.make_pool(options).unwrap();
                service.join(pool.key(), page).unwrap()
            },
            page,
        );
    }
    let place = tempfile::tempdir().unwrap();
    let socket = place.path().join("socket");
    let daemon = Daemon::bind(service, &socket, &Options::default()).unwrap();
    let stopper = daemon.stopper();
    let thread = std::thread::spawn(move || daemon.run());
    let remote = Service::connect(&socket).unwrap();
    let scan = |most| Scan::of([&path]).pages_held(most).unwrap();
    check(|most| remote.open(scan(most)).unwrap(), FRAME);
    stopper.stop();
    thread.join().unwrap().unwrap();
}

/// Other threads return the pages while the worker takes more.
#[test]
fn pages_are_returned_by_other_threads() {
    let folder = folder();
    let path = write(folder.path(), 0, FRAMES * FRAME);
    let service = Service::start().unwrap();
    let scan =
        Scan::of([&path]).page_size(16 << 10).unwrap().ring_bytes(10 * FRAME).unwrap().pages_held(8).unwrap();
    let mut channel = service.open(scan).unwrap();
    let mut count = 0;
    std::thread::scope(|scope| {
        let senders: Vec<mpsc::Sender<OwnedPage>> = (0..4)
            .map(|_| {
                let (send, pages) = mpsc::channel::<OwnedPage>();
                scope.spawn(move || pages.iter().for_each(|page| assert!(right(&page))));
                send
            })
            .collect();
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            match channel.next_owned() {
                Ok(Some(page)) => senders[count % 4].send(page).unwrap(),
                Ok(None) => break,
                // The other threads have not returned a page yet.
                Err(Error::Held) => {
                    assert!(Instant::now() < end);
                    std::thread::yield_now();
                    continue;
                }
                Err(error) => panic!("{error}"),
            }
            count += 1;
        }
    });
    assert_eq!(count, FRAMES * FRAME / (16 << 10));
    let now = channel.statistics();
    assert_eq!((now.frames, now.bytes), (FRAMES as u64, (FRAMES * FRAME) as u64));
}

/// A page keeps its memory after its channel and the service are gone. No other data is read into that memory.
#[test]
fn pages_outlive_their_channel() {
    let folder = folder();
    let path = write(folder.path(), 0, FRAMES * FRAME);
    let other = write(folder.path(), 1, FRAMES * FRAME);
    let service = Service::start().unwrap();
    let pool =
        service.make_pool(PoolOptions::of([&path]).memory_bytes(8 * FRAME).pages_held(3).unwrap()).unwrap();
    let mut channels = [
        service.open(Scan::of([&path]).ring_bytes(6 * FRAME).unwrap().pages_held(3).unwrap()).unwrap(),
        service.join(pool.key(), FRAME).unwrap(),
    ];
    let mut pages: Vec<OwnedPage> = channels
        .iter_mut()
        .flat_map(|channel| [(); 3].map(|()| channel.next_owned().unwrap().unwrap()))
        .collect();
    drop((channels, pool));
    // Scan another file, with a ring of the same size.
    for _ in 0..3 {
        let mut channel = service.open(Scan::of([&other]).ring_bytes(6 * FRAME).unwrap()).unwrap();
        while let Some(page) = channel.next_page().unwrap() {
            assert!(is_right(1, page.offset(), &page));
        }
    }
    assert!(pages.iter().all(right));
    let last = bytes::Bytes::from_owner(pages.remove(0));
    drop(service);
    assert!(pages.iter().all(right) && is_right(0, 0, &last));
    drop(pages);
    let part = last.slice(100..200);
    drop(last);
    assert!(is_right(0, 100, &part));
    std::thread::spawn(move || drop(part)).join().unwrap();
}

/// After the last page is dropped, nothing is left.
#[test]
fn nothing_is_left_of_pages_that_were_returned() {
    let folder = folder();
    let path = write(folder.path(), 0, FRAMES * FRAME);
    let service = Service::start().unwrap();
    let mut channel = service.open(Scan::of([&path])).unwrap();
    let page = channel.next_owned().unwrap().unwrap();
    drop(channel);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(service.statistics().channels, 1);
    assert!(right(&page));
    drop(page);
    let end = Instant::now() + Duration::from_secs(10);
    while service.statistics().channels > 0 {
        assert!(Instant::now() < end, "the channel is there for ever");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The documentation of pools states the number of workers for which their default memory is enough.
#[test]
fn a_pool_of_64_mib_takes_29_workers() {
    let folder = folder();
    let path = write(folder.path(), 0, FRAME);
    let service = Service::start().unwrap();
    let pool = service.make_pool(PoolOptions::of([&path])).unwrap();
    assert_eq!(pool.memory_bytes(), 64 << 20);
    let _workers: Vec<_> = (0..29).map(|_| service.join(pool.key(), FRAME).unwrap()).collect();
    match service.join(pool.key(), FRAME) {
        Err(Error::Invalid(text)) => assert!(text.contains("29 workers share the pool"), "{text}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn memory_that_is_too_little_is_refused() {
    let folder = folder();
    let path = write(folder.path(), 0, FRAME);
    let service = Service::start().unwrap();
    let refused = |result: Result<String, Error>, what: &str| match result {
        Err(Error::Invalid(text)) => assert!(text.contains(what), "{text}"),
        other => panic!("{other:?}"),
    };
    let open = |frames: usize, held| {
        let scan = Scan::of([&path]).ring_bytes(frames * FRAME)?.pages_held(held)?;
        service.open(scan).map(|channel| format!("{channel:?}"))
    };
    assert!(open(6, 4).is_ok());
    refused(open(5, 4), "needs 6");
    refused(open(511, MAX_PAGES_HELD), "needs 512");
    refused(open(512, MAX_PAGES_HELD + 1), "1 to 510");
    refused(open(512, 0), "1 to 510");
    let pool = |frames: usize, held| {
        let options = PoolOptions::of([&path]).memory_bytes(frames * FRAME).pages_held(held)?;
        let pool = service.make_pool(options)?;
        let (_one, two) = (service.join(pool.key(), FRAME)?, service.join(pool.key(), FRAME));
        two.map(|channel| format!("{channel:?}"))
    };
    assert!(pool(13, 5).is_ok());
    refused(pool(12, 5), "1 workers share the pool");
    refused(pool(8, 6), "needs 9");
    refused(pool(511, MAX_POOL_PAGES_HELD), "needs 512");
    // For this number of pages, no memory is enough.
    refused(pool(512, MAX_POOL_PAGES_HELD + 1), "1 to 509");
    refused(pool(512, 0), "1 to 509");
}
