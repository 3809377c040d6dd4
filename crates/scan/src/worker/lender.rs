//! The lender of a channel's pages. Pages return to it in any order, in any thread, even after their channel is gone.
//!
//! Each frame in use has one [`Lent`], which its pages share. The channel shares it until the last page of the frame is out. The
//! last owner of it returns the frame. The channel and everything that it lent share a [`Lender`]. So the connection to the
//! service, and its promise not to reuse these frames, lasts as long as a page is out.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, AtomicUsize};

use bedplate_threads::forks::Process;

use super::{Link, Piece};
use crate::board::{Board, Want};
use crate::clock::Clock;
use crate::memory::Mapping;
use crate::source::{File, Stamp};
use crate::{Error, Result};

/// Lends the pages of a channel, and takes them back.
pub struct Lender {
    /// The process that has the channel. In a forked child the board still belongs to the parent, so the child writes nothing to
    /// it.
    process: Process,
    /// The channel's number, which no other channel of this process has.
    pub channel: u64,
    pub board: Arc<Board>,
    pub frames: Arc<Mapping>,
    pub link: Box<dyn Link>,
    pub clock: Clock,
    /// The files of a scan that does not watch them.
    pub files: Vec<File>,
    pub is_watched: bool,
    /// Number of owned pages that are out. The worker increments it. The thread that returns a page decrements it, after the
    /// frame is returned if it was the frame's last page. So a worker never seems to have more frames than it may.
    out: AtomicUsize,
    /// Number of frames in use.
    in_use: AtomicUsize,
    /// The time since which the worker was not interrupted: the last return, or the end of the last wait.
    pub since: AtomicU64,
}

impl Lender {
    /// Makes a lender that has lent nothing.
    pub fn new(
        board: Arc<Board>,
        frames: Arc<Mapping>,
        link: Box<dyn Link>,
        files: Vec<File>,
        is_watched: bool,
    ) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            process: Process::current(),
            channel: NEXT.fetch_add(1, Relaxed),
            clock: board.clock(),
            board,
            frames,
            link,
            files,
            is_watched,
            out: AtomicUsize::new(0),
            in_use: AtomicUsize::new(0),
            since: AtomicU64::new(0),
        }
    }

    /// Whether this process inherited the lender by a fork.
    pub fn is_inherited(&self) -> bool {
        !self.process.is_current()
    }

    /// Checks that this process may use the lender.
    pub fn check_process(&self) -> Result<()> {
        if self.is_inherited() { Err(Error::Forked) } else { Ok(()) }
    }

    /// Number of owned pages that are out. The frames of other pages have been returned.
    pub fn out(&self) -> usize {
        self.out.load(Acquire)
    }

    /// Counts a page that becomes an owned one. The worker calls it.
    pub fn lend(&self) {
        self.out.fetch_add(1, Relaxed);
    }

    /// Counts an owned page that was returned.
    pub fn returned(&self) {
        self.out.fetch_sub(1, Release);
    }

    /// Whether the file of a page is unchanged since the read of the page. The call makes one `statx`.
    pub fn unchanged(&self, page: &Piece) -> Result<bool> {
        self.check_process()?;
        // A file's number, and the stamp, are only meaningful among the files of the page's own channel.
        if page.channel != self.channel {
            return Err(Error::Invalid(
                "the page is another channel's: ask the channel that it came from".into(),
            ));
        }
        if self.is_watched {
            return Err(Error::Invalid(
                "the scan watches its files, so its pages need no judgment: open it unwatched".into(),
            ));
        }
        let file = self
            .files
            .get(page.file as usize)
            .ok_or_else(|| Error::Invalid(format!("the scan has no file {}", page.file)))?;
        let Some(before) = page.judgment.stamp.map(Stamp::from_words) else { return Ok(false) };
        let now = file.stamp_now().map_err(Error::system("looking at a file of the scan"))?;
        Ok(now.is_some_and(|now| before.proves_unchanged(&now)))
    }
}

/// A frame in use.
pub struct Lent {
    pub lender: Arc<Lender>,
    slot: usize,
    /// Number of its bytes that were handed out.
    bytes: AtomicU64,
}

impl Lent {
    /// Makes the frame in use of an entry that the worker has just taken.
    pub fn new(lender: &Arc<Lender>, slot: usize, now: u64) -> Arc<Self> {
        lender.in_use.fetch_add(1, Relaxed);
        lender.board.worker().first_access_ns.store(now, Relaxed);
        Arc::new(Self { lender: lender.clone(), slot, bytes: AtomicU64::new(0) })
    }

    /// The entry of the frame.
    pub fn slot(&self) -> usize {
        self.slot
    }

    /// Counts a page that is handed out.
    pub fn add_bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
    }
}

/// Returns the frame to the service, after its last page was returned. In a forked child, the page belongs to the parent, which
/// returns it.
impl Drop for Lent {
    fn drop(&mut self) {
        if self.lender.is_inherited() {
            return;
        }
        let Lender { board, clock, .. } = &*self.lender;
        let (now, words) = (clock.now(), board.worker());
        let since = self.lender.since.swap(now, Relaxed);
        words.ingest_ns.fetch_add(now.saturating_sub(since), Relaxed);
        words.bytes.fetch_add(*self.bytes.get_mut(), Relaxed);
        words.pages.fetch_add(1, Relaxed);
        words.returned_ns.store(now, Relaxed);
        if self.lender.in_use.fetch_sub(1, AcqRel) == 1 {
            words.first_access_ns.store(0, Relaxed);
        }
        board.entries()[self.slot].word.finish();
        if words.bell.must_ring(Want::Returned) {
            words.calls.fetch_add(1, Relaxed);
            self.lender.link.ring();
        }
    }
}
