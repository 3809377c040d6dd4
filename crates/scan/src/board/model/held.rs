//! Pages that the worker holds while other pages arrive and are returned.

use std::sync::atomic::Ordering::Relaxed;

use loom::thread;

use super::doorbell::{SLEEPS, Want};
use super::state::State;
use super::{Board, check, words};

/// A worker holds the first chunk throughout. The other chunks go through the remaining slots and arrive in order.
#[test]
fn chunks_come_in_order_while_one_is_held() {
    check(|| {
        let board = Board::<2>::new();
        board.give_turn(0, 0, 10);
        assert_eq!(board.take(board.find_turn(0).unwrap()), Some(10));
        let service = board.clone();
        let service = thread::spawn(move || {
            for number in 1..3 {
                while number > 1 && !service.entries[1].word.recycle() {
                    service.bell.want(Want::Returned);
                    if service.entries[1].word.state() != State::Done {
                        service.listen();
                    }
                }
                service.give_turn(number, 1, 10 + number);
            }
        });
        for number in 1..3 {
            let slot = loop {
                if let Some(slot) = board.find_turn(number) {
                    break slot;
                }
                board.sleeper.prepare();
                if board.find_turn(number).is_none() {
                    board.tell(Want::Starving);
                    let mut futex = board.futex.lock().unwrap();
                    while board.sleeper.word().load(words::Ordering::Relaxed) == SLEEPS {
                        futex = board.woken.wait(futex).unwrap();
                    }
                }
                board.sleeper.awake();
            };
            assert_eq!(board.take(slot), Some(10 + number));
            board.put(slot);
        }
        service.join().unwrap();
        // The held frame is unchanged.
        // SAFETY: loom checks that no thread wrote to it in the meantime.
        assert_eq!(board.frames[0].with(|frame| unsafe { *frame }), 10);
        board.put(0);
        assert!(board.entries[0].word.recycle());
    });
}

/// Two threads return pages of one worker at the same time. The service, which waits for returned pages, is woken and gets both
/// pages.
#[test]
fn pages_returned_by_two_threads_are_heard() {
    check(|| {
        let board = Board::<2>::new();
        for slot in 0..2 {
            board.give(slot, 5);
            assert_eq!(board.take(slot), Some(5));
        }
        let threads = [0, 1].map(|slot| {
            let board = board.clone();
            thread::spawn(move || board.put(slot))
        });
        let mut back = 0;
        while back < 2 {
            board.bell.want(Want::Returned);
            let now = (0..2).filter(|slot| board.entries[*slot].word.recycle()).count();
            back += now;
            if now == 0 {
                board.listen();
            }
        }
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(board.rings.load(Relaxed) <= 2);
    });
}
