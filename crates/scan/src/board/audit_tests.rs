//! Tests of [`Audit`]. They are in their own file because the pool's model includes the audit a second time, without the tests.

use super::{Audit, Board, State};
use crate::clock::Clock;
use proptest::prelude::*;

proptest! {
    /// The audit accepts every sequence of permitted steps of both sides.
    #[test]
    fn rules_that_are_kept_are_seen_to_be_kept(
        most in 1usize..4,
        steps in prop::collection::vec((0u8..4, 0usize..4), 0..200),
    ) {
        let board = Board::new(4, Clock::monotonic()).unwrap();
        let mut audit = Audit::new(4, most);
        let mut in_use: Vec<usize> = Vec::new();
        for (step, slot) in steps {
            let word = &board.entries()[slot].word;
            match step {
                0 if word.state() == State::Empty => {
                    audit.give(slot);
                    word.publish();
                }
                1 if in_use.len() < most && word.take() => in_use.push(slot),
                2 => {
                    // The worker returns pages in any order.
                    if !in_use.is_empty() {
                        let slot = in_use.swap_remove(slot % in_use.len());
                        board.entries()[slot].word.finish();
                    }
                }
                _ => {
                    if word.reclaim() || word.recycle() {
                        audit.take_back(slot);
                    }
                }
            }
            prop_assert!(audit.is_kept(&board));
        }
    }
}

#[test]
fn breaches_are_seen() {
    let fresh = |most| {
        let (board, mut audit) = (Board::new(4, Clock::monotonic()).unwrap(), Audit::new(4, most));
        for slot in 0..3 {
            audit.give(slot);
            board.entries()[slot].word.publish();
        }
        assert!(audit.is_kept(&board));
        (board, audit)
    };
    let (board, audit) = fresh(1);
    board.entries()[3].word.publish();
    assert!(!audit.is_kept(&board), "something was published that the service did not");
    let (board, audit) = fresh(1);
    assert!(board.entries()[1].word.reclaim());
    assert!(!audit.is_kept(&board), "something was taken back by the worker");
    let (board, audit) = fresh(1);
    board.entries()[0].word.publish();
    assert!(!audit.is_kept(&board), "something was published again");
    let (board, audit) = fresh(1);
    assert!(board.entries()[0].word.take());
    assert!(audit.is_kept(&board));
    assert!(board.entries()[2].word.take());
    assert!(!audit.is_kept(&board), "two are in use");
    let (board, audit) = fresh(2);
    for slot in [0, 2] {
        assert!(board.entries()[slot].word.take());
    }
    assert!(audit.is_kept(&board), "two may be");
    assert!(board.entries()[1].word.take());
    assert!(!audit.is_kept(&board), "three are in use");
}
