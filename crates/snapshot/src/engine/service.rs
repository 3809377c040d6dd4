//! An engine with its threads.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use super::Engine;
use crate::Error;
use crate::region::MmapBox;

const STACK: usize = 128 << 10;

/// The threads of an engine. Only [`Service`] can use this trait, because it has no public name.
pub trait Threads {
    /// The names of the threads that the engine needs.
    fn names(&self) -> &'static [&'static str] {
        &[]
    }

    /// Runs one of the threads. It returns some time after [`end_threads`](Self::end_threads).
    fn run_thread(&self, _number: usize) {}

    /// Tells the engine that all its threads run.
    fn threads_run(&self) {}

    /// Tells the engine's threads to end.
    fn end_threads(&self) {}
}

/// An engine with its threads.
pub struct Service<E: Engine + ?Sized> {
    /// Dropped after its threads have ended.
    engine: MmapBox<E>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The process that has the threads. Its children have none.
    owner: u32,
}

impl<E: Engine + ?Sized> Deref for Service<E> {
    type Target = E;

    fn deref(&self) -> &E {
        &self.engine
    }
}

/// The threads' pointer to the engine, which outlives them.
struct EnginePointer<E: ?Sized>(*const E);

// SAFETY: any thread may use an engine.
unsafe impl<E: Sync + ?Sized> Send for EnginePointer<E> {}

impl<E: Engine + ?Sized> EnginePointer<E> {
    fn engine(&self) -> &E {
        // SAFETY: `Service` ends its threads before the engine.
        unsafe { &*self.0 }
    }
}

impl<E: Engine + ?Sized> Service<E> {
    /// Wraps an engine. Its threads are not started yet.
    pub(crate) fn new(engine: MmapBox<E>) -> Self {
        Self { engine, threads: Mutex::new(Vec::new()), owner: std::process::id() }
    }

    /// Whether this process created the engine. In a child the locks have the state of the fork, and no thread
    /// unlocks them.
    pub fn is_owner(&self) -> bool {
        std::process::id() == self.owner
    }

    /// Starts the engine's threads, so that snapshots can be taken. Does nothing if they run already.
    ///
    /// # Errors
    /// [`Error::System`] if the threads cannot be started. Then the engine has no threads.
    pub fn start_threads(&self) -> Result<(), Error> {
        let mut running = self.lock();
        if !running.is_empty() {
            return Ok(());
        }
        let started = Arc::new(AtomicUsize::new(0));
        for (number, name) in self.engine.names().iter().enumerate() {
            match self.start(number, name, &started) {
                Ok(handle) => running.push(handle),
                // The caller can try again. An engine whose threads were ended has no threads.
                Err(error) if running.is_empty() => return Err(error),
                Err(error) => {
                    drop(running);
                    self.end_threads();
                    return Err(error);
                }
            }
        }
        // A new thread allocates memory until it runs. No thread may make writers wait before all have got that
        // far.
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
            // This is never freed, because the thread must not free memory while it works. It leaks only one word.
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
            // There is no thread to wait for in a child.
            let threads = self.threads.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(std::mem::take(threads));
        }
    }
}
