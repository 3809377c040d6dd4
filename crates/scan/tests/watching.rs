//! Tests of waiting by a descriptor, and by tasks. No wait is without end, and a descriptor without a page is not readable for
//! long.

mod common;

use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use bedplate_scan::{
    Channel, Daemon, Error, FRAME, Got, Options, OwnedPage, PageStream, Range, Result, Scan, Service,
};
use common::{Fault, Faults, folder, is_right, write};
use futures_core::Stream;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

const FRAMES: usize = 24;

/// Whether a channel's descriptor becomes readable within `most`.
fn readable(channel: &mut Channel, most: Duration) -> bool {
    let descriptor = channel.descriptor().unwrap();
    let mut polled = [PollFd::from_borrowed_fd(descriptor.as_fd(), PollFlags::IN)];
    let time = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
    poll(&mut polled, Some(&time)).unwrap() > 0
}

const LONG: Duration = Duration::from_secs(30);

/// Takes up to `at_a_time` pages each time that the descriptor is readable. Returns the number of times that it was readable
/// without a page.
fn read_all(channel: &mut Channel, at_a_time: usize) -> usize {
    let (mut pages, mut vain) = (0, 0);
    loop {
        assert!(readable(channel, LONG), "after {pages} pages nothing is readable");
        for turn in 0..at_a_time {
            match channel.get_page().unwrap() {
                Got::Page(piece) => {
                    // SAFETY: the page is out.
                    let bytes = unsafe { std::slice::from_raw_parts(piece.start, piece.len) };
                    assert!(is_right(0, piece.offset, bytes));
                    pages += 1;
                    channel.put_page().unwrap();
                }
                Got::NotYet => {
                    vain += usize::from(turn == 0);
                    break;
                }
                Got::End => {
                    assert_eq!(pages, FRAMES);
                    return vain;
                }
            }
        }
    }
}

fn service() -> Service {
    let faults = Faults::new(|_, n| (n % 3 == 0).then_some(Fault::Slow(Duration::from_millis(n % 5))));
    Service::builder().wrap(faults.around()).build().unwrap()
}

/// The descriptor becomes readable for every page, independently of the worker's other calls.
fn check(open: impl Fn() -> Channel) {
    for at_a_time in [1, 2, usize::MAX] {
        let mut channel = open();
        let vain = read_all(&mut channel, at_a_time);
        // The limit allows one vain wake-up at the beginning, and two for each frame.
        assert!(vain <= 2 * FRAMES + 1, "{vain} times in vain");
    }
    // This worker does not always wait by the descriptor.
    let mut channel = open();
    let mut pages = 0;
    loop {
        assert!(readable(&mut channel, LONG), "after {pages} pages");
        match channel.wait_for_page((pages % 2 == 0).then_some(Duration::from_millis(1))).unwrap() {
            Got::Page(_) => pages += 1,
            Got::NotYet => continue,
            Got::End => break,
        }
        channel.put_page().unwrap();
    }
    assert_eq!(pages, FRAMES);
}

#[test]
fn the_descriptor_is_readable_when_there_is_something() {
    let folder = folder();
    let path = write(folder.path(), 0, FRAMES * FRAME);
    let service = service();
    check(|| service.open(Scan::of([&path])).unwrap());
    check(|| {
        let pool = service.create_pool([&path], 16 * FRAME).unwrap();
        service.join(pool.key(), FRAME).unwrap()
    });
}

#[test]
fn a_daemon_makes_descriptors_readable() {
    let folder = folder();
    let path = write(folder.path(), 0, FRAMES * FRAME);
    let place = tempfile::tempdir().unwrap();
    let socket = place.path().join("socket");
    let daemon = Daemon::bind(service(), &socket, &Options::default()).unwrap();
    let stopper = daemon.stopper();
    let thread = std::thread::spawn(move || daemon.run());
    let remote = Service::connect(&socket).unwrap();
    check(|| remote.open(Scan::of([&path])).unwrap());
    // The daemon ends while a worker waits for more.
    let mut channel = remote.open(Scan::of([&path]).ranges([])).unwrap();
    channel.notify_ranges(&[Range { file: 0, start: 0, end: (FRAMES * FRAME) as u64 }]).unwrap();
    assert!(readable(&mut channel, LONG));
    stopper.stop();
    thread.join().unwrap().unwrap();
    let end = Instant::now() + LONG;
    loop {
        assert!(readable(&mut channel, LONG) && Instant::now() < end);
        match channel.get_page() {
            Ok(Got::Page(_)) => channel.put_page().unwrap(),
            Ok(Got::NotYet) => {}
            Ok(Got::End) => panic!("there was more"),
            Err(error) => {
                assert!(matches!(error, Error::Gone), "{error}");
                break;
            }
        }
    }
    assert!(readable(&mut channel, LONG), "it is gone for good");
}

/// A page that is not ready does not make the descriptor readable. Cancelling the rest of the scan does.
#[test]
fn the_descriptor_is_quiet_when_there_is_nothing() {
    let folder = folder();
    let path = write(folder.path(), 0, FRAME);
    let faults = Faults::new(|_, _| Some(Fault::Slow(Duration::from_secs(2))));
    let service = Service::builder().wrap(faults.around()).build().unwrap();
    let mut channel = service.open(Scan::of([&path]).ranges([])).unwrap();
    assert!(readable(&mut channel, LONG));
    assert_eq!(channel.get_page().unwrap(), Got::End);
    assert!(readable(&mut channel, LONG), "the end is something");
    let start = Instant::now();
    let range = Range { file: 0, start: 0, end: FRAME as u64 };
    channel.notify_ranges(&[range]).unwrap();
    assert_eq!(channel.get_page().unwrap(), Got::NotYet);
    let quiet = !readable(&mut channel, Duration::from_millis(100));
    assert!(quiet || start.elapsed() > Duration::from_secs(2), "readable, and there is nothing");
    let calls = channel.statistics().calls;
    for _ in 0..100 {
        assert!(start.elapsed() > Duration::from_secs(2) || channel.get_page().unwrap() == Got::NotYet);
    }
    assert!(channel.statistics().calls - calls <= 2, "who asks in vain makes system calls");
    channel.cancel_ranges(&[range]).unwrap();
    assert!(readable(&mut channel, LONG));
    loop {
        match channel.get_page().unwrap() {
            Got::End => break,
            Got::NotYet => assert!(readable(&mut channel, LONG)),
            Got::Page(_) => panic!("it was cancelled"),
        }
    }
}

/// The waker of a task that its thread polls: it unparks the thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn next(stream: &mut PageStream) -> Option<Result<OwnedPage>> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let end = Instant::now() + LONG;
    loop {
        match Pin::new(&mut *stream).poll_next(&mut Context::from_waker(&waker)) {
            Poll::Ready(item) => return item,
            Poll::Pending => std::thread::park_timeout(LONG),
        }
        assert!(Instant::now() < end, "the task is not woken");
    }
}

#[test]
fn streams_wake_their_tasks() {
    let folder = folder();
    let path = write(folder.path(), 0, FRAMES * FRAME);
    let service = service();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let scan = Scan::of([&path]).ring_bytes(8 * FRAME).unwrap().pages_held(2).unwrap();
                let mut stream = PageStream::new(service.open(scan).unwrap());
                let (mut pages, mut last) = (0, None);
                while let Some(page) = next(&mut stream) {
                    let page = page.unwrap();
                    assert!(is_right(0, page.offset(), &page));
                    assert_eq!(page.offset(), (pages * FRAME) as u64);
                    (pages, last) = (pages + 1, Some(page));
                }
                assert_eq!(pages, FRAMES);
                drop((stream, last));
            });
        }
    });
    // One stream is dropped while it waits. Another holds as many pages as it may.
    let mut stream = PageStream::new(service.open(Scan::of([&path])).unwrap());
    let waker = Waker::noop();
    let _ = Pin::new(&mut stream).poll_next(&mut Context::from_waker(waker));
    drop(stream);
    let mut stream = PageStream::new(service.open(Scan::of([&path])).unwrap());
    let page = next(&mut stream).unwrap().unwrap();
    assert!(matches!(next(&mut stream), Some(Err(Error::Held))));
    drop(page);
    assert!(next(&mut stream).unwrap().is_ok());
}
