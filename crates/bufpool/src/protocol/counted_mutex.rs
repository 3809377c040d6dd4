//! A mutex that counts waits. The models put loom's mutex in its place, because the count is not part of the protocol.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// A mutex that counts the threads that found it locked. An uncontended lock costs no more than that of [`Mutex`].
#[derive(Debug, Default)]
pub struct CountedMutex<T> {
    mutex: Mutex<T>,
    waits: AtomicU64,
}

impl<T> CountedMutex<T> {
    /// A mutex with this content.
    pub fn new(content: T) -> Self {
        Self { mutex: Mutex::new(content), waits: AtomicU64::new(0) }
    }

    /// Locks it. A panic of another thread that held it is ignored.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        match self.mutex.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                self.waits.fetch_add(1, Ordering::Relaxed);
                self.mutex.lock().unwrap_or_else(PoisonError::into_inner)
            }
        }
    }

    /// Number of times that a thread found it locked.
    pub fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_finds_it_locked_is_counted_once() {
        let mutex = CountedMutex::new(1);
        *mutex.lock() += 1;
        assert_eq!(mutex.waits(), 0);
        let held = mutex.lock();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| *mutex.lock());
            while mutex.waits() == 0 {
                std::thread::yield_now();
            }
            drop(held);
            assert_eq!(waiting.join().unwrap(), 2);
        });
        assert_eq!(mutex.waits(), 1);
    }
}
