//! The service: a thread that reads for channels, and the handle that opens them.
//!
//! A [`Service`] is in this process, or in another process, which serves it with [`crate::daemon`]. [`crate::remote`] is the
//! client of such a service.
//!
//! Threads and locks: the control loop has its own thread. It shares only its [`inbox`] with other threads, and boards with
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

/// Number of times that a chunk is taken back because its file has changed, and read again, before it is an error.
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
    /// Whether memory may consist of huge pages that the administrator reserved.
    reserved_pages: bool,
    pools: Registry,
    cache: CacheThreads,
    /// The process that has the thread. A forked child takes no lock of this, and sends nothing to the thread.
    process: Process,
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // The thread does not exist in the child, so it cannot be joined or detached. Another thread may have been changing
            // the pools during the fork.
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
/// A service in this process has a thread, so a forked child cannot use it: calls return [`Error::Forked`], and dropping it does
/// nothing. The child can start a service of its own. It can open channels at the service of another process that its parent
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
    /// The same as those of [`Builder::build`].
    pub fn start() -> Result<Self> {
        Self::builder().build()
    }

    /// Returns a builder, for options.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The engine that reads.
    pub fn engine(&self) -> Kind {
        match &self.side {
            Side::Here(shared) => shared.kind,
            Side::Daemon(remote) => remote.engine(),
        }
    }

    /// A description of the engine's operation here.
    pub fn about(&self) -> &str {
        match &self.side {
            Side::Here(shared) => &shared.about,
            Side::Daemon(remote) => remote.about(),
        }
    }

    /// Connects to the service of another process, which listens at a path: `bedplate scan serve`, or a
    /// [`Daemon`](crate::Daemon). That process reads for all objects that are opened through it, and all its clients share the
    /// reads.
    ///
    /// Each step may take up to [`DEFAULT_PATIENCE`]; see [`connect_within`](Self::connect_within).
    ///
    /// # Errors
    /// No process listens there, it has another version, or it does not answer in time.
    pub fn connect(path: impl AsRef<Path>) -> Result<Self> {
        Self::connect_within(path, DEFAULT_PATIENCE)
    }

    /// The same as [`connect`](Self::connect), with another time limit for each step: to connect, to send one message, and to
    /// receive the answer to it. The limit applies to all uses of this service and its channels. Signals do not extend it.
    ///
    /// A step that takes longer fails with [`Error::System`] and `ETIMEDOUT` (connecting fails with [`Error::File`]). If a
    /// request of a channel is not answered in time, the channel is over: its calls return [`Error::Gone`] from then on. Waits
    /// for pages have no such limit.
    ///
    /// # Errors
    /// The same as those of [`connect`](Self::connect). Also, the time is less than [`MIN_PATIENCE`], 1 ms, or more than
    /// [`MAX_PATIENCE`], an hour.
    pub fn connect_within(path: impl AsRef<Path>, patience: Duration) -> Result<Self> {
        if !(MIN_PATIENCE..=MAX_PATIENCE).contains(&patience) {
            return Err(Error::Invalid(format!(
                "a service that has {patience:?} for each step: from {MIN_PATIENCE:?} to {MAX_PATIENCE:?}"
            )));
        }
        notice_forks()?;
        Ok(Self { side: Side::Daemon(Arc::new(Remote::connect(path.as_ref(), patience)?)) })
    }

    /// The statistics of the service. For a daemon that is gone, they are those of its last answer.
    pub fn statistics(&self) -> Statistics {
        match &self.side {
            Side::Here(shared) => shared.statistics(),
            Side::Daemon(remote) => remote.statistics(),
        }
    }

    /// Opens a channel. Reading begins at once.
    ///
    /// # Errors
    /// A file cannot be opened, a range is not in it, there is no memory, or the service has ended.
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

    /// Creates a reader of ranges of a file, in any order. Readers of a file share their reads. If the service is a daemon,
    /// readers in other processes share them too.
    ///
    /// The memory for a file is at most 32 MiB for one reader, 128 MiB for two, and 320 MiB for eight. It is about half of that if the
    /// service has no more memory.
    ///
    /// # Errors
    /// [`Error::Refused`]: the file cannot be read past the page cache, its time stamps do not prove that it is unchanged, it was
    /// changed within [`SETTLING_TIME`](crate::SETTLING_TIME), or it has 63 readers. Other errors: the file cannot be opened,
    /// there is no memory, or the service has ended.
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

    /// The same as [`reader`](Self::reader), for a file that is open for reading. A daemon opens the file again. This process
    /// opens and closes no descriptor of it, so the process keeps its record locks (`fcntl`), which any such close would drop.
    ///
    /// # Errors
    /// The same as those of [`reader`](Self::reader). Also, a daemon of another user may not be allowed to open the file.
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

/// Ensures that objects opened from now on are recognized as the parent's in a forked child.
fn notice_forks() -> Result<()> {
    if forks::watch() { Ok(()) } else { Err(Error::system("noticing forks")(Errno::NOMEM)) }
}

/// Number of bytes of ranges that are in their files.
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
    /// The files, if they are not watched. The worker judges its pages by them.
    files: Vec<File>,
}

impl Opened {
    /// Makes the channel of a worker in this process.
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
        // This only says whether there is anything. The loop updates the number as it proceeds.
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

    /// The engine that reads, with its description.
    pub(crate) fn engine(&self) -> (Kind, &str) {
        (self.kind, &self.about)
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.process.is_current() && self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Checks that it may be used in this process. Every call that takes a lock checks this first.
    fn check_process(&self) -> Result<()> {
        if self.process.is_current() { Ok(()) } else { Err(Error::Forked) }
    }

    /// Tells the loop that an object is closed, in the process that has the loop.
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

/// A channel's connection to a service in its own process.
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
        // The futex is not private, because the worker may be in another process.
        Wake::Sleeper => drop(futex::wake(sleeper.word(), futex::Flags::empty(), 1)),
        Wake::Descriptor => board.notify(),
    }
}
