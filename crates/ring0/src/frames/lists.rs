//! The free lists: which frames and runs are handed out, from which list, and to which list they return.
//!
//! This module owns the links and marks of all frames and runs, but not their memory. Frames are numbered from 0
//! here.
//!
//! A frame is in exactly one of these states, recorded in its link word:
//! * **whole**: part of a run that is free or handed out as a run (mark `WHOLE`);
//! * **free**: on a global stack or in a vCPU's cache (the word is a link). There are several global stacks, so
//!   that vCPUs do not contend for one;
//! * **in use**: handed out (mark `IN_USE`). Only a frame in this state can be given back. The mark is exchanged
//!   atomically, so every attempt to give a frame back twice is detected.
//!
//! A vCPU's cache has two chains. A batch moves between the cache and a global stack only after a batch of frames
//! was handed out or given back, and it moves in constant time. The cache has a flag instead of a lock. Two kinds
//! of callers can find the flag set: a handler that interrupted its own vCPU in the middle of a list operation, and
//! a thread that uses the number of another vCPU. Such a caller takes a single frame from the global stacks, or
//! returns it there. No caller waits, so handlers may call every function that takes `&self`.
//!
//! Runs are broken up into frames when the stacks are empty. Only [`Lists::reassemble`] makes whole runs of them
//! again.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::word::{Atomic, Atomics};

use super::stack::{Chain, Links, NIL, Stack};

/// Mark of a frame that is part of a whole run. Frames and runs with a mark are on no list.
pub(super) const WHOLE: u32 = u32::MAX - 1;
pub(super) const IN_USE: u32 = u32::MAX - 2;
/// Mark of a run whose frames are handed out singly.
pub(super) const BROKEN: u32 = u32::MAX - 3;

/// A frame or run that cannot be given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WrongFrame {
    /// The frame is not of this pool, or does not begin a run.
    #[error("the pool does not have this frame")]
    Foreign,
    /// The frame is free already, or was handed out in another form: as part of a run, or as a single frame.
    #[error("the frame is not handed out")]
    NotInUse,
}

/// Statistics of a pool. While the pool is in use, the values are not of one instant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Frames of 4 KiB in the pool, whether single or part of a run.
    pub frames: u64,
    /// Single frames handed out since the pool was made.
    pub taken: u64,
    /// Single frames given back.
    pub given: u64,
    /// Runs handed out now.
    pub runs_in_use: u64,
    /// Runs that were broken up into frames.
    pub runs_broken: u64,
    /// Batches that caches took from global stacks.
    pub refills: u64,
    /// Batches that caches put on global stacks.
    pub returns: u64,
    /// Frames that bypassed a cache because it was in use.
    pub past_cache: u64,
}

/// The free frames of one vCPU. All fields but `flag` belong to the holder of the flag.
#[repr(align(128))]
struct Cache<A: Atomics> {
    flag: A::U32,
    chains: [[A::U32; 3]; 2],
    taken: A::U64,
    given: A::U64,
    refills: A::U64,
    returns: A::U64,
}

impl<A: Atomics> Cache<A> {
    fn new() -> Self {
        let chain = || [A::U32::new(NIL), A::U32::new(NIL), A::U32::new(0)];
        let zero = || A::U64::new(0);
        let (taken, given, refills, returns) = (zero(), zero(), zero(), zero());
        Cache { flag: A::U32::new(0), chains: [chain(), chain()], taken, given, refills, returns }
    }

    fn enter(&self) -> Option<Entered<'_, A>> {
        self.flag.compare_exchange(0, 1, Acquire, Relaxed).ok().map(|_| Entered(self))
    }
}

/// The right to use a cache.
struct Entered<'c, A: Atomics>(&'c Cache<A>);

/// The chain that frames are taken from and given to.
const NEAR: usize = 0;
/// The second chain. It is empty or holds a full batch.
const FAR: usize = 1;

impl<A: Atomics> Entered<'_, A> {
    fn chain(&self, which: usize) -> Chain {
        let [first, last, count] = &self.0.chains[which];
        Chain { first: first.load(Relaxed), last: last.load(Relaxed), count: count.load(Relaxed) }
    }

    fn set(&self, which: usize, chain: Chain) {
        let [first, last, count] = &self.0.chains[which];
        first.store(chain.first, Relaxed);
        last.store(chain.last, Relaxed);
        count.store(chain.count, Relaxed);
    }

    /// Adds one to a counter of the cache. The addition is not atomic, because the caller holds the flag.
    fn count(&self, counter: fn(&Cache<A>) -> &A::U64) {
        let word = counter(self.0);
        word.store(word.load(Relaxed).wrapping_add(1), Relaxed);
    }
}

impl<A: Atomics> Drop for Entered<'_, A> {
    fn drop(&mut self) {
        self.0.flag.store(0, Release);
    }
}

/// Sizes of the lists.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) runs: u32,
    pub(super) run_frames: u32,
    pub(super) caches: u32,
    pub(super) stacks: u32,
    pub(super) batch: u32,
}

/// All free lists of a pool.
pub(super) struct Lists<A: Atomics> {
    shape: Shape,
    links: Links<A>,
    run_links: Links<A>,
    runs: Stack<A>,
    stacks: Box<[Stack<A>]>,
    caches: Box<[Cache<A>]>,
    runs_in_use: A::U64,
    runs_broken: A::U64,
    /// Frames handed out and given back without a cache.
    taken: A::U64,
    given: A::U64,
}

impl<A: Atomics> Lists<A> {
    pub(super) fn new(shape: Shape) -> Self {
        let zero = || A::U64::new(0);
        let lists = Lists {
            shape,
            links: Links::new(shape.runs * shape.run_frames, WHOLE),
            run_links: Links::new(shape.runs, NIL),
            runs: Stack::new(),
            stacks: (0..shape.stacks.max(1)).map(|_| Stack::new()).collect(),
            caches: (0..shape.caches.max(1)).map(|_| Cache::new()).collect(),
            runs_in_use: zero(),
            runs_broken: zero(),
            taken: zero(),
            given: zero(),
        };
        for run in (0..shape.runs).rev() {
            lists.runs.push(&lists.run_links, Chain::one(run));
        }
        lists
    }

    pub(super) fn shape(&self) -> Shape {
        self.shape
    }

    pub(super) fn frames(&self) -> u32 {
        self.links.len()
    }

    /// Takes a frame for the user of cache number `cache`.
    #[inline]
    pub(super) fn take(&self, cache: u32) -> Option<u32> {
        let home = cache as usize % self.stacks.len();
        let frame = match self.cache(cache).enter() {
            Some(entered) => self.take_near(&entered, home)?,
            None => {
                let frame = match self.batch(home, 1) {
                    Some(chain) => chain.first,
                    None => self.take_from_others()?,
                };
                self.taken.fetch_add(1, Relaxed);
                frame
            }
        };
        self.links.set(frame, IN_USE);
        Some(frame)
    }

    fn take_near(&self, cache: &Entered<'_, A>, home: usize) -> Option<u32> {
        let frame = match self.take_cached(cache) {
            Some(frame) => frame,
            None => match self.batch(home, self.shape.batch) {
                Some(chain) => {
                    cache.set(NEAR, chain);
                    cache.count(|cache| &cache.refills);
                    self.take_cached(cache)?
                }
                None => self.take_from_others()?,
            },
        };
        cache.count(|cache| &cache.taken);
        Some(frame)
    }

    fn take_cached(&self, cache: &Entered<'_, A>) -> Option<u32> {
        let mut near = cache.chain(NEAR);
        if near.count == 0 {
            near = cache.chain(FAR);
            if near.count == 0 {
                return None;
            }
            cache.set(FAR, Chain::EMPTY);
        }
        let frame = near.first;
        let rest = Chain { first: self.links.get(frame), last: near.last, count: near.count - 1 };
        cache.set(NEAR, if rest.count == 0 { Chain::EMPTY } else { rest });
        Some(frame)
    }

    /// The last resort: takes a frame from the cache of another vCPU that is not in use now.
    #[cold]
    fn take_from_others(&self) -> Option<u32> {
        self.caches.iter().find_map(|cache| self.take_cached(&cache.enter()?))
    }

    /// Gives a frame back.
    #[inline]
    pub(super) fn give(&self, cache: u32, frame: u32) -> Result<(), WrongFrame> {
        if frame >= self.frames() {
            return Err(WrongFrame::Foreign);
        }
        self.links.replace(frame, IN_USE, NIL).map_err(|_| WrongFrame::NotInUse)?;
        let home = cache as usize % self.stacks.len();
        match self.cache(cache).enter() {
            Some(entered) => self.give_near(&entered, home, frame),
            None => {
                self.given.fetch_add(1, Relaxed);
                self.stacks[home].push(&self.links, Chain::one(frame));
            }
        }
        Ok(())
    }

    fn give_near(&self, cache: &Entered<'_, A>, home: usize, frame: u32) {
        cache.count(|cache| &cache.given);
        let mut near = cache.chain(NEAR);
        if near.count >= self.shape.batch {
            let far = cache.chain(FAR);
            if far.count > 0 {
                self.stacks[home].push(&self.links, far);
                cache.count(|cache| &cache.returns);
            }
            cache.set(FAR, near);
            near = Chain::EMPTY;
        }
        self.links.set(frame, near.first);
        let last = if near.count == 0 { frame } else { near.last };
        cache.set(NEAR, Chain { first: frame, last, count: near.count + 1 });
    }

    /// Takes up to `most` frames from the global stacks, beginning with stack `home`. If they are empty, breaks up
    /// a run.
    fn batch(&self, home: usize, most: u32) -> Option<Chain> {
        let count = self.stacks.len();
        let stacks = (home..count).chain(0..home).map(|stack| self.stacks[stack].pop(&self.links, most));
        stacks.into_iter().find(|chain| chain.count > 0).or_else(|| self.break_run(home, most))
    }

    fn break_run(&self, home: usize, most: u32) -> Option<Chain> {
        let run = self.runs.pop(&self.run_links, 1);
        if run.count == 0 {
            return None;
        }
        let run = run.first;
        self.run_links.set(run, BROKEN);
        self.runs_broken.fetch_add(1, Relaxed);
        let (first, length) = (run * self.shape.run_frames, self.shape.run_frames);
        let end = first + length;
        let kept = most.clamp(1, length);
        for frame in first..end {
            let ends = frame + 1 == end || frame + 1 == first + kept;
            self.links.set(frame, if ends { NIL } else { frame + 1 });
        }
        let rest = Chain { first: first + kept, last: end - 1, count: length - kept };
        self.stacks[home].push(&self.links, rest);
        Some(Chain { first, last: first + kept - 1, count: kept })
    }

    /// Takes a whole run; returns its first frame.
    pub(super) fn take_run(&self) -> Option<u32> {
        let run = self.runs.pop(&self.run_links, 1);
        if run.count == 0 {
            return None;
        }
        self.run_links.set(run.first, IN_USE);
        self.runs_in_use.fetch_add(1, Relaxed);
        Some(run.first * self.shape.run_frames)
    }

    /// Gives a whole run back.
    pub(super) fn give_run(&self, first: u32) -> Result<(), WrongFrame> {
        let run = self.end_run(first, NIL)?;
        self.runs.push(&self.run_links, Chain::one(run));
        Ok(())
    }

    /// Turns a run in use into single frames in use. The owner of the run must give them back one by one.
    pub(super) fn scatter_run(&self, first: u32) -> Result<(), WrongFrame> {
        self.end_run(first, BROKEN)?;
        self.runs_broken.fetch_add(1, Relaxed);
        self.taken.fetch_add(u64::from(self.shape.run_frames), Relaxed);
        for frame in first..first + self.shape.run_frames {
            self.links.set(frame, IN_USE);
        }
        Ok(())
    }

    fn end_run(&self, first: u32, mark: u32) -> Result<u32, WrongFrame> {
        if first >= self.frames() || !first.is_multiple_of(self.shape.run_frames) {
            return Err(WrongFrame::Foreign);
        }
        let run = first / self.shape.run_frames;
        self.run_links.replace(run, IN_USE, mark).map_err(|_| WrongFrame::NotInUse)?;
        self.runs_in_use.fetch_add(u64::MAX, Relaxed);
        Ok(run)
    }

    /// Makes whole runs of all broken runs whose frames are all free. Returns the number of these runs.
    pub(super) fn reassemble(&mut self) -> u32 {
        for stack in &mut self.stacks {
            stack.reset();
        }
        for cache in &mut self.caches {
            let entered = Entered(cache);
            entered.set(NEAR, Chain::EMPTY);
            entered.set(FAR, Chain::EMPTY);
        }
        let mut whole = 0;
        for run in (0..self.shape.runs).rev().filter(|run| self.run_links.get(*run) == BROKEN) {
            let frames = run * self.shape.run_frames..(run + 1) * self.shape.run_frames;
            if frames.clone().all(|frame| self.links.get(frame) != IN_USE) {
                frames.for_each(|frame| self.links.set(frame, WHOLE));
                self.run_links.set(run, NIL);
                self.runs.push(&self.run_links, Chain::one(run));
                whole += 1;
            } else {
                let stack = &self.stacks[run as usize % self.stacks.len()];
                let free = frames.rev().filter(|frame| self.links.get(*frame) != IN_USE);
                free.for_each(|frame| stack.push(&self.links, Chain::one(frame)));
            }
        }
        whole
    }

    pub(super) fn statistics(&self) -> Statistics {
        let sum = |field: fn(&Cache<A>) -> &A::U64| -> u64 {
            self.caches.iter().map(|cache| field(cache).load(Relaxed)).sum()
        };
        let (taken, given) = (self.taken.load(Relaxed), self.given.load(Relaxed));
        Statistics {
            frames: u64::from(self.frames()),
            taken: sum(|cache| &cache.taken) + taken,
            given: sum(|cache| &cache.given) + given,
            runs_in_use: self.runs_in_use.load(Relaxed),
            runs_broken: self.runs_broken.load(Relaxed),
            refills: sum(|cache| &cache.refills),
            returns: sum(|cache| &cache.returns),
            past_cache: taken + given,
        }
    }

    /// Address and length of the memory that handlers touch.
    pub(super) fn spans(&self) -> [(usize, usize); 4] {
        let stacks = (self.stacks.as_ptr() as usize, size_of_val(&*self.stacks));
        let caches = (self.caches.as_ptr() as usize, size_of_val(&*self.caches));
        [self.links.span(), self.run_links.span(), stacks, caches]
    }

    #[inline]
    fn cache(&self, cache: u32) -> &Cache<A> {
        &self.caches[cache as usize % self.caches.len()]
    }
}
