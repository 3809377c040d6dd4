//! The control loop (KzicIO, paper 3.4.2): one thread that reads for all channels.
//!
//! The loop wakes only for completions, due release times and bells. Each time, it checks all boards, releases the due requests,
//! submits them in one batch, and sleeps until the next event. `openings` has the commands to open and to close.

#[cfg(test)]
mod fairness_tests;
mod openings;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::device::Device;
use super::inbox::Inbox;
use super::loads::{Loaded, Loads, Order, Owner, Progress, Retry};
use super::pool::Pool;
use super::stream::{Stream, Wishes};
use super::wheel::Wheel;
use crate::clock::Clock;
use crate::engine::{Completion, Engine};

/// An event that is due at a time.
enum Timer {
    /// The rest of a lane of a stream or a pool has ended.
    Rested(usize),
    /// A stream or a pool must be checked.
    Look(usize),
    /// A request must be retried.
    Retry(Retry),
}

/// The loop's state. All of it belongs to its thread.
pub struct Control {
    engine: Box<dyn Engine>,
    inbox: Arc<Inbox>,
    clock: Clock,
    wheel: Wheel<Timer>,
    loads: Loads,
    /// Streams by numbers that are not reused, because timers may outlive streams.
    streams: BTreeMap<usize, Stream>,
    next: usize,
    /// Pools by numbers that no stream has.
    pools: BTreeMap<usize, Pool>,
    devices: HashMap<u64, Device>,
    /// The stream or pool that the last round began with.
    first: usize,
    /// Streams and pools in the order of a round. Between rounds, only its memory is reused.
    turns: Vec<usize>,
}

impl Control {
    /// Creates a loop with nothing to do.
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
            first: 0,
            turns: Vec::new(),
        }
    }

    /// Runs until it is stopped.
    pub fn run(mut self) {
        // Workers wait for this thread, and may use all processors. It also works without a short slice.
        let _ = bedplate_threads::slice::shorten();
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
            self.count();
            if stop {
                break;
            }
            self.inbox.rounds.fetch_add(1, Relaxed);
            let timeout = self.wheel.next().map(|time| time.saturating_sub(self.clock.now()));
            self.engine.wait(timeout.map(Duration::from_nanos), &mut complete);
        }
        self.end();
    }

    /// No thread sends commands any more: waits for all reads, and tells the workers.
    fn end(mut self) {
        for stream in self.streams.values_mut() {
            stream.closing = true;
        }
        self.loads.give_up(|_| true);
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

    /// Publishes the numbers of workers, pools and frames, for the threads that ask for them.
    fn count(&self) {
        self.inbox.count(self.census());
    }

    fn census(&self) -> [u64; 3] {
        let (members, frames) =
            self.pools.values().map(Pool::count).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        [self.streams.len() as u64 + members, self.pools.len() as u64, frames]
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
            // Every round checks all of them.
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
        if loaded.outcome.faults.is_none() && loaded.again == 0 {
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
                return self.desert(id);
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

    /// Checks every board. Each round begins with the stream or pool after the first one of the previous round. So streams that
    /// use all reads that a device may do at a time do not keep it from the others.
    fn pump(&mut self) {
        let now = self.clock.now();
        let mut turns = std::mem::take(&mut self.turns);
        turns.clear();
        turns.extend(self.streams.keys().chain(self.pools.keys()));
        turns.sort_unstable();
        let count = turns.partition_point(|id| *id <= self.first);
        // All of them have been first in a round, so it is the turn of the first one again.
        if count < turns.len() {
            turns.rotate_left(count);
        }
        self.first = turns.first().copied().unwrap_or(0);
        for id in &turns {
            self.pump_one(*id, now);
        }
        self.turns = turns;
    }

    /// Checks the board of a stream, or the boards of a pool.
    fn pump_one(&mut self, id: usize, now: u64) {
        let wishes = if let Some(stream) = self.streams.get_mut(&id) {
            let device = self.devices.entry(stream.device()).or_default();
            let mut wishes = stream.pump(now, device);
            stream.check_age(now, false, &mut wishes.orders);
            arm(&mut self.wheel, &mut stream.armed, &wishes, id);
            wishes
        } else if let Some(pool) = self.pools.get_mut(&id) {
            let device = self.devices.entry(pool.device()).or_default();
            let wishes = pool.pump(now, device);
            arm(&mut self.wheel, &mut pool.armed, &wishes, id);
            wishes
        } else {
            return;
        };
        self.begin(wishes.orders, now);
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
