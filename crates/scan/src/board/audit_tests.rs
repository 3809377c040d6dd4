//! Tests of [`Audit`], apart from it because the pool's model has the audit a second time, without them.

use super::{Audit, Board, State};
use crate::clock::Clock;
use proptest::prelude::*;

proptest! {
    /// No order of what both sides may do is taken for a breach.
    #[test]
    fn rules_that_are_kept_are_seen_to_be_kept(steps in prop::collection::vec((0u8..4, 0usize..4), 0..200)) {
        let board = Board::new(4, Clock::monotonic()).unwrap();
        let mut audit = Audit::new(4);
        let mut in_use = None;
        for (step, slot) in steps {
            let word = &board.entries()[slot].word;
            match step {
                0 if word.state() == State::Empty => {
                    audit.give(slot);
                    word.publish();
                }
                1 if in_use.is_none() && word.take() => in_use = Some(slot),
                2 => {
                    if let Some(slot) = in_use.take() {
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
    let fresh = || {
        let (board, mut audit) = (Board::new(4, Clock::monotonic()).unwrap(), Audit::new(4));
        for slot in 0..3 {
            audit.give(slot);
            board.entries()[slot].word.publish();
        }
        assert!(audit.is_kept(&board));
        (board, audit)
    };
    let (board, audit) = fresh();
    board.entries()[3].word.publish();
    assert!(!audit.is_kept(&board), "something was published that the service did not");
    let (board, audit) = fresh();
    assert!(board.entries()[1].word.reclaim());
    assert!(!audit.is_kept(&board), "something was taken back by the worker");
    let (board, audit) = fresh();
    board.entries()[0].word.publish();
    assert!(!audit.is_kept(&board), "something was published again");
    let (board, audit) = fresh();
    assert!(board.entries()[0].word.take());
    assert!(audit.is_kept(&board));
    assert!(board.entries()[2].word.take());
    assert!(!audit.is_kept(&board), "two are in use");
}
