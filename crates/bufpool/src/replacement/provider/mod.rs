//! The page provider: threads that keep some frames free, so that a thread that needs a frame neither writes nor waits for a
//! write.
//!
//! The provider's threads wake when fewer frames are free than the low-water mark, and work until as many are free as the high-water
//! mark says ([`Marks`]). They evict clean pages and write dirty ones, several batches at once (`round`). A thread that needs a
//! frame takes a free one. If there is none, it evicts clean pages itself. Only when no page is clean it waits for the provider.
//!
//! - `signals`: how the provider's threads and the others wake each other, and errors reach the latter;
//! - `round`: which pages leave, from a wake-up until enough frames are free.
//!
//! # Life of the threads
//!
//! The threads start when the number of free frames falls below the low-water mark for the first time. So a pool whose pages leave
//! that many frames free has no threads, and opening a pool cannot fail for want of a thread. They end when the pool is dropped, before
//! its memory is. A write that they have begun ends first. [`Provider::pause`] keeps them from working while the pool is closed.
//!
//! A process that may not start a thread has none, and neither has one in which a storage has panicked in them. Threads that need
//! frames then evict and write by themselves, as they do when the provider is off. The same is true in a child that was forked
//! while the provider slept. If it worked, the child inherits frames and locks that no thread gives back: it may only drop the pool.
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

/// How many threads a pool's provider has unless the user says otherwise.
pub(crate) const DEFAULT_THREADS: usize = 1;
/// The most threads of a provider. A larger number is an error when the pool is opened.
pub(crate) const MOST_THREADS: usize = 8;

/// The part of the frames that are free at the high-water mark.
const FREE_PART: usize = 32;
/// The fewest frames that are free at the high-water mark, so that a small pool has one that is taken while another one is freed.
const FEWEST_FREE: usize = 2;
/// The most frames that are free at the high-water mark: more would only keep pages out of a large memory.
const MOST_FREE: usize = 1024;

/// The provider's threads call nothing deep.
const STACK: usize = 256 << 10;

/// How many free frames the provider keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marks {
    /// With fewer free frames than this, the provider wakes.
    low: usize,
    /// With as many free frames as this, it sleeps.
    high: usize,
}

impl Marks {
    /// The marks of a pool with that many frames.
    fn new(frames: usize) -> Self {
        let high = (frames / FREE_PART).clamp(FEWEST_FREE, MOST_FREE);
        Self { low: high / 2, high }
    }
}

/// The page provider of a pool.
pub(crate) struct Provider {
    signals: Arc<Signals>,
    marks: Marks,
    /// How many threads there are, or will be. Zero is none: the provider is off.
    count: usize,
    /// Where it was made: a forked child has no threads.
    process: forks::Process,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The provider has been woken and works, or will. Only an advice not to wake it again.
    is_awake: Arc<AtomicBool>,
}

impl Provider {
    /// A provider with that many threads, which are started when they are needed first.
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

    /// A free frame has been taken. The provider wakes if too few are left. If it is awake still, its round counts the free frames
    /// once more when it ends. The lock of the free list orders taking and counting.
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

    /// Returns when the provider does nothing. It does nothing until the result is dropped.
    ///
    /// `None`: there is no thread. A forked child must not take the lock, because a thread of its parent may have held it.
    pub fn pause(&self) -> Option<impl Drop + '_> {
        self.is_on().then(|| self.signals.pause())
    }

    /// Starts the threads that are not there yet.
    fn start(&self, core: &Arc<Core>) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        if !threads.is_empty() {
            return;
        }
        // SAFETY: the threads end before the provider is dropped, and the pool drops the provider before it lets go of the core.
        // A pool that is never dropped keeps its core. A forked child has no threads.
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
            // They are the parent's.
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
