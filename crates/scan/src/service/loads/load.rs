//! One load: its requests, and their results.
//!
//! A load always ends:
//!
//! A request has at most one read in flight. A piece that fails is halved until it is a page, so there are fewer than two reads
//! for each page. [`SEARCH`] after the first failure, halving stops: each remaining piece is read once, and is good or bad as a
//! whole. A read that fails for lack of a resource is tried [`TRIES`] more times, all pieces together, before it counts as
//! failed. If a file changes, the whole chunk is read up to [`ATTEMPTS`] times. The same holds, a tick later each time, for a
//! file that was changed so recently that another change would not show. Files that are not watched are read once.

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

/// Number of times that a chunk is read whose file keeps changing.
const ATTEMPTS: u32 = 8;
/// Number of times that a request is repeated that fails for lack of a resource.
const TRIES: u32 = 8;
/// Time before the first repetition, in nanoseconds.
const PAUSE: u64 = 1_000_000;

/// Time after its first failure during which a load searches for bad pages, in nanoseconds. The search suits sectors that fail at
/// once: it has 2 ms for each read of the worst case. A device that tries for seconds before it fails would keep the worker
/// waiting for minutes, for a few good pages beside bad ones.
pub(super) const SEARCH: u64 = 2_000_000_000;

/// A request, of which a part may have arrived. After a failure, the rest is read piece by piece.
struct Request {
    file: u32,
    /// The beginning and the end in the file of the piece that is being read.
    offset: u64,
    end: u64,
    /// The ends of the later pieces, from the last to the first. Each piece begins where the previous one ends.
    later: Vec<u64>,
    /// The end of the needed bytes. The file may end there.
    needed: u64,
    /// The position of the file's first byte in the frame, which may be far before the frame.
    origin: i64,
    tries: u32,
}

impl Request {
    /// The position in the frame of a byte of the file.
    fn at(&self, offset: u64) -> usize {
        (self.origin + offset as i64) as usize
    }

    /// Halves the piece that failed, at a page boundary. `false`: the piece is one page, or the end of one.
    fn halve(&mut self, page: u64) -> bool {
        let middle = (self.offset + (self.end - self.offset) / 2) / page * page;
        // A piece that does not begin at a page boundary is cut at the end of its first page.
        let cut = if middle > self.offset { middle } else { (self.offset / page + 1) * page };
        if cut >= self.end {
            return false;
        }
        self.later.push(std::mem::replace(&mut self.end, cut));
        true
    }

    /// Moves to the next piece, if there is one.
    fn next(&mut self) -> bool {
        self.offset = self.end;
        self.later.pop().map(|end| self.end = end).is_some()
    }
}

/// The event that a load waits for.
pub enum Next {
    /// Completions of reads.
    Completions,
    /// The time to read all of it again, in nanoseconds from now.
    Again { after: u64 },
    /// Nothing: the load is over.
    Nothing,
}

/// A load.
pub struct Load {
    order: Order,
    requests: Vec<Request>,
    /// Number of requests that are not over.
    pending: usize,
    outcome: Outcome,
    attempt: u32,
    began: u64,
    bytes_read: u64,
    /// The time when its reading began, by the kernel's monotonic clock.
    began_ns: u64,
    /// The time of the first failure.
    failed: Option<u64>,
    given_up: bool,
}

impl Load {
    /// Creates a load of which nothing has been read yet.
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

    /// The owner of the load.
    pub fn owner(&self) -> Owner {
        self.order.owner
    }

    /// Records that the owner does not wait for it any more.
    pub fn give_up(&mut self) {
        self.given_up = true;
    }

    /// Whether the owner does not wait for it any more.
    pub fn is_given_up(&self) -> bool {
        self.given_up
    }

    /// Ends a request without a result.
    pub fn drop_request(&mut self) {
        self.pending -= 1;
    }

    /// Ends the load and returns its result.
    pub fn over(mut self, now: u64) -> Loaded {
        if self.given_up {
            // A load that was given up may not have tried all of its pages.
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

    /// Takes a request's completion. `Some`: the request must be tried again after this time.
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
            // A part arrived that is long enough to continue after it.
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

    /// Records that a file ends at the first of these bytes of the frame.
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

    /// Records the judgments of a complete read of files that are not watched. Their readers decide what to do with them.
    fn judge(&mut self) {
        let files = &self.order.files;
        let judged = std::mem::take(&mut self.outcome.stamps).into_iter().map(|(file, before)| {
            let is_same = || files.known_stamp(file).is_some_and(|now| before.proves_unchanged(&now));
            let is_stable = files.waits_for_writes(file) && is_same();
            (file, Judgment { stamp: Some(before.to_words()), is_stable })
        });
        self.outcome.reading = Some(Rc::new(Reading { began_ns: self.began_ns, files: judged.collect() }));
    }

    /// Returns the event to wait for: pending requests, or another read of the whole chunk because a file changed.
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
