//! One load: its requests, and their results.
//!
//! It ends. A request has at most one read in flight. Whatever fails is halved until it is a page, so there are fewer than two
//! reads for each page of it; not any more [`SEARCH`] after the first failure, when each piece that is left is read once and
//! is good or bad as a whole; what fails for want of something is tried [`TRIES`] times more, all pieces together, before
//! it has failed; if a file changes, all is read [`ATTEMPTS`] times. So it is, a tick later each time, if a file was changed so
//! shortly before that another change would not show. Files that are not watched are read once, whatever happens to them.

use std::ops::Range;
use std::rc::Rc;

use rustix::io::Errno;

use super::{Loaded, Order, Outcome, Owner, Reading, split};
use crate::board::{Fault, Faults, Judgment, UNIT};
use crate::clock;
use crate::engine::{Completion, Engine, Read};
use crate::error;
use crate::memory::FRAME;
use crate::source::tick;

/// How often a chunk is read whose file keeps changing.
const ATTEMPTS: u32 = 8;
/// How often a request is tried that fails for want of something.
const TRIES: u32 = 8;
/// After how long it is tried again, at first, in nanoseconds.
const PAUSE: u64 = 1_000_000;

/// For how long after its first failure a load looks for what is bad, in nanoseconds. It is there for sectors that fail at
/// once, where it takes 2 ms for each read of the worst case. A device that tries for seconds before it fails would keep the
/// worker for minutes, for a few good pages beside bad ones.
pub(super) const SEARCH: u64 = 2_000_000_000;

/// A request, of which a part may have come. What is to come is read piece by piece after something in it failed.
struct Request {
    file: u32,
    /// Where the piece that is read now begins and ends in the file.
    offset: u64,
    end: u64,
    /// Where those after it end, from the last to the first; each begins where the one before it ends.
    later: Vec<u64>,
    /// The end of what is needed: the file may end there.
    needed: u64,
    /// Where the file's first byte would be in the frame, which may be far before it.
    origin: i64,
    tries: u32,
}

impl Request {
    /// Where a byte of the file goes in the frame.
    fn at(&self, offset: u64) -> usize {
        (self.origin + offset as i64) as usize
    }

    /// Halves the piece that failed, where pages meet. `false`: it is one page, or the end of one.
    fn halve(&mut self, page: u64) -> bool {
        let middle = (self.offset + (self.end - self.offset) / 2) / page * page;
        // What does not begin where a page does is cut where its first page ends.
        let cut = if middle > self.offset { middle } else { (self.offset / page + 1) * page };
        if cut >= self.end {
            return false;
        }
        self.later.push(std::mem::replace(&mut self.end, cut));
        true
    }

    /// Goes on to the next piece, if there is one.
    fn next(&mut self) -> bool {
        self.offset = self.end;
        self.later.pop().map(|end| self.end = end).is_some()
    }
}

/// The event that a load waits for.
pub enum Next {
    /// Completions of reads.
    Completions,
    /// All of it is to be read again, after so many nanoseconds.
    Again { after: u64 },
    /// Nothing: it is over.
    Nothing,
}

/// A load.
pub struct Load {
    order: Order,
    requests: Vec<Request>,
    /// Requests that are not over.
    pending: usize,
    outcome: Outcome,
    attempt: u32,
    began: u64,
    bytes_read: u64,
    /// When its reading began, by the kernel's monotonic clock.
    began_ns: u64,
    /// When something failed first.
    failed: Option<u64>,
    given_up: bool,
}

impl Load {
    /// One of which nothing is read yet.
    pub fn new(order: Order, now: u64) -> Self {
        Self {
            order,
            requests: Vec::new(),
            pending: 0,
            outcome: Outcome::default(),
            attempt: 0,
            began: now,
            bytes_read: 0,
            began_ns: 0,
            failed: None,
            given_up: false,
        }
    }

    /// For whom it is.
    pub fn owner(&self) -> Owner {
        self.order.owner
    }

    /// Nobody waits for it any more.
    pub fn give_up(&mut self) {
        self.given_up = true;
    }

    /// Whether nobody does.
    pub fn is_given_up(&self) -> bool {
        self.given_up
    }

    /// A request is over, with nothing.
    pub fn drop_request(&mut self) {
        self.pending -= 1;
    }

    /// Ends the load and returns its result.
    pub fn over(mut self, now: u64) -> Loaded {
        if self.given_up {
            // Not all of it was tried.
            let fault = Fault { code: error::READ, detail: Errno::CANCELED.raw_os_error() as u32 };
            self.outcome.faults = Some(Rc::new(Faults::everywhere(fault)));
            self.outcome.stamps.clear();
        }
        Loaded {
            outcome: self.outcome,
            took_ns: now.saturating_sub(self.began),
            bytes_read: self.bytes_read,
            again: self.attempt,
            order: self.order,
        }
    }

    /// Begins to read all of it.
    pub fn read(&mut self, engine: &mut dyn Engine, place: usize) {
        let Order { files, chunk, .. } = &self.order;
        self.outcome = Outcome::default();
        self.requests.clear();
        for part in &chunk.parts {
            let file = part.segment.file;
            let stamps = &mut self.outcome.stamps;
            if !stamps.iter().any(|(known, _)| *known == file) {
                let stamp = if files.are_watched() { files.stamp(file) } else { files.known_stamp(file) };
                stamps.extend(stamp.map(|stamp| (file, stamp)));
            }
            let needed = part.segment.offset + u64::from(part.segment.len);
            let origin = i64::from(part.at) - part.from as i64;
            let mut from = part.from;
            while from < part.to {
                let to = files.cut(file, from, part.to);
                self.requests.push(Request {
                    file,
                    offset: from,
                    end: to,
                    later: Vec::new(),
                    needed: needed.min(to),
                    origin,
                    tries: 0,
                });
                from = to;
            }
        }
        self.pending = self.requests.len();
        self.began_ns = clock::monotonic();
        for index in 0..self.requests.len() {
            self.submit(engine, place, index);
        }
    }

    /// Submits the next read of a request.
    pub fn submit(&self, engine: &mut dyn Engine, place: usize, index: usize) {
        let request = &self.requests[index];
        engine.submit(Read {
            token: (place as u64) << 32 | index as u64,
            file: self.order.files.id(request.file),
            offset: request.offset,
            memory: self.order.memory,
            at: self.order.frame * FRAME + request.at(request.offset),
            len: (request.end - request.offset) as usize,
        });
    }

    /// Takes a request's completion. `Some`: it is to be tried again after so long.
    pub fn take(&mut self, engine: &mut dyn Engine, completion: Completion, now: u64) -> Option<u64> {
        let (place, index) = split(completion.token);
        let request = &mut self.requests[index];
        let unit = self.order.files.unit(request.file);
        let page = self.order.page.max(unit) as u64;
        let need = (request.end.min(request.needed) - request.offset) as usize;
        let goes_on = match completion.result {
            Ok(count) if count >= need => {
                self.bytes_read += count as u64;
                request.next()
            }
            // A part of it came, as much as can be continued after.
            Ok(count) if count >= unit => {
                let count = (count / unit * unit) as u64;
                self.bytes_read += count;
                request.offset += count;
                request.tries = 0;
                true
            }
            Ok(count) => {
                self.bytes_read += count as u64;
                let end = request.offset + count as u64;
                let bytes = request.at(end)..request.at(request.needed);
                self.truncated(bytes);
                false
            }
            Err(Errno::AGAIN | Errno::INTR | Errno::NOMEM | Errno::NOBUFS | Errno::CANCELED)
                if request.tries < TRIES && !self.given_up =>
            {
                request.tries += 1;
                return Some(PAUSE << request.tries);
            }
            Err(errno) => {
                let searches = now < self.failed.get_or_insert(now).saturating_add(SEARCH);
                if searches && !self.given_up && request.halve(page) {
                    self.submit(engine, place, index);
                    return None;
                }
                let bytes = request.at(request.offset)..request.at(request.end);
                let goes_on = request.next();
                self.outcome.mark(bytes, Fault { code: error::READ, detail: errno.raw_os_error() as u32 });
                goes_on
            }
        };
        if goes_on && !self.given_up {
            self.submit(engine, place, index);
        } else {
            self.pending -= 1;
        }
        None
    }

    /// A file ends within these bytes of the frame, at the first of them.
    fn truncated(&mut self, bytes: Range<usize>) {
        let next = (bytes.start + 1).next_multiple_of(UNIT);
        self.outcome.mark(
            bytes.start..bytes.end.min(next),
            Fault { code: error::TRUNCATED, detail: (bytes.start % UNIT) as u32 },
        );
        if next < bytes.end {
            self.outcome.mark(next..bytes.end, Fault { code: error::TRUNCATED, detail: 0 });
        }
    }

    /// All of it was read, of files that are not watched: what came of that is left to its readers.
    fn judge(&mut self) {
        let files = &self.order.files;
        let judged = std::mem::take(&mut self.outcome.stamps).into_iter().map(|(file, before)| {
            let is_same = || files.known_stamp(file).is_some_and(|now| before.proves_unchanged(&now));
            let is_stable = files.waits_for_writes(file) && is_same();
            (file, Judgment { stamp: Some(before.to_words()), is_stable })
        });
        self.outcome.reading = Some(Rc::new(Reading { began_ns: self.began_ns, files: judged.collect() }));
    }

    /// Gives the event to wait for: requests may be pending, or all of it has to be read once more because a file changed.
    pub fn next(&mut self, engine: &mut dyn Engine, place: usize) -> Next {
        if self.pending > 0 {
            return Next::Completions;
        }
        if self.given_up {
            return Next::Nothing;
        }
        if !self.order.files.are_watched() {
            self.judge();
            return Next::Nothing;
        }
        let mut is_racy = false;
        let files = self.order.files.clone();
        let mut wrong: Vec<(u32, u32)> = Vec::new();
        for (file, before) in &self.outcome.stamps {
            match files.stamp(*file) {
                Some(now) if files.replaced(*file, &now) => wrong.push((*file, error::REPLACED)),
                Some(now) if now != *before => wrong.push((*file, error::CHANGING)),
                Some(_) if before.is_racy() => {
                    is_racy = true;
                    wrong.push((*file, error::CHANGING));
                }
                _ => {}
            }
        }
        if wrong.iter().any(|(_, code)| *code == error::CHANGING) {
            self.attempt += 1;
            if self.attempt < ATTEMPTS {
                if is_racy {
                    return Next::Again { after: tick() };
                }
                self.read(engine, place);
                return Next::Completions;
            }
        }
        for (file, code) in wrong {
            self.outcome.lose(&self.order.chunk, file, code);
        }
        Next::Nothing
    }
}
