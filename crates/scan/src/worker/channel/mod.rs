//! A channel: one worker's stream of pages. `frame` handles the frame that the worker reads, and `watch` the wait by a
//! descriptor.

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

/// Time that a worker sleeps before it checks whether the service still exists.
const PATIENCE: Duration = Duration::from_millis(100);

/// The result of [`Channel::get_page`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Got {
    /// A page. The worker must return it with [`Channel::put_page`].
    Page(Piece),
    /// The page is not ready yet.
    NotYet,
    /// The scan is over, unless the worker adds ranges.
    End,
}

/// One worker's stream of pages. They are in order unless the worker shares them with others. It holds one page at a time (paper
/// 4.2.3), or the number for which the channel was [opened](crate::Scan::pages_held).
///
/// A forked child cannot use it, like all objects that its service has opened: calls return [`Error::Forked`]. Dropping it or its
/// pages in the child does not affect the parent. The child must not read the bytes of an inherited page, because the service
/// reads into their memory as soon as the parent returns the page.
pub struct Channel {
    lender: Arc<Lender>,
    page_size: usize,
    in_use: Option<InUse>,
    /// The frame of the page that is out.
    held: Option<Arc<Lent>>,
    /// Maximum number of pages that may be out at a time.
    most: usize,
    /// The entry at which the search for chunks without an order begins.
    cursor: usize,
    /// Number of frames that were taken, which is the number of chunks that have begun.
    taken: u64,
    /// The time since which this worker wants a page and has none.
    starved_since: Option<u64>,
    /// The time when it last checked whether the service still exists.
    asked: u64,
    /// Ranges that were cancelled, with the number of the chunk before which they are skipped.
    cancelled: Vec<(u64, RangeSet)>,
    /// Cancelled bytes of frames that the worker had begun.
    cancelled_here: u64,
    /// Number of unstable pages that were handed out, in a scan that does not watch its files.
    unstable: u64,
    /// The descriptor, if the worker has requested it.
    watch: Option<Watch>,
    direct: Vec<std::result::Result<(), Errno>>,
    pages: Pages,
    /// Whether chunks come in the order of the scan. Those of a pool come in the pool's order.
    in_order: bool,
}

/// The result of [`Channel::get_owned`].
#[derive(Debug)]
pub enum OwnedGot {
    /// A page.
    Page(OwnedPage),
    /// The page is not ready yet.
    NotYet,
    /// The scan is over, unless the worker adds ranges.
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

    /// Returns the next page if it is ready, and never waits. The worker must return the page before it asks for another one with
    /// this call, or with one that waits. If no page is ready, the service reads it as soon as for a worker that
    /// [waits](Self::wait), at the cost of a system call if the service sleeps. That is one call until the service publishes
    /// something, however often the worker asks.
    ///
    /// # Errors
    /// The page cannot be delivered: [`Error::Read`], [`Error::Truncated`], [`Error::Changing`], [`Error::Replaced`]. The next
    /// call concerns the next page. [`Error::Held`]: the last page that was handed out in this way has not been returned, or the
    /// maximum number of pages is out. [`Error::Gone`]: the service has ended. [`Error::Forked`]: the channel belongs to the
    /// parent process.
    pub fn get_page(&mut self) -> Result<Got> {
        let found = self.look_and_poll()?;
        Ok(self.hold(found))
    }

    /// The same as [`get_page`](Self::get_page), but the page owns itself. The worker may keep it while it takes others, up to
    /// the number for which the channel was [opened](crate::Scan::pages_held). Pages may be returned in any order and in any
    /// thread.
    ///
    /// # Errors
    /// The same as those of [`get_page`](Self::get_page).
    pub fn get_owned(&mut self) -> Result<OwnedGot> {
        Ok(match self.look_and_poll()? {
            Found::Page(piece, lent) => OwnedGot::Page(OwnedPage::new(piece, lent)),
            Found::NotYet => OwnedGot::NotYet,
            Found::End => OwnedGot::End,
        })
    }

    /// The same as [`next_page`](Self::next_page), but the page owns itself. The worker may keep it while it takes others, up to
    /// the number for which the channel was [opened](crate::Scan::pages_held). Pages may be returned in any order and in any
    /// thread.
    ///
    /// # Errors
    /// The same as those of [`get_page`](Self::get_page).
    pub fn next_owned(&mut self) -> Result<Option<OwnedPage>> {
        match self.wait_for_owned(None)? {
            OwnedGot::Page(page) => Ok(Some(page)),
            OwnedGot::End => Ok(None),
            OwnedGot::NotYet => unreachable!("it waits as long as it takes"),
        }
    }

    /// The same as [`wait_for_page`](Self::wait_for_page), for a page that owns itself.
    ///
    /// # Errors
    /// The same as those of [`get_page`](Self::get_page).
    pub fn wait_for_owned(&mut self, most: Option<Duration>) -> Result<OwnedGot> {
        Ok(match self.look_and_wait(most)? {
            Found::Page(piece, lent) => OwnedGot::Page(OwnedPage::new(piece, lent)),
            Found::NotYet => OwnedGot::NotYet,
            Found::End => OwnedGot::End,
        })
    }

    /// Hands a piece out.
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

    /// Number of pages that are out.
    fn out(&self) -> usize {
        self.lender.out() + usize::from(self.held.is_some())
    }

    /// Checks that this process may hand out another page.
    fn check_held(&self) -> Result<()> {
        self.lender.check_process()?;
        if self.held.is_some() || self.out() >= self.most { Err(Error::Held) } else { Ok(()) }
    }

    /// Whether this process inherited it by a fork.
    pub(super) fn is_inherited(&self) -> bool {
        self.lender.is_inherited()
    }

    fn board(&self) -> &Board {
        &self.lender.board
    }

    /// Returns the next page, if it is ready. If not, tells the service that it is wanted.
    fn look_and_poll(&mut self) -> Result<Found> {
        loop {
            let found = self.look()?;
            if !matches!(found, Found::NotYet) || !self.poll()? {
                return Ok(found);
            }
        }
    }

    /// Returns the next page, if it is ready.
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

    /// Returns whether the worker found nothing because the service is gone. A worker that polls checks as often as one that
    /// sleeps, because a service that was killed has told no worker.
    fn is_missed(&mut self) -> bool {
        let now = self.lender.clock.now();
        if self.starved_since.is_none() {
            add(&self.board().worker().starved, 1);
            self.starved_since = Some(now);
            self.asked = now;
        }
        // The descriptor of one that watches is readable when the service is gone, so the check must not be postponed.
        if self.watch.is_none() && now.saturating_sub(self.asked) < PATIENCE.as_nanos() as u64 {
            return false;
        }
        self.asked = now;
        !self.lender.link.is_alive()
    }

    /// Returns the page that was handed out last. This does not concern pages that own themselves.
    ///
    /// # Errors
    /// [`Error::NotHeld`]: no such page is out.
    pub fn put_page(&mut self) -> Result<()> {
        // If it was the frame's last page, this returns the frame to the service.
        self.held.take().map(drop).ok_or(Error::NotHeld)
    }

    /// Waits for the next page and returns it. `None`: the scan is over. The page is returned when it is dropped.
    ///
    /// # Errors
    /// The same as those of [`get_page`](Self::get_page).
    pub fn next_page(&mut self) -> Result<Option<Page<'_>>> {
        match self.wait_for_page(None)? {
            Got::Page(piece) => Ok(Some(Page::new(self, piece))),
            Got::End => Ok(None),
            Got::NotYet => unreachable!("it waits as long as it takes"),
        }
    }

    /// The same as [`get_page`](Self::get_page), but waits for the page without a limit, or for at most a time.
    ///
    /// # Errors
    /// The same as those of [`get_page`](Self::get_page).
    pub fn wait_for_page(&mut self, most: Option<Duration>) -> Result<Got> {
        let found = self.look_and_wait(most)?;
        Ok(self.hold(found))
    }

    fn look_and_wait(&mut self, most: Option<Duration>) -> Result<Found> {
        // A time that is beyond all clocks means no limit.
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

    /// Waits until [`get_page`](Self::get_page) returns anything else than "not yet", or for a time. Returns whether it does.
    ///
    /// # Errors
    /// [`Error::Held`], [`Error::Gone`], [`Error::Forked`].
    pub fn wait(&mut self, most: Option<Duration>) -> Result<bool> {
        self.check_held()?;
        // This comes before any clock is read.
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
            // The check may be a system call. Pages that the service published before it died are valid.
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

    /// The entries where the next chunk may be.
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

    /// Tells the service that nothing is ready and that the worker does not sleep, because the service may have held a page back
    /// to deliver it just in time. It is told once for the next page that it publishes. Returns whether something is ready after
    /// all.
    fn poll(&mut self) -> Result<bool> {
        if self.watch.is_some() {
            return self.arm();
        }
        let sleeper = &self.board().service().sleeper;
        if !sleeper.poll() {
            return Ok(false);
        }
        // The service may have published news before it could see that the worker polls. It does not publish them again, and the
        // worker may not check again for a long time.
        if self.has_news() {
            sleeper.awake();
            return Ok(true);
        }
        self.ring_for_want();
        Ok(false)
    }

    /// Rings because the worker has nothing to read.
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
            // The thread was woken or interrupted, or was too late to sleep, or has slept long enough. The caller checks again in
            // any case.
            let _ = futex::wait(sleeper.word(), futex::Flags::empty(), SLEEPS, Some(&time));
        }
        sleeper.awake();
    }

    /// Returns whether the file of a page still has the stamp from before the read, and the stamp proves that the file was not
    /// changed since. The call makes one `statx`. `false` may also mean that this is unknown: for block devices, for network file
    /// systems, and for files that were changed so shortly before the read that their stamps prove nothing. Changes other than of
    /// the file's bytes count too: names that it gets or loses.
    ///
    /// # Errors
    /// The scan watches its files, or the page belongs to another channel.
    pub fn unchanged(&self, page: &impl Delivered) -> Result<bool> {
        self.lender.unchanged(page.piece())
    }

    /// Number of bytes of the scan, with the added ranges and without the cancelled ones.
    pub fn total_bytes(&self) -> u64 {
        let service = self.board().service();
        let cancelled = service.cancelled.load(Acquire) + self.cancelled_here;
        service.total_bytes.load(Acquire).saturating_sub(cancelled)
    }

    /// Maximum number of pages that may be out at a time.
    pub fn pages_held(&self) -> usize {
        self.most
    }

    /// The size of pages. Pages at ends of ranges may be shorter.
    pub fn page_size(&self) -> usize {
        self.page_size
    }

    /// Number of files of the scan.
    pub fn files(&self) -> usize {
        self.direct.len()
    }

    /// Whether reads of a file of the scan bypass the page cache. The error is the reason why they do not.
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

/// Adds to a word that only this side writes.
fn add(word: &AtomicU64, more: u64) {
    word.store(word.load(Relaxed).wrapping_add(more), Relaxed);
}
