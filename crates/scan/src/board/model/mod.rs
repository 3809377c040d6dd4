//! Checks every interleaving of a few steps of a board's two sides, with loom and at most two preemptions.
//!
//! This module includes the board's own source files a second time, with loom's atomic types instead of the standard ones. So the
//! model checks the code that runs in production. Frames are loom cells: if one side accesses a frame during a write of the other
//! side, the test fails.

mod cancel;
#[path = "../doorbell.rs"]
mod doorbell;
#[path = "../entry.rs"]
mod entry;
mod held;
#[path = "../state.rs"]
mod state;
mod watch;
mod words {
    pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use super::content;
use content::Fault;
use doorbell::{Bell, SLEEPS, Sleeper, Wake, Want};
use entry::{Content, Entry, FaultWord};
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use state::State;

/// A board of a few entries with one frame each. It emulates the kernel's objects: a futex, an eventfd, and the worker's socket.
struct Board<const N: usize> {
    entries: [Entry; N],
    faults: [FaultWord; N],
    frames: [UnsafeCell<u64>; N],
    bell: Bell,
    sleeper: Sleeper,
    futex: Mutex<()>,
    woken: Condvar,
    rung: Mutex<bool>,
    ring: Condvar,
    /// Number of packets in the worker's descriptor.
    packets: Mutex<usize>,
    readable: Condvar,
    /// Number of times that the worker rang.
    rings: AtomicUsize,
}

impl<const N: usize> Board<N> {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            entries: std::array::from_fn(|_| Entry::new()),
            faults: std::array::from_fn(|_| FaultWord::default()),
            frames: std::array::from_fn(|_| UnsafeCell::new(0)),
            bell: Bell::new(),
            sleeper: Sleeper::new(),
            futex: Mutex::new(()),
            woken: Condvar::new(),
            rung: Mutex::new(false),
            ring: Condvar::new(),
            packets: Mutex::new(1),
            readable: Condvar::new(),
            rings: AtomicUsize::new(0),
        })
    }

    /// Service side: writes a value into a frame and publishes it.
    fn give(&self, slot: usize, value: u64) {
        assert_eq!(self.entries[slot].word.state(), State::Empty);
        // SAFETY: loom checks that no other thread accesses the frame.
        self.frames[slot].with_mut(|frame| unsafe { *frame = value });
        self.entries[slot].describe(Content {
            frame: slot as u32,
            segments: 1,
            faulty: false,
            read_began_ns: 0,
        });
        self.entries[slot].word.publish();
        match self.sleeper.must_wake() {
            Wake::Nothing => {}
            Wake::Sleeper => {
                let _futex = self.futex.lock().unwrap();
                self.woken.notify_all();
            }
            Wake::Descriptor => {
                *self.packets.lock().unwrap() += 1;
                self.readable.notify_all();
            }
        }
    }

    /// Worker side: takes the value in a slot, if the slot is ready.
    fn take(&self, slot: usize) -> Option<u64> {
        let entry = &self.entries[slot];
        if !entry.word.take() {
            return None;
        }
        let Content { frame, segments, faulty, .. } = entry.content();
        assert_eq!((segments, faulty), (1, false));
        // SAFETY: loom checks that no thread writes to the frame.
        let value = self.frames[frame as usize].with(|frame| unsafe { *frame });
        Some(value)
    }

    /// Worker side: returns the page in a slot.
    fn put(&self, slot: usize) {
        self.entries[slot].word.finish();
        self.tell(Want::Returned);
    }

    fn tell(&self, what: Want) {
        if self.bell.must_ring(what) {
            self.rings.fetch_add(1, Relaxed);
            *self.rung.lock().unwrap() = true;
            self.ring.notify_all();
        }
    }

    /// Worker side: sleeps until the slot may hold something.
    fn sleep(&self, slot: usize) {
        self.sleeper.prepare();
        if self.entries[slot].word.state() != State::Ready {
            self.tell(Want::Starving);
            // Like the kernel's futex: the worker checks the word under the lock that the waking thread takes.
            let mut futex = self.futex.lock().unwrap();
            while self.sleeper.word().load(words::Ordering::Relaxed) == SLEEPS {
                futex = self.woken.wait(futex).unwrap();
            }
        }
        self.sleeper.awake();
    }

    /// Worker side: finds nothing in a slot, and polls instead of sleeping.
    fn poll(&self, slot: usize) {
        if !self.sleeper.poll() {
            return;
        }
        if self.entries[slot].word.state() == State::Ready {
            self.sleeper.awake();
            return;
        }
        self.tell(Want::Starving);
    }

    /// Service side: sleeps until the worker rings.
    fn listen(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.ring.wait(rung).unwrap();
        }
        *rung = false;
    }

    /// Service side: publishes a chunk in a free slot, with its number.
    fn give_turn(&self, number: u64, slot: usize, value: u64) {
        self.entries[number as usize % N].set_turn(number, slot);
        self.give(slot, value);
    }

    /// Worker side: returns the slot of a chunk, if the chunk is ready.
    fn find_turn(&self, number: u64) -> Option<usize> {
        let slot = self.entries[number as usize % N].turn(number)?;
        (self.entries[slot].word.state() == State::Ready).then_some(slot)
    }
}

fn check(body: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(body);
}

/// Three pages go through a ring of two frames. Either side sleeps whenever it has nothing to do. All pages arrive in order.
#[test]
fn all_pages_arrive_and_nobody_sleeps_forever() {
    check(|| {
        const PAGES: u64 = 3;
        let board = Board::<2>::new();
        let service = board.clone();
        let service = thread::spawn(move || {
            for page in 0..PAGES {
                let slot = page as usize % 2;
                while page >= 2 && !service.entries[slot].word.recycle() {
                    service.bell.want(Want::Returned);
                    if service.entries[slot].word.state() == State::Done {
                        continue;
                    }
                    service.listen();
                }
                service.give(slot, page + 1);
            }
        });
        for page in 0..PAGES {
            let slot = page as usize % 2;
            let value = loop {
                match board.take(slot) {
                    Some(value) => break value,
                    None => board.sleep(slot),
                }
            };
            assert_eq!(value, page + 1);
            board.put(slot);
        }
        service.join().unwrap();
    });
}

/// The safety condition of 4.1.2: either the worker uses a ready page or the service reclaims it, never both. The service
/// publishes a reclaimed entry again with other data. The worker sees either value whole.
#[test]
fn a_page_is_used_or_taken_back() {
    check(|| {
        let board = Board::<1>::new();
        board.give(0, 1);
        let worker = board.clone();
        let worker = thread::spawn(move || {
            let seen = worker.take(0);
            if seen.is_some() {
                worker.put(0);
            }
            seen
        });
        let reclaimed = board.entries[0].word.reclaim();
        if reclaimed {
            board.give(0, 2);
        }
        let seen = worker.join().unwrap();
        match (reclaimed, seen) {
            (true, Some(2) | None) | (false, Some(1)) => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(board.entries[0].word.recycle(), seen.is_some());
    });
}

/// The service releases held-back pages for a worker that has nothing to read, in every interleaving.
#[test]
fn a_starving_worker_is_heard() {
    check(|| {
        let board = Board::<1>::new();
        let worker = board.clone();
        let worker = thread::spawn(move || {
            loop {
                match worker.take(0) {
                    Some(value) => break value,
                    None => worker.sleep(0),
                }
            }
        });
        board.bell.want(Want::Starving);
        if !board.sleeper.starves() {
            board.listen();
        }
        board.give(0, 9);
        assert_eq!(worker.join().unwrap(), 9);
    });
}

/// The service also releases them for a worker that polls. One announcement is enough.
#[test]
fn a_polling_worker_is_heard() {
    check(|| {
        let board = Board::<1>::new();
        let worker = board.clone();
        let worker = thread::spawn(move || {
            let value = worker.take(0).unwrap_or_else(|| {
                worker.poll(0);
                loop {
                    match worker.take(0) {
                        Some(value) => break value,
                        None => thread::yield_now(),
                    }
                }
            });
            worker.sleeper.awake();
            value
        });
        board.bell.want(Want::Starving);
        if !board.sleeper.starves() {
            board.listen();
        }
        board.give(0, 9);
        assert_eq!(worker.join().unwrap(), 9);
        assert!(!board.sleeper.starves());
    });
}

/// A worker polls repeatedly while the service has nothing to release. It rings once until the service publishes something,
/// however often the service goes to sleep. The service hears it again when it wants the next page.
#[test]
fn a_polling_worker_rings_once() {
    check(|| {
        let board = Board::<2>::new();
        let worker = board.clone();
        let worker = thread::spawn(move || {
            for slot in 0..2 {
                for _ in 0..2 {
                    worker.poll(slot);
                }
                while worker.take(slot).is_none() {
                    thread::yield_now();
                }
                worker.sleeper.awake();
            }
        });
        for slot in 0..2 {
            board.bell.want(Want::Starving);
            if !board.sleeper.starves() {
                board.listen();
            }
            // A read is in progress, and its completion is the next event.
            for _ in 0..2 {
                board.bell.want(Want::Starving);
            }
            assert!(slot > 0 || board.rings.load(Relaxed) <= 1);
            board.give(slot, 9);
        }
        worker.join().unwrap();
    });
}

/// A worker that polled and then does something else does not count as starving once something is published.
#[test]
fn who_polled_does_not_starve_for_ever() {
    check(|| {
        let board = Board::<1>::new();
        let worker = board.clone();
        let worker = thread::spawn(move || {
            if worker.entries[0].word.state() != State::Ready {
                worker.poll(0);
            }
        });
        board.give(0, 9);
        worker.join().unwrap();
        assert!(!board.sleeper.starves());
    });
}

/// The service wakes a worker that polled and has gone to sleep since.
#[test]
fn who_polled_is_woken_when_it_sleeps() {
    check(|| {
        let board = Board::<1>::new();
        let worker = board.clone();
        let worker = thread::spawn(move || {
            worker.poll(0);
            loop {
                match worker.take(0) {
                    Some(value) => break value,
                    None => worker.sleep(0),
                }
            }
        });
        board.give(0, 9);
        assert_eq!(worker.join().unwrap(), 9);
    });
}

/// A request for a ring stays until the requested event or starvation occurs. The worker never rings without a request.
#[test]
fn bells_ring_for_what_is_wanted() {
    check(|| {
        let bell = Bell::new();
        assert!(!bell.must_ring(Want::Returned) && !bell.must_ring(Want::Starving));
        bell.want(Want::Starving);
        assert!(!bell.must_ring(Want::Returned));
        assert!(bell.must_ring(Want::Starving));
        assert!(!bell.must_ring(Want::Starving));
        bell.want(Want::Returned);
        assert!(bell.must_ring(Want::Returned));
        bell.want(Want::Returned);
        assert!(bell.must_ring(Want::Starving));
    });
}

/// The worker sees the faults of a frame as the service wrote them.
#[test]
fn faults_are_seen_whole() {
    check(|| {
        let board = Board::<1>::new();
        let fault = Fault { code: 2, detail: 5 };
        let worker = board.clone();
        let worker = thread::spawn(move || {
            worker.entries[0]
                .word
                .take()
                .then(|| (worker.entries[0].content().faulty, worker.faults[0].get()))
        });
        board.faults[0].set(Some(fault));
        board.entries[0].describe(Content { frame: 0, segments: 1, faulty: true, read_began_ns: 0 });
        board.entries[0].word.publish();
        let seen = worker.join().unwrap();
        assert!(seen.is_none() || seen == Some((true, Some(fault))));
    });
}
