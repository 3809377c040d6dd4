//! Streams and pools that always want more reads than a device may do at a time: all of them make progress.

use std::sync::mpsc;

use super::*;
use crate::board::Board;
use crate::engine::Bell;
use crate::extents::Extents;
use crate::memory::{FRAME, Frames};
use crate::plan::Plan;
use crate::service::fake::{Fake, Folder};
use crate::service::inbox::{Command, Founding, Opening, Terms};

/// Number of streams: enough to use all reads that a device may do at a time, and one more.
const STREAMS: usize = 9;
/// Number of frames of each stream.
const FRAMES: usize = 12;
const TERMS: Terms = Terms { is_watched: false, pages_held: 1 };

/// A worker that finishes every chunk at once.
struct Worker {
    board: Arc<Board>,
    chunks: u64,
}

impl Worker {
    fn new() -> Self {
        Self { board: Arc::new(Board::new(FRAMES, Clock::monotonic()).unwrap()), chunks: 0 }
    }

    fn work(&mut self) {
        let words = self.board.worker();
        for entry in self.board.entries().iter().filter(|entry| entry.word.take()) {
            entry.word.finish();
            self.chunks += 1;
            words.bytes.fetch_add(FRAME as u64, Relaxed);
            words.ingest_ns.fetch_add(1, Relaxed);
        }
        // This time is after any time at which the loop has read its clock.
        words.returned_ns.store(u64::MAX / 2, Relaxed);
    }
}

/// Streams and a pool of the same file.
struct Scene {
    engine: Fake,
    control: Control,
    /// The worker of the pool is the last one.
    workers: Vec<Worker>,
}

impl Scene {
    fn new() -> Self {
        // None of the file is read.
        let folder = Folder::sparse(16 << 30);
        let engine = Fake::default();
        let inbox = Arc::new(Inbox::new(Arc::new(Bell::new().unwrap())));
        let mut control = Control::new(Box::new(engine.clone()), inbox.clone(), Clock::monotonic());
        let frames = Arc::new(Frames::new(FRAMES).unwrap());
        let parts = || {
            let files = folder.open(1);
            let mut plan = Plan::new(&files, FRAME);
            let everything = plan.everything();
            plan.add(&everything).unwrap();
            let extents = Extents::of_all(&files);
            (files, extents, plan)
        };
        let workers: Vec<Worker> = (0..=STREAMS).map(|_| Worker::new()).collect();
        // The test receives the answers later, so that the loop does not close what it has opened.
        let (answer, answered) = mpsc::channel();
        for worker in &workers[..STREAMS] {
            let (files, extents, plan) = parts();
            let (board, frames) = (worker.board.clone(), frames.clone());
            let opening = Opening { board, frames, files, extents, plan, terms: TERMS };
            assert!(inbox.send(Command::Open(opening, answer.clone())));
        }
        let (files, extents, plan) = parts();
        let founding = Founding { frames, files, extents, chunks: plan.into_chunks(), terms: TERMS };
        assert!(inbox.send(Command::Found(founding, answer.clone())));
        assert!(!control.commands());
        let pool = answered.try_iter().last().unwrap().unwrap();
        assert!(inbox.send(Command::Join(pool, workers[STREAMS].board.clone(), answer)));
        assert!(!control.commands());
        assert!(answered.recv().unwrap().is_ok());
        Self { engine, control, workers }
    }

    /// Runs a round of the loop, in which the oldest read is complete.
    fn round(&mut self) {
        let mut known = self.engine.0.borrow_mut();
        let oldest = (!known.reads.is_empty()).then(|| known.reads.remove(0));
        drop(known);
        if let Some(read) = oldest {
            self.control.complete(Completion { token: read.token, result: Ok(read.len) });
        }
        let mut due = Vec::new();
        self.control.wheel.advance(self.control.clock.now(), &mut due);
        due.into_iter().for_each(|timer| self.control.fire(timer));
        self.control.pump();
        self.workers.iter_mut().for_each(Worker::work);
    }
}

#[test]
fn streams_and_pools_that_always_want_more_all_make_progress() {
    let mut scene = Scene::new();
    // The fastest workers have had so many chunks that each of the others has had a part, if the loop serves them in turns.
    while scene.workers.iter().map(|worker| worker.chunks).max() < Some(400) {
        scene.round();
    }
    let chunks: Vec<u64> = scene.workers.iter().map(|worker| worker.chunks).collect();
    assert!(chunks.iter().all(|chunks| *chunks >= 40), "{chunks:?}");
}
