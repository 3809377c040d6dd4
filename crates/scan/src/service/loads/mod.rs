//! Loads: reading one chunk into one frame, until it is there in one state, but for the pages that cannot be had.
//!
//! A load is several requests at once. Reads that come back short are continued; errors that pass are tried again, a little
//! later each time; of what fails for good each half is read again, for a while, until what is bad is found; a chunk whose file changed while
//! it was read is read again, because it may be torn. All of this ends: see [`load`].

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

/// For whom a chunk is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A private channel, and the number that it gave the chunk.
    Stream {
        /// Which one.
        stream: usize,
        /// The chunk's number.
        number: u64,
    },
    /// A pool, and which chunk of its files it is.
    Pool {
        /// Which one.
        pool: usize,
        /// Which chunk.
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
    /// Into which memory of the engine.
    pub memory: usize,
    /// Into which of its frames.
    pub frame: usize,
    /// The smallest pages of those who read it, in bytes: less than one of these cannot be had.
    pub page: usize,
}

/// A load that is over.
pub struct Loaded {
    /// The order of the load.
    pub order: Order,
    /// The result of the load.
    pub outcome: Outcome,
    /// How long it took, in nanoseconds.
    pub took_ns: u64,
    /// Bytes that were read from the device.
    pub bytes_read: u64,
    /// How often all of it was read again.
    pub again: u32,
}

/// What is known of a chunk that was loaded.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The stamps of its files before it was read: it is what those are as long as they have these. None of a file whose part
    /// of it is lost.
    pub stamps: Vec<(u32, Stamp)>,
    /// The parts that could not be read.
    pub faults: Option<Rc<Faults>>,
    /// How it was read, if its files are not watched; then there are no stamps above, so that it is never old.
    pub reading: Option<Rc<Reading>>,
}

/// How a chunk of files that are not watched was read: once.
#[derive(Debug, Default)]
pub struct Reading {
    /// Before the first read was submitted, by the kernel's monotonic clock.
    pub began_ns: u64,
    /// What its bytes are judged by, of files that have stamps.
    pub files: Vec<(u32, Judgment)>,
}

impl Reading {
    /// What bytes of a file are judged by.
    pub fn of(&self, file: u32) -> Judgment {
        self.files
            .iter()
            .find(|(known, _)| *known == file)
            .map_or_else(Judgment::default, |(_, judgment)| *judgment)
    }
}

impl Outcome {
    /// Some bytes of the frame could not be had.
    pub fn mark(&mut self, bytes: Range<usize>, fault: Fault) {
        let faults = self.faults.get_or_insert_with(|| Rc::new(Faults::none()));
        Rc::make_mut(faults).mark(bytes, fault);
    }

    /// What a chunk has of a file is not what that is.
    pub fn lose(&mut self, chunk: &Chunk, file: u32, code: u32) {
        self.stamps.retain(|(other, _)| *other != file);
        for part in chunk.parts.iter().filter(|part| part.segment.file == file) {
            let start = part.at as usize;
            self.mark(start..start + (part.to - part.from) as usize, Fault { code, detail: 0 });
        }
    }

    /// Files that have another stamp now, by what `now` says of them.
    pub fn changed(&self, mut now: impl FnMut(u32) -> Option<Stamp>) -> Vec<u32> {
        let differs = |(file, old): &&(u32, Stamp)| now(*file).is_some_and(|now| now != *old);
        self.stamps.iter().filter(differs).map(|(file, _)| *file).collect()
    }
}

/// A request, or all of a load, that waits for its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    token: u64,
}

/// In the place of a request: all of the load.
const ALL: usize = u32::MAX as usize;

/// All loads. `Load`s are at places of their own, and a token is a place and a request of it.
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

    /// Takes a completion. `Later`: call [`retry`](Self::retry) then.
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

    /// Nobody waits any more for what these owners ordered: what flies comes down, and nothing is tried again.
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
    /// There is more to come.
    Nothing,
    /// A request, or all of a load, is to be tried again at a time.
    Later(Retry, u64),
    /// The load is over.
    Over(Box<Loaded>),
}

fn split(token: u64) -> (usize, usize) {
    ((token >> 32) as usize, token as u32 as usize)
}
