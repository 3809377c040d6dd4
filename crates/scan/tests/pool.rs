//! Tests of workers that share a pool. Each gets every page once with the right bytes, and the device has few reads.

mod common;

use std::collections::HashSet;
use std::sync::Barrier;
use std::time::Duration;

use bedplate_scan::{AccessKey, Channel, Error, FRAME, Service};
use common::{Fault, Faults, byte, folder, is_right, write};
use rustix::io::Errno;

/// Reads all of a pool. Returns the pages that were errors. `pause` is called after every chunk with the number of chunks so far.
fn read_all(channel: &mut Channel, len: u64, mut pause: impl FnMut(u64)) -> HashSet<u64> {
    let (mut seen, mut errors, mut bytes, mut chunks) = (HashSet::new(), HashSet::new(), 0, 0);
    loop {
        match channel.next_page() {
            Ok(Some(page)) => {
                assert!(is_right(page.file(), page.offset(), &page), "wrong bytes at {}", page.offset());
                assert!(seen.insert((page.file(), page.offset())), "{} twice", page.offset());
                bytes += page.len() as u64;
                if bytes.is_multiple_of(FRAME as u64) {
                    drop(page);
                    chunks += 1;
                    pause(chunks);
                }
            }
            Ok(None) => break,
            Err(Error::Read { offset, .. }) => assert!(errors.insert(offset), "{offset} failed twice"),
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(bytes + (errors.len() * channel.page_size()) as u64, len);
    errors
}

/// Runs workers in threads that begin at once.
fn together(service: &Service, key: AccessKey, count: usize, work: impl Fn(usize, Channel) + Sync) {
    let start = Barrier::new(count);
    std::thread::scope(|scope| {
        for number in 0..count {
            let (work, start) = (&work, &start);
            scope.spawn(move || {
                let channel = service.join(key, 16_384).unwrap();
                start.wait();
                work(number, channel);
            });
        }
    });
}

#[test]
fn workers_of_one_pace_share_one_stream() {
    let folder = folder();
    let len = 40 * FRAME as u64;
    let path = write(folder.path(), 0, len as usize);
    let service = Service::start().unwrap();
    let pool = service.create_pool([&path], 32 * FRAME).unwrap();
    together(&service, pool.key(), 8, |_, mut channel| {
        assert!(read_all(&mut channel, len, |_| std::thread::sleep(Duration::from_millis(20))).is_empty());
    });
    let read = service.statistics().bytes_read;
    assert!(read <= len * 3 / 2, "8 workers had {read} bytes read of a file of {len}");
}

#[test]
fn groups_of_files_are_one_stream() {
    let folder = folder();
    let lens = [3 * FRAME, 0, FRAME, 5 * FRAME];
    let paths: Vec<_> = (0..).zip(lens).map(|(file, len)| write(folder.path(), file, len)).collect();
    let service = Service::start().unwrap();
    let pool = service.create_pool(&paths, 16 * FRAME).unwrap();
    together(&service, pool.key(), 3, |_, mut channel| {
        assert_eq!(channel.total_bytes(), 9 * FRAME as u64);
        assert!(read_all(&mut channel, 9 * FRAME as u64, |_| {}).is_empty());
    });
}

/// A worker that joins late, is slow, or pauses still gets every page once.
#[test]
fn workers_differ() {
    let folder = folder();
    let len = 30 * FRAME as u64;
    let path = write(folder.path(), 0, len as usize);
    let service = Service::start().unwrap();
    let pool = service.create_pool([&path], 12 * FRAME).unwrap();
    together(&service, pool.key(), 6, |number, mut channel| {
        std::thread::sleep(Duration::from_millis(number as u64 * 30));
        let errors = read_all(&mut channel, len, |chunks| {
            let ms = match number {
                0 => 40,
                1 if chunks == 3 => 400,
                _ => 8,
            };
            std::thread::sleep(Duration::from_millis(ms));
        });
        assert!(errors.is_empty());
    });
}

/// A worker that stops while it has a page keeps only that page.
#[test]
fn a_worker_that_stops_costs_a_page() {
    let folder = folder();
    let len = 30 * FRAME as u64;
    let path = write(folder.path(), 0, len as usize);
    let service = Service::start().unwrap();
    let pool = service.create_pool([&path], 8 * FRAME).unwrap();
    let mut stopped = service.join(pool.key(), FRAME).unwrap();
    let page = stopped.next_page().unwrap().unwrap();
    let at = page.offset();
    for _ in 0..2 {
        let mut other = service.join(pool.key(), 8192).unwrap();
        assert!(read_all(&mut other, len, |_| {}).is_empty());
    }
    assert!(is_right(0, at, &page), "the page in use was changed");
    drop(page);
    let mut rest = 1;
    while let Some(page) = stopped.next_page().unwrap() {
        assert!(is_right(0, page.offset(), &page));
        rest += 1;
    }
    assert_eq!(rest, 30);
    assert!(stopped.statistics().reclaimed > 0);
}

/// Workers join and leave at any time. The pool does not lose the frames that they had.
#[test]
fn who_leaves_leaves_nothing_behind() {
    let folder = folder();
    let len = 12 * FRAME as u64;
    let path = write(folder.path(), 0, len as usize);
    let service = Service::start().unwrap();
    let pool = service.create_pool([&path], 8 * FRAME).unwrap();
    for round in 0..30 {
        let mut short = service.join(pool.key(), FRAME).unwrap();
        for _ in 0..round % 4 {
            let page = short.next_page().unwrap().unwrap();
            assert!(is_right(0, page.offset(), &page));
        }
        if round % 5 == 0 {
            // This worker leaves without returning its page.
            let _ = short.wait(None).unwrap();
            assert!(matches!(short.get_page().unwrap(), bedplate_scan::Got::Page(_)));
        }
    }
    // Other workers can use all frames of the pool.
    together(&service, pool.key(), 4, |_, mut channel| {
        assert!(read_all(&mut channel, len, |_| {}).is_empty());
    });
    let channels: Vec<_> = (0..5).map(|_| service.join(pool.key(), FRAME).unwrap()).collect();
    assert!(matches!(service.join(pool.key(), FRAME), Err(Error::Invalid(_))));
    drop(channels);
    let key = pool.key();
    let mut last = service.join(key, FRAME).unwrap();
    drop(pool);
    assert!(matches!(service.join(key, FRAME), Err(Error::Invalid(_))));
    assert!(read_all(&mut last, len, |_| {}).is_empty());
}

#[test]
fn errors_are_told_to_everybody_once() {
    let folder = folder();
    let len = 20 * FRAME as u64;
    let path = write(folder.path(), 0, len as usize);
    let faults = Faults::new(|read, n| match read.offset / FRAME as u64 {
        4 | 11 => Some(Fault::Fails(Errno::IO)),
        _ if n % 3 == 0 => Some(Fault::Slow(Duration::from_millis(n % 10))),
        _ => None,
    });
    let service = Service::builder().wrap(faults.around()).build().unwrap();
    let pool = service.create_pool([&path], 16 * FRAME).unwrap();
    together(&service, pool.key(), 4, |_, mut channel| {
        let bad =
            |chunk: u64| (chunk * FRAME as u64..(chunk + 1) * FRAME as u64).step_by(channel.page_size());
        let expected: HashSet<u64> = bad(4).chain(bad(11)).collect();
        assert!(read_all(&mut channel, len, |_| {}) == expected);
    });
}

/// A worker that joins after a write gets the new content, also in chunks that were in the pool before.
#[test]
fn who_joins_later_sees_what_was_written_before() {
    let folder = folder();
    let len = 6 * FRAME as u64;
    let path = write(folder.path(), 0, len as usize);
    let service = Service::start().unwrap();
    let pool = service.create_pool([&path], 16 * FRAME).unwrap();
    // This worker reads nothing, so it keeps chunks in the pool.
    let slow = service.join(pool.key(), FRAME).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let new: Vec<u8> = (0..len).map(|offset| byte(9, offset)).collect();
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .and_then(|mut f| std::io::Write::write_all(&mut f, &new))
        .unwrap();
    let mut late = service.join(pool.key(), FRAME).unwrap();
    let mut pages = 0;
    while let Some(page) = late.next_page().unwrap() {
        assert!(is_right(9, page.offset(), &page), "old bytes at {}", page.offset());
        pages += 1;
    }
    assert_eq!(pages, 6);
    drop(slow);
}
