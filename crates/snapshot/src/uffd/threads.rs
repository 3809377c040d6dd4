//! A region's threads: handlers, helpers that arm, and the keeper.
//!
//! They allocate nothing once they run and have all signals blocked: the region may be the heap, and a signal's handler
//! the program's.

use std::ffi::CStr;
use std::fmt::Write;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::thread::CpuSet;

use super::crew::Lookout;
use super::own::Own;
use super::region::Region;
use super::window::Window;
use crate::Error;

/// Helpers that arm, at most: more would wait for the same locks.
const HELPERS: usize = 7;
const STACK: usize = 128 << 10;
/// What handlers are called.
pub(super) const HANDLER: &str = "bedplate-fault";

/// A region with its threads.
pub struct Service {
    /// Dropped after its threads have ended.
    region: Own<Region>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Deref for Service {
    type Target = Region;

    fn deref(&self) -> &Region {
        &self.region
    }
}

/// What threads know of the region, which outlives them.
#[derive(Clone, Copy)]
struct Shared(*const Region);

// SAFETY: regions are for any thread.
unsafe impl Send for Shared {}

impl Shared {
    fn region(&self) -> &Region {
        // SAFETY: `Service` ends its threads before the region.
        unsafe { &*self.0 }
    }

    fn is_over(&self) -> bool {
        self.region().over.load(Ordering::Acquire)
    }
}

impl Service {
    /// A region without threads yet.
    pub fn new(region: Own<Region>) -> Self {
        Self { region, threads: Mutex::new(Vec::new()) }
    }

    /// Starts its threads: from now on it is armed ahead, and snapshots can be taken.
    ///
    /// # Errors
    /// [`Error::System`] when threads cannot be had.
    pub fn start_threads(&self) -> Result<(), Error> {
        let shared = Shared(&raw const *self.region);
        let handlers = self.region.crew.count();
        let helpers = (handlers - 1).min(HELPERS);
        let started = Arc::new(AtomicUsize::new(0));
        let _blocked = BlockedSignals::new();
        for processor in 0..handlers {
            self.spawn(HANDLER, &started, move || handle(shared, processor))?;
        }
        for _ in 0..helpers {
            self.spawn("bedplate-arm", &started, move || {
                shared.region().team.help(|share| shared.region().arm_share(share));
            })?;
        }
        self.spawn("bedplate-keep", &started, move || shared.region().keep_ahead(|| shared.is_over()))?;
        // A thread allocates until it runs. Nothing must be armed before: the keeper waits for this, too.
        let all = self.threads().len();
        while started.load(Ordering::Acquire) < all {
            std::thread::yield_now();
        }
        self.region.served.store(true, Ordering::Release);
        self.region.bell.ring();
        Ok(())
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spawn(
        &self,
        name: &str,
        started: &Arc<AtomicUsize>,
        life: impl FnOnce() + Send + 'static,
    ) -> Result<(), Error> {
        let started = started.clone();
        let thread = Builder::new().name(name.into()).stack_size(STACK).spawn(move || {
            let begun = started;
            begun.fetch_add(1, Ordering::AcqRel);
            // Freed by who waits for it: this thread frees nothing while it serves.
            std::mem::forget(begun);
            life();
        });
        let source = |error: std::io::Error| Error::System {
            what: "starting a thread",
            source: rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::AGAIN),
        };
        self.threads().push(thread.map_err(source)?);
        Ok(())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let region = &self.region;
        region.over.store(true, Ordering::Release);
        region.team.dismiss();
        region.bell.ring();
        for processor in 0..region.crew.count() {
            region.crew.post(processor).bell.ring();
        }
        for thread in self.threads().drain(..) {
            let _ = thread.join();
        }
    }
}

/// A handler's life.
fn handle(shared: Shared, processor: usize) {
    let region = shared.region();
    let mut only = CpuSet::new();
    if processor < CpuSet::MAX_CPU {
        only.set(processor);
        // Where it may not run it serves faults from elsewhere, only slower.
        let _ = rustix::thread::sched_setaffinity(None, &only);
    }
    // The writer waits for it, so it goes first; without the privilege it waits for its turn.
    let first = libc::sched_param { sched_priority: 1 };
    // SAFETY: this thread's own scheduling.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const first) };
    let post = region.crew.post(processor);
    let (mut window, mut lookout) = (Window::default(), Lookout::default());
    while !shared.is_over() {
        let mut waits = [post.bell.poll(), PollFd::new(&region.descriptor, PollFlags::IN)];
        let on_duty = post.is_on_duty();
        let _ = poll(&mut waits[..if on_duty { 2 } else { 1 }], None);
        if !waits[0].revents().is_empty() {
            post.bell.answer();
        }
        if on_duty && !waits[1].revents().is_empty() {
            while let Some(fault) = region.descriptor.read() {
                let snapshots = region.serve(fault, &mut window);
                lookout.saw(&region.crew, fault.thread, snapshots);
            }
        }
    }
}

/// No signal reaches the threads that are started meanwhile.
pub(crate) struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    pub fn new() -> Self {
        // SAFETY: fills in sets of this function's, and changes this thread's mask.
        unsafe {
            let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Self(before)
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the mask that this thread had.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}

/// A path in a buffer on the stack. The arguments end with a NUL and fit.
pub(crate) fn path<'a>(buffer: &'a mut [u8; 32], arguments: std::fmt::Arguments<'_>) -> &'a CStr {
    struct To<'a>(&'a mut [u8], usize);
    impl Write for To<'_> {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            let to = self.0.get_mut(self.1..self.1 + text.len()).ok_or(std::fmt::Error)?;
            to.copy_from_slice(text.as_bytes());
            self.1 += text.len();
            Ok(())
        }
    }
    let mut to = To(buffer, 0);
    let written = to.write_fmt(arguments);
    debug_assert!(written.is_ok());
    CStr::from_bytes_until_nul(buffer).expect("it ends with a NUL")
}
