//! A stream whose files change, without an engine and without real time.

use super::*;
use crate::Error;
use crate::board::{Fault, State};
use crate::clock::Clock;
use crate::error;
use crate::ranges::RangeSet;
use crate::service::TRIES;
use crate::service::fake::{Folder, load};
use crate::source::File;

struct Scene {
    folder: Folder,
    stream: Stream,
    device: Device,
}

impl Scene {
    /// A stream over files of these sizes. The worker has the frames that are read first.
    fn new(sizes: &[usize]) -> Self {
        let folder = Folder::new(sizes);
        let files: Vec<File> = folder.open(sizes.len());
        let mut plan = Plan::new(&files, 4096);
        let everything = plan.everything();
        plan.add(&everything).unwrap();
        let board = Arc::new(Board::new(4, Clock::monotonic()).unwrap());
        let frames = Arc::new(Frames::new(4).unwrap());
        let stream = Stream::new(1, board, folder.files(sizes.len()), frames, 0, plan, 1, 0);
        let mut scene = Self { folder, stream, device: Device::default() };
        let orders = scene.stream.pump(0, &scene.device).orders;
        assert!(scene.give(orders) > 0);
        scene
    }

    fn give(&mut self, orders: Vec<Order>) -> usize {
        let count = orders.len();
        for order in orders {
            if self.stream.loaded(load(order), 0, &self.device).is_some() {
                self.stream.rested();
            }
        }
        count
    }

    /// Returns the number of chunks that are read again and are ready again.
    fn look(&mut self) -> usize {
        let mut orders = Vec::new();
        self.stream.check_age(0, true, &mut orders);
        self.give(orders)
    }

    fn fault(&self, unit: usize) -> Option<Fault> {
        let entry = &self.stream.board.entries()[0];
        assert_eq!(entry.word.state(), State::Ready);
        entry.content().faulty.then(|| self.stream.board.faults(0)[unit].get()).flatten()
    }
}

/// A worker turns out to be slow. Its ready pages stay, and nothing is read until there are fewer pages than it needs.
#[test]
fn the_watermark_comes_down_as_pages_are_read() {
    let mut scene = Scene::new(&[16 * FRAME]);
    let watermark = |scene: &Scene| scene.stream.board.service().watermark.load(Relaxed);
    let pump = |scene: &mut Scene| {
        let orders = scene.stream.pump(0, &scene.device).orders;
        scene.give(orders)
    };
    while pump(&mut scene) > 0 {}
    assert_eq!((scene.stream.pending(), watermark(&scene)), (4, 4));
    // A read of a page takes 1 ms, and the worker needs a second for a page.
    scene.device.rate.sample(FRAME as u64, 1_000_000);
    let board = scene.stream.board.clone();
    board.worker().bytes.store(FRAME as u64, Relaxed);
    board.worker().ingest_ns.store(1_000_000_000, Relaxed);
    assert_eq!((pump(&mut scene), watermark(&scene)), (0, 4));
    assert!(board.entries()[0].word.take());
    assert_eq!((pump(&mut scene), watermark(&scene)), (0, LEAST as u64));
    board.entries()[0].word.finish();
    for slot in 1..4 {
        assert!(board.entries()[slot].word.take());
        assert_eq!((pump(&mut scene), watermark(&scene)), (1, LEAST as u64));
        assert_eq!(scene.stream.pending(), LEAST);
        board.entries()[slot].word.finish();
    }
}

const CHANGING: Option<Fault> = Some(Fault { code: error::CHANGING, detail: 0 });

#[test]
fn what_is_known_to_be_old_is_not_left_to_the_worker() {
    let mut scene = Scene::new(&[2 * FRAME]);
    for _ in 0..TRIES {
        scene.folder.change(0);
        assert_eq!(scene.look(), 2);
        assert_eq!(scene.look(), 0);
        assert_eq!(scene.fault(0), None);
    }
    scene.folder.change(0);
    assert_eq!(scene.look(), 0);
    assert_eq!((scene.fault(0), scene.fault(511)), (CHANGING, CHANGING));
    // An error stays.
    let look = scene.stream.board.entries()[0].word.look();
    scene.folder.change(0);
    assert_eq!(scene.look(), 0);
    assert_eq!(scene.stream.board.entries()[0].word.look(), look);
    // The scan continues: the next chunks have all their attempts.
    for slot in 0..2 {
        assert!(scene.stream.board.entries()[slot].word.take());
        scene.stream.board.entries()[slot].word.finish();
    }
    assert!(scene.stream.pump(0, &scene.device).orders.is_empty() && scene.stream.free_slot().is_some());
}

/// Only the file that changes becomes an error, until another one changes.
#[test]
fn files_at_rest_do_not_suffer_from_others_in_their_chunk() {
    let mut scene = Scene::new(&[40_000, 8192, 5000]);
    for _ in 0..TRIES {
        scene.folder.change(1);
        assert_eq!(scene.look(), 1);
    }
    scene.folder.change(1);
    assert_eq!(scene.look(), 0);
    let units = |scene: &Scene| [0, 9, 10, 11, 12, 13].map(|unit| scene.fault(unit));
    assert_eq!(units(&scene), [None, None, CHANGING, CHANGING, None, None]);
    scene.folder.change(2);
    assert_eq!(scene.look(), 0);
    assert_eq!(units(&scene), [None, None, CHANGING, CHANGING, CHANGING, CHANGING]);
}

/// Chunks that are read and not taken may be cancelled in pieces, but not in more pieces than there is memory for.
#[test]
fn pieces_that_cancelling_leaves_have_a_limit() {
    let mut scene = Scene::new(&[FRAME; 3]);
    let mut cancel = |at: u64| {
        // Each piece is a second byte.
        let start = |piece: u64| at + 2 * piece;
        let cuts: Vec<Range> = (0..1 << 15)
            .map(|piece| Range { file: (at >> 21) as u32, start: start(piece), end: start(piece) + 1 })
            .collect();
        scene.stream.cancel(&RangeSet::new(&cuts), &mut Vec::new())
    };
    let refused =
        (0..3 << 5).map(|batch| batch << 16).find_map(|at| cancel(at).err().map(|error| (at, error)));
    let (at, error) = refused.expect("there are 3 Mi pieces");
    assert!(matches!(&error, Error::Invalid(text) if text.contains("more than 1048576 pieces")), "{error}");
    assert!(at >= 1 << 21, "refused at byte {at}");
}
