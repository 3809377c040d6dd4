//! Loom's mutex with the interface of the counted one. It counts nothing: the count is not part of the protocol.

use loom::sync::{Mutex, MutexGuard};

pub struct CountedMutex<T>(Mutex<T>);

impl<T> CountedMutex<T> {
    pub fn new(content: T) -> Self {
        Self(Mutex::new(content))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub fn waits(&self) -> u64 {
        0
    }
}
