//! The worker's descriptor is readable whenever a page is ready. The model follows `worker/channel/watch.rs`.

use loom::thread;

use super::doorbell::Want;
use super::state::State;
use super::{Board, check};

/// A worker's record of its descriptor, as in `worker/channel/watch.rs`.
struct Watch {
    owed: usize,
    is_armed: bool,
}

impl Watch {
    fn new() -> Self {
        Self { owed: 1, is_armed: false }
    }

    /// The worker found nothing in a slot. Returns whether the slot is ready now.
    fn arm<const N: usize>(&mut self, board: &Board<N>, slot: usize) -> bool {
        if board.sleeper.watch() {
            self.owed += usize::from(self.is_armed);
            self.is_armed = true;
            if board.entries[slot].word.state() == State::Ready {
                return true;
            }
            board.tell(Want::Starving);
        }
        let mut packets = board.packets.lock().unwrap();
        let drained = self.owed.min(*packets);
        self.owed -= drained;
        *packets -= drained;
        false
    }
}

/// A worker asks three times while the service publishes two pages. In the end its descriptor is readable if a page is ready.
fn watch(arm: impl Fn(&mut Watch, &Board<2>, usize) -> bool + Copy + Send + Sync + 'static) {
    check(move || {
        let board = Board::<2>::new();
        let service = board.clone();
        let service = thread::spawn(move || {
            service.give(0, 1);
            service.give(1, 2);
        });
        let (mut watch, mut slot) = (Watch::new(), 0);
        for _ in 0..3 {
            if slot < 2 && board.take(slot).is_some() {
                slot += 1;
            } else if slot < 2 {
                arm(&mut watch, &board, slot);
            }
        }
        service.join().unwrap();
        let is_there = slot < 2 && board.entries[slot].word.state() == State::Ready;
        assert!(!is_there || *board.packets.lock().unwrap() > 0, "nothing is readable");
    });
}

/// The descriptor is readable whenever a page is ready, in every interleaving.
#[test]
fn who_watches_is_told() {
    watch(|watch, board, slot| watch.arm(board, slot));
}

/// The model detects a worker that takes all packets. One of them may belong to its latest announcement.
#[test]
#[should_panic(expected = "nothing is readable")]
fn who_takes_all_packets_waits_for_ever() {
    watch(|watch, board, slot| {
        watch.owed = usize::MAX / 2;
        watch.arm(board, slot)
    });
}

/// The model detects a worker that does not check the slot again after it has announced that it watches.
#[test]
#[should_panic(expected = "nothing is readable")]
fn who_does_not_look_again_waits_for_ever() {
    watch(|_, board, _| {
        let _ = board.sleeper.watch();
        *board.packets.lock().unwrap() = 0;
        false
    });
}
