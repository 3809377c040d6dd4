//! Tests of tasks that await fetches, while threads wait for other fetches.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use rustix::io::Errno;

use super::mailbox::{Mailbox, Sender};
use crate::cache::tests::{both, folder, service, settled};
use crate::cache::{Arrival, Recipient};
use crate::limits::MAX_RANGES_HELD;
use crate::{Error, FRAME, Fetch, RangeReader};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future in this thread. It fails if nothing wakes the task within a minute.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let begin = std::time::Instant::now();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        std::thread::park_timeout(Duration::from_secs(60));
        assert!(begin.elapsed() < Duration::from_secs(60), "the task was not woken");
    }
}

fn check(reader: &RangeReader, content: &[u8], number: usize, awaits: bool) {
    let len = FRAME - reader.alignment();
    let start = number * 104_729 % (content.len() - FRAME);
    let fetch = reader.fetch(start as u64, len).unwrap();
    let range = if awaits { block_on(fetch) } else { fetch.wait() }.unwrap();
    assert!(range[..] == content[start..start + len], "{start}");
}

#[test]
fn tasks_and_threads_wait_for_fetches_of_one_reader() {
    let folder = folder();
    let Some((path, content)) = settled(folder.path(), 40 * FRAME) else { return };
    both(|service| {
        let reader = service.reader(&path).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..MAX_RANGES_HELD {
                let (reader, content) = (&reader, &content);
                scope.spawn(move || {
                    for round in 0..40 {
                        check(reader, content, thread * 977 + round, (thread + round) % 3 != 0);
                    }
                });
            }
        });
    });
}

#[test]
fn one_task_awaits_many_fetches() {
    let folder = folder();
    let Some((path, content)) = settled(folder.path(), 20 * FRAME) else { return };
    both(|service| {
        let reader = service.reader(&path).unwrap();
        let mut fetches: Vec<Option<Fetch>> = (0..MAX_RANGES_HELD)
            .map(|at| Some(reader.fetch((2 * at * FRAME) as u64, FRAME).unwrap()))
            .collect();
        let mut left = fetches.len();
        // The test polls all fetches, so it takes the ranges in the order of their arrival.
        block_on(std::future::poll_fn(|context| {
            for (at, slot) in fetches.iter_mut().enumerate() {
                let Some(fetch) = slot else { continue };
                if let Poll::Ready(range) = std::pin::Pin::new(fetch).poll(context) {
                    assert!(range.unwrap()[..] == content[2 * at * FRAME..][..FRAME]);
                    *slot = None;
                    left -= 1;
                }
            }
            if left == 0 { Poll::Ready(()) } else { Poll::Pending }
        }));
        // A task that abandons its fetches leaves no range held.
        for round in 0..50 {
            let mut fetch = reader.fetch((round % 19 * FRAME) as u64 + 1, 4096).unwrap();
            let _ = std::pin::Pin::new(&mut fetch).poll(&mut Context::from_waker(Waker::noop()));
            drop(fetch);
        }
        let all: Vec<_> = (0..MAX_RANGES_HELD).map(|at| reader.fetch(at as u64, 100).unwrap()).collect();
        all.into_iter().for_each(|fetch| drop(block_on(fetch).unwrap()));
    });
}

/// A range that is already in memory arrives while its fetch begins. The arrival wakes the reader's other tasks.
#[test]
fn a_fetch_of_what_is_there_wakes_other_tasks() {
    let folder = folder();
    let Some((path, content)) = settled(folder.path(), 40 * FRAME) else { return };
    both(|service| {
        let reader = service.reader(&path).unwrap();
        drop(reader.fetch(0, FRAME).unwrap().wait().unwrap());
        for round in 0..200 {
            let far = (1 + round % 39) * FRAME;
            let mut waiting = reader.fetch(far as u64, FRAME).unwrap();
            let first = std::pin::Pin::new(&mut waiting).poll(&mut Context::from_waker(Waker::noop()));
            let there = block_on(reader.fetch(0, 4096).unwrap()).unwrap();
            assert!(there[..] == content[..4096]);
            // On a busy machine, the device may finish before the first poll.
            let range = match first {
                Poll::Ready(range) => range.unwrap(),
                Poll::Pending => block_on(waiting).unwrap(),
            };
            assert!(range[..] == content[far..far + FRAME]);
        }
    });
}

#[test]
fn a_task_learns_of_an_error() {
    let folder = folder();
    let Some((path, _)) = settled(folder.path(), 2 * FRAME) else { return };
    let service = service();
    let reader = service.reader(&path).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(100).unwrap();
    let error = block_on(reader.fetch(FRAME as u64, 100).unwrap()).unwrap_err();
    assert!(matches!(error, Error::Read { .. }), "{error}");
    drop(service);
    let gone = reader.fetch(0, 50).map(|fetch| block_on(fetch).map(drop));
    assert!(matches!(gone, Err(Error::Gone) | Ok(Err(Error::Gone))), "{gone:?}");
}

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_mailbox_wakes_at_an_arrival_and_at_its_end() {
    let (mailbox, count) = (Arc::new(Mailbox::default()), Arc::new(Count::default()));
    let mut sender = Sender(mailbox.clone());
    let wakes = || count.0.load(Ordering::Relaxed);
    let arrival = || Arrival { fetch: 1, place: Err(Errno::IO) };
    mailbox.wake_at_arrival(Waker::from(count.clone()));
    assert!(mailbox.take(false).unwrap().is_none());
    // The cache wakes the waker after it has released its lock.
    sender.arrive(arrival()).unwrap().wake();
    assert_eq!(wakes(), 1);
    assert!(sender.arrive(arrival()).is_none(), "a waker is called once");
    mailbox.wake_at_arrival(Waker::from(count.clone()));
    assert_eq!(wakes(), 2, "there is something to be taken already");
    assert!(mailbox.take(true).unwrap().is_some() && mailbox.take(false).unwrap().is_some());
    mailbox.wake_at_arrival(Waker::from(count.clone()));
    assert_eq!(wakes(), 2);
    drop(sender);
    assert_eq!(wakes(), 3);
    assert!(matches!(mailbox.take(true), Err(Error::Gone)));
    mailbox.wake_at_arrival(Waker::from(count.clone()));
    assert_eq!(wakes(), 4);
}
