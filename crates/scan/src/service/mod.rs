//! The service: a thread that reads for channels, and the handle that opens them.
//!
//! A [`Service`] is in this process, or is another process's, which [`crate::daemon`] serves and [`crate::remote`] asks.
//!
//! Threads and locks: the control loop has a thread to itself and shares only its [`inbox`] with others, and boards with
//! workers.

mod builder;
mod caching;
mod control;
mod device;
#[cfg(test)]
mod fake;
mod files;
mod inbox;
mod loads;
mod member;
#[cfg(test)]
#[allow(
    dead_code,
    clippy::duplicate_mod,
    reason = "the pool's files are in it a second time, and not all is used"
)]
mod model;
mod pool;
#[cfg(test)]
mod pool_tests;
mod publish;
mod rates;
mod shared;
mod statistics;
mod stream;
mod wheel;

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use bedplate_threads::forks::{self, Process};
use rustix::io::Errno;
use rustix::thread::futex;

use crate::board::{self, Board, Wake};
use crate::clock::Clock;
use crate::engine::Kind;
use crate::extents::Extents;
use crate::limits::{DEFAULT_PATIENCE, MAX_PATIENCE, MIN_PATIENCE};
use crate::memory::Frames;
use crate::plan::{Pending, Plan, Range};
use crate::remote::Remote;
use crate::source::{File, Source};
use crate::worker::{Cancelled, Channel, Link, Memory};
use crate::{Error, RangeReader, Result, Scan};
pub use builder::Builder;
use caching::CacheThreads;
pub(crate) use inbox::Terms;
use inbox::{Command, Inbox, Opening};
use shared::Registry;
pub use shared::{AccessKey, Pool, PoolOptions};
pub use statistics::Statistics;

/// How often a chunk is taken back because its file has changed, and read again, until it is an error.
const TRIES: u32 = 8;
/// The age, in nanoseconds, at which the service checks the file of a chunk that a worker has not begun.
const AGE: u64 = 1_000_000_000;

/// A service in this process.
pub(crate) struct Shared {
    inbox: Arc<Inbox>,
    thread: Option<JoinHandle<()>>,
    clock: Clock,
    kind: Kind,
    about: String,
    /// Memory may be of huge pages that the administrator reserved.
    reserved_pages: bool,
    pools: Registry,
    cache: CacheThreads,
    /// The process that has the thread. In a forked child no lock of this is taken, and nothing is told to the thread.
    process: Process,
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // The thread is not there, so it cannot be joined, or let go. Another may have been changing the pools during the fork.
            std::mem::forget((self.thread.take(), std::mem::take(&mut self.pools)));
            self.cache.forget();
            return;
        }
        self.cache.stop();
        self.inbox.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Reads for channels. A clone is cheap. The service ends with the last clone and the last channel.
///
/// A service in this process has a thread, so it is not usable in a forked child: calls are [`Error::Forked`], and dropping it does
/// nothing. The child starts one of its own. A child may open channels at the service of another process that its parent
/// connected to.
#[derive(Clone)]
pub struct Service {
    side: Side,
}

#[derive(Clone)]
enum Side {
    Here(Arc<Shared>),
    Daemon(Arc<Remote>),
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").field("engine", &self.engine()).finish_non_exhaustive()
    }
}

impl Service {
    /// Starts a service with the best engine that works here.
    ///
    /// # Errors
    /// As [`Builder::build`].
    pub fn start() -> Result<Self> {
        Self::builder().build()
    }

    /// For choices.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Which engine reads.
    pub fn engine(&self) -> Kind {
        match &self.side {
            Side::Here(shared) => shared.kind,
            Side::Daemon(remote) => remote.engine(),
        }
    }

    /// How it does that here, in words.
    pub fn about(&self) -> &str {
        match &self.side {
            Side::Here(shared) => &shared.about,
            Side::Daemon(remote) => remote.about(),
        }
    }

    /// Connects to the service of another process, which listens at a path: `bedplate scan serve`, or a
    /// [`Daemon`](crate::Daemon). What is opened by it is read by it, and shared with whoever else does that.
    ///
    /// It is given [`DEFAULT_PATIENCE`] for each step, as [`connect_within`](Self::connect_within) has it.
    ///
    /// # Errors
    /// Nobody listens there, or it is of another version; it does not answer in time.
    pub fn connect(path: impl AsRef<Path>) -> Result<Self> {
        Self::connect_within(path, DEFAULT_PATIENCE)
    }

    /// [`connect`](Self::connect) with a time of one's own for each step: to connect, to send one message, and to receive the answer to
    /// it. It is kept for all that is done with this service and its channels. Signals do not make it longer.
    ///
    /// A step that takes longer fails with [`Error::System`] and `ETIMEDOUT` (connecting with [`Error::File`]). A channel of which a
    /// request is not answered in time is over: it answers [`Error::Gone`] from then on. Waiting for pages is no such step.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); the time is less than [`MIN_PATIENCE`], 1 ms, or more than [`MAX_PATIENCE`], an hour.
    pub fn connect_within(path: impl AsRef<Path>, patience: Duration) -> Result<Self> {
        if !(MIN_PATIENCE..=MAX_PATIENCE).contains(&patience) {
            return Err(Error::Invalid(format!(
                "a service that has {patience:?} for each step: from {MIN_PATIENCE:?} to {MAX_PATIENCE:?}"
            )));
        }
        notice_forks()?;
        Ok(Self { side: Side::Daemon(Arc::new(Remote::connect(path.as_ref(), patience)?)) })
    }

    /// The statistics of the service. For a daemon that is gone, they are those of the last answer.
    pub fn statistics(&self) -> Statistics {
        match &self.side {
            Side::Here(shared) => shared.statistics(),
            Side::Daemon(remote) => remote.statistics(),
        }
    }

    /// Opens a channel; reading begins at once.
    ///
    /// # Errors
    /// A file cannot be opened or a range is not in it; there is no memory; the service has ended.
    pub fn open(&self, scan: Scan) -> Result<Channel> {
        match &self.side {
            Side::Here(shared) => {
                let files = scan.sources.iter().map(File::open).collect::<Result<_>>()?;
                let count = scan.frames()?;
                let terms = Terms { is_watched: scan.is_watched, pages_held: scan.pages_held };
                shared.open(files, scan.ranges, scan.page_size, count, terms)?.channel()
            }
            Side::Daemon(remote) => remote.open(scan),
        }
    }

    /// A reader of ranges of a file, in any order. Readers of a file share what is read, with those of other processes if the
    /// service is a daemon.
    ///
    /// The memory for a file is at most 32 MiB for one reader, 128 MiB for two, and 320 MiB for eight. It is about half of that if the
    /// service has no more memory.
    ///
    /// # Errors
    /// [`Error::Refused`]: the file is not read past the page cache, its time stamps do not prove that it is unchanged, or it was
    /// changed within [`SETTLING_TIME`](crate::SETTLING_TIME); it has 63 readers. The file cannot be opened; there is no memory;
    /// the service has ended.
    pub fn reader(&self, source: impl Into<Source>) -> Result<RangeReader> {
        match &self.side {
            Side::Here(shared) => {
                shared.check_process()?;
                crate::reader::Local::open(shared.cache()?, File::open(&source.into())?)
            }
            Side::Daemon(remote) => match source.into() {
                Source::Descriptor(file) => remote.reader_of(file.as_fd()),
                Source::Path(path) => {
                    let failed = |source| Error::File { path: path.clone(), source };
                    remote.reader_of(std::fs::File::open(&path).map_err(failed)?.as_fd())
                }
            },
        }
    }

    /// As [`reader`](Self::reader), of a file that is open for reading. A daemon opens the file anew; this process opens and closes no
    /// descriptor of it, so the process keeps its record locks (`fcntl`), which any such close would drop.
    ///
    /// # Errors
    /// As [`reader`](Self::reader); a daemon of another user may not be allowed to open the file.
    pub fn reader_of(&self, file: impl AsFd) -> Result<RangeReader> {
        match &self.side {
            Side::Here(shared) => {
                shared.check_process()?;
                let file = rustix::io::fcntl_dupfd_cloexec(file.as_fd(), 0);
                let file = Source::Descriptor(file.map_err(Error::system("opening a file anew"))?);
                crate::reader::Local::open(shared.cache()?, File::open(&file)?)
            }
            Side::Daemon(remote) => remote.reader_of(file.as_fd()),
        }
    }

    /// The service itself, if it is in this process.
    pub(crate) fn shared(&self) -> Option<&Arc<Shared>> {
        match &self.side {
            Side::Here(shared) => Some(shared),
            Side::Daemon(_) => None,
        }
    }
}

/// Makes sure that whatever is opened is known as the parent's in a forked child.
fn notice_forks() -> Result<()> {
    if forks::watch() { Ok(()) } else { Err(Error::system("noticing forks")(Errno::NOMEM)) }
}

/// Bytes of ranges that are in their files.
fn sum(ranges: &[Range]) -> Result<u64> {
    let bytes = ranges.iter().try_fold(0u64, |sum, range| sum.checked_add(range.end - range.start));
    bytes.ok_or_else(|| {
        Error::Invalid("the ranges have more than 2^64 bytes together: scan them one after the other".into())
    })
}

/// A channel before a worker has it.
pub(crate) struct Opened {
    pub board: Arc<Board>,
    pub frames: Arc<Frames>,
    pub link: Box<dyn Link>,
    /// The ranges that are announced and not read yet.
    pub pending: Pending,
    direct: Vec<std::result::Result<(), Errno>>,
    in_order: bool,
    page_size: usize,
    pub terms: Terms,
    /// The files, if they are not watched, for the worker to judge what it has of them.
    files: Vec<File>,
}

impl Opened {
    /// For a worker in this process.
    fn channel(self) -> Result<Channel> {
        let Self { board, frames, link, pending: _, direct, in_order, page_size, terms, files } = self;
        let memory = Memory { frames: frames.view()?, pages: frames.pages(), direct, in_order, terms, files };
        Ok(Channel::new(board, memory, link, page_size))
    }
}

impl Shared {
    /// Opens a channel with this number of frames. Reading begins at once.
    pub(crate) fn open(
        self: &Arc<Self>,
        files: Vec<File>,
        ranges: Option<Vec<Range>>,
        page_size: usize,
        count: usize,
        terms: Terms,
    ) -> Result<Opened> {
        self.check_process()?;
        let board = Arc::new(Board::new(count, self.clock)?);
        let mut plan = Plan::new(&files, page_size);
        let ranges = ranges.unwrap_or_else(|| plan.everything());
        plan.check(&ranges)?;
        let bytes = sum(&ranges)?;
        board.service().total_bytes.store(bytes, Release);
        plan.add(&ranges)?;
        // Whether there is anything; the loop says how much as it comes to it.
        board.service().total.store(u64::from(bytes > 0), Release);
        let judged = if terms.is_watched { Vec::new() } else { files.clone() };
        let direct = files.iter().map(|file| file.direct).collect();
        let extents = Extents::of_all(&files);
        let frames = Arc::new(Frames::with_reserved(self.reserved_pages, count)?);
        let pending = plan.pending();
        let opening = Opening { board: board.clone(), frames: frames.clone(), files, extents, plan, terms };
        let id = self.ask(|answer| Command::Open(opening, answer))?;
        let link = Box::new(Local { shared: self.clone(), id });
        Ok(Opened { board, frames, link, pending, direct, in_order: true, page_size, terms, files: judged })
    }

    pub(crate) fn statistics(&self) -> Statistics {
        let inbox = &self.inbox;
        let [channels, pools, pool_frames] = inbox.census();
        let (bytes_read, rounds) = (inbox.bytes_read.load(Relaxed), inbox.rounds.load(Relaxed));
        Statistics { bytes_read, rounds, channels, pools, pool_frames }
    }

    /// Which engine reads, and how.
    pub(crate) fn engine(&self) -> (Kind, &str) {
        (self.kind, &self.about)
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.process.is_current() && self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Whether it may be used in this process. Every call that takes a lock asks this first.
    fn check_process(&self) -> Result<()> {
        if self.process.is_current() { Ok(()) } else { Err(Error::Forked) }
    }

    /// Tells the loop that something is closed, in the process that has it.
    fn tell(&self, command: Command) {
        if self.process.is_current() {
            self.inbox.send(command);
        }
    }

    fn ask<T>(&self, command: impl FnOnce(mpsc::Sender<Result<T>>) -> Command) -> Result<T> {
        let (answer, answered) = mpsc::channel();
        if !self.inbox.send(command(answer)) {
            return Err(Error::Gone);
        }
        answered.recv().unwrap_or(Err(Error::Gone))
    }
}

/// A channel's way to a service in its own process.
struct Local {
    shared: Arc<Shared>,
    id: usize,
}

impl Link for Local {
    fn notify_ranges(&self, ranges: &[Range]) -> Result<()> {
        self.shared.ask(|answer| Command::Ranges(self.id, ranges.to_vec(), answer))
    }

    fn cancel_ranges(&self, ranges: &[Range]) -> Result<Cancelled> {
        self.shared.ask(|answer| Command::Cancel(self.id, ranges.to_vec(), answer))
    }

    fn descriptor(&self, board: &Board) -> Result<OwnedFd> {
        board.descriptor()
    }

    fn is_alive(&self) -> bool {
        self.shared.is_alive()
    }

    fn ring(&self) {
        self.shared.inbox.bell.ring();
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.shared.tell(Command::Close(self.id));
    }
}

/// Wakes a board's worker if it sleeps, or waits for its descriptor.
fn wake(board: &Board) {
    let sleeper = &board.service().sleeper;
    match sleeper.must_wake() {
        Wake::Nothing => {}
        // Not private: it may be in another process.
        Wake::Sleeper => drop(futex::wake(sleeper.word(), futex::Flags::empty(), 1)),
        Wake::Descriptor => board.notify(),
    }
}
