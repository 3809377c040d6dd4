//! Loads: reading one chunk into one frame, until it is there whole and in one state, or cannot be had.
//!
//! A load is several requests at once. Reads that come back short are continued; errors that pass are tried again, a little
//! later each time; a chunk whose file changed while it was read is read again, because it may be torn.

use std::rc::Rc;

use rustix::io::Errno;

use super::files::Files;
use crate::board::Fault;
use crate::engine::{Completion, Engine, Read};
use crate::error;
use crate::memory::FRAME;
use crate::plan::Chunk;
use crate::source::Stamp;

/// How often a chunk is read whose file keeps changing.
const ATTEMPTS: u32 = 8;
/// How often a request is tried that fails for want of something.
const TRIES: u32 = 8;
/// After how long it is tried again, at first, in nanoseconds.
const PAUSE: u64 = 1_000_000;

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
    /// Who is told.
    pub owner: Owner,
    /// The files that the chunk's parts name.
    pub files: Rc<Files>,
    /// What to read.
    pub chunk: Chunk,
    /// Into which memory of the engine.
    pub memory: usize,
    /// Into which of its frames.
    pub frame: usize,
}

/// A load that is over.
pub struct Loaded {
    /// What was ordered.
    pub order: Order,
    /// The stamps of the chunk's files, between which and the next nothing changed; or what is wrong.
    pub outcome: Result<Vec<(u32, Stamp)>, Fault>,
    /// How long it took, in nanoseconds.
    pub took_ns: u64,
    /// Bytes that were read from the device.
    pub bytes_read: u64,
    /// How often all of it was read again.
    pub again: u32,
}

/// A request, of which a part may have come.
struct Request {
    file: u32,
    offset: u64,
    at: usize,
    len: usize,
    /// Bytes without which the chunk is not whole.
    need: usize,
    tries: u32,
}

struct Load {
    order: Order,
    requests: Vec<Request>,
    pending: usize,
    stamps: Vec<(u32, Stamp)>,
    fault: Option<Fault>,
    attempt: u32,
    began: u64,
    bytes_read: u64,
}

/// What a request has to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    token: u64,
}

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
        let mut load = Load {
            order,
            requests: Vec::new(),
            pending: 0,
            stamps: Vec::new(),
            fault: None,
            attempt: 0,
            began: now,
            bytes_read: 0,
        };
        load.read(engine, place);
        self.active += 1;
        self.places[place] = Some(load);
    }

    /// Takes a completion. `Later`: call [`retry`](Self::retry) then.
    pub fn complete(&mut self, engine: &mut dyn Engine, completion: Completion, now: u64) -> Progress {
        let (place, index) = split(completion.token);
        let load = self.places[place].as_mut().expect("tokens are of loads that are not over");
        if let Some(after) = load.take(engine, completion) {
            return Progress::Later(Retry { token: completion.token }, now + after);
        }
        debug_assert!(index < load.requests.len());
        self.look(engine, place, now)
    }

    /// Tries a request again.
    pub fn retry(&mut self, engine: &mut dyn Engine, retry: Retry, now: u64) -> Progress {
        let (place, index) = split(retry.token);
        let load = self.places[place].as_mut().expect("requests are pending while they wait");
        if load.fault.is_some() {
            load.pending -= 1;
            return self.look(engine, place, now);
        }
        load.submit(engine, place, index);
        Progress::Nothing
    }

    /// What follows when a request is over.
    fn look(&mut self, engine: &mut dyn Engine, place: usize, now: u64) -> Progress {
        let load = self.places[place].as_mut().expect("checked by the callers");
        if load.pending > 0 || load.goes_on(engine, place) {
            return Progress::Nothing;
        }
        let load = self.places[place].take().expect("as above");
        self.active -= 1;
        Progress::Over(Box::new(Loaded {
            outcome: load.fault.map_or(Ok(load.stamps), Err),
            took_ns: now.saturating_sub(load.began),
            bytes_read: load.bytes_read,
            again: load.attempt,
            order: load.order,
        }))
    }
}

/// What a completion led to.
pub enum Progress {
    /// There is more to come.
    Nothing,
    /// A request is to be tried again at a time.
    Later(Retry, u64),
    /// The load is over.
    Over(Box<Loaded>),
}

fn split(token: u64) -> (usize, usize) {
    ((token >> 32) as usize, token as u32 as usize)
}

impl Load {
    /// Begins to read all of it.
    fn read(&mut self, engine: &mut dyn Engine, place: usize) {
        let Order { files, chunk, frame, .. } = &self.order;
        self.stamps.clear();
        self.requests.clear();
        for part in &chunk.parts {
            let file = part.segment.file;
            if !self.stamps.iter().any(|(known, _)| *known == file)
                && let Some(stamp) = files.stamp(file)
            {
                self.stamps.push((file, stamp));
            }
            let needed = part.segment.offset + u64::from(part.segment.len);
            let mut from = part.from;
            while from < part.to {
                let to = files.cut(file, from, part.to);
                self.requests.push(Request {
                    file,
                    offset: from,
                    at: frame * FRAME + part.at as usize + (from - part.from) as usize,
                    len: (to - from) as usize,
                    need: (needed.min(to) - from) as usize,
                    tries: 0,
                });
                from = to;
            }
        }
        self.pending = self.requests.len();
        for index in 0..self.requests.len() {
            self.submit(engine, place, index);
        }
    }

    fn submit(&self, engine: &mut dyn Engine, place: usize, index: usize) {
        let Request { file, offset, at, len, .. } = self.requests[index];
        let (file, memory) = (self.order.files.id(file), self.order.memory);
        engine.submit(Read { token: (place as u64) << 32 | index as u64, file, offset, memory, at, len });
    }

    /// Takes a request's completion. `Some`: it is to be tried again after so long.
    fn take(&mut self, engine: &mut dyn Engine, completion: Completion) -> Option<u64> {
        let (place, index) = split(completion.token);
        let request = &mut self.requests[index];
        let unit = self.order.files.unit(request.file);
        let fault = |code, detail| Some(Fault { code, file: request.file, offset: request.offset, detail });
        let fault = match completion.result {
            Ok(count) if count >= request.need => {
                self.bytes_read += count as u64;
                None
            }
            // A part of it came, as much as can be continued after.
            Ok(count) if count >= unit => {
                let count = count / unit * unit;
                self.bytes_read += count as u64;
                request.offset += count as u64;
                request.at += count;
                request.len -= count;
                request.need -= count;
                request.tries = 0;
                self.submit(engine, place, index);
                return None;
            }
            Ok(count) => {
                self.bytes_read += count as u64;
                Some(Fault {
                    code: error::TRUNCATED,
                    file: request.file,
                    offset: request.offset + count as u64,
                    detail: 0,
                })
            }
            Err(Errno::AGAIN | Errno::INTR | Errno::NOMEM | Errno::NOBUFS | Errno::CANCELED)
                if request.tries < TRIES && self.fault.is_none() =>
            {
                request.tries += 1;
                return Some(PAUSE << request.tries);
            }
            Err(errno) => fault(error::READ, errno.raw_os_error() as u32),
        };
        self.pending -= 1;
        self.fault = self.fault.or(fault);
        None
    }

    /// When all requests are over: whether it has to be read once more, because its file changed.
    fn goes_on(&mut self, engine: &mut dyn Engine, place: usize) -> bool {
        let files = self.order.files.clone();
        let mut changed = None;
        for (file, before) in &self.stamps {
            let Some(now) = files.stamp(*file) else { continue };
            if files.replaced(*file, &now) {
                self.fault = Some(Fault { code: error::REPLACED, file: *file, offset: 0, detail: 0 });
                return false;
            }
            if now != *before {
                changed = Some(*file);
            }
        }
        let Some(file) = changed else { return false };
        if self.fault.is_some() {
            // Of a file that became shorter: it would be read for nothing.
            return false;
        }
        self.attempt += 1;
        if self.attempt < ATTEMPTS {
            self.read(engine, place);
            return true;
        }
        let part = self.order.chunk.parts.iter().find(|part| part.segment.file == file);
        let offset = part.map_or(0, |part| part.segment.offset);
        self.fault = Some(Fault { code: error::CHANGING, file, offset, detail: 0 });
        false
    }
}
