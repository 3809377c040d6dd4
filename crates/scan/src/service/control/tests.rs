//! Openings that fail, and openings whose answer no thread receives: neither leaves anything behind.

use std::sync::mpsc;

use super::*;
use crate::board::{Board, Closed};
use crate::engine::Bell;
use crate::extents::Extents;
use crate::memory::{FRAME, Frames};
use crate::plan::{Plan, Range};
use crate::service::fake::{Fake, Folder};
use crate::service::inbox::{Command, Founding, Opening, Terms};
use crate::source::File;
use crate::{Error, Result};

struct Scene {
    folder: Folder,
    engine: Fake,
    inbox: Arc<Inbox>,
    control: Control,
    frames: Arc<Frames>,
}

const FILES: usize = 3;
const TERMS: Terms = Terms { is_watched: true, pages_held: 1 };

impl Scene {
    fn new() -> Self {
        let folder = Folder::new(&[10_000; FILES]);
        let inbox = Arc::new(Inbox::new(Arc::new(Bell::new().unwrap())));
        let engine = Fake::default();
        let control = Control::new(Box::new(engine.clone()), inbox.clone(), Clock::monotonic());
        Self { folder, engine, inbox, control, frames: Arc::new(Frames::new(8).unwrap()) }
    }

    fn plan(&self) -> (Vec<File>, Vec<Extents>, Plan) {
        let files = self.folder.open(FILES);
        let mut plan = Plan::new(&files, FRAME);
        let everything = plan.everything();
        plan.add(&everything).unwrap();
        let extents = Extents::of_all(&files);
        (files, extents, plan)
    }

    fn opening(&self) -> Opening {
        let (files, extents, plan) = self.plan();
        Opening { board: board(), frames: self.frames.clone(), files, extents, plan, terms: TERMS }
    }

    fn founding(&self) -> Founding {
        let (files, extents, plan) = self.plan();
        Founding { frames: self.frames.clone(), files, extents, chunks: plan.into_chunks(), terms: TERMS }
    }

    /// The loop's answer to a command. `None`: the asking thread is gone before there is an answer.
    fn ask<T>(
        &mut self,
        gone: bool,
        command: impl FnOnce(mpsc::Sender<Result<T>>) -> Command,
    ) -> Option<Result<T>> {
        let (answer, answered) = mpsc::channel();
        let answered = (!gone).then_some(answered);
        assert!(self.inbox.send(command(answer)));
        assert!(!self.control.commands());
        answered.map(|answered| answered.recv().unwrap())
    }

    /// Number of files and memories that the engine has, and of streams, members and pools that the loop has.
    fn left(&self) -> ([usize; 2], [u64; 3]) {
        let known = self.engine.0.borrow();
        ([known.files.len(), known.memories.len()], self.control.census())
    }
}

fn board() -> Arc<Board> {
    Arc::new(Board::new(8, Clock::monotonic()).unwrap())
}

const NOTHING: ([usize; 2], [u64; 3]) = ([0, 0], [0, 0, 0]);

#[test]
fn a_step_that_fails_takes_back_those_before() {
    // The steps are the memory and each of the files.
    for steps in 0..=FILES {
        let mut scene = Scene::new();
        scene.engine.0.borrow_mut().fails_after = Some(steps);
        let (opening, founding) = (scene.opening(), scene.founding());
        let opened = scene.ask(false, |answer| Command::Open(opening, answer)).unwrap();
        assert!(matches!(opened, Err(Error::Invalid(_))), "step {steps}");
        assert_eq!(scene.left(), NOTHING, "step {steps}");
        scene.engine.0.borrow_mut().fails_after = Some(steps);
        let founded = scene.ask(false, |answer| Command::Found(founding, answer)).unwrap();
        assert!(matches!(founded, Err(Error::Invalid(_))), "step {steps}");
        assert_eq!(scene.left(), NOTHING, "step {steps}");
        // Afterwards it works.
        scene.engine.0.borrow_mut().fails_after = None;
        let opening = scene.opening();
        scene.ask(false, |answer| Command::Open(opening, answer)).unwrap().unwrap();
        assert_eq!(scene.left(), ([FILES, 1], [1, 0, 0]));
        // A thread that learns of the change asks for statistics.
        assert_eq!(scene.inbox.census(), [1, 0, 0]);
    }
}

#[test]
fn what_nobody_hears_of_is_taken_back() {
    let mut scene = Scene::new();
    let founding = scene.founding();
    scene.ask(true, |answer| Command::Found(founding, answer));
    assert_eq!(scene.left(), NOTHING);

    let opening = scene.opening();
    scene.ask(true, |answer| Command::Open(opening, answer));
    assert_eq!(scene.left(), NOTHING);

    let founding = scene.founding();
    let pool = scene.ask(false, |answer| Command::Found(founding, answer)).unwrap().unwrap();
    scene.ask(true, |answer| Command::Join(pool, board(), answer));
    assert_eq!(scene.left(), ([FILES, 1], [0, 1, 0]));
    scene.ask(false, |answer| Command::Join(pool, board(), answer)).unwrap().unwrap();
    assert_eq!(scene.left(), ([FILES, 1], [1, 1, 0]));
    assert_eq!(scene.inbox.census(), [1, 1, 0]);
}

/// The memory of a channel that is closed is freed: no later channel gets it.
#[test]
fn a_closed_channel_leaves_no_memory() {
    let mut scene = Scene::new();
    let opening = scene.opening();
    let id = scene.ask(false, |answer| Command::Open(opening, answer)).unwrap().unwrap();
    assert_eq!(scene.left(), ([FILES, 1], [1, 0, 0]));
    assert!(scene.inbox.send(Command::Close(id)));
    assert!(!scene.control.commands());
    assert_eq!(scene.left(), NOTHING);
    assert_eq!(Arc::strong_count(&scene.frames), 1);
}

/// A client has the key of a pool that has ended, and joins too late.
#[test]
fn a_pool_that_is_over_is_not_joined() {
    let mut scene = Scene::new();
    let founding = scene.founding();
    let pool = scene.ask(false, |answer| Command::Found(founding, answer)).unwrap().unwrap();
    let member = scene.ask(false, |answer| Command::Join(pool, board(), answer)).unwrap().unwrap();
    assert!(scene.inbox.send(Command::Dissolve(pool)));
    let late = scene.ask(false, |answer| Command::Join(pool, board(), answer)).unwrap();
    assert!(matches!(late, Err(Error::Invalid(_))));
    assert_eq!(scene.left(), ([FILES, 1], [1, 1, 0]));
    assert!(scene.inbox.send(Command::Leave(pool, member)));
    assert!(!scene.control.commands());
    assert_eq!(scene.left(), NOTHING);
}

/// A channel that ended because its worker broke the rules may still ask for more.
#[test]
fn ranges_of_a_channel_that_has_ended_are_refused() {
    let mut scene = Scene::new();
    let opening = scene.opening();
    let id = scene.ask(false, |answer| Command::Open(opening, answer)).unwrap().unwrap();
    scene.control.streams.get_mut(&id).unwrap().closing = true;
    scene.control.bury(id);
    let range = Range { file: 0, start: 0, end: 1 };
    let added = scene.ask(false, |answer| Command::Ranges(id, vec![range], answer)).unwrap();
    assert!(matches!(added, Err(Error::Gone)));
}

/// The loop panics, and all its objects end with it: workers of streams and of pools are told.
#[test]
fn workers_are_told_that_the_loop_is_gone() {
    let mut scene = Scene::new();
    let opening = scene.opening();
    let stream = opening.board.clone();
    scene.ask(false, |answer| Command::Open(opening, answer)).unwrap().unwrap();
    let founding = scene.founding();
    let pool = scene.ask(false, |answer| Command::Found(founding, answer)).unwrap().unwrap();
    let member = board();
    scene.ask(false, |answer| Command::Join(pool, member.clone(), answer)).unwrap().unwrap();
    assert_eq!((stream.closed(), member.closed()), (None, None));
    drop(scene);
    assert_eq!((stream.closed(), member.closed()), (Some(Closed::Gone), Some(Closed::Gone)));
}
