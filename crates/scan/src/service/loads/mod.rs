//! Loads: reading one chunk into one frame, until the frame has one consistent state of it, except for pages that cannot be read.
//!
//! A load has several requests at once. Short reads are continued. Transient errors are retried, a little later each time. After
//! a permanent error, each half of the piece is read again, for a while, to find the bad pages. A chunk whose file changed during
//! the read is read again, because it may be torn. Each of these steps is bounded: see [`load`].

mod load;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::rc::Rc;

use super::files::Files;
use crate::board::{Fault, Faults, Judgment};
use crate::engine::{Completion, Engine};
use crate::plan::Chunk;
use crate::source::Stamp;
use load::{Load, Next};

/// The owner of a loaded chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A private channel, and the number that it gave the chunk.
    Stream {
        /// The channel.
        stream: usize,
        /// The chunk's number.
        number: u64,
    },
    /// A pool, and a chunk of its files.
    Pool {
        /// The pool.
        pool: usize,
        /// The chunk.
        chunk: usize,
    },
}

/// A load to begin.
pub struct Order {
    /// The stream or pool that learns the result.
    pub owner: Owner,
    /// The files that the chunk's parts name.
    pub files: Rc<Files>,
    /// The bytes to read.
    pub chunk: Chunk,
    /// The memory of the engine to read into.
    pub memory: usize,
    /// The frame in this memory.
    pub frame: usize,
    /// The smallest page size of its readers, in bytes. Errors have this granularity.
    pub page: usize,
}

/// A load that is over.
pub struct Loaded {
    /// The order of the load.
    pub order: Order,
    /// The result of the load.
    pub outcome: Outcome,
    /// Time that the load took, in nanoseconds.
    pub took_ns: u64,
    /// Bytes that were read from the device.
    pub bytes_read: u64,
    /// Number of times that all of it was read again.
    pub again: u32,
}

/// The properties of a loaded chunk.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The stamps of its files before the read. The chunk is current as long as the files have these stamps. A file whose part is
    /// lost has none.
    pub stamps: Vec<(u32, Stamp)>,
    /// The parts that could not be read.
    pub faults: Option<Rc<Faults>>,
    /// The reading of files that are not watched. There are no stamps then, so the chunk never counts as old.
    pub reading: Option<Rc<Reading>>,
}

/// The single read of a chunk whose files are not watched.
#[derive(Debug, Default)]
pub struct Reading {
    /// The time before the first read was submitted, by the kernel's monotonic clock.
    pub began_ns: u64,
    /// The judgments of files that have stamps.
    pub files: Vec<(u32, Judgment)>,
}

impl Reading {
    /// The judgment of the bytes of a file.
    pub fn of(&self, file: u32) -> Judgment {
        self.files
            .iter()
            .find(|(known, _)| *known == file)
            .map_or_else(Judgment::default, |(_, judgment)| *judgment)
    }
}

impl Outcome {
    /// Records that some bytes of the frame could not be read.
    pub fn mark(&mut self, bytes: Range<usize>, fault: Fault) {
        let faults = self.faults.get_or_insert_with(|| Rc::new(Faults::none()));
        Rc::make_mut(faults).mark(bytes, fault);
    }

    /// Records that the chunk's part of a file differs from the file.
    pub fn lose(&mut self, chunk: &Chunk, file: u32, code: u32) {
        self.stamps.retain(|(other, _)| *other != file);
        for part in chunk.parts.iter().filter(|part| part.segment.file == file) {
            let start = part.at as usize;
            self.mark(start..start + (part.to - part.from) as usize, Fault { code, detail: 0 });
        }
    }

    /// The files whose stamp has changed, where `now` returns the current stamp.
    pub fn changed(&self, mut now: impl FnMut(u32) -> Option<Stamp>) -> Vec<u32> {
        let differs = |(file, old): &&(u32, Stamp)| now(*file).is_some_and(|now| now != *old);
        self.stamps.iter().filter(differs).map(|(file, _)| *file).collect()
    }
}

/// A request, or a whole load, that waits for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    token: u64,
}

/// Stands for the whole load instead of a request.
const ALL: usize = u32::MAX as usize;

/// All loads. Each `Load` has a place, and a token consists of a place and a request.
#[derive(Default)]
pub struct Loads {
    places: Vec<Option<Load>>,
    active: usize,
}

impl Loads {
    /// Whether nothing is being loaded.
    pub fn is_empty(&self) -> bool {
        self.active == 0
    }

    /// Begins a load.
    pub fn begin(&mut self, engine: &mut dyn Engine, order: Order, now: u64) {
        let place = self.places.iter().position(Option::is_none).unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        let mut load = Load::new(order, now);
        load.read(engine, place);
        self.active += 1;
        self.places[place] = Some(load);
    }

    /// Takes a completion. `Later`: the caller must call [`retry`](Self::retry) at that time.
    pub fn complete(&mut self, engine: &mut dyn Engine, completion: Completion, now: u64) -> Progress {
        let (place, _) = split(completion.token);
        let load = self.places[place].as_mut().expect("tokens are of loads that are not over");
        if let Some(after) = load.take(engine, completion, now) {
            return Progress::Later(Retry { token: completion.token }, now + after);
        }
        self.look(engine, place, now)
    }

    /// Tries a request, or all of a load, again.
    pub fn retry(&mut self, engine: &mut dyn Engine, retry: Retry, now: u64) -> Progress {
        let (place, index) = split(retry.token);
        let load = self.places[place].as_mut().expect("requests are pending while they wait");
        match (index, load.is_given_up()) {
            (ALL, true) => return self.look(engine, place, now),
            (ALL, false) => load.read(engine, place),
            (_, true) => {
                load.drop_request();
                return self.look(engine, place, now);
            }
            (_, false) => load.submit(engine, place, index),
        }
        Progress::Nothing
    }

    /// Abandons the loads of these owners: reads in flight complete, and nothing is retried.
    pub fn give_up(&mut self, whose: impl Fn(Owner) -> bool) {
        for load in self.places.iter_mut().flatten() {
            if whose(load.owner()) {
                load.give_up();
            }
        }
    }

    /// Decides the next step after a request is over.
    fn look(&mut self, engine: &mut dyn Engine, place: usize, now: u64) -> Progress {
        let load = self.places[place].as_mut().expect("checked by the callers");
        match load.next(engine, place) {
            Next::Completions => return Progress::Nothing,
            Next::Again { after } => {
                let token = (place as u64) << 32 | ALL as u64;
                return Progress::Later(Retry { token }, now + after);
            }
            Next::Nothing => {}
        }
        let load = self.places[place].take().expect("as above");
        self.active -= 1;
        Progress::Over(Box::new(load.over(now)))
    }
}

/// The result of a completion.
pub enum Progress {
    /// The load continues.
    Nothing,
    /// A request, or a whole load, must be retried at a time.
    Later(Retry, u64),
    /// The load is over.
    Over(Box<Loaded>),
}

fn split(token: u64) -> (usize, usize) {
    ((token >> 32) as usize, token as u32 as usize)
}
