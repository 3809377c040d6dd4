//! The control loop (KzicIO, paper 3.4.2): one thread that reads for all channels.
//!
//! It is clocked by itself: completions, release times that are due and bells wake it, nothing else. Every time it
//! looks at all boards, releases what is due, submits it in one batch, and sleeps until something happens.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

use super::device::Device;
use super::files::Files;
use super::inbox::{Command, Founding, Inbox, Opening};
use super::loads::{Loaded, Loads, Order, Owner, Progress, Retry};
use super::pool::Pool;
use super::stream::{Stream, Wishes};
use super::wheel::Wheel;
use crate::clock::Clock;
use crate::engine::{Completion, Engine};
use crate::memory::Frames;
use crate::source::File;
use crate::{Error, Result};

/// Rings that are kept for channels to come, registered.
const SPARE: usize = 2;

/// What is due at a time.
enum Timer {
    /// A lane of a stream or a pool has rested.
    Rested(usize),
    /// A stream or a pool wants to be looked at.
    Look(usize),
    /// A request is to be tried again.
    Retry(Retry),
}

/// The loop's state; all of it belongs to its thread.
pub struct Control {
    engine: Box<dyn Engine>,
    inbox: Arc<Inbox>,
    clock: Clock,
    wheel: Wheel<Timer>,
    loads: Loads,
    /// By numbers that are not used again, for timers may outlive streams.
    streams: BTreeMap<usize, Stream>,
    next: usize,
    /// By numbers that no stream has.
    pools: BTreeMap<usize, Pool>,
    devices: HashMap<u64, Device>,
    /// Memory that the engine knows.
    memories: Vec<(Arc<Frames>, usize)>,
}

impl Control {
    /// With nothing to do.
    pub fn new(engine: Box<dyn Engine>, inbox: Arc<Inbox>, clock: Clock) -> Self {
        Self {
            engine,
            inbox,
            clock,
            wheel: Wheel::new(clock.now()),
            loads: Loads::default(),
            streams: BTreeMap::new(),
            next: 0,
            pools: BTreeMap::new(),
            devices: HashMap::new(),
            memories: Vec::new(),
        }
    }

    /// Runs until it is told to stop.
    pub fn run(mut self) {
        let mut complete: Vec<Completion> = Vec::new();
        let mut due: Vec<Timer> = Vec::new();
        loop {
            let stop = self.commands();
            for completion in complete.drain(..) {
                self.complete(completion);
            }
            self.wheel.advance(self.clock.now(), &mut due);
            for timer in due.drain(..) {
                self.fire(timer);
            }
            self.pump();
            self.inbox.count(self.census());
            if stop {
                break;
            }
            self.inbox.rounds.fetch_add(1, Relaxed);
            let timeout = self.wheel.next().map(|time| time.saturating_sub(self.clock.now()));
            self.engine.wait(timeout.map(Duration::from_nanos), &mut complete);
        }
        self.end();
    }

    /// Nobody listens any more: everything comes down, and workers are told.
    fn end(mut self) {
        for stream in self.streams.values_mut() {
            stream.closing = true;
        }
        let mut complete = Vec::new();
        while !self.loads.is_empty() {
            self.engine.wait(Some(Duration::from_millis(10)), &mut complete);
            for completion in std::mem::take(&mut complete) {
                self.complete(completion);
            }
            let mut due = Vec::new();
            self.wheel.advance(self.clock.now(), &mut due);
            due.into_iter().for_each(|timer| self.fire(timer));
        }
        self.streams.clear();
        self.pools.values_mut().for_each(Pool::expel);
    }

    /// Does what it was told. Whether it is to stop.
    fn commands(&mut self) -> bool {
        let (commands, stop) = self.inbox.take();
        for command in commands {
            match command {
                Command::Open(opening, answer) => {
                    let _ = answer.send(self.open(opening));
                }
                Command::Ranges(id, ranges, answer) => {
                    let stream = self.streams.get_mut(&id).expect("its worker has it open");
                    let result = stream.plan().add(&ranges).map(|count| {
                        // The board's total is what lets the worker go on: what is read for it comes from the plan.
                        let bytes = ranges.iter().map(|range| range.end - range.start).sum();
                        stream.board.service().total_bytes.fetch_add(bytes, Release);
                        stream.board.service().total.fetch_add(count, Release);
                    });
                    let _ = answer.send(result);
                }
                Command::Found(founding, answer) => {
                    let _ = answer.send(self.found(founding));
                }
                Command::Join(pool, board, answer) => {
                    let id = self.number();
                    let joined = match self.pools.get_mut(&pool) {
                        Some(pool) => pool.join(id, board, self.clock.now()).map(|()| id),
                        None => Err(Error::Gone),
                    };
                    let _ = answer.send(joined);
                }
                Command::Leave(pool, member) => {
                    if let Some(pool) = self.pools.get_mut(&pool) {
                        pool.leave(member);
                    }
                    self.dissolve(pool);
                }
                Command::Dissolve(pool) => {
                    if let Some(pool) = self.pools.get_mut(&pool) {
                        pool.closing = true;
                    }
                    self.dissolve(pool);
                }
                Command::Close(id) => {
                    if let Some(stream) = self.streams.get_mut(&id) {
                        stream.closing = true;
                    }
                    self.bury(id);
                }
            }
        }
        stop
    }

    fn open(&mut self, opening: Opening) -> Result<usize> {
        let Opening { board, frames, files, plan } = opening;
        let (files, memory) = self.add(files, &frames)?;
        let (id, now) = (self.number(), self.clock.now());
        self.streams.insert(id, Stream::new(id, board, files, frames, memory, plan, now));
        Ok(id)
    }

    fn found(&mut self, founding: Founding) -> Result<usize> {
        let Founding { frames, files, plan } = founding;
        let (files, memory) = self.add(files, &frames)?;
        let (id, now) = (self.number(), self.clock.now());
        self.pools.insert(id, Pool::new(id, files, frames, memory, plan, now));
        Ok(id)
    }

    /// Makes the engine know files and memory.
    fn add(&mut self, files: Vec<File>, frames: &Arc<Frames>) -> Result<(Rc<Files>, usize)> {
        let memory = match self.memories.iter().find(|(known, _)| Arc::ptr_eq(known, frames)) {
            Some((_, memory)) => *memory,
            None => {
                let memory = self.engine.add_memory(frames.clone())?;
                self.memories.push((frames.clone(), memory));
                memory
            }
        };
        match Files::add(&mut *self.engine, files) {
            Ok(files) => Ok((Rc::new(files), memory)),
            Err(error) => {
                self.forget(frames);
                Err(error)
            }
        }
    }

    fn number(&mut self) -> usize {
        self.next += 1;
        self.next
    }

    /// Forgets a pool that nobody can join and nobody is in.
    fn dissolve(&mut self, id: usize) {
        if !self.pools.get(&id).is_some_and(|pool| pool.closing && pool.is_down()) {
            return;
        }
        if let Some(pool) = self.pools.remove(&id) {
            pool.files.remove(&mut *self.engine);
            self.forget(&pool.frames);
        }
    }

    /// Forgets a stream of which nothing flies any more.
    fn bury(&mut self, id: usize) {
        if !self.streams.get(&id).is_some_and(|stream| stream.closing && stream.is_down()) {
            return;
        }
        let Some(stream) = self.streams.remove(&id) else { return };
        stream.files.remove(&mut *self.engine);
        // What another process has mapped shall not be read into for somebody else.
        if stream.frames.is_lent() || !self.inbox.spare(stream.frames.clone(), SPARE) {
            self.forget(&stream.frames);
        }
    }

    fn census(&self) -> [u64; 3] {
        let (members, frames) =
            self.pools.values().map(Pool::count).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        [self.streams.len() as u64 + members, self.pools.len() as u64, frames]
    }

    fn forget(&mut self, frames: &Arc<Frames>) {
        if let Some(at) = self.memories.iter().position(|(known, _)| Arc::ptr_eq(known, frames)) {
            let (_, memory) = self.memories.swap_remove(at);
            self.engine.remove_memory(memory);
        }
    }

    fn complete(&mut self, completion: Completion) {
        let now = self.clock.now();
        let progress = self.loads.complete(&mut *self.engine, completion, now);
        self.progress(progress, now);
    }

    fn fire(&mut self, timer: Timer) {
        match timer {
            Timer::Rested(id) => {
                if let Some(stream) = self.streams.get_mut(&id) {
                    stream.rested();
                } else if let Some(pool) = self.pools.get_mut(&id) {
                    pool.rested();
                }
            }
            // All are looked at in every round.
            Timer::Look(id) => {
                if let Some(stream) = self.streams.get_mut(&id) {
                    stream.armed = None;
                } else if let Some(pool) = self.pools.get_mut(&id) {
                    pool.armed = None;
                }
            }
            Timer::Retry(retry) => {
                let now = self.clock.now();
                let progress = self.loads.retry(&mut *self.engine, retry, now);
                self.progress(progress, now);
            }
        }
    }

    fn progress(&mut self, progress: Progress, now: u64) {
        match progress {
            Progress::Nothing => {}
            Progress::Later(retry, time) => self.wheel.insert(time, Timer::Retry(retry)),
            Progress::Over(loaded) => self.over(*loaded, now),
        }
    }

    fn over(&mut self, loaded: Loaded, now: u64) {
        let device = self.devices.entry(device_of(&loaded.order)).or_default();
        device.flying -= 1;
        if loaded.outcome.is_ok() && loaded.again == 0 {
            device.rate.sample(loaded.bytes_read, loaded.took_ns);
        }
        self.inbox.bytes_read.fetch_add(loaded.bytes_read, Relaxed);
        let id = match loaded.order.owner {
            Owner::Stream { stream, .. } => stream,
            Owner::Pool { pool: id, .. } => {
                let pool = self.pools.get_mut(&id).expect("it is not dissolved while something flies");
                if let Some(time) = pool.loaded(loaded, now, device) {
                    self.wheel.insert(time, Timer::Rested(id));
                }
                return self.dissolve(id);
            }
        };
        let stream = self.streams.get_mut(&id).expect("it is not buried while something flies");
        let changed = stream.is_news(&loaded);
        if let Some(time) = stream.loaded(loaded, now, device) {
            self.wheel.insert(time, Timer::Rested(id));
        }
        if changed {
            let mut orders = Vec::new();
            stream.check_age(now, true, &mut orders);
            self.begin(orders, now);
        }
        self.bury(id);
    }

    fn begin(&mut self, orders: Vec<Order>, now: u64) {
        for order in orders {
            self.devices.entry(device_of(&order)).or_default().flying += 1;
            self.loads.begin(&mut *self.engine, order, now);
        }
    }

    /// Looks at every board.
    fn pump(&mut self) {
        let now = self.clock.now();
        for (id, stream) in &mut self.streams {
            let device = self.devices.entry(stream.device()).or_default();
            let mut wishes = stream.pump(now, device);
            stream.check_age(now, false, &mut wishes.orders);
            arm(&mut self.wheel, &mut stream.armed, &wishes, *id);
            for order in wishes.orders {
                self.devices.entry(device_of(&order)).or_default().flying += 1;
                self.loads.begin(&mut *self.engine, order, now);
            }
        }
        for (id, pool) in &mut self.pools {
            let device = self.devices.entry(pool.device()).or_default();
            let wishes = pool.pump(now, device);
            arm(&mut self.wheel, &mut pool.armed, &wishes, *id);
            for order in wishes.orders {
                self.devices.entry(device_of(&order)).or_default().flying += 1;
                self.loads.begin(&mut *self.engine, order, now);
            }
        }
    }
}

/// Sets a timer, unless an earlier one is set.
fn arm(wheel: &mut Wheel<Timer>, armed: &mut Option<u64>, wishes: &Wishes, id: usize) {
    if let Some(time) = wishes.timer.filter(|time| armed.is_none_or(|armed| *time < armed)) {
        *armed = Some(time);
        wheel.insert(time, Timer::Look(id));
    }
}

fn device_of(order: &Order) -> u64 {
    order.chunk.parts.first().map_or(0, |part| order.files.device(part.segment.file))
}
