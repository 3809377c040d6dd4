//! The thread that folds when snapshots have ended.
//!
//! It allocates nothing once it runs and has all signals blocked: the region may be the heap, and a signal's handler the
//! program's.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use rustix::event::poll;
use rustix::time::Timespec;

use super::region::Region;
use crate::Error;
use crate::uffd::{BlockedSignals, Own, now};

const STACK: usize = 128 << 10;
/// The time between two looks at whether a child has ended.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// The time after which it is tried again when there was no memory.
const LATER: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// The time between two looks at whether there are tables to make, and the longest that it goes on with that.
const REST: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
const ROUND_NS: u64 = 50_000_000;

/// A region with its thread.
pub struct Service {
    /// Dropped after its thread has ended.
    region: Own<Region>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Deref for Service {
    type Target = Region;

    fn deref(&self) -> &Region {
        &self.region
    }
}

struct Shared(*const Region);

// SAFETY: regions are for any thread.
unsafe impl Send for Shared {}

impl Shared {
    fn region(&self) -> &Region {
        // SAFETY: `Service` ends its thread before the region.
        unsafe { &*self.0 }
    }
}

impl Service {
    /// A region without a thread yet.
    pub fn new(region: Own<Region>) -> Self {
        Self { region, thread: Mutex::new(None) }
    }

    /// Starts its thread: from now on snapshots can be taken.
    ///
    /// # Errors
    /// [`Error::System`] when a thread cannot be had.
    pub fn start_threads(&self) -> Result<(), Error> {
        let shared = Shared(&raw const *self.region);
        let started = Arc::new(AtomicBool::new(false));
        let runs = started.clone();
        let _blocked = BlockedSignals::new();
        let thread = Builder::new().name("bedplate-keep".into()).stack_size(STACK).spawn(move || {
            let (shared, runs) = (shared, runs);
            runs.store(true, Ordering::Release);
            // Freed by who waits for it: this thread frees nothing while it works.
            std::mem::forget(runs);
            shared.region().keep();
        });
        let thread = thread.map_err(|error| Error::System {
            what: "starting a thread",
            source: rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::AGAIN),
        })?;
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        // A thread allocates until it runs.
        while !started.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        self.region.served.store(true, Ordering::Release);
        Ok(())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.region.over.store(true, Ordering::Release);
        self.region.bell.ring();
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}

impl Region {
    fn keep(&self) {
        let mut rest = &REST;
        loop {
            let _ = poll(&mut [self.bell.poll()], Some(rest));
            self.bell.answer();
            rest = self.fold_what_can_be();
            let begin = now();
            self.prepare_until(|| {
                // Others may be waiting for the state's lock.
                std::thread::yield_now();
                self.is_over() || now() - begin > ROUND_NS
            });
            if self.is_over() {
                return;
            }
        }
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Gives the time after which it is to be looked again.
    fn fold_what_can_be(&self) -> &'static Timespec {
        while !self.is_over() {
            match self.fold_some() {
                // Others may be waiting for the state's lock.
                Ok(true) => std::thread::yield_now(),
                Ok(false) if self.lock().private.is_empty() => return &REST,
                Ok(false) => return &LOOK,
                Err(_) => return &LATER,
            }
        }
        &REST
    }
}
