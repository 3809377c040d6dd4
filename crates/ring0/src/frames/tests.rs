//! Tests of the pool against a model, and under load from many threads.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;

use super::lists::{Lists, Shape};
use super::*;
use crate::word::Native;

const FIRST: Frame = Frame::new(0x4_0000);

fn pool(runs: usize, cpus: u32) -> FramePool {
    FramePool::new(FIRST, HostMemory::map(runs << 21, Backing::Small).unwrap(), cpus).unwrap()
}

#[test]
fn every_frame_is_handed_out_once_and_then_no_more() {
    let pool = pool(3, 2);
    let mut seen = BTreeSet::new();
    while let Some(frame) = pool.take(seen.len() as u32 % 2) {
        assert!(seen.insert(frame), "{frame:?} twice");
    }
    assert_eq!(seen.len() as u64, 3 * RUN_FRAMES);
    assert_eq!(seen.first(), Some(&FIRST));
    assert_eq!(seen.last(), Some(&FIRST.offset(3 * RUN_FRAMES - 1)));
    assert_eq!(pool.take_run(), None);

    // A vCPU without free frames takes them from the lists of another vCPU.
    for frame in seen.iter().take(10) {
        pool.give(0, *frame).unwrap();
    }
    for _ in 0..10 {
        assert!(pool.take(1).is_some());
    }
    assert_eq!(pool.take(1), None);
    let statistics = pool.statistics();
    assert_eq!(statistics.taken - statistics.given, statistics.frames);
    assert_eq!(statistics.runs_broken, 3);
}

#[test]
fn only_frames_that_are_handed_out_can_be_given_back() {
    let pool = pool(2, 1);
    let run = pool.take_run().unwrap();
    let frame = pool.take(0).unwrap();
    assert_eq!(pool.give(0, run), Err(WrongFrame::NotInUse));
    assert_eq!(pool.give_run(frame), Err(WrongFrame::NotInUse));
    assert_eq!(pool.give(0, frame.offset(1)), Err(WrongFrame::NotInUse));
    assert_eq!(pool.give(0, FIRST.offset(2 * RUN_FRAMES)), Err(WrongFrame::Foreign));
    assert_eq!(pool.give(0, Frame::new(0)), Err(WrongFrame::Foreign));
    assert_eq!(pool.give_run(run.offset(1)), Err(WrongFrame::Foreign));
    pool.give(0, frame).unwrap();
    assert_eq!(pool.give(0, frame), Err(WrongFrame::NotInUse));
    pool.give_run(run).unwrap();
    assert_eq!(pool.give_run(run), Err(WrongFrame::NotInUse));
}

#[test]
fn a_frame_given_back_by_two_threads_is_accepted_once() {
    let pool = pool(1, 2);
    for _ in 0..2000 {
        let frame = pool.take(0).unwrap();
        let given = std::thread::scope(|scope| {
            let other = scope.spawn(|| pool.give(1, frame).is_ok());
            u32::from(pool.give(0, frame).is_ok()) + u32::from(other.join().unwrap())
        });
        assert_eq!(given, 1);
    }
}

#[test]
fn a_scattered_run_goes_back_frame_by_frame_and_is_put_together_again() {
    let mut pool = pool(2, 2);
    let run = pool.take_run().unwrap();
    pool.scatter_run(run).unwrap();
    assert_eq!(pool.give_run(run), Err(WrongFrame::NotInUse));
    for number in 1..RUN_FRAMES {
        pool.give(number as u32, run.offset(number)).unwrap();
    }
    assert_eq!(pool.reassemble(), 0, "one frame is in use");
    let other: Vec<_> = (1..RUN_FRAMES).map(|_| pool.take(0).unwrap()).collect();
    for frame in other {
        assert!(
            (run.offset(1)..run.offset(RUN_FRAMES)).contains(&frame),
            "a whole run was broken for {frame:?}"
        );
        pool.give(0, frame).unwrap();
    }
    pool.give(1, run).unwrap();
    assert_eq!(pool.reassemble(), 1);
    let runs: BTreeSet<_> = [pool.take_run().unwrap(), pool.take_run().unwrap()].into();
    assert_eq!(runs, [FIRST, FIRST.offset(RUN_FRAMES)].into());
    assert_eq!(pool.take(0), None);
}

#[test]
fn frames_and_addresses_are_the_same_thing() {
    let pool = pool(2, 1);
    let base = pool.memory().base();
    assert_eq!(pool.address(FIRST.offset(513)), Some(base.wrapping_add(513 << 12)));
    assert_eq!(pool.frame_at(base.wrapping_add((513 << 12) + 17)), Some(FIRST.offset(513)));
    assert_eq!(pool.frame_at(base.wrapping_add(4 << 20)), None);
    assert_eq!(pool.frame_at(base.wrapping_sub(1)), None);
    assert_eq!(pool.address(FIRST.offset(1024)), None);
}

#[test]
fn a_pool_off_the_boundary_is_refused() {
    let memory = HostMemory::map(2 << 20, Backing::Small).unwrap();
    assert!(matches!(FramePool::new(Frame::new(8), memory, 1), Err(PoolError::Unaligned(_))));
}

/// Threads take and give frames through their own cache and through a cache they share. Every frame in use is
/// marked with its owner, so a second owner is detected.
#[test]
fn no_frame_has_two_owners_under_load() {
    let shape = Shape { runs: 4, run_frames: 16, caches: 3, stacks: 2, batch: 4 };
    let lists = Lists::<Native>::new(shape);
    let owners: Vec<_> = (0..64).map(|_| AtomicU32::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 1..=4u32 {
            let (lists, owners) = (&lists, &owners);
            scope.spawn(move || {
                let mut held = Vec::new();
                let mut dice = thread;
                for _ in 0..100_000 {
                    dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    // Four threads use three caches, so two of them share one.
                    if dice >> 31 == 0 && held.len() < 24 {
                        if let Some(frame) = lists.take(thread) {
                            assert_eq!(owners[frame as usize].swap(thread, Ordering::Relaxed), 0);
                            held.push(frame);
                        }
                    } else if let Some(frame) = held.pop() {
                        assert_eq!(owners[frame as usize].swap(0, Ordering::Relaxed), thread);
                        lists.give(thread, frame).unwrap();
                    }
                }
                for frame in held {
                    owners[frame as usize].store(0, Ordering::Relaxed);
                    lists.give(thread, frame).unwrap();
                }
            });
        }
    });
    let mut lists = lists;
    let statistics = lists.statistics();
    assert_eq!(statistics.taken, statistics.given);
    assert!(statistics.refills > 0 && statistics.returns > 0);
    assert_eq!(lists.reassemble(), statistics.runs_broken as u32, "frames are lost");
}

#[derive(Debug, Clone)]
enum Step {
    Take(u32),
    Give(u32, usize),
    TakeRun,
    GiveRun(usize),
    Scatter(usize),
    Reassemble,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0u32..3).prop_map(Step::Take),
        10 => (0u32..3, any::<usize>()).prop_map(|(cpu, which)| Step::Give(cpu, which)),
        2 => Just(Step::TakeRun),
        2 => any::<usize>().prop_map(Step::GiveRun),
        1 => any::<usize>().prop_map(Step::Scatter),
        1 => Just(Step::Reassemble),
    ]
}

proptest! {
    #[test]
    fn the_lists_agree_with_a_set(steps in prop::collection::vec(step(), 1..300)) {
        const RUNS: u32 = 5;
        const LENGTH: u32 = 8;
        let shape = Shape { runs: RUNS, run_frames: LENGTH, caches: 3, stacks: 2, batch: 3 };
        let mut lists = Lists::<Native>::new(shape);
        let (mut frames, mut runs) = (Vec::new(), Vec::new());
        for step in steps {
            match step {
                Step::Take(cpu) => match lists.take(cpu) {
                    Some(frame) => {
                        prop_assert!(!frames.contains(&frame));
                        prop_assert!(!runs.contains(&(frame / LENGTH * LENGTH)));
                        frames.push(frame);
                    }
                    // A single thread gets `None` only if every frame is handed out.
                    None => prop_assert_eq!(frames.len() as u32 + runs.len() as u32 * LENGTH, RUNS * LENGTH),
                },
                Step::Give(cpu, which) if !frames.is_empty() => {
                    let frame = frames.swap_remove(which % frames.len());
                    prop_assert_eq!(lists.give(cpu, frame), Ok(()));
                    prop_assert_eq!(lists.give(cpu, frame), Err(WrongFrame::NotInUse));
                }
                Step::TakeRun => {
                    if let Some(run) = lists.take_run() {
                        prop_assert!(run.is_multiple_of(LENGTH) && !runs.contains(&run));
                        prop_assert!(frames.iter().all(|frame| frame / LENGTH != run / LENGTH));
                        runs.push(run);
                    }
                }
                Step::GiveRun(which) if !runs.is_empty() => {
                    let run = runs.swap_remove(which % runs.len());
                    prop_assert_eq!(lists.give_run(run), Ok(()));
                    prop_assert_eq!(lists.give_run(run), Err(WrongFrame::NotInUse));
                }
                Step::Scatter(which) if !runs.is_empty() => {
                    let run = runs.swap_remove(which % runs.len());
                    prop_assert_eq!(lists.scatter_run(run), Ok(()));
                    frames.extend(run..run + LENGTH);
                }
                Step::Reassemble => {
                    lists.reassemble();
                    let touched: BTreeSet<_> = frames.iter().map(|frame| frame / LENGTH).collect();
                    let whole = RUNS as usize - runs.len() - touched.len();
                    let taken: Vec<_> = std::iter::from_fn(|| lists.take_run()).collect();
                    prop_assert_eq!(taken.len(), whole);
                    for run in taken {
                        prop_assert_eq!(lists.give_run(run), Ok(()));
                    }
                }
                _ => {}
            }
            let statistics = lists.statistics();
            prop_assert_eq!(statistics.taken - statistics.given, frames.len() as u64);
            prop_assert_eq!(statistics.runs_in_use, runs.len() as u64);
        }
    }
}
