//! The page provider: threads that keep some frames free, so that a thread that needs a frame neither writes nor waits for a
//! write.
//!
//! The provider's threads wake when fewer frames are free than the low-water mark, and work until the free frames reach the
//! high-water mark ([`Marks`]). They evict clean pages and write dirty ones, several batches at once (`round`). A thread that
//! needs a frame takes a free one. If there is none, it evicts clean pages itself. It waits for the provider only if no page is
//! clean.
//!
//! - `signals`: wakes the provider's threads and the threads that need frames, and passes errors to the latter;
//! - `round`: the pages that leave, from a wake-up until enough frames are free.
//!
//! # Life of the threads
//!
//! The threads start when the number of free frames falls below the low-water mark for the first time. So a pool that always has
//! more free frames has no threads, and opening a pool cannot fail for lack of a thread. They end when the pool is dropped,
//! before its memory is released. A write that they have begun ends first. [`Provider::pause`] keeps them from working while the
//! pool is closed.
//!
//! A process that may not start a thread has no provider. The same holds after a storage has panicked in the provider's threads.
//! Threads that need frames then evict and write by themselves, as if the provider were off. The same is true in a child that was
//! forked while the provider slept. If the provider was working, the child inherits frames and locks that no thread releases, so
//! it may only drop the pool.
//!
//! The engine `ring0` has no provider. The threads of the provider would be in ring 3, and waking one is a system call, for which a
//! thread leaves ring 0. That engine promises that evictions make no system calls.

mod round;
mod signals;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bedplate_threads::forks;

use self::round::Worker;
use self::signals::Signals;
pub(crate) use self::signals::{Answer, MOST_OFFERED};
use crate::pool::Core;
use crate::protocol::frame_table::FrameId;

/// Default number of threads of a pool's provider.
pub(crate) const DEFAULT_THREADS: usize = 1;
/// Maximum number of threads of a provider. A larger number is an error when the pool is opened.
pub(crate) const MOST_THREADS: usize = 8;

/// The fraction of the frames that are free at the high-water mark, as a divisor.
const FREE_PART: usize = 32;
/// Minimum number of free frames at the high-water mark. With 2, a small pool has one frame to take while another one is freed.
const FEWEST_FREE: usize = 2;
/// Maximum number of free frames at the high-water mark. More would only keep pages out of a large memory.
const MOST_FREE: usize = 1024;

/// The provider's threads make no deep calls.
const STACK: usize = 256 << 10;

/// The numbers of free frames at which the provider wakes and sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marks {
    /// With fewer free frames than this, the provider wakes.
    low: usize,
    /// With as many free frames as this, it sleeps.
    high: usize,
}

impl Marks {
    /// The marks of a pool with this number of frames.
    fn new(frames: usize) -> Self {
        let high = (frames / FREE_PART).clamp(FEWEST_FREE, MOST_FREE);
        Self { low: high / 2, high }
    }
}

/// The page provider of a pool.
pub(crate) struct Provider {
    signals: Arc<Signals>,
    marks: Marks,
    /// Number of threads, whether or not they have started. With zero, the provider is off.
    count: usize,
    /// The process that made the provider. A forked child has none of its threads.
    process: forks::Process,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Whether the provider has been woken and works, or will. This is only a hint not to wake it again.
    is_awake: Arc<AtomicBool>,
}

impl Provider {
    /// A provider with this number of threads, which are started at the first need.
    pub fn new(threads: usize, frames: usize) -> Self {
        // Without notice of forks, a child would wait for threads that it does not have.
        let count = if forks::watch() { threads } else { 0 };
        let is_awake = Arc::new(AtomicBool::new(false));
        Self {
            signals: Arc::new(Signals::new(is_awake.clone())),
            marks: Marks::new(frames),
            count,
            process: forks::Process::current(),
            threads: Mutex::default(),
            is_awake,
        }
    }

    /// Whether threads that need a frame may rely on it.
    pub fn is_on(&self) -> bool {
        self.count > 0 && self.process.is_current()
    }

    /// Must be called after a free frame has been taken. The provider wakes if too few are left. If it is still awake, its round
    /// counts the free frames once more when it ends. The lock of the free list orders the take before the count.
    #[inline]
    pub fn frame_taken(&self, core: &Arc<Core>, left: usize) {
        if left < self.marks.low && !self.is_awake.load(Ordering::Relaxed) && self.is_on() {
            self.wake(core);
        }
    }

    #[cold]
    fn wake(&self, core: &Arc<Core>) {
        if !self.is_awake.swap(true, Ordering::AcqRel) {
            self.start(core);
            self.signals.wake();
        }
    }

    /// Tells the provider of dirty pages that a thread found when it looked for clean ones.
    pub fn offer(&self, dirty: &[FrameId]) {
        if !dirty.is_empty() && self.is_on() {
            self.signals.offer(dirty);
        }
    }

    /// Waits until the provider has freed a frame, or has tried to since this was called, but no longer than `timeout`.
    pub fn wait_for_frame(&self, timeout: Duration) -> Answer {
        if self.is_on() { self.signals.ask(timeout) } else { Answer::Gone }
    }

    /// Waits until the provider is idle. It stays idle until the result is dropped.
    ///
    /// Returns `None` if there is no thread. A forked child must not take the lock, because a thread of its parent may have held
    /// it.
    pub fn pause(&self) -> Option<impl Drop + '_> {
        self.is_on().then(|| self.signals.pause())
    }

    /// Starts the threads that do not run yet.
    fn start(&self, core: &Arc<Core>) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        if !threads.is_empty() {
            return;
        }
        // SAFETY: the threads end before the provider is dropped, and the pool drops the provider before it releases the core. A
        // pool that is never dropped keeps its core. A forked child has no threads.
        let core: &'static Core = unsafe { &*Arc::as_ptr(core) };
        for _ in 0..self.count {
            let (signals, marks) = (self.signals.clone(), self.marks);
            let builder = thread::Builder::new().name("bufpool-provide".into()).stack_size(STACK);
            signals.thread_starts();
            let body = move || {
                let mut thread = signals.thread();
                let mut worker = Worker::new(core, &signals, marks);
                while thread.begin_round() {
                    core.counters.provider_wakeups.add(1);
                    let outcome = worker.round();
                    thread.end_round(outcome, || worker.is_short());
                }
            };
            match bedplate_threads::spawn(builder, body) {
                Ok(handle) => threads.push(handle),
                Err(_) => drop(self.signals.thread()),
            }
        }
        if threads.is_empty() {
            // The next thread that takes a frame tries again.
            self.is_awake.store(false, Ordering::Release);
        }
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        let threads = self.threads.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !self.process.is_current() {
            // The threads belong to the parent.
            threads.drain(..).for_each(std::mem::forget);
            return;
        }
        self.signals.stop();
        for handle in threads.drain(..) {
            let _ = handle.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn water_marks_scale_with_the_pool() {
        for (frames, low, high) in
            [(16, 1, 2), (64, 1, 2), (256, 4, 8), (16384, 256, 512), (1 << 30, 512, 1024)]
        {
            assert_eq!(Marks::new(frames), Marks { low, high });
        }
    }
}
