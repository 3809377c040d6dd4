//! The life of a pool's frames, in all interleavings of the control loop and a worker with at most two preemptions, with loom. A
//! second worker runs between the loop's steps.
//!
//! The pool, its members and the board are the production files, compiled a second time with loom's words. The model replaces the
//! part of the loop that calls the pool, and the operations of [`Channel`](crate::Channel) on entries. Frames are loom cells. The
//! test fails if a load writes to a frame while a worker reads it, or if the write is not ordered after the reads. After every
//! step, the pool's invariants are checked (`pool/check.rs`): each frame is free, loading or shared as its holders require, and
//! none is lost. In the end, every worker has had every chunk once.

mod board;
#[path = "../member.rs"]
mod member;
#[path = "../pool/mod.rs"]
mod pool;
#[path = "../publish.rs"]
mod publish;
mod worker;

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

use loom::cell::UnsafeCell;
use loom::thread;

use super::{AGE, device, files, loads, rates, stream};
use crate::board::{Fault, Faults};
use crate::error;
use crate::memory::{FRAME, Frames};
use crate::plan::Plan;
use crate::source::Stamp;
use board::Board;
use device::Device;
use files::Files;
use loads::{Loaded, Order, Outcome};
use pool::Pool;
use rates::TICK;
use worker::Worker;

/// Number of frames of the pool: the minimum that two workers can share.
const FRAMES: usize = 6;
/// Number of chunks: one more than there are frames, and one after it.
const CHUNKS: usize = 8;

/// Number of times that a chunk is taken back because it is old, before it is an error: enough to see both cases.
const TRIES: u32 = 1;

/// The loop calls this after it published something. Workers of the model do not sleep.
fn wake(board: &Board) {
    assert_eq!(board.service().sleeper.must_wake(), board::Wake::Nothing);
}

fn check(body: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.max_branches = 100_000;
    model.check(body);
}

type Cells = loom::sync::Arc<Vec<UnsafeCell<usize>>>;

/// The control loop.
struct Loop {
    pool: Pool,
    cells: Cells,
    device: Device,
    now: u64,
    flying: Vec<Order>,
    loads: usize,
    /// A chunk that cannot be read.
    bad: Option<usize>,
    /// The stamp of the file that contains all chunks.
    stamp: i64,
}

impl Loop {
    fn new() -> Self {
        static MEMORY: OnceLock<Arc<Frames>> = OnceLock::new();
        // The model uses only the number of frames of this memory.
        let frames = MEMORY.get_or_init(|| Arc::new(Frames::new(FRAMES).unwrap())).clone();
        let mut plan = Plan::of_sizes(&[(CHUNKS * FRAME) as u64], FRAME);
        let everything = plan.everything();
        plan.add(&everything).unwrap();
        let chunks = plan.into_chunks();
        assert_eq!(chunks.len(), CHUNKS);
        Self {
            pool: Pool::new(1, Rc::new(Files::none()), frames, 0, chunks, 1, 0),
            cells: Cells::new((0..FRAMES).map(|_| UnsafeCell::new(usize::MAX)).collect()),
            device: Device::default(),
            now: 1,
            flying: Vec::new(),
            loads: 0,
            bad: None,
            stamp: 0,
        }
    }

    fn join(&mut self, id: usize, slots: usize) -> Worker {
        let board = Arc::new(Board::new(slots));
        self.pool.join(id, board.clone(), self.now).unwrap();
        let (cells, had, failed) = (self.cells.clone(), BTreeSet::new(), BTreeSet::new());
        Worker { board, cells, cursor: 0, had, failed }
    }

    /// Runs one round: completes the reads, and orders those that are due.
    fn round(&mut self) {
        for order in std::mem::take(&mut self.flying) {
            let loads::Owner::Pool { chunk, .. } = order.owner else { unreachable!() };
            self.write(order.frame, chunk);
            let fault = Fault { code: error::READ, detail: 5 };
            let faults = (self.bad == Some(chunk)).then(|| Rc::new(Faults::everywhere(fault)));
            let outcome = Outcome { stamps: vec![(0, Stamp::numbered(self.stamp))], faults, reading: None };
            let loaded = Loaded { order, outcome, took_ns: 1, bytes_read: FRAME as u64, again: 0 };
            self.loads += 1;
            if self.pool.loaded(loaded, self.now, &self.device).is_some() {
                self.pool.rested();
            }
            self.pool.check();
        }
        for order in self.pool.pump(self.now, &self.device).orders {
            self.write(order.frame, usize::MAX);
            self.flying.push(order);
        }
        self.pool.check();
        self.now += 1;
    }

    /// The device writes to a frame.
    fn write(&self, frame: usize, chunk: usize) {
        // SAFETY: loom checks that no other thread reads or writes it.
        self.cells[frame].with_mut(|cell| unsafe { *cell = chunk });
    }

    /// Changes the file, and tells the loop.
    fn change(&mut self) {
        self.stamp += 1;
        self.pool.changed(&[(0, Stamp::numbered(self.stamp))]);
        self.pool.check();
    }

    /// Advances the time, so that everything in the pool has expired.
    fn later(&mut self) {
        self.now += 4 * TICK;
    }

    fn leave(&mut self, id: usize) {
        self.pool.leave(id);
        self.pool.check();
    }

    /// Runs until the workers have had everything. Nothing is concurrent any more.
    fn finish(&mut self, workers: &mut [&mut Worker]) {
        for _ in 0..20 * CHUNKS {
            if workers.iter().all(|worker| worker.had.len() + worker.failed.len() == CHUNKS) {
                return;
            }
            self.round();
            self.later();
            workers.iter_mut().for_each(|worker| worker.ingest(FRAMES));
        }
        panic!("chunks were lost");
    }

    /// Checks, after all workers have left, that all frames are available.
    fn over(&mut self) {
        while !self.flying.is_empty() {
            self.round();
        }
        assert_eq!(self.pool.unused(), FRAMES, "frames were lost");
    }

    /// Fills all frames with chunks that the first worker has not begun and the second has had.
    fn full(&mut self, other: &mut Worker) {
        while self.pool.peak < FRAMES || !self.flying.is_empty() {
            self.round();
            other.ingest(FRAMES);
        }
    }
}

/// Counts the times that an event happened in all interleavings.
fn count(counter: &'static AtomicUsize, happened: bool) {
    counter.fetch_add(usize::from(happened), Relaxed);
}

/// The pool is full of chunks that a slow worker has not begun, and the fast one needs more. The pool takes frames back and loads
/// into them while the slow worker begins, reads and returns some.
#[test]
fn frames_are_taken_back_from_a_worker_that_reads() {
    static RECLAIMED: AtomicUsize = AtomicUsize::new(0);
    static KEPT: AtomicUsize = AtomicUsize::new(0);
    check(|| {
        let mut control = Loop::new();
        let (mut slow, mut fast) = (control.join(1, 6), control.join(2, 6));
        control.full(&mut fast);
        control.later();
        let worker = thread::spawn(move || {
            slow.ingest(2);
            slow
        });
        control.round();
        control.round();
        let mut slow = worker.join().unwrap();
        // The oldest chunk is the first that either worker wants.
        let had = slow.had.contains(&0);
        count(&RECLAIMED, !had);
        count(&KEPT, had);
        control.finish(&mut [&mut slow, &mut fast]);
        // Exactly the chunks that were taken back were loaded again.
        assert!(control.loads > CHUNKS && control.loads <= CHUNKS + FRAMES && control.pool.is_derailed(1));
        control.leave(1);
        control.leave(2);
        control.over();
    });
    assert!(RECLAIMED.load(Relaxed) > 0 && KEPT.load(Relaxed) > 0, "it was always the same");
}

/// A worker dies while it has a page, or between two pages. Others continue meanwhile.
#[test]
fn a_worker_dies_with_a_page_or_without() {
    check(|| {
        let mut control = Loop::new();
        let (mut dies, mut other) = (control.join(1, 6), control.join(2, 6));
        control.full(&mut other);
        control.later();
        let worker = thread::spawn(move || {
            if let Some(page) = dies.get() {
                dies.read(&page);
                // This is its last read; it does not return the page.
                dies.read(&page);
            }
        });
        control.round();
        // The service learns of the death only after it.
        worker.join().unwrap();
        control.leave(1);
        control.finish(&mut [&mut other]);
        control.leave(2);
        control.over();
    });
}

/// Two workers begin, one while the loop and the other run. One chunk cannot be read, and both workers get its error.
#[test]
fn errors_are_told_while_a_worker_reads() {
    check(|| {
        let mut control = Loop::new();
        control.bad = Some(1);
        let (mut one, mut two) = (control.join(1, 2), control.join(2, 2));
        control.round();
        let worker = thread::spawn(move || {
            one.ingest(1);
            one
        });
        control.round();
        two.ingest(1);
        control.round();
        let mut one = worker.join().unwrap();
        control.finish(&mut [&mut one, &mut two]);
        assert_eq!((&one.failed, &two.failed), (&BTreeSet::from([1]), &BTreeSet::from([1])));
        control.leave(2);
        control.leave(1);
        control.over();
    });
}

/// The file changes repeatedly, until the worker's parts of it are errors, while the worker begins to read.
#[test]
fn old_frames_become_errors_while_a_worker_reads() {
    static HAD: AtomicUsize = AtomicUsize::new(0);
    static FAILED: AtomicUsize = AtomicUsize::new(0);
    check(|| {
        let mut control = Loop::new();
        let mut worker = control.join(1, 6);
        // Reads two chunks at a time: all of them, and the first two again.
        for _ in 0..=CHUNKS / 2 {
            control.change();
            control.round();
            control.round();
            // The worker wants more. Otherwise nothing would be read for it again.
            worker.board.service().sleeper.poll();
        }
        let begins = thread::spawn(move || {
            worker.ingest(1);
            worker
        });
        control.change();
        let mut worker = begins.join().unwrap();
        count(&HAD, worker.had.len() == 1);
        count(&FAILED, worker.failed.len() == 1);
        worker.board.service().sleeper.awake();
        control.finish(&mut [&mut worker]);
        assert!(!worker.failed.is_empty());
        control.leave(1);
        control.over();
    });
    assert!(HAD.load(Relaxed) > 0 && FAILED.load(Relaxed) > 0, "it was always the same");
}

/// A worker gives its page to another thread, which returns it, and takes the next one when it may. The loop must never see two
/// pages of a worker that holds one at a time.
fn returned_elsewhere(
    give_back: impl Fn(&board::Entry, &loom::sync::atomic::AtomicUsize) + Copy + Send + Sync + 'static,
) {
    use loom::sync::atomic::{AtomicUsize as Count, Ordering::Acquire};
    check(move || {
        let mut control = Loop::new();
        let mut worker = control.join(1, 2);
        control.round();
        control.round();
        let page = worker.get().expect("it is there");
        let (board, slot) = (worker.board.clone(), page.slot());
        worker.had.insert(page.chunk());
        let out = loom::sync::Arc::new(Count::new(1));
        let returned = out.clone();
        let other = thread::spawn(move || give_back(&board.entries()[slot], &returned));
        let taker = thread::spawn(move || {
            let next = if out.load(Acquire) == 0 { worker.get() } else { None };
            (worker, next)
        });
        let (mut worker, next) = taker.join().unwrap();
        control.round();
        other.join().unwrap();
        if let Some(page) = next {
            worker.put(page);
        }
        assert!(
            worker.board.service().closed.load(std::sync::atomic::Ordering::Relaxed) == 0,
            "taken for a breach"
        );
        control.finish(&mut [&mut worker]);
        control.leave(1);
        control.over();
    });
}

#[test]
fn pages_that_other_threads_return_are_no_breach() {
    returned_elsewhere(|entry, out| {
        entry.word.finish();
        out.fetch_sub(1, loom::sync::atomic::Ordering::Release);
    });
}

/// The model detects a page that is counted as returned before it is.
#[test]
#[should_panic(expected = "taken for a breach")]
fn a_page_that_counts_as_returned_too_early_is_a_breach() {
    returned_elsewhere(|entry, out| {
        out.fetch_sub(1, loom::sync::atomic::Ordering::Release);
        entry.word.finish();
    });
}
