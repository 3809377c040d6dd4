//! The counters of a pool.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts since the pool was opened. Accesses to pages in memory are not counted, because the count would cost more than the
/// access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Pages read from storage.
    pub read: u64,
    /// Pages that could not be read, or were damaged.
    pub read_failed: u64,
    /// Pages written to storage in their places.
    pub written: u64,
    /// Pages whose writing failed. They stay in memory.
    pub write_failed: u64,
    /// Number of pages that the page provider wrote to their places in storage.
    pub provider_written: u64,
    /// Number of times that a thread of the page provider woke. It then frees frames until enough are free.
    pub provider_wakeups: u64,
    /// Number of times that a thread waited for a frame, because no frame was free and no clean page could be evicted.
    pub frame_waits: u64,
    /// Number of times that a thread waited for a page that another thread held or was reading in.
    pub page_waits: u64,
    /// Number of times that a thread waited for the lock of the page allocator.
    pub allocator_waits: u64,
    /// Number of times that a thread waited for the lock of the list of free frames. The `ring0` engine has a list of its own,
    /// whose waits are not counted.
    pub free_list_waits: u64,
    /// Pages that left memory.
    pub evicted: u64,
    /// System calls that released memory to the kernel. Each flushes TLBs.
    pub release_calls: u64,
    /// Number of times that the log had to be made durable before pages could be written.
    pub log_forced: u64,
    /// Pages that a crash had torn, restored when the pool was opened.
    pub restored: u64,
    /// Pages allocated.
    pub allocated: u64,
    /// Pages freed.
    pub freed: u64,
    /// Number of accesses that a stale translation of the processor led to another page, while the page was in memory. Only the
    /// engine in ring 0 has such accesses.
    #[cfg(feature = "ring0")]
    pub stale: u64,
    /// Frames that are free now.
    pub free: u64,
    /// Pages that are in memory now.
    pub resident: u64,
    /// Pages that fit into memory.
    pub frames: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub read: Counter,
    pub read_failed: Counter,
    pub written: Counter,
    pub write_failed: Counter,
    pub provider_written: Counter,
    pub provider_wakeups: Counter,
    pub frame_waits: Counter,
    pub page_waits: Counter,
    pub evicted: Counter,
    pub release_calls: Counter,
    pub log_forced: Counter,
    restored: u64,
    pub allocated: Counter,
    pub freed: Counter,
}

impl Counters {
    pub fn restored(restored: u64) -> Self {
        Self { restored, ..Self::default() }
    }

    /// Reads all counters. The pool adds those that are counted elsewhere.
    pub fn read_all(&self) -> Statistics {
        Statistics {
            read: self.read.get(),
            read_failed: self.read_failed.get(),
            written: self.written.get(),
            write_failed: self.write_failed.get(),
            provider_written: self.provider_written.get(),
            provider_wakeups: self.provider_wakeups.get(),
            frame_waits: self.frame_waits.get(),
            page_waits: self.page_waits.get(),
            evicted: self.evicted.get(),
            release_calls: self.release_calls.get(),
            log_forced: self.log_forced.get(),
            restored: self.restored,
            allocated: self.allocated.get(),
            freed: self.freed.get(),
            ..Statistics::default()
        }
    }
}

/// A counter on a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use crate::Pool;

    /// Runs `work` in a thread, and keeps it waiting. Returns when `is_counted` says that it waits and `release` has run.
    fn counts_a_wait(
        pool: &Pool,
        work: impl FnOnce(&Pool) + Send,
        is_counted: impl Fn() -> bool,
        release: impl FnOnce(),
    ) {
        thread::scope(|scope| {
            scope.spawn(|| work(pool));
            while !is_counted() {
                thread::yield_now();
            }
            release();
        });
    }

    #[test]
    fn waits_for_pages_and_for_the_allocator_are_counted_once() {
        let folder = tempfile::tempdir().unwrap();
        let pool = Pool::builder(folder.path().join("pool")).memory(64 << 12).open().unwrap();
        let page = pool.allocate().unwrap();
        let id = page.page();
        assert_eq!((pool.statistics().page_waits, pool.statistics().allocator_waits), (0, 0));
        let read = |pool: &Pool| drop(pool.pin_shared(id).unwrap());
        counts_a_wait(&pool, read, || pool.statistics().page_waits > 0, || drop(page));
        assert_eq!(pool.statistics().page_waits, 1);
        let space = pool.allocator.lock();
        let allocate = |pool: &Pool| drop(pool.allocate().unwrap());
        counts_a_wait(&pool, allocate, || pool.statistics().allocator_waits > 0, || drop(space));
        assert!(pool.statistics().allocator_waits > 0);
        drop(pool.pin_shared(id).unwrap());
        assert_eq!(pool.statistics().page_waits, 1);
    }
}
