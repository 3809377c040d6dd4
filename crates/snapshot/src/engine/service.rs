//! A region with its threads.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use super::{MmapBox, Region};
use crate::Error;

const STACK: usize = 128 << 10;

/// A thread that a region needs.
pub struct Thread<R> {
    pub name: &'static str,
    /// It ends some time after [`Threaded::end_threads`].
    pub life: Box<dyn FnOnce(&R) + Send>,
}

/// What a region's service does to it. Nobody else can, for this trait has no name outside of this crate.
pub trait Threaded: Sized {
    /// The threads that it needs.
    fn threads(&self) -> Vec<Thread<Self>>;

    /// All of them run.
    fn threads_run(&self) {}

    /// They are to end.
    fn end_threads(&self);
}

/// A region with its threads.
pub struct Service<R: Region> {
    /// Dropped after its threads have ended.
    region: MmapBox<R>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The process whose the threads are. Its children have none.
    owner: u32,
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
    pub fn new(region: MmapBox<R>) -> Self {
        Self { region, threads: Mutex::new(Vec::new()), owner: std::process::id() }
    }

    /// Starts its threads: from now on snapshots can be taken. Once is enough.
    ///
    /// # Errors
    /// [`Error::System`] when threads cannot be had: it has none then.
    pub fn start_threads(&self) -> Result<(), Error> {
        let mut running = self.lock();
        if !running.is_empty() {
            return Ok(());
        }
        let started = Arc::new(AtomicUsize::new(0));
        for thread in self.region.threads() {
            match self.start(thread, &started) {
                Ok(handle) => running.push(handle),
                // It may be tried again: a region whose threads were ended has none any more.
                Err(error) if running.is_empty() => return Err(error),
                Err(error) => {
                    drop(running);
                    self.end();
                    return Err(error);
                }
            }
        }
        // A thread allocates until it runs. None must have begun to keep writers waiting before.
        while started.load(Ordering::Acquire) < running.len() {
            std::thread::yield_now();
        }
        self.region.threads_run();
        Ok(())
    }

    fn start(&self, thread: Thread<R>, started: &Arc<AtomicUsize>) -> Result<JoinHandle<()>, Error> {
        let Thread { name, life } = thread;
        let (shared, begun) = (Shared(&raw const *self.region), started.clone());
        let builder = Builder::new().name(name.into()).stack_size(STACK);
        let handle = bedplate_threads::spawn(builder, move || {
            let (shared, begun) = (shared, begun);
            begun.fetch_add(1, Ordering::AcqRel);
            // Never freed, for this thread frees nothing while it works: a word.
            std::mem::forget(begun);
            life(shared.region());
        });
        handle.map_err(|error| Error::System {
            what: "starting a thread",
            source: rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::AGAIN),
        })
    }

    fn end(&self) {
        self.region.end_threads();
        for thread in self.lock().drain(..) {
            let _ = thread.join();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R: Region> Drop for Service<R> {
    fn drop(&mut self) {
        if std::process::id() == self.owner {
            self.end();
        } else {
            // There is no thread to wait for.
            let threads = self.threads.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(std::mem::take(threads));
        }
    }
}
