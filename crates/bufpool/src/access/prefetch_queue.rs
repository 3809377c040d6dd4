//! The thread that reads ahead, and the pages that it has read and no thread has published yet (`prefetch`).
//!
//! It knows storage and memory, but not the protocol. The first request starts it. It is joined before the memory that it writes
//! is released. The locks of `queue` and `arrived` are leaves.

use std::collections::VecDeque;
use std::io;
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use crate::buffer::TOGETHER;
use crate::error::{Error, Result};
use crate::page::{self, Image, PageId};
use crate::page_size::PageSize;
use crate::protocol::frame_table::FrameId;
use crate::storage::{Read, Storage};

/// The thread makes no deep calls.
const STACK: usize = 256 << 10;

/// Checks that the content of the memory is the page.
///
/// # Safety
/// `memory` is a page of this size, aligned and initialised, and no thread writes it meanwhile.
pub(crate) unsafe fn verify(
    memory: *const u8,
    size: PageSize,
    page: PageId,
    result: io::Result<()>,
) -> Result<()> {
    result.map_err(|source| Error::Read { page, source })?;
    // SAFETY: guaranteed by the caller.
    page::verify(unsafe { image_at(memory, size) }, page).map_err(|damage| Error::Damaged { page, damage })
}

/// The image of a page in memory.
///
/// # Safety
/// The same as for [`verify`], during `'a`.
pub(crate) unsafe fn image_at<'a>(memory: *const u8, size: PageSize) -> &'a Image {
    // SAFETY: guaranteed by the caller.
    unsafe { slice::from_raw_parts(memory, size.bytes()) }
}

/// A read for a page that is claimed.
pub(crate) struct Request {
    pub frame: FrameId,
    pub page: PageId,
    pub read: Read<'static>,
}

/// A page whose read has ended.
pub(crate) struct Arrival {
    pub frame: FrameId,
    pub page: PageId,
    pub result: Result<()>,
}

/// The reads ahead of a pool.
#[derive(Default)]
pub(crate) struct PrefetchQueue {
    shared: Arc<Shared>,
    /// The thread, and the process that it runs in.
    thread: Mutex<Option<(JoinHandle<()>, u32)>>,
    /// Pages that are claimed and not yet published.
    in_flight: AtomicUsize,
}

struct InFlight<'a> {
    arrivals: &'a PrefetchQueue,
    pages: usize,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.arrivals.in_flight.fetch_sub(self.pages, Ordering::Release);
    }
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    bell: Condvar,
    arrived: Mutex<Vec<Arrival>>,
    /// Number of those pages.
    count: AtomicUsize,
}

#[derive(Default)]
struct Queue {
    requests: VecDeque<Request>,
    closed: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PrefetchQueue {
    /// Number of pages in flight. Their frames become usable again.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Acquire)
    }

    /// Starts the thread, if it does not run. Without it, no page is read ahead.
    pub fn is_running(&self, storage: &Arc<dyn Storage>) -> bool {
        let mut thread = lock(&self.thread);
        if thread.is_none() {
            let (shared, storage) = (self.shared.clone(), storage.clone());
            let builder = thread::Builder::new().name("bufpool-prefetch".into()).stack_size(STACK);
            let started = bedplate_threads::spawn(builder, move || shared.run(&*storage));
            *thread = started.ok().map(|handle| (handle, std::process::id()));
        }
        thread.is_some()
    }

    /// Counts a page that is about to be claimed. Returns false if `most` pages are in flight already.
    pub fn begin(&self, most: usize) -> bool {
        let more = |pages: usize| (pages < most).then_some(pages + 1);
        self.in_flight.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).is_ok()
    }

    /// Until this is dropped, the pages that the caller reads itself are in flight.
    pub fn settle_when_dropped(&self, pages: usize) -> impl Drop + '_ {
        InFlight { arrivals: self, pages }
    }

    /// Queues reads of claimed pages. Their memory belongs to the thread until they arrive.
    pub fn ask(&self, requests: Vec<Request>) {
        if requests.is_empty() {
            return;
        }
        lock(&self.shared.queue).requests.extend(requests);
        self.shared.bell.notify_one();
    }

    /// Counts a page that has arrived and has been published or abandoned.
    pub fn settled(&self) {
        self.in_flight.fetch_sub(1, Ordering::Release);
    }

    /// Takes the pages that have been read. The caller publishes them.
    pub fn take(&self) -> Vec<Arrival> {
        if self.shared.count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let mut arrived = lock(&self.shared.arrived);
        self.shared.count.store(0, Ordering::Relaxed);
        std::mem::take(&mut arrived)
    }
}

impl Shared {
    /// Runs the thread.
    fn run(&self, storage: &dyn Storage) {
        while let Some(some) = self.next() {
            let (places, mut reads): (Vec<_>, Vec<_>) =
                some.into_iter().map(|Request { frame, page, read }| ((frame, page), read)).unzip();
            let memory: Vec<(*mut u8, PageSize)> =
                reads.iter_mut().map(|read| (read.memory(), read.size())).collect();
            storage.read_each(&mut reads, &mut |index, result: io::Result<()>| {
                let (frame, page) = places[index];
                let (memory, size) = memory[index];
                // SAFETY: the claim's memory, which only storage has written.
                let result = unsafe { verify(memory, size, page, result) };
                let mut arrived = lock(&self.arrived);
                arrived.push(Arrival { frame, page, result });
                self.count.store(arrived.len(), Ordering::Release);
            });
        }
    }

    /// Waits for the next reads. Returns none if the pool is being dropped.
    fn next(&self) -> Option<Vec<Request>> {
        let queue = lock(&self.queue);
        let idle = |queue: &mut Queue| queue.requests.is_empty() && !queue.closed;
        let mut queue = self.bell.wait_while(queue, idle).unwrap_or_else(PoisonError::into_inner);
        let some = TOGETHER.min(queue.requests.len());
        (!queue.closed).then(|| queue.requests.drain(..some).collect())
    }
}

impl Drop for PrefetchQueue {
    fn drop(&mut self) {
        lock(&self.shared.queue).closed = true;
        self.shared.bell.notify_one();
        let thread = lock(&self.thread).take();
        // A forked child has a copy of the memory, but no thread that writes it.
        if let Some((handle, process)) = thread
            && process == std::process::id()
        {
            let _ = handle.join();
        }
    }
}
