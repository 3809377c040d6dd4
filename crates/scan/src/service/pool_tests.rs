//! A pool whose files change, without an engine and without real time. It is separate from the pool, because the pool's model
//! compiles that a second time, without these tests.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::TRIES;
use super::device::Device;
use super::fake::{Folder, load};
use super::pool::Pool;
use crate::board::{Board, Fault, State, UNIT};
use crate::clock::Clock;
use crate::error;
use crate::memory::{FRAME, Frames};
use crate::plan::Plan;

const SECOND: u64 = 1_000_000_000;
const SLOTS: usize = 16;

struct Scene {
    folder: Folder,
    pool: Pool,
    device: Device,
    now: u64,
}

impl Scene {
    fn new(sizes: &[usize]) -> Self {
        let folder = Folder::new(sizes);
        let mut plan = Plan::new(&folder.open(sizes.len()), FRAME);
        let everything = plan.everything();
        plan.add(&everything).unwrap();
        let frames = Arc::new(Frames::new(8).unwrap());
        let pool = Pool::new(1, folder.files(sizes.len()), frames, 0, plan.into_chunks(), 1, 0);
        Self { folder, pool, device: Device::default(), now: 1 }
    }

    fn join(&mut self, id: usize) -> Arc<Board> {
        let board = Arc::new(Board::new(SLOTS, Clock::monotonic()).unwrap());
        self.pool.join(id, board.clone(), self.now).unwrap();
        board
    }

    /// Advances by a second, and completes all reads that were ordered in it. Returns their number.
    fn second(&mut self) -> usize {
        let mut loads = 0;
        self.now += SECOND + 1;
        for _ in 0..8 {
            for order in self.pool.pump(self.now, &self.device).orders {
                loads += 1;
                if self.pool.loaded(load(order), self.now, &self.device).is_some() {
                    self.pool.rested();
                }
            }
            self.pool.check();
        }
        loads
    }
}

/// The chunks that a worker could take, by offset: whether units of its first file and of its last file are errors.
fn ready(board: &Board) -> Vec<(u64, Option<Fault>, Option<Fault>)> {
    let mut all = Vec::new();
    for (slot, entry) in board.entries().iter().enumerate() {
        if entry.word.state() == State::Ready {
            let content = entry.content();
            let segment = |index: u32| board.segments(slot)[index as usize].get();
            let fault =
                |at: u32| content.faulty.then(|| board.faults(slot)[at as usize / UNIT].get()).flatten();
            let (first, last) = (segment(0), segment(content.segments - 1));
            all.push((first.offset, fault(first.at), fault(last.at)));
        }
    }
    all
}

/// A worker reads its pages, at most `most`, each in `ns` nanoseconds.
fn read(board: &Board, most: usize, ns: u64) {
    for entry in board.entries().iter().filter(|entry| entry.word.take()).take(most) {
        entry.word.finish();
        board.worker().bytes.fetch_add(FRAME as u64, Relaxed);
        board.worker().ingest_ns.fetch_add(ns, Relaxed);
    }
}

/// Chunks that a slow member has not read stay while there is memory, so none is read twice.
#[test]
fn a_slow_member_loses_nothing_while_there_is_memory() {
    let mut scene = Scene::new(&[8 * FRAME]);
    scene.device.rate.sample(FRAME as u64, 1_000_000);
    let (fast, slow) = (scene.join(1), scene.join(2));
    let mut loads = scene.second();
    read(&slow, 1, 100_000_000);
    for (board, ns) in [(&fast, 10_000_000), (&slow, 100_000_000)] {
        for _ in 0..20 {
            read(board, SLOTS, ns);
            loads += scene.second();
        }
    }
    assert_eq!(loads, 8);
    scene.pool.leave(1);
    scene.pool.leave(2);
    scene.pool.check();
    assert_eq!(scene.pool.unused(), 8);
}

const CHANGING: Option<Fault> = Some(Fault { code: error::CHANGING, detail: 0 });

#[test]
fn a_file_that_changes_all_the_time_is_an_error_in_the_end() {
    let mut scene = Scene::new(&[2 * FRAME]);
    let board = scene.join(1);
    let mut loads = 0;
    for _ in 0..3 * TRIES {
        loads += scene.second();
        scene.folder.change(0);
        // The worker asks, and never takes anything in time.
        board.service().sleeper.poll();
    }
    assert!(loads <= 2 * (TRIES as usize + 1), "{loads} loads of 2 chunks");
    let offsets: BTreeSet<u64> = (0..2).map(|chunk| chunk * FRAME as u64).collect();
    let there = ready(&board);
    assert_eq!(there.len(), 2);
    assert!(there.iter().all(|(_, fault, _)| *fault == CHANGING), "{there:?}");
    assert_eq!(there.iter().map(|(offset, ..)| *offset).collect::<BTreeSet<_>>(), offsets);
    // A worker that joins when the file has settled gets all of it. A worker that had errors does not get them again.
    let other = scene.join(2);
    loads = scene.second();
    assert_eq!((loads, ready(&other).len(), ready(&board).len()), (2, 2, 2));
    assert!(ready(&other).iter().all(|(_, fault, _)| fault.is_none()));
    for entry in board.entries().iter().filter(|entry| entry.word.take()) {
        entry.word.finish();
    }
    scene.second();
    assert_eq!(ready(&board).len(), 0);
    scene.pool.leave(1);
    scene.pool.leave(2);
    scene.pool.check();
    assert_eq!(scene.pool.unused(), 8);
}

/// Only the file that changes becomes an error, until another one changes. A worker that stopped keeps no frame because of that.
#[test]
fn files_at_rest_do_not_suffer_from_others_in_their_chunk() {
    let mut scene = Scene::new(&[10_000, 10_000]);
    let board = scene.join(1);
    for _ in 0..2 * TRIES {
        scene.second();
        scene.folder.change(0);
        board.service().sleeper.poll();
    }
    scene.second();
    assert_eq!(ready(&board), [(0, CHANGING, None)]);
    scene.folder.change(1);
    scene.second();
    assert_eq!(ready(&board), [(0, CHANGING, CHANGING)]);
}

/// An idle pool is checked when its chunks may be old, not later.
#[test]
fn a_pool_at_rest_is_looked_at_in_time() {
    let mut scene = Scene::new(&[FRAME]);
    let board = scene.join(1);
    scene.second();
    let looked = scene.now;
    assert_eq!(ready(&board).len(), 1);
    let mut timer = None;
    for _ in 0..100 {
        scene.now += SECOND / 200;
        timer = scene.pool.pump(scene.now, &scene.device).timer;
    }
    assert_eq!(timer, Some(looked + SECOND));
}

/// For a worker that joins, the pool tries failed reads again.
#[test]
fn errors_are_not_kept_for_who_joins() {
    let mut scene = Scene::new(&[FRAME]);
    let one = scene.join(1);
    scene.now += 1;
    let orders = scene.pool.pump(scene.now, &scene.device).orders;
    assert_eq!(orders.len(), 1);
    for order in orders {
        let mut loaded = load(order);
        loaded.outcome.mark(0..UNIT, Fault { code: error::READ, detail: 5 });
        scene.pool.loaded(loaded, scene.now, &scene.device);
        scene.pool.rested();
    }
    assert_eq!(
        ready(&one),
        [(0, Some(Fault { code: error::READ, detail: 5 }), Some(Fault { code: error::READ, detail: 5 }))]
    );
    let two = scene.join(2);
    assert_eq!(scene.second(), 1);
    assert_eq!(ready(&two), [(0, None, None)]);
    scene.pool.check();
}
