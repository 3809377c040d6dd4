//! Readers of ranges: the client's side of the [cache](crate::cache), for programs that read by offset.
//!
//! Locks, in this order: the reader's state; the link's own. Nobody waits for an arrival with the state locked: one of the
//! threads that wait hears what arrives for all of them. Tasks do not wait in threads: when no thread hears, the link wakes the
//! reader at the next arrival ([`Alarm`]), and the reader wakes all tasks that wait for its fetches. Each looks again, and the
//! first takes what arrived for all. No waker is called with a lock held.

mod local;
mod mailbox;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::future::Future;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};

use bedplate_threads::forks::Process;
use rustix::io::Errno;

use crate::cache::Span;
use crate::limits::MAX_RANGES_HELD;
use crate::memory::Mapping;
use crate::source::FileVersion;
use crate::{Error, FRAME, Result};
pub(crate) use local::Local;

/// What a fetch has come to, on the reader's side.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub fetch: u32,
    /// Where the range is: the segment, and where in it; or the error of the read.
    pub place: std::result::Result<(Arc<Mapping>, usize), Errno>,
}

/// A reader's way to its cache; dropping it releases whatever the reader holds. Any thread may use it.
pub(crate) trait Link: Send + Sync {
    /// Asks for a range.
    fn fetch(&self, fetch: u32, span: Span) -> Result<()>;

    /// Releases a range, or gives up waiting for it. `false`: the cache cannot be told, and the reader is over.
    fn release(&self, fetch: u32) -> bool;

    /// The next arrival. One thread at a time asks. `None`: there is none yet, and `waits` is false.
    fn receive(&self, waits: bool) -> Result<Option<Arrived>>;

    /// Wakes the waker once, when there is something to be received, or the cache is gone. It replaces the waker of an earlier call.
    fn wake_at_arrival(&self, waker: Waker) -> Result<()>;

    /// Whether everything that was read from the reader's ranges before this call was theirs.
    fn is_held(&self) -> bool;

    /// Ends the reader: whoever waits is told.
    fn end(&self);

    /// The descriptor of the way, if it has one.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
}

/// Reads ranges of one version of a file, in any order, from any thread. Ranges are read past the page cache into memory that
/// readers of the same file share, in this process and, by a daemon, in others.
///
/// [`fetch`](Self::fetch) begins to read a range, and [`Fetch::wait`] waits for it; a task awaits the [`Fetch`]. At most [`MAX_RANGES_HELD`] ranges may be
/// fetched and not released.
///
/// A range is what it was when the reader began. Ask [`version`](Self::version) whether it is still
/// [current](FileVersion::is_current), after the range has arrived, if the file may change.
///
/// A forked child has no use for its parent's readers: calls are [`Error::Forked`].
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
    /// Fetches that are not released: what they have come to, if that is known.
    fetches: HashMap<u32, Option<Outcome>>,
    /// Tasks that wait for fetches.
    tasks: HashMap<u32, Waker>,
    /// The link wakes the reader at the next arrival.
    is_alarm_set: bool,
    /// A thread hears what arrives.
    is_heard: bool,
    /// The cache is gone.
    is_over: bool,
}

type Outcome = std::result::Result<(Arc<Mapping>, usize), Errno>;

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_process(&self) -> Result<()> {
        if self.process.is_current() { Ok(()) } else { Err(Error::Forked) }
    }

    /// All tasks look again.
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

    /// What a fetch has come to, or the task is woken when that may be known.
    fn poll(self: &Arc<Self>, fetch: u32, waker: &Waker) -> Poll<Result<Outcome>> {
        match self.outcome(fetch, false) {
            Ok(None) => {}
            Ok(Some(outcome)) => return Poll::Ready(Ok(outcome)),
            Err(error) => return Poll::Ready(Err(error)),
        }
        let mut state = self.state();
        // A thread may have heard of it meanwhile.
        if let Some(Some(outcome)) = state.fetches.get(&fetch) {
            return Poll::Ready(Ok(outcome.clone()));
        }
        if state.is_over {
            return Poll::Ready(Err(Error::Gone));
        }
        state.tasks.insert(fetch, waker.clone());
        // A thread that hears wakes the tasks afterwards.
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

    /// What a fetch has come to. `None`: it is not known yet, and `waits` is false.
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

    /// Notes what the calling thread heard, and wakes whom it concerns. `None`: the thread looks again for its own fetch.
    fn hear(&self, received: Result<Option<Arrived>>, own: u32) -> Option<Result<Option<Outcome>>> {
        let mut state = self.state();
        state.is_heard = false;
        // Whoever waits may have to hear what arrives next.
        self.arrived.notify_all();
        let (mut is_own, mut woken) = (false, Vec::new());
        let end = match received {
            Ok(Some(Arrived { fetch, place })) => {
                is_own = fetch == own;
                // A fetch that was given up may arrive all the same.
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
        // This thread hears no longer: the tasks that relied on that set the alarm.
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
        let mut state = self.state();
        state.tasks.remove(&fetch);
        // What failed is not held by the cache any more.
        let failed = matches!(state.fetches.remove(&fetch), Some(Some(Err(_))));
        if !state.is_over && !failed && !self.link.release(fetch) {
            state.is_over = true;
            self.link.end();
        }
    }
}

/// Wakes the tasks of a reader. The link has it, and the reader has the link.
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

    /// The version of the file whose ranges this reads.
    pub fn version(&self) -> &FileVersion {
        &self.inner.version
    }

    /// Reads begin and end at multiples of this number of bytes, a power of two. What is around a range up to them is read, too.
    pub fn alignment(&self) -> usize {
        self.inner.unit as usize
    }

    /// Begins to read `len` bytes from `start` on: at least 1, and at most [`MAX_RANGE_BYTES`](crate::MAX_RANGE_BYTES) when both ends
    /// are rounded outwards to the [alignment](Self::alignment). Readers share ranges that are equal.
    ///
    /// # Errors
    /// [`Error::Invalid`]: the range is not in the file, empty, or too long. [`Error::Held`]: as many ranges
    /// are fetched as may be. [`Error::Gone`]: the service has ended.
    pub fn fetch(&self, start: u64, len: usize) -> Result<Fetch> {
        let inner = &self.inner;
        inner.check_process()?;
        // What does not fit is far too long, and refused as such.
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
        if let Err(error) = inner.link.fetch(id, span) {
            if matches!(error, Error::Gone | Error::System { .. }) {
                state.is_over = true;
                inner.link.end();
            }
            return Err(error);
        }
        state.fetches.insert(id, None);
        drop(state);
        Ok(Fetch { inner: Some(inner.clone()), id, span })
    }

    /// The connection to the daemon, if the service is another process's. A forked child has no use for its copy, and may close it;
    /// the daemon learns of the reader's end when all copies are closed.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner.link.descriptor()
    }
}

/// A range that is on its way. Dropping it gives it up.
pub struct Fetch {
    /// `None` when the range has become a [`PinnedRange`].
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

    /// Whether [`wait`](Self::wait) would not wait.
    ///
    /// # Errors
    /// The service has ended.
    pub fn is_ready(&self) -> Result<bool> {
        Ok(self.inner().outcome(self.id, false)?.is_some())
    }

    /// Waits until the range is there.
    ///
    /// # Errors
    /// [`Error::Read`]: the range cannot be read. [`Error::Gone`], [`Error::System`]: the service has ended, or does not answer.
    pub fn wait(mut self) -> Result<PinnedRange> {
        let outcome = self.inner().outcome(self.id, true)?.expect("it was waited for");
        self.pinned(outcome)
    }

    /// The range that has arrived.
    fn pinned(&mut self, outcome: Outcome) -> Result<PinnedRange> {
        let (mapping, at) =
            outcome.map_err(|source| Error::Read { file: 0, offset: self.span.start, source })?;
        if at.checked_add(self.span.len as usize).is_none_or(|end| end > mapping.bytes()) {
            return Err(crate::wire::malformed("has a place that is none"));
        }
        let inner = self.inner.take().expect("it is not pinned yet");
        Ok(PinnedRange { inner, mapping, at, id: self.id, span: self.span })
    }
}

/// As [`Fetch::wait`], for a task of any executor: no thread waits. It must not be polled after it is ready.
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

/// Bytes of a file, in the memory that the device wrote them to. They stay as they are until this is dropped. It may go to any
/// thread, and outlive its reader.
pub struct PinnedRange {
    inner: Arc<Inner>,
    mapping: Arc<Mapping>,
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
    /// Whether everything that was read from these bytes before this call was the range's. A daemon that has lost the connection to its
    /// reader gives the memory to other ranges. Then what was read is not to be used. No system call.
    pub fn is_held(&self) -> bool {
        self.inner.link.is_held()
    }

    /// Where the bytes are in the file.
    pub fn offset(&self) -> u64 {
        self.span.start
    }
}

impl std::ops::Deref for PinnedRange {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `wait` has checked that they are in the mapping, which this keeps; the cache does not read into the range's frame
        // until the range is released, which takes this object's end, or until the connection to its daemon ends (`is_held`). Then
        // the bytes change as any that another process shares.
        unsafe { std::slice::from_raw_parts(self.mapping.start().add(self.at), self.span.len as usize) }
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

/// A segment of a cache's memory that another process handed over.
pub(crate) fn segment(memory: OwnedFd) -> Result<Arc<Mapping>> {
    let bytes = rustix::fs::fstat(memory.as_fd()).map_err(Error::system("looking at frames"))?.st_size;
    let bytes = usize::try_from(bytes).unwrap_or(0);
    if bytes == 0 || !bytes.is_multiple_of(FRAME) {
        return Err(crate::wire::malformed("has frames that are none"));
    }
    Ok(Arc::new(Mapping::view(memory, bytes)?))
}
