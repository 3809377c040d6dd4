//! Loom models of the free lists. They cover every interleaving of small configurations, within a bound of
//! preemptions: no frame is handed out twice, and none is lost.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use loom::sync::atomic::AtomicU32;

use super::lists::{Lists, Shape};
use super::stack::{Chain, Links, NIL, Stack};
use crate::word::Loom;

/// The lists, and for each frame whether it is handed out.
struct World {
    lists: Lists<Loom>,
    owned: Vec<AtomicU32>,
}

impl World {
    fn new(shape: Shape) -> Arc<World> {
        let owned = (0..shape.runs * shape.run_frames).map(|_| AtomicU32::new(0)).collect();
        Arc::new(World { lists: Lists::new(shape), owned })
    }

    fn take(&self, cache: u32) -> Option<u32> {
        let frame = self.lists.take(cache)?;
        assert_eq!(self.owned[frame as usize].swap(1, Relaxed), 0, "frame {frame} has two owners");
        Some(frame)
    }

    fn give(&self, cache: u32, frame: u32) {
        assert_eq!(self.owned[frame as usize].swap(0, Relaxed), 1);
        assert_eq!(self.lists.give(cache, frame), Ok(()));
    }

    /// Asserts that no frame is lost. Every frame must have been given back.
    fn check_nothing_lost(self: Arc<World>) {
        let mut world = Arc::into_inner(self).unwrap();
        let broken = world.lists.statistics().runs_broken;
        assert_eq!(u64::from(world.lists.reassemble()), broken);
    }
}

fn check(preemptions: usize, shape: Shape, work: [fn(&World); 2]) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let world = World::new(shape);
        let other = world.clone();
        let thread = loom::thread::spawn(move || work[1](&other));
        work[0](&world);
        thread.join().unwrap();
        world.check_nothing_lost();
    });
}

#[test]
fn the_stack_gives_each_entry_once() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let world = Arc::new((Links::<Loom>::new(3, NIL), Stack::<Loom>::new(), AtomicU32::new(0)));
        for entry in 0..3 {
            world.1.push(&world.0, Chain::one(entry));
        }
        // Takes a chain, and puts only its first entry back. On a stack without tags, this lets a stale
        // compare-and-swap succeed.
        let work = |(links, stack, seen): &(Links<Loom>, Stack<Loom>, AtomicU32)| {
            let chain = stack.pop(links, 2);
            let mut entry = chain.first;
            for number in 0..chain.count {
                let next = links.get(entry);
                if number == 0 {
                    stack.push(links, Chain::one(entry));
                } else {
                    assert_eq!(seen.fetch_or(1 << entry, Relaxed) & 1 << entry, 0, "entry {entry} twice");
                }
                entry = next;
            }
        };
        let other = world.clone();
        let thread = loom::thread::spawn(move || work(&other));
        work(&world);
        thread.join().unwrap();
        let (links, stack, seen) = &*world;
        let mut seen = seen.load(Relaxed);
        let mut entry = stack.pop(links, 3).first;
        while entry != NIL {
            assert_eq!(seen & 1 << entry, 0, "entry {entry} is out and on the stack");
            seen |= 1 << entry;
            entry = links.get(entry);
        }
        assert_eq!(seen, 0b111);
    });
}

#[test]
fn two_vcpus_take_and_give() {
    fn work(world: &World, cache: u32) {
        let one = world.take(cache);
        let two = world.take(cache);
        one.into_iter().for_each(|frame| world.give(cache, frame));
        two.into_iter().for_each(|frame| world.give(cache, frame));
    }
    let shape = Shape { runs: 1, run_frames: 3, caches: 2, stacks: 1, batch: 1 };
    check(2, shape, [|world| work(world, 0), |world| work(world, 1)]);
}

#[test]
fn batches_go_back_while_another_takes_from_the_same_stack() {
    let shape = Shape { runs: 1, run_frames: 4, caches: 2, stacks: 1, batch: 1 };
    check(
        2,
        shape,
        [
            |world| {
                let held: Vec<_> = (0..3).filter_map(|_| world.take(0)).collect();
                held.into_iter().for_each(|frame| world.give(0, frame));
            },
            |world| {
                let frame = world.take(1);
                frame.into_iter().for_each(|frame| world.give(1, frame));
            },
        ],
    );
}

/// A handler that interrupts its vCPU in the middle of the cache's work is a second user of the same cache.
#[test]
fn two_users_of_one_cache() {
    fn work(world: &World) {
        if let Some(frame) = world.take(0) {
            world.give(0, frame);
        }
    }
    let shape = Shape { runs: 1, run_frames: 2, caches: 1, stacks: 1, batch: 2 };
    check(3, shape, [work, work]);
}

#[test]
fn a_run_is_broken_while_another_is_given_back() {
    let shape = Shape { runs: 2, run_frames: 2, caches: 2, stacks: 2, batch: 1 };
    check(
        2,
        shape,
        [
            |world| {
                if let Some(run) = world.lists.take_run() {
                    for frame in run..run + 2 {
                        assert_eq!(world.owned[frame as usize].swap(1, Relaxed), 0);
                    }
                    for frame in run..run + 2 {
                        assert_eq!(world.owned[frame as usize].swap(0, Relaxed), 1);
                    }
                    assert_eq!(world.lists.give_run(run), Ok(()));
                }
            },
            |world| {
                let held: Vec<_> = (0..3).filter_map(|_| world.take(1)).collect();
                held.into_iter().for_each(|frame| world.give(1, frame));
            },
        ],
    );
}
