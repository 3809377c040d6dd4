//! An engine with its threads.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use super::Engine;
use crate::Error;
use crate::region::MmapBox;

const STACK: usize = 128 << 10;

/// The threads of an engine. Only [`Service`] calls this, for the trait has no name outside of this crate.
pub trait Threads {
    /// The names of the threads that it needs.
    fn names(&self) -> &'static [&'static str] {
        &[]
    }

    /// The life of one of them. It ends some time after [`end_threads`](Self::end_threads).
    fn run_thread(&self, _number: usize) {}

    /// All of them run.
    fn threads_run(&self) {}

    /// They are to end.
    fn end_threads(&self) {}
}

/// An engine with its threads.
pub struct Service<E: Engine + ?Sized> {
    /// Dropped after its threads have ended.
    engine: MmapBox<E>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The process whose the threads are. Its children have none.
    owner: u32,
}

impl<E: Engine + ?Sized> Deref for Service<E> {
    type Target = E;

    fn deref(&self) -> &E {
        &self.engine
    }
}

/// What threads know of the engine, which outlives them.
struct EnginePointer<E: ?Sized>(*const E);

// SAFETY: engines are for any thread.
unsafe impl<E: Sync + ?Sized> Send for EnginePointer<E> {}

impl<E: Engine + ?Sized> EnginePointer<E> {
    fn engine(&self) -> &E {
        // SAFETY: `Service` ends its threads before the engine.
        unsafe { &*self.0 }
    }
}

impl<E: Engine + ?Sized> Service<E> {
    /// An engine without threads yet.
    pub(crate) fn new(engine: MmapBox<E>) -> Self {
        Self { engine, threads: Mutex::new(Vec::new()), owner: std::process::id() }
    }

    /// Whether this process made it. In a child its locks are as they were at the fork, and nobody unlocks them.
    pub fn is_owner(&self) -> bool {
        std::process::id() == self.owner
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
        for (number, name) in self.engine.names().iter().enumerate() {
            match self.start(number, name, &started) {
                Ok(handle) => running.push(handle),
                // It may be tried again: an engine whose threads were ended has none any more.
                Err(error) if running.is_empty() => return Err(error),
                Err(error) => {
                    drop(running);
                    self.end_threads();
                    return Err(error);
                }
            }
        }
        // A thread allocates until it runs. None must have begun to keep writers waiting before.
        while started.load(Ordering::Acquire) < running.len() {
            std::thread::yield_now();
        }
        self.engine.threads_run();
        Ok(())
    }

    fn start(&self, number: usize, name: &str, started: &Arc<AtomicUsize>) -> Result<JoinHandle<()>, Error> {
        let (pointer, begun) = (EnginePointer(&raw const *self.engine), started.clone());
        let builder = Builder::new().name(name.into()).stack_size(STACK);
        let handle = bedplate_threads::spawn(builder, move || {
            let (pointer, begun) = (pointer, begun);
            begun.fetch_add(1, Ordering::AcqRel);
            // Never freed, for this thread frees nothing while it works: a word.
            std::mem::forget(begun);
            pointer.engine().run_thread(number);
        });
        handle.map_err(Error::thread)
    }

    fn end_threads(&self) {
        self.engine.end_threads();
        for thread in self.lock().drain(..) {
            let _ = thread.join();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<E: Engine + ?Sized> Drop for Service<E> {
    fn drop(&mut self) {
        if self.is_owner() {
            self.end_threads();
        } else {
            // There is no thread to wait for.
            let threads = self.threads.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(std::mem::take(threads));
        }
    }
}
