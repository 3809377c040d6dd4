//! A channel: one worker's stream of pages.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::thread::futex;
use rustix::time::Timespec;

use super::pieces::Rest;
use super::{Link, Page, Piece};
use crate::board::{Board, Closed, SEGMENTS, SLEEPS, State, Want};
use crate::clock::Clock;
use crate::memory::{FRAME, Mapping, Pages};
use crate::plan::Range;
use crate::{Error, Result};

/// How long a worker sleeps before it looks whether the service is still there.
const PATIENCE: Duration = Duration::from_millis(100);

/// What [`Channel::get_page`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Got {
    /// A page; return it by [`Channel::put_page`].
    Page(Piece),
    /// Nothing yet.
    NotYet,
    /// The scan is over, unless ranges are added.
    End,
}

/// The frame that a worker reads.
#[derive(Clone, Copy, Debug)]
struct InUse {
    slot: usize,
    frame: usize,
    segments: usize,
    /// The next segment to begin.
    segment: usize,
    rest: Option<Rest>,
    bytes: u64,
}

/// One worker's stream of pages, in order unless it shares them with others. It has at most one page at a time (paper 4.2.3).
pub struct Channel {
    board: Arc<Board>,
    frames: Arc<Mapping>,
    link: Box<dyn Link>,
    clock: Clock,
    page_size: usize,
    in_use: Option<InUse>,
    /// A piece is out.
    held: bool,
    /// The slot of the next page.
    cursor: usize,
    /// Pages that were returned.
    returned: u64,
    /// Since when this worker wants a page and has none.
    starved_since: Option<u64>,
    /// When it last looked whether the service is still there.
    asked: u64,
    /// When it had all its time to itself last: the last return, or the end of the last wait.
    since: u64,
    direct: Vec<std::result::Result<(), Errno>>,
    pages: Pages,
    /// Chunks come in the order of the scan; those of a pool come as it has them.
    in_order: bool,
}

/// What a channel reads.
pub(crate) struct Memory {
    pub frames: Arc<Mapping>,
    pub pages: Pages,
    pub direct: Vec<std::result::Result<(), Errno>>,
    pub in_order: bool,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel")
            .field("returned", &self.returned)
            .field("held", &self.held)
            .finish_non_exhaustive()
    }
}

// SAFETY: the only pointers are into the channel's own mapping, in pieces that go with it.
unsafe impl Send for Channel {}

/// What a channel did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Frames that were read by the worker.
    pub frames: u64,
    /// Bytes that were read by the worker.
    pub bytes: u64,
    /// Nanoseconds that the worker took for them.
    pub ingest_ns: u64,
    /// How often there was no page when the worker wanted one.
    pub starved: u64,
    /// Nanoseconds that it wanted one in vain.
    pub starved_ns: u64,
    /// System calls that it made.
    pub calls: u64,
    /// Bytes that were read from files.
    pub bytes_read: u64,
    /// How often a chunk was read again because its file changed meanwhile.
    pub read_again: u64,
    /// Frames that were taken back before the worker used them.
    pub reclaimed: u64,
    /// Frames that are there now and unread.
    pub unread: u64,
    /// How many there may be as things are.
    pub watermark: u64,
}

impl Channel {
    pub(crate) fn new(board: Arc<Board>, memory: Memory, link: Box<dyn Link>, page_size: usize) -> Self {
        let clock = board.clock();
        let Memory { frames, pages, direct, in_order } = memory;
        Self {
            board,
            frames,
            link,
            clock,
            page_size,
            in_use: None,
            held: false,
            cursor: 0,
            returned: 0,
            starved_since: None,
            asked: 0,
            since: 0,
            direct,
            pages,
            in_order,
        }
    }

    /// The next page, if it is there; never waits. Return it before you ask for another.
    ///
    /// # Errors
    /// The page cannot be had: [`Error::Read`], [`Error::Truncated`], [`Error::Changing`], [`Error::Replaced`]; the scan
    /// may go on with the next. [`Error::Held`]: the last page is out. [`Error::Gone`]: the service has ended.
    pub fn get_page(&mut self) -> Result<Got> {
        if self.held {
            return Err(Error::Held);
        }
        if self.in_use.is_none() && !self.take()? {
            if self.returned >= self.board.service().total.load(Acquire) {
                return Ok(Got::End);
            }
            match self.board.closed() {
                Some(Closed::Gone) => return Err(Error::Gone),
                Some(Closed::Broken) => return Err(broken()),
                None => {}
            }
            let now = self.clock.now();
            if self.starved_since.is_none() {
                add(&self.board.worker().starved, 1);
                self.starved_since = Some(now);
                self.asked = now;
            }
            // Who polls asks as often as who sleeps: a service that was killed has told nobody.
            if now.saturating_sub(self.asked) < PATIENCE.as_nanos() as u64 {
                return Ok(Got::NotYet);
            }
            self.asked = now;
            if self.link.is_alive() {
                return Ok(Got::NotYet);
            }
            // What it published before it died is good.
            if !self.take()? {
                return Err(Error::Gone);
            }
        }
        self.next_piece()
    }

    /// Returns the page.
    ///
    /// # Errors
    /// [`Error::NotHeld`]: none is out.
    pub fn put_page(&mut self) -> Result<()> {
        if !self.held {
            return Err(Error::NotHeld);
        }
        self.held = false;
        let in_use = self.in_use.as_mut().expect("what is out is of a frame");
        if in_use.rest.is_some_and(|mut rest| rest.next().is_none()) {
            in_use.rest = None;
        }
        if in_use.rest.is_none() && in_use.segment == in_use.segments {
            self.finish();
        }
        Ok(())
    }

    /// The next page; waits for it. `None`: the scan is over. It is returned when it is dropped.
    ///
    /// # Errors
    /// As [`get_page`](Self::get_page).
    pub fn next_page(&mut self) -> Result<Option<Page<'_>>> {
        loop {
            match self.get_page()? {
                Got::Page(piece) => return Ok(Some(Page::new(self, piece))),
                Got::End => return Ok(None),
                Got::NotYet => {
                    self.wait(None)?;
                }
            }
        }
    }

    /// Waits until [`get_page`](Self::get_page) has something to say, or for a time; whether it has.
    ///
    /// # Errors
    /// [`Error::Held`], [`Error::Gone`].
    pub fn wait(&mut self, most: Option<Duration>) -> Result<bool> {
        if self.held {
            return Err(Error::Held);
        }
        let deadline = most.map(|time| Instant::now() + time);
        while !self.has_news() {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(false);
            }
            self.sleep(left.map_or(PATIENCE, |left| left.min(PATIENCE)));
            if !self.has_news() && !self.link.is_alive() {
                return Err(Error::Gone);
            }
        }
        Ok(true)
    }

    fn has_news(&self) -> bool {
        self.in_use.is_some()
            || self.slots().any(|slot| self.board.entries()[slot].word.state() == State::Ready)
            || self.returned >= self.board.service().total.load(Acquire)
            || self.board.closed().is_some()
    }

    /// Where the next chunk may be.
    fn slots(&self) -> impl Iterator<Item = usize> + use<> {
        let (count, cursor) = (self.board.entries().len(), self.cursor);
        (0..if self.in_order { 1 } else { count }).map(move |step| (cursor + step) % count)
    }

    /// Sleeps until the service wakes this worker, or for a time.
    fn sleep(&mut self, most: Duration) {
        let sleeper = &self.board.service().sleeper;
        sleeper.prepare();
        if !self.has_news() {
            if self.board.worker().bell.must_ring(Want::Starving) {
                add(&self.board.worker().calls, 1);
                self.link.ring();
            }
            add(&self.board.worker().calls, 1);
            let time = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: i64::from(most.subsec_nanos()) };
            // Woken, interrupted, too late to sleep, or long enough: it is looked at again either way.
            let _ = futex::wait(sleeper.word(), futex::Flags::empty(), SLEEPS, Some(&time));
        }
        sleeper.awake();
    }

    /// Adds ranges to the scan, to come after those it has.
    ///
    /// # Errors
    /// A range is not in its file; the service has ended.
    pub fn notify_ranges(&mut self, ranges: &[Range]) -> Result<()> {
        self.link.notify_ranges(ranges)
    }

    /// Takes the next frame. Whether it was there.
    fn take(&mut self) -> Result<bool> {
        let Some(slot) = self.slots().find(|slot| self.board.entries()[*slot].word.take()) else {
            return Ok(false);
        };
        let entry = &self.board.entries()[slot];
        let now = self.clock.now();
        let words = self.board.worker();
        if let Some(since) = self.starved_since.take() {
            add(&words.starved_ns, now.saturating_sub(since));
            self.since = now;
        }
        if self.since == 0 {
            self.since = now;
        }
        words.first_access_ns.store(now, Relaxed);
        let content = entry.content();
        let (frame, segments) = *content.as_ref().unwrap_or(&(0, 0));
        self.in_use = Some(InUse {
            slot,
            frame: frame as usize,
            segments: (segments as usize).min(SEGMENTS),
            segment: 0,
            rest: None,
            bytes: 0,
        });
        match content {
            Ok(_) if segments > 0 => Ok(true),
            Ok(_) => {
                self.finish();
                Err(Error::Protocol("the service published a page of nothing".into()))
            }
            Err(fault) => {
                self.finish();
                Err(Error::of(fault))
            }
        }
    }

    fn next_piece(&mut self) -> Result<Got> {
        let in_use = self.in_use.as_mut().expect("checked by the caller");
        let found = loop {
            if let Some(segment) = in_use.rest.as_mut().and_then(Rest::next) {
                break Some(segment);
            }
            if in_use.segment == in_use.segments {
                break None;
            }
            let segment = self.board.segments(in_use.slot)[in_use.segment].get();
            let end = segment.at.checked_add(segment.len);
            if segment.offset > u64::MAX / 2 || end.is_none_or(|end| end as usize > FRAME) {
                break None;
            }
            in_use.rest = Some(Rest::new(segment, self.page_size));
            in_use.segment += 1;
        };
        let place = found.and_then(|segment| {
            let end = (segment.at as usize).checked_add(segment.len as usize).filter(|end| *end <= FRAME)?;
            let start = in_use.frame.checked_mul(FRAME)?;
            start.checked_add(end).filter(|end| *end <= self.frames.bytes())?;
            Some((segment, start + segment.at as usize))
        });
        let Some((segment, at)) = place else {
            self.finish();
            return Err(Error::Protocol("the service published a page outside of its memory".into()));
        };
        in_use.bytes += u64::from(segment.len);
        self.held = true;
        // SAFETY: within the mapping, as was checked.
        let start = unsafe { self.frames.start().add(at) };
        Ok(Got::Page(Piece { file: segment.file, offset: segment.offset, start, len: segment.len as usize }))
    }

    /// The frame's last page was returned: the service may have it.
    fn finish(&mut self) {
        let Some(in_use) = self.in_use.take() else { return };
        let (now, words) = (self.clock.now(), self.board.worker());
        add(&words.ingest_ns, now.saturating_sub(self.since));
        add(&words.bytes, in_use.bytes);
        add(&words.pages, 1);
        words.returned_ns.store(now, Relaxed);
        words.first_access_ns.store(0, Relaxed);
        self.since = now;
        self.returned += 1;
        self.cursor = (in_use.slot + 1) % self.board.entries().len();
        self.board.entries()[in_use.slot].word.finish();
        if words.bell.must_ring(Want::Returned) {
            add(&words.calls, 1);
            self.link.ring();
        }
    }

    /// How many bytes the scan has, with the ranges that were added.
    pub fn total_bytes(&self) -> u64 {
        self.board.service().total_bytes.load(Acquire)
    }

    /// The size of pages; those at ends of ranges may be shorter.
    pub fn page_size(&self) -> usize {
        self.page_size
    }

    /// How many files the scan has.
    pub fn files(&self) -> usize {
        self.direct.len()
    }

    /// Whether reads of a file of the scan go past the page cache; if they do not, why.
    pub fn is_direct(&self, file: u32) -> std::result::Result<(), Errno> {
        self.direct.get(file as usize).copied().unwrap_or(Ok(()))
    }

    /// What the memory of pages is made of.
    pub fn memory(&self) -> Pages {
        self.pages
    }

    /// What it did so far.
    pub fn statistics(&self) -> Statistics {
        let (worker, service) = (self.board.worker(), self.board.service());
        let get = |word: &AtomicU64| word.load(Relaxed);
        let ready = |entry: &&crate::board::Entry| entry.word.state() == State::Ready;
        Statistics {
            frames: get(&worker.pages),
            bytes: get(&worker.bytes),
            ingest_ns: get(&worker.ingest_ns),
            starved: get(&worker.starved),
            starved_ns: get(&worker.starved_ns),
            calls: get(&worker.calls),
            bytes_read: get(&service.bytes_read),
            read_again: get(&service.read_again),
            reclaimed: get(&service.reclaimed),
            unread: self.board.entries().iter().filter(ready).count() as u64,
            watermark: get(&service.watermark),
        }
    }
}

fn broken() -> Error {
    Error::Protocol(
        "the scan's board was written to by something that is not its worker: the scan is over".into(),
    )
}

/// Only this side writes the word.
fn add(word: &AtomicU64, more: u64) {
    word.store(word.load(Relaxed).wrapping_add(more), Relaxed);
}
