//! A channel: one worker's stream of pages. What it does with the frame that it reads is in `frame`.

mod frame;
mod statistics;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::thread::futex;
use rustix::time::Timespec;

use super::{Link, Page, Piece};
use crate::board::{Board, Closed, SLEEPS, State, Want};
use crate::clock::Clock;
use crate::memory::{Mapping, Pages};
use crate::plan::Range;
use crate::{Error, Result};
use frame::InUse;
pub use statistics::Statistics;

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

    /// The next page, if it is there; never waits. Return it before you ask for another. Who asks for it in vain has it read
    /// as soon as who [waits](Self::wait) for it, at the cost of a system call if the service sleeps; once, however often
    /// it asks before something is published.
    ///
    /// # Errors
    /// The page cannot be had: [`Error::Read`], [`Error::Truncated`], [`Error::Changing`], [`Error::Replaced`]; the next
    /// call is about the next page. [`Error::Held`]: the last page is out. [`Error::Gone`]: the service has ended.
    pub fn get_page(&mut self) -> Result<Got> {
        let got = self.look()?;
        if got == Got::NotYet {
            self.poll();
        }
        Ok(got)
    }

    /// The next page, if it is there.
    fn look(&mut self) -> Result<Got> {
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
            if !self.is_missed() {
                return Ok(Got::NotYet);
            }
            // What it published before it died is good.
            if !self.take()? {
                return Err(Error::Gone);
            }
        }
        self.next_piece()
    }

    /// The worker found nothing: whether that is because the service is gone. Who polls asks as often as who sleeps, for a
    /// service that was killed has told nobody.
    fn is_missed(&mut self) -> bool {
        let now = self.clock.now();
        if self.starved_since.is_none() {
            add(&self.board.worker().starved, 1);
            self.starved_since = Some(now);
            self.asked = now;
        }
        if now.saturating_sub(self.asked) < PATIENCE.as_nanos() as u64 {
            return false;
        }
        self.asked = now;
        !self.link.is_alive()
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
        self.pass();
        Ok(())
    }

    /// The next page; waits for it. `None`: the scan is over. It is returned when it is dropped.
    ///
    /// # Errors
    /// As [`get_page`](Self::get_page).
    pub fn next_page(&mut self) -> Result<Option<Page<'_>>> {
        match self.wait_for_page(None)? {
            Got::Page(piece) => Ok(Some(Page::new(self, piece))),
            Got::End => Ok(None),
            Got::NotYet => unreachable!("it waits as long as it takes"),
        }
    }

    /// As [`get_page`](Self::get_page), but waits for the page as long as it takes, or for a time.
    ///
    /// # Errors
    /// As [`get_page`](Self::get_page).
    pub fn wait_for_page(&mut self, most: Option<Duration>) -> Result<Got> {
        // A time that is beyond all clocks is forever.
        let deadline = most.and_then(|time| Instant::now().checked_add(time));
        loop {
            let got = self.look()?;
            if got != Got::NotYet {
                return Ok(got);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if !self.wait(left)? {
                return Ok(got);
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
        // Before any clock is read.
        if self.has_news() {
            return Ok(true);
        }
        let deadline = most.and_then(|time| Instant::now().checked_add(time));
        while !self.has_news() {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                // Who waits for no time polls, and the sleep of who waited is over.
                self.poll();
                return if self.is_missed() && !self.has_news() { Err(Error::Gone) } else { Ok(false) };
            }
            self.sleep(left.map_or(PATIENCE, |left| left.min(PATIENCE)));
            // To ask may be a system call; what it published before it died is good.
            if !self.has_news() && !self.link.is_alive() && !self.has_news() {
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

    /// There is nothing, and the worker does not sleep: the service has to know, for it may have held a page back to be just in
    /// time. It is told once for what it publishes next.
    fn poll(&mut self) {
        let sleeper = &self.board.service().sleeper;
        if !sleeper.poll() {
            return;
        }
        // Who published before this could be seen does not take it back, and the worker may not ask again for long.
        if self.has_news() {
            sleeper.awake();
            return;
        }
        if self.board.worker().bell.must_ring(Want::Starving) {
            add(&self.board.worker().calls, 1);
            self.link.ring();
        }
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
