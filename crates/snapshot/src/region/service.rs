//! A region with its threads.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use super::{BlockedSignals, Own, Region};
use crate::Error;

const STACK: usize = 128 << 10;

/// A thread that a region needs.
pub struct Thread<R> {
    pub(crate) name: &'static str,
    /// It ends some time after [`Region::end_threads`].
    pub(crate) life: Box<dyn FnOnce(&R) + Send>,
}

/// A region with its threads.
pub struct Service<R: Region> {
    /// Dropped after its threads have ended.
    region: Own<R>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl<R: Region> Deref for Service<R> {
    type Target = R;

    fn deref(&self) -> &R {
        &self.region
    }
}

/// What threads know of the region, which outlives them.
struct Shared<R>(*const R);

// SAFETY: regions are for any thread.
unsafe impl<R: Sync> Send for Shared<R> {}

impl<R: Region> Shared<R> {
    fn region(&self) -> &R {
        // SAFETY: `Service` ends its threads before the region.
        unsafe { &*self.0 }
    }
}

impl<R: Region> Service<R> {
    /// A region without threads yet.
    pub fn new(region: Own<R>) -> Self {
        Self { region, threads: Mutex::new(Vec::new()) }
    }

    /// Starts its threads: from now on snapshots can be taken, and what can be done ahead of them is.
    ///
    /// # Errors
    /// [`Error::System`] when threads cannot be had.
    pub fn start_threads(&self) -> Result<(), Error> {
        let started = Arc::new(AtomicUsize::new(0));
        let _blocked = BlockedSignals::new();
        for Thread { name, life } in self.region.threads() {
            let (shared, begun) = (Shared(&raw const *self.region), started.clone());
            let thread = Builder::new().name(name.into()).stack_size(STACK).spawn(move || {
                let (shared, begun) = (shared, begun);
                begun.fetch_add(1, Ordering::AcqRel);
                // Never freed, for this thread frees nothing while it works: a word.
                std::mem::forget(begun);
                life(shared.region());
            });
            let source = |error: std::io::Error| Error::System {
                what: "starting a thread",
                source: rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::AGAIN),
            };
            self.lock().push(thread.map_err(source)?);
        }
        // A thread allocates until it runs. None must have begun to keep writers waiting before.
        let all = self.lock().len();
        while started.load(Ordering::Acquire) < all {
            std::thread::yield_now();
        }
        self.region.threads_run();
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R: Region> Drop for Service<R> {
    fn drop(&mut self) {
        self.region.end_threads();
        for thread in self.lock().drain(..) {
            let _ = thread.join();
        }
    }
}
