//! Readers of ranges: the client's side of the [cache](crate::cache), for programs that read by offset.
//!
//! # Locks
//! Lock order: the reader's state, then the link's own lock. A thread must not wait for an arrival while it holds the state. A
//! thread must not call a waker while it holds a lock.
//!
//! # Waiting
//! One of the waiting threads, the listener, receives arrivals for all threads and tasks. Tasks do not block threads. If no
//! thread listens, the link wakes the reader at the next arrival ([`Alarm`]). The reader then wakes all tasks that wait for its
//! fetches. Each task checks its own fetch, and the first one receives arrivals for all.

mod local;
mod mailbox;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::future::Future;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};

use bedplate_threads::forks::Process;
use rustix::io::Errno;

use crate::cache::Span;
use crate::limits::MAX_RANGES_HELD;
use crate::memory::SegmentView;
use crate::source::FileVersion;
use crate::{Error, Result};
pub(crate) use local::Local;

/// The result of a fetch, on the reader's side.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub fetch: u32,
    /// The segment and the range's offset in it, or the error of the read.
    pub place: std::result::Result<(Arc<SegmentView>, usize), Errno>,
}

/// A reader's connection to its cache. Dropping it releases all ranges of the reader. Any thread may use it.
pub(crate) trait Link: Send + Sync {
    /// Requests a range.
    fn fetch(&self, fetch: u32, span: Span) -> Result<()>;

    /// Releases a range, or abandons a fetch. Returns `false` if the link cannot tell the cache; the reader has then ended.
    fn release(&self, fetch: u32) -> bool;

    /// Returns the next arrival. Only one thread at a time may call this. `None`: nothing has arrived yet, and `waits` is false.
    fn receive(&self, waits: bool) -> Result<Option<Arrived>>;

    /// Wakes the waker once, when an arrival can be received or the cache has ended. The waker replaces that of an earlier call.
    fn wake_at_arrival(&self, waker: Waker) -> Result<()>;

    /// Returns whether the reader still held its ranges at this call. If so, all bytes that it read from them before are theirs.
    fn is_held(&self) -> bool;

    /// Ends the reader, and tells all threads and tasks that wait.
    fn end(&self);

    /// The descriptor of the connection, if it has one.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
}

/// Reads ranges of one version of a file, in any order, from any thread. The service reads ranges past the page cache into shared
/// memory. Readers of the same file in this process share this memory, and with a daemon, readers in other processes do, too.
///
/// [`fetch`](Self::fetch) starts to read a range. A thread calls [`Fetch::wait`] to wait for it; a task awaits the [`Fetch`]. A
/// reader may have at most [`MAX_RANGES_HELD`] ranges that are fetched and not released.
///
/// A range has the content that it had when the reader began. If the file may change, ask [`version`](Self::version) after the
/// range has arrived whether it is still [current](FileVersion::is_current).
///
/// A forked child cannot use its parent's readers: calls return [`Error::Forked`].
pub struct RangeReader {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for RangeReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RangeReader").field("version", &self.inner.version).finish_non_exhaustive()
    }
}

struct Inner {
    link: Box<dyn Link>,
    version: FileVersion,
    unit: u32,
    process: Process,
    next: AtomicU32,
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    /// Fetches that are not released, each with its result if it is known.
    fetches: HashMap<u32, Option<Outcome>>,
    /// The wakers of tasks that wait for fetches, by the number of the fetch.
    tasks: HashMap<u32, Waker>,
    /// The link will wake the reader at the next arrival.
    is_alarm_set: bool,
    /// A thread listens: it is in [`Link::receive`].
    is_heard: bool,
    /// The cache has ended, or the link has failed.
    is_over: bool,
}

type Outcome = std::result::Result<(Arc<SegmentView>, usize), Errno>;

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_process(&self) -> Result<()> {
        if self.process.is_current() { Ok(()) } else { Err(Error::Forked) }
    }

    /// Wakes all tasks that wait; each checks its fetch again.
    fn wake_tasks(&self) {
        let tasks = {
            let mut state = self.state();
            state.is_alarm_set = false;
            std::mem::take(&mut state.tasks)
        };
        for task in tasks.into_values() {
            task.wake();
        }
    }

    /// Returns the result of a fetch, or registers the task to be woken when the result may be known.
    fn poll(self: &Arc<Self>, fetch: u32, waker: &Waker) -> Poll<Result<Outcome>> {
        match self.outcome(fetch, false) {
            Ok(None) => {}
            Ok(Some(outcome)) => return Poll::Ready(Ok(outcome)),
            Err(error) => return Poll::Ready(Err(error)),
        }
        let mut state = self.state();
        // Another thread may have received the result in the meantime.
        if let Some(Some(outcome)) = state.fetches.get(&fetch) {
            return Poll::Ready(Ok(outcome.clone()));
        }
        if state.is_over {
            return Poll::Ready(Err(Error::Gone));
        }
        state.tasks.insert(fetch, waker.clone());
        // A listening thread wakes the tasks when it has received something or stops. Without one, the link must.
        if !state.is_heard && !state.is_alarm_set {
            state.is_alarm_set = true;
            drop(state);
            if let Err(error) = self.link.wake_at_arrival(Waker::from(Arc::new(Alarm(Arc::downgrade(self)))))
            {
                self.state().is_over = true;
                self.link.end();
                self.wake_tasks();
                return Poll::Ready(Err(error));
            }
        }
        Poll::Pending
    }

    /// Returns the result of a fetch. `None`: it is not known yet, and `waits` is false.
    fn outcome(&self, fetch: u32, waits: bool) -> Result<Option<Outcome>> {
        self.check_process()?;
        let mut state = self.state();
        loop {
            if let Some(outcome @ Some(_)) = state.fetches.get_mut(&fetch) {
                return Ok(outcome.clone());
            }
            if state.is_over {
                return Err(Error::Gone);
            }
            if state.is_heard {
                if !waits {
                    return Ok(None);
                }
                state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.is_heard = true;
            drop(state);
            let received = self.link.receive(waits);
            if let Some(end) = self.hear(received, fetch) {
                return end;
            }
            state = self.state();
        }
    }

    /// Records what the calling thread has received, and wakes the threads and tasks concerned. `None`: the thread must check its
    /// own fetch again.
    fn hear(&self, received: Result<Option<Arrived>>, own: u32) -> Option<Result<Option<Outcome>>> {
        let mut state = self.state();
        state.is_heard = false;
        // This thread no longer listens, so one of the waiting threads may have to listen next.
        self.arrived.notify_all();
        let (mut is_own, mut woken) = (false, Vec::new());
        let end = match received {
            Ok(Some(Arrived { fetch, place })) => {
                is_own = fetch == own;
                // An abandoned fetch may still arrive.
                if let Some(outcome) = state.fetches.get_mut(&fetch) {
                    *outcome = Some(place);
                }
                woken.extend(state.tasks.remove(&fetch));
                None
            }
            Ok(None) => Some(Ok(None)),
            Err(error) => {
                state.is_over = true;
                self.link.end();
                Some(Err(error))
            }
        };
        // This thread stops listening. If no alarm is set, the tasks relied on this thread. Once woken, one of them sets the
        // alarm.
        if state.is_over || ((is_own || end.is_some()) && !state.is_alarm_set) {
            woken.extend(std::mem::take(&mut state.tasks).into_values());
        }
        drop(state);
        woken.into_iter().for_each(Waker::wake);
        end
    }

    fn release(&self, fetch: u32) {
        if !self.process.is_current() {
            return;
        }
        let (is_over, has_failed) = {
            let mut state = self.state();
            state.tasks.remove(&fetch);
            (state.is_over, matches!(state.fetches.get(&fetch), Some(Some(Err(_)))))
        };
        // The cache does not hold a failed fetch any more. The link may wake tasks of this reader, so the lock is not held here.
        let is_told = is_over || has_failed || self.link.release(fetch);
        let mut state = self.state();
        // The fetch leaves the reader's count only after the cache has learned of the release. So the cache never sees more
        // fetches than a reader may have.
        state.fetches.remove(&fetch);
        if !is_told {
            state.is_over = true;
            self.link.end();
        }
    }
}

/// Wakes the tasks of a reader. The reference is weak, because the link owns the alarm and the reader owns the link.
struct Alarm(Weak<Inner>);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        if let Some(inner) = self.0.upgrade() {
            inner.wake_tasks();
        }
    }
}

impl RangeReader {
    pub(crate) fn new(link: Box<dyn Link>, version: FileVersion, unit: u32) -> Self {
        let inner = Inner {
            link,
            version,
            unit,
            process: Process::current(),
            next: AtomicU32::new(0),
            state: Mutex::default(),
            arrived: Condvar::new(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The version of the file that the ranges belong to.
    pub fn version(&self) -> &FileVersion {
        &self.inner.version
    }

    /// Reads begin and end at multiples of this number of bytes, a power of two. The service also reads the bytes between a range
    /// and the nearest multiples around it.
    pub fn alignment(&self) -> usize {
        self.inner.unit as usize
    }

    /// Starts to read `len` bytes from offset `start` on. `len` must be at least 1, and at most
    /// [`MAX_RANGE_BYTES`](crate::MAX_RANGE_BYTES) when both ends are rounded outwards to the [alignment](Self::alignment).
    ///
    /// Readers share reads. Ranges that do not cross a multiple of [`FRAME`](crate::FRAME) share all bytes that they have in
    /// common. Other ranges share bytes if they begin at the same place.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the range is empty, too long, or not in the file.
    /// - [`Error::Held`]: the reader already has [`MAX_RANGES_HELD`] ranges.
    /// - [`Error::Gone`]: the service has ended.
    /// - [`Error::Forked`]: this process is a forked child of the reader's process.
    pub fn fetch(&self, start: u64, len: usize) -> Result<Fetch> {
        let inner = &self.inner;
        inner.check_process()?;
        // A length that exceeds 32 bits is far too long, so `check` refuses `u32::MAX` in its place.
        let span = Span { start, len: u32::try_from(len).unwrap_or(u32::MAX) };
        span.check(inner.version.size(), inner.unit.into())?;
        let mut state = inner.state();
        if state.is_over {
            return Err(Error::Gone);
        }
        if state.fetches.len() >= MAX_RANGES_HELD {
            return Err(Error::Held);
        }
        let id = inner.next.fetch_add(1, Ordering::Relaxed);
        state.fetches.insert(id, None);
        // A range that is already in memory arrives at once. That may wake tasks of this reader, so the lock must be released.
        drop(state);
        if let Err(error) = inner.link.fetch(id, span) {
            let mut state = inner.state();
            state.fetches.remove(&id);
            if matches!(error, Error::Gone | Error::System { .. }) {
                state.is_over = true;
                inner.link.end();
            }
            return Err(error);
        }
        Ok(Fetch { inner: Some(inner.clone()), id, span })
    }

    /// The connection to the daemon, if the service is in another process. A forked child cannot use its copy and may close it.
    /// The daemon detects the end of the reader only when all copies are closed.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner.link.descriptor()
    }
}

/// A range that is being read. Dropping it abandons the fetch.
pub struct Fetch {
    /// `None`: the range has become a [`PinnedRange`].
    inner: Option<Arc<Inner>>,
    id: u32,
    span: Span,
}

impl std::fmt::Debug for Fetch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fetch").field("span", &self.span).finish_non_exhaustive()
    }
}

impl Fetch {
    fn inner(&self) -> &Arc<Inner> {
        self.inner.as_ref().expect("it is not pinned yet")
    }

    /// Returns whether [`wait`](Self::wait) would return at once.
    ///
    /// # Errors
    /// [`Error::Gone`], [`Error::System`]: the service has ended, or does not answer. [`Error::Forked`]: this process is a forked child
    /// of the reader's process.
    pub fn is_ready(&self) -> Result<bool> {
        Ok(self.inner().outcome(self.id, false)?.is_some())
    }

    /// Waits until the range has arrived.
    ///
    /// # Errors
    /// - [`Error::Read`]: the service cannot read the range.
    /// - [`Error::Gone`], [`Error::System`]: the service has ended, or does not answer.
    /// - [`Error::Forked`]: this process is a forked child of the reader's process.
    pub fn wait(mut self) -> Result<PinnedRange> {
        let outcome = self.inner().outcome(self.id, true)?.expect("it was waited for");
        self.pinned(outcome)
    }

    /// Turns the result into the range. After success, the range and not the fetch holds the bytes.
    fn pinned(&mut self, outcome: Outcome) -> Result<PinnedRange> {
        let (segment, at) =
            outcome.map_err(|source| Error::Read { file: 0, offset: self.span.start, source })?;
        if !segment.has(at, self.span.len as usize) {
            return Err(crate::wire::malformed("has a place that is none"));
        }
        let inner = self.inner.take().expect("it is not pinned yet");
        Ok(PinnedRange { inner, segment, at, id: self.id, span: self.span })
    }
}

/// Like [`Fetch::wait`], for a task of any executor: no thread blocks. It must not be polled again after it is ready.
impl Future for Fetch {
    type Output = Result<PinnedRange>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = match self.inner().poll(self.id, context.waker()) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(outcome) => outcome,
        };
        Poll::Ready(outcome.and_then(|outcome| self.pinned(outcome)))
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        if let Some(inner) = &self.inner {
            inner.release(self.id);
        }
    }
}

/// Bytes of a file, in the memory that the device wrote them to. They do not change until this is dropped, except in the case
/// that [`is_held`](Self::is_held) describes. A range may move to any thread and outlive its reader.
pub struct PinnedRange {
    inner: Arc<Inner>,
    segment: Arc<SegmentView>,
    at: usize,
    id: u32,
    span: Span,
}

impl std::fmt::Debug for PinnedRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PinnedRange").field("span", &self.span).finish_non_exhaustive()
    }
}

impl PinnedRange {
    /// Returns whether all bytes that the caller read from the range before this call were the range's. A daemon that has lost
    /// the connection to its reader reuses the memory for other ranges. Then the caller must discard the bytes that it read. This
    /// makes no system call.
    pub fn is_held(&self) -> bool {
        self.inner.link.is_held()
    }

    /// Offset of the bytes in the file.
    pub fn offset(&self) -> u64 {
        self.span.start
    }
}

impl std::ops::Deref for PinnedRange {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `pinned` has checked that the bytes are in the segment, which this object keeps mapped. The cache does not read
        // into the range's frame until the range is released. That happens when this object is dropped, or when the connection to
        // the daemon ends (`is_held`). In the latter case the bytes change like any memory that another process shares.
        unsafe { std::slice::from_raw_parts(self.segment.start().add(self.at), self.span.len as usize) }
    }
}

impl AsRef<[u8]> for PinnedRange {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for PinnedRange {
    fn drop(&mut self) {
        self.inner.release(self.id);
    }
}
