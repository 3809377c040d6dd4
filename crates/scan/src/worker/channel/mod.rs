//! A channel: one worker's stream of pages. What it does with the frame that it reads is in `frame`, how it waits by a descriptor
//! in `watch`.

mod frame;
mod statistics;
mod watch;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::thread::futex;
use rustix::time::Timespec;

use super::lender::{Lender, Lent};
use super::{Delivered, Link, OwnedPage, Page, Piece};
use crate::board::{Board, Closed, SLEEPS, State, Want};
use crate::memory::{Mapping, Pages};
use crate::ranges::RangeSet;
use crate::service::Terms;
use crate::source::File;
use crate::{Error, Result};
use frame::InUse;
pub use statistics::Statistics;
use watch::Watch;

/// How long a worker sleeps before it looks whether the service is still there.
const PATIENCE: Duration = Duration::from_millis(100);

/// The result of [`Channel::get_page`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Got {
    /// A page; return it by [`Channel::put_page`].
    Page(Piece),
    /// Nothing yet.
    NotYet,
    /// The scan is over, unless ranges are added.
    End,
}

/// One worker's stream of pages, in order unless it shares them with others. It has one page at a time (paper 4.2.3), or as many as
/// it was [opened](crate::Scan::pages_held) for.
///
/// In a forked child it is not usable, as all that its service has opened: calls are [`Error::Forked`]. Dropping it or its
/// pages there does nothing to the parent's. The child must not look at the bytes of a page that it inherited, because their memory is
/// read into as soon as the parent returns it.
pub struct Channel {
    lender: Arc<Lender>,
    page_size: usize,
    in_use: Option<InUse>,
    /// The frame of the piece that is out.
    held: Option<Arc<Lent>>,
    /// Pages that may be out at a time.
    most: usize,
    /// Where chunks that come in no order are looked for first.
    cursor: usize,
    /// Frames that were taken: so many chunks have been begun.
    taken: u64,
    /// Since when this worker wants a page and has none.
    starved_since: Option<u64>,
    /// When it last looked whether the service is still there.
    asked: u64,
    /// Ranges that were cancelled, and before which chunk they are passed over.
    cancelled: Vec<(u64, RangeSet)>,
    /// Bytes that were cancelled of frames that the worker had begun.
    cancelled_here: u64,
    /// Pages that were handed out and are not stable, of a scan that does not watch its files.
    unstable: u64,
    /// The descriptor, if the worker has asked for it.
    watch: Option<Watch>,
    direct: Vec<std::result::Result<(), Errno>>,
    pages: Pages,
    /// Chunks come in the order of the scan; those of a pool come as it has them.
    in_order: bool,
}

/// The result of [`Channel::get_owned`].
#[derive(Debug)]
pub enum OwnedGot {
    /// A page.
    Page(OwnedPage),
    /// Nothing yet.
    NotYet,
    /// The scan is over, unless ranges are added.
    End,
}

/// A page that is not handed out yet, with its frame; or none.
enum Found {
    Page(Piece, Arc<Lent>),
    NotYet,
    End,
}

/// The memory from which a channel reads its pages.
pub(crate) struct Memory {
    pub frames: Arc<Mapping>,
    pub pages: Pages,
    pub direct: Vec<std::result::Result<(), Errno>>,
    pub in_order: bool,
    pub terms: Terms,
    pub files: Vec<File>,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel")
            .field("taken", &self.taken)
            .field("out", &self.out())
            .finish_non_exhaustive()
    }
}

impl Channel {
    pub(crate) fn new(board: Arc<Board>, memory: Memory, link: Box<dyn Link>, page_size: usize) -> Self {
        let Memory { frames, pages, direct, in_order, terms, files } = memory;
        Self {
            lender: Arc::new(Lender::new(board, frames, link, files, terms.is_watched)),
            page_size,
            in_use: None,
            held: None,
            most: terms.pages_held,
            cursor: 0,
            taken: 0,
            starved_since: None,
            asked: 0,
            cancelled: Vec::new(),
            cancelled_here: 0,
            unstable: 0,
            watch: None,
            direct,
            pages,
            in_order,
        }
    }

    /// The next page, if it is there; never waits. Return it before you ask for another by this call, or by one that waits. Who asks for it in vain has it read
    /// as soon as who [waits](Self::wait) for it, at the cost of a system call if the service sleeps; once, however often
    /// it asks before something is published.
    ///
    /// # Errors
    /// The page cannot be had: [`Error::Read`], [`Error::Truncated`], [`Error::Changing`], [`Error::Replaced`]; the next
    /// call is about the next page. [`Error::Held`]: the last page that was handed out so has not been returned, or as many pages
    /// are out as may be. [`Error::Gone`]: the service has ended. [`Error::Forked`]: the channel is the parent process's.
    pub fn get_page(&mut self) -> Result<Got> {
        let found = self.look_and_poll()?;
        Ok(self.hold(found))
    }

    /// As [`get_page`](Self::get_page), but the page owns itself: it may be kept while others are taken, as many as the channel
    /// was [opened](crate::Scan::pages_held) for, and be returned in any order and any thread.
    ///
    /// # Errors
    /// As [`get_page`](Self::get_page).
    pub fn get_owned(&mut self) -> Result<OwnedGot> {
        Ok(match self.look_and_poll()? {
            Found::Page(piece, lent) => OwnedGot::Page(OwnedPage::new(piece, lent)),
            Found::NotYet => OwnedGot::NotYet,
            Found::End => OwnedGot::End,
        })
    }

    /// As [`next_page`](Self::next_page), but the page owns itself: it may be kept while others are taken, as many as the channel
    /// was [opened](crate::Scan::pages_held) for, and be returned in any order and any thread.
    ///
    /// # Errors
    /// As [`get_page`](Self::get_page).
    pub fn next_owned(&mut self) -> Result<Option<OwnedPage>> {
        match self.wait_for_owned(None)? {
            OwnedGot::Page(page) => Ok(Some(page)),
            OwnedGot::End => Ok(None),
            OwnedGot::NotYet => unreachable!("it waits as long as it takes"),
        }
    }

    /// As [`wait_for_page`](Self::wait_for_page), for a page that owns itself.
    ///
    /// # Errors
    /// As [`get_page`](Self::get_page).
    pub fn wait_for_owned(&mut self, most: Option<Duration>) -> Result<OwnedGot> {
        Ok(match self.look_and_wait(most)? {
            Found::Page(piece, lent) => OwnedGot::Page(OwnedPage::new(piece, lent)),
            Found::NotYet => OwnedGot::NotYet,
            Found::End => OwnedGot::End,
        })
    }

    /// The piece is out.
    fn hold(&mut self, found: Found) -> Got {
        match found {
            Found::Page(piece, lent) => {
                self.held = Some(lent);
                Got::Page(piece)
            }
            Found::NotYet => Got::NotYet,
            Found::End => Got::End,
        }
    }

    /// How many pages are out.
    fn out(&self) -> usize {
        self.lender.out() + usize::from(self.held.is_some())
    }

    /// Whether another page may be handed out, in this process.
    fn check_held(&self) -> Result<()> {
        self.lender.check_process()?;
        if self.held.is_some() || self.out() >= self.most { Err(Error::Held) } else { Ok(()) }
    }

    /// Whether it was inherited by a fork.
    pub(super) fn is_inherited(&self) -> bool {
        self.lender.is_inherited()
    }

    fn board(&self) -> &Board {
        &self.lender.board
    }

    /// The next page, if it is there. If it is not, the service knows that it is wanted.
    fn look_and_poll(&mut self) -> Result<Found> {
        loop {
            let found = self.look()?;
            if !matches!(found, Found::NotYet) || !self.poll()? {
                return Ok(found);
            }
        }
    }

    /// The next page, if it is there.
    fn look(&mut self) -> Result<Found> {
        self.check_held()?;
        if self.in_use.is_none() && !self.take()? {
            if self.taken >= self.board().service().total.load(Acquire) {
                return Ok(Found::End);
            }
            match self.board().closed() {
                Some(Closed::Gone) => return Err(Error::Gone),
                Some(Closed::Broken) => return Err(broken()),
                None => {}
            }
            if !self.is_missed() {
                return Ok(Found::NotYet);
            }
            // Pages that the service published before it ended are valid.
            if !self.take()? {
                return Err(Error::Gone);
            }
        }
        self.next_piece().map(|(piece, lent)| Found::Page(piece, lent))
    }

    /// The worker found nothing: whether that is because the service is gone. Who polls asks as often as who sleeps, for a
    /// service that was killed has told nobody.
    fn is_missed(&mut self) -> bool {
        let now = self.lender.clock.now();
        if self.starved_since.is_none() {
            add(&self.board().worker().starved, 1);
            self.starved_since = Some(now);
            self.asked = now;
        }
        // The descriptor of one that watches is readable when the service is gone, so it must not be put off.
        if self.watch.is_none() && now.saturating_sub(self.asked) < PATIENCE.as_nanos() as u64 {
            return false;
        }
        self.asked = now;
        !self.lender.link.is_alive()
    }

    /// Returns the page that was handed out last. Pages that own themselves are not meant.
    ///
    /// # Errors
    /// [`Error::NotHeld`]: it is not out.
    pub fn put_page(&mut self) -> Result<()> {
        // If it was the frame's last, the service may have that.
        self.held.take().map(drop).ok_or(Error::NotHeld)
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
        let found = self.look_and_wait(most)?;
        Ok(self.hold(found))
    }

    fn look_and_wait(&mut self, most: Option<Duration>) -> Result<Found> {
        // A time that is beyond all clocks is forever.
        let deadline = most.and_then(|time| Instant::now().checked_add(time));
        loop {
            let found = self.look()?;
            if !matches!(found, Found::NotYet) {
                return Ok(found);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if !self.wait(left)? {
                return Ok(found);
            }
        }
    }

    /// Waits until [`get_page`](Self::get_page) has something to say, or for a time; whether it has.
    ///
    /// # Errors
    /// [`Error::Held`], [`Error::Gone`], [`Error::Forked`].
    pub fn wait(&mut self, most: Option<Duration>) -> Result<bool> {
        self.check_held()?;
        // Before any clock is read.
        if self.has_news() {
            return Ok(true);
        }
        let deadline = most.and_then(|time| Instant::now().checked_add(time));
        while !self.has_news() {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                // A worker that waits for a time of 0 polls, and a worker that slept has ended its sleep.
                if self.poll()? {
                    return Ok(true);
                }
                return if self.is_missed() && !self.has_news() { Err(Error::Gone) } else { Ok(false) };
            }
            let most = left.map_or(PATIENCE, |left| left.min(PATIENCE));
            if self.watch.is_some() {
                self.sleep_watching(most)?;
            } else {
                self.sleep(most);
            }
            // To ask may be a system call; what it published before it died is good.
            if !self.has_news() && !self.lender.link.is_alive() && !self.has_news() {
                return Err(Error::Gone);
            }
        }
        Ok(true)
    }

    fn has_news(&self) -> bool {
        self.in_use.is_some()
            || self.slots().any(|slot| self.board().entries()[slot].word.state() == State::Ready)
            || self.taken >= self.board().service().total.load(Acquire)
            || self.board().closed().is_some()
    }

    /// Where the next chunk may be.
    fn slots(&self) -> impl Iterator<Item = usize> + use<> {
        let entries = self.board().entries();
        let count = entries.len();
        let (first, slots) = if self.in_order {
            let turn =
                entries[(self.taken % count as u64) as usize].turn(self.taken).filter(|slot| *slot < count);
            (turn.unwrap_or(0), usize::from(turn.is_some()))
        } else {
            (self.cursor, count)
        };
        (0..slots).map(move |step| (first + step) % count)
    }

    /// There is nothing, and the worker does not sleep: the service has to know, for it may have held a page back to be just in
    /// time. It is told once for what it publishes next. Whether there is something after all, of which that was not known.
    fn poll(&mut self) -> Result<bool> {
        if self.watch.is_some() {
            return self.arm();
        }
        let sleeper = &self.board().service().sleeper;
        if !sleeper.poll() {
            return Ok(false);
        }
        // The service may have published news before it could see that the worker polls. It does not publish them again, and the worker
        // may not look again for long.
        if self.has_news() {
            sleeper.awake();
            return Ok(true);
        }
        self.ring_for_want();
        Ok(false)
    }

    /// The worker has nothing to read.
    fn ring_for_want(&self) {
        if self.board().worker().bell.must_ring(Want::Starving) {
            self.board().worker().calls.fetch_add(1, Relaxed);
            self.lender.link.ring();
        }
    }

    /// Sleeps until the service wakes this worker, or for a time.
    fn sleep(&mut self, most: Duration) {
        let sleeper = &self.board().service().sleeper;
        sleeper.prepare();
        if !self.has_news() {
            self.ring_for_want();
            self.board().worker().calls.fetch_add(1, Relaxed);
            let time = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: i64::from(most.subsec_nanos()) };
            // Woken, interrupted, too late to sleep, or long enough: it is looked at again either way.
            let _ = futex::wait(sleeper.word(), futex::Flags::empty(), SLEEPS, Some(&time));
        }
        sleeper.awake();
    }

    /// Whether the file of a page has the stamp still that it had before the page was read, and that proves that it was not changed
    /// since. One `statx`. `false` may also mean that it cannot be known: of block devices, of files of network file systems, and of
    /// files that were changed so shortly before they were read that their stamps prove nothing. Other changes of the file than to its bytes count, too:
    /// names that it gets or loses.
    ///
    /// # Errors
    /// The scan watches its files; the page is another channel's.
    pub fn unchanged(&self, page: &impl Delivered) -> Result<bool> {
        self.lender.unchanged(page.piece())
    }

    /// How many bytes the scan has, with the ranges that were added and without those that were cancelled.
    pub fn total_bytes(&self) -> u64 {
        let service = self.board().service();
        let cancelled = service.cancelled.load(Acquire) + self.cancelled_here;
        service.total_bytes.load(Acquire).saturating_sub(cancelled)
    }

    /// How many pages may be out at a time.
    pub fn pages_held(&self) -> usize {
        self.most
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

    /// The kind of memory that the pages are in.
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
