//! Pages that are brought in before they are needed.
//!
//! [`Pool::prefetch`] claims pages and has a thread of the pool's read them. It waits for nothing: it takes room that is free
//! or clean, and does less where there is none. The thread, which is started by the first call, knows storage and memory and
//! nothing of the protocol. What it has read is published by whoever is about to wait for a page or for room
//! ([`Pool::pause`]), or asks for more; until then it is locked like any other page that is being brought in. So a
//! reader waits for the page it needs, and for no other, and what is in flight is room that comes back.
//!
//! Locks: those of `queue` and `arrived` are leaves. The thread is joined before the memory that it writes is given back.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use crate::error::Result;
use crate::fault::{Claim, verify};
use crate::page::PageId;
use crate::pool::Pool;
use crate::protocol::slots::Slot;
use crate::storage::{Read, Storage};
use crate::wait::Backoff;
use crate::writeback::TOGETHER;

/// It calls nothing deep.
const STACK: usize = 256 << 10;

impl Pool {
    /// Begins to bring pages in that are not in memory, and returns at once: they arrive later, in any order. Whoever
    /// needs one of them earlier waits for that one.
    ///
    /// It is advice. It takes room from pages that are clean and have not been used for long; where that is not enough, or
    /// half of the memory is on its way already, the last of the pages are left out. A page that cannot be read is an error
    /// for whoever needs it.
    pub fn prefetch(&self, pages: &[PageId]) {
        self.publish_arrivals();
        let is_absent = |page: &PageId| {
            let owner = self.layout.owner(page.0);
            let present = self.engine.find(*page).is_some_and(|place| owner.has_in_use(place.word.load()));
            !present && self.check(*page).is_ok()
        };
        let mut requests = Vec::new();
        for page in pages.iter().copied().filter(|page| page.0 < self.limit).filter(is_absent) {
            // Others need room, too.
            if self.prefetched.in_flight() + requests.len() >= self.slots.count() / 2 {
                break;
            }
            if requests.is_empty() && !self.prefetched.is_running(&self.home.storage) {
                return;
            }
            if self.engine.refresh(page) || self.engine.is_claimed(page) {
                continue;
            }
            let Some(slot) = self.slot_at_once() else { break };
            match self.engine.claim(&self.slots, slot, page) {
                Some(place) => requests.push(Claim::new(self, slot, page, place).into_request()),
                None => self.engine.give(&self.slots, [slot]),
            }
        }
        self.prefetched.ask(requests);
    }

    /// A slot for which nobody has to wait.
    fn slot_at_once(&self) -> Option<Slot> {
        self.engine.take(&self.slots).or_else(|| {
            self.evict_clean();
            self.engine.take(&self.slots)
        })
    }

    /// Publishes pages that have been read ahead.
    pub(crate) fn publish_arrivals(&self) {
        for arrival in self.prefetched.arrivals() {
            // Should it be dropped: what it asked for is not there, and whoever needs it asks again.
            let claim = Claim::of(self, arrival.slot, arrival.page);
            if arrival.result.is_ok() && claim.believe().is_ok() {
                self.counters.read.add(1);
                claim.publish();
            }
            self.prefetched.in_flight.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits a little for a page or for room. What has been read ahead may be it.
    pub(crate) fn pause(&self, backoff: &mut Backoff) {
        self.publish_arrivals();
        backoff.pause();
    }
}

/// What is to be read for a page that is claimed.
pub(crate) struct Request {
    pub slot: Slot,
    pub page: PageId,
    pub read: Read<'static>,
}

/// A page whose reading has ended.
struct Arrival {
    slot: Slot,
    page: PageId,
    result: Result<()>,
}

/// What a pool reads ahead.
#[derive(Default)]
pub(crate) struct Prefetch {
    shared: Arc<Shared>,
    /// And the process that it is in.
    thread: Mutex<Option<(JoinHandle<()>, u32)>>,
    /// Pages that are claimed and not yet published.
    in_flight: AtomicUsize,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    bell: Condvar,
    arrived: Mutex<Vec<Arrival>>,
    /// How many those are.
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

impl Prefetch {
    /// How many pages are on their way: room that comes back.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Acquire)
    }

    /// Starts the thread, if it is not there. Without one, nothing is read ahead.
    fn is_running(&self, storage: &Arc<dyn Storage>) -> bool {
        let mut thread = lock(&self.thread);
        if thread.is_none() {
            let (shared, storage) = (self.shared.clone(), storage.clone());
            let builder = thread::Builder::new().name("bufpool-prefetch".into()).stack_size(STACK);
            let started = builder.spawn(move || shared.run(&*storage));
            *thread = started.ok().map(|handle| (handle, std::process::id()));
        }
        thread.is_some()
    }

    fn ask(&self, requests: Vec<Request>) {
        if requests.is_empty() {
            return;
        }
        self.in_flight.fetch_add(requests.len(), Ordering::AcqRel);
        lock(&self.shared.queue).requests.extend(requests);
        self.shared.bell.notify_one();
    }

    fn arrivals(&self) -> Vec<Arrival> {
        if self.shared.count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let mut arrived = lock(&self.shared.arrived);
        self.shared.count.store(0, Ordering::Relaxed);
        std::mem::take(&mut arrived)
    }
}

impl Shared {
    /// What the thread does.
    fn run(&self, storage: &dyn Storage) {
        while let Some(some) = self.next() {
            let (places, mut reads): (Vec<_>, Vec<_>) =
                some.into_iter().map(|Request { slot, page, read }| ((slot, page), read)).unzip();
            let memory: Vec<*mut u8> = reads.iter_mut().map(Read::memory).collect();
            storage.read_each(&mut reads, &mut |index, result: io::Result<()>| {
                let (slot, page) = places[index];
                // SAFETY: the claim's memory, which storage has written and nobody else writes.
                let result = unsafe { verify(memory[index], page, result) };
                let mut arrived = lock(&self.arrived);
                arrived.push(Arrival { slot, page, result });
                self.count.store(arrived.len(), Ordering::Release);
            });
        }
    }

    /// What is to be read next, or none if the pool is being dropped.
    fn next(&self) -> Option<Vec<Request>> {
        let queue = lock(&self.queue);
        let idle = |queue: &mut Queue| queue.requests.is_empty() && !queue.closed;
        let mut queue = self.bell.wait_while(queue, idle).unwrap_or_else(PoisonError::into_inner);
        let some = TOGETHER.min(queue.requests.len());
        (!queue.closed).then(|| queue.requests.drain(..some).collect())
    }
}

impl Drop for Prefetch {
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
