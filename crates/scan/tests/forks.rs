//! Tests of forked children. A child cannot use inherited objects of its parent. The parent keeps the objects that a child drops.

mod common;

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use bedplate_scan::{
    Channel, Daemon, Error, FRAME, Options, OwnedPage, PageStream, PoolOptions, Result, Scan, Service,
};
use common::{Fault, Faults, folder, is_right, write};
use futures_core::Stream;

/// Lets one test fork at a time. A child inherits the locks of the C library and of Rust's library as the parent's other threads
/// hold them.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Forks a child that runs `act`, and waits for it. Returns whether the child ended by itself and succeeded. A child that hangs
/// is ended.
fn in_child(act: impl FnOnce() -> Result<bool>) -> bool {
    const SECONDS: u32 = 120;
    // SAFETY: the child has only this thread. It uses nothing that another thread of the parent may have locked, and ends here.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: the signal ends this process.
            unsafe { libc::alarm(SECONDS) };
            let act = std::panic::AssertUnwindSafe(act);
            let is_well = matches!(std::panic::catch_unwind(act), Ok(Ok(true)));
            // SAFETY: the child exits without cleaning up the parent's objects.
            unsafe { libc::_exit(i32::from(!is_well)) }
        }
        child => {
            let mut status = -1;
            // SAFETY: the status is writable.
            let waited = unsafe { libc::waitpid(child, &mut status, 0) };
            assert_eq!(waited, child);
            status == 0
        }
    }
}

fn is_forked<T>(result: Result<T>) -> bool {
    matches!(result, Err(Error::Forked))
}

/// The waker of a thread that is parked until something is ready.
struct Unpark(std::thread::Thread, AtomicBool);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.1.store(true, Ordering::Release);
        self.0.unpark();
    }
}

fn waker() -> (Arc<Unpark>, Waker) {
    let unpark = Arc::new(Unpark(std::thread::current(), AtomicBool::new(false)));
    (unpark.clone(), unpark.into())
}

fn poll(stream: &mut PageStream, waker: &Waker) -> Poll<Option<Result<OwnedPage>>> {
    pin!(stream).poll_next(&mut Context::from_waker(waker))
}

/// Reads all of a stream, with a waker that tells when to poll again. Returns the number of bytes if all of them are right.
fn read_all(mut stream: PageStream) -> Result<Option<usize>> {
    let mut bytes = 0;
    loop {
        let (unpark, waker) = waker();
        match poll(&mut stream, &waker) {
            Poll::Ready(None) => return Ok(Some(bytes)),
            Poll::Ready(Some(page)) => {
                let page = page?;
                if !is_right(page.file(), page.offset(), &page) {
                    return Ok(None);
                }
                bytes += page.len();
            }
            Poll::Pending => {
                while !unpark.1.load(Ordering::Acquire) {
                    std::thread::park_timeout(Duration::from_millis(10));
                }
            }
        }
    }
}

/// The child drops a page and a channel. This does not return the parent's frame.
fn drops_nothing_of_the_parents(mut channel: Channel, len: usize) {
    let owned = channel.next_owned().unwrap().unwrap();
    let before = channel.statistics();
    assert_eq!(before.frames, 0);
    let mut all = Some((channel, owned));
    assert!(in_child(|| {
        let (mut channel, owned) = all.take().expect("it is there");
        let are_refused = is_forked(channel.get_page())
            && is_forked(channel.get_owned())
            && is_forked(channel.next_page().map(|_| ()))
            && is_forked(channel.wait(Some(Duration::ZERO)))
            && is_forked(channel.descriptor().map(|_| ()))
            && is_forked(channel.notify_ranges(&[]))
            && is_forked(channel.cancel_ranges(&[]))
            && is_forked(owned.unchanged());
        drop(owned);
        drop(channel);
        Ok(are_refused)
    }));
    let (mut channel, owned) = all.expect("the child has a copy");
    // The worker has finished no frame, so the service has not read into the page's frame.
    assert_eq!(channel.statistics().frames, 0);
    assert!(is_right(0, owned.offset(), &owned));
    let mut bytes = owned.len();
    drop(owned);
    assert_eq!(channel.statistics().frames, 1);
    while let Some(page) = channel.next_page().unwrap() {
        assert!(is_right(0, page.offset(), &page));
        bytes += page.len();
    }
    assert_eq!(bytes, len);
}

#[test]
fn what_a_child_drops_the_parent_still_has() {
    let _turn = one_at_a_time();
    let folder = folder();
    let len = 12 * FRAME;
    let path = write(folder.path(), 0, len);
    let service = Service::start().unwrap();
    let scan = || Scan::of([&path]).ring_bytes(2 * FRAME).unwrap().unwatched();
    drops_nothing_of_the_parents(service.open(scan()).unwrap(), len);
    let pool = service.make_pool(PoolOptions::of([&path]).unwatched()).unwrap();
    drops_nothing_of_the_parents(service.join(pool.key(), FRAME).unwrap(), len);

    let place = tempfile::tempdir().unwrap();
    let socket = place.path().join("socket");
    let daemon = Daemon::bind(service, &socket, &Options::default()).unwrap();
    let stopper = daemon.stopper();
    let thread = std::thread::spawn(move || daemon.run());
    let remote = Service::connect(&socket).unwrap();
    drops_nothing_of_the_parents(remote.open(scan()).unwrap(), len);
    drops_nothing_of_the_parents(remote.join(pool.key(), FRAME).unwrap(), len);
    stopper.stop();
    thread.join().unwrap().unwrap();
}

/// A child also cannot return a page that is borrowed from its channel. Only the parent returns it.
#[test]
fn a_borrowed_page_that_a_child_drops_stays_the_parents() {
    let _turn = one_at_a_time();
    let folder = folder();
    let path = write(folder.path(), 0, 3 * FRAME);
    let mut channel = Service::start().unwrap().open(Scan::of([&path])).unwrap();
    let mut page = Some(channel.next_page().unwrap().unwrap());
    assert!(in_child(|| {
        drop(page.take());
        Ok(true)
    }));
    assert!(page.is_some_and(|page| is_right(0, page.offset(), &page)));
    assert_eq!(channel.statistics().frames, 1);
}

#[test]
fn a_child_cannot_use_its_parents_service_and_has_one_of_its_own() {
    let _turn = one_at_a_time();
    let folder = folder();
    let len = 3 * FRAME;
    let path = write(folder.path(), 0, len);
    let service = Service::start().unwrap();
    let pool = service.create_pool([&path], 16 << 20).unwrap();
    let key = pool.key();
    let mut all = Some((service, pool));
    assert!(in_child(|| {
        let (service, pool) = all.take().expect("it is there");
        let are_refused = is_forked(service.open(Scan::of([&path])))
            && is_forked(service.create_pool([&path], 16 << 20))
            && is_forked(service.join(key, FRAME));
        drop(pool);
        // The inherited service has no thread in the child, so dropping it must not wait for one.
        drop(service);
        let mut own = Service::start()?.open(Scan::of([&path]))?;
        let mut bytes = 0;
        while let Some(page) = own.next_page()? {
            bytes += if is_right(0, page.offset(), &page) { page.len() } else { 0 };
        }
        Ok(are_refused && bytes == len)
    }));
    let (service, _pool) = all.expect("the child has a copy");
    assert!(service.join(key, FRAME).unwrap().next_page().unwrap().is_some());
}

/// The parent's task is woken although a child has dropped its stream. The child waits for streams of its own.
#[test]
fn a_child_does_not_end_the_waiting_of_its_parents_tasks() {
    let _turn = one_at_a_time();
    let folder = folder();
    let len = 2 * FRAME;
    let path = write(folder.path(), 0, len);
    // The delay normally lasts until the child has ended. If the page comes earlier, the test covers less.
    let faults = Faults::new(|_, number| (number == 0).then_some(Fault::Slow(Duration::from_secs(3))));
    let service = Service::builder().wrap(faults.around()).build().unwrap();
    let mut stream = Some(PageStream::new(service.open(Scan::of([&path])).unwrap()));
    let (unpark, waker) = waker();
    let first = poll(stream.as_mut().expect("it is there"), &waker);
    assert!(first.is_pending(), "the page takes seconds");
    assert!(in_child(|| {
        let mut inherited = stream.take().expect("it is there");
        let is_refused = matches!(poll(&mut inherited, &waker), Poll::Ready(Some(Err(Error::Forked))));
        drop(inherited);
        let own = Service::start()?.open(Scan::of([&path]))?;
        Ok(is_refused && read_all(PageStream::new(own))? == Some(len))
    }));
    let end = Instant::now() + Duration::from_secs(60);
    while !unpark.1.load(Ordering::Acquire) {
        assert!(Instant::now() < end, "the task was not woken within 60 s");
        std::thread::park_timeout(Duration::from_millis(10));
    }
    assert_eq!(read_all(stream.expect("the child has a copy")).unwrap(), Some(len));
}
