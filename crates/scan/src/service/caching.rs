//! The cache of a service. It begins with the first reader.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

use super::Shared;
use crate::Result;
use crate::cache::{Cache, Options};

/// The cache and its thread.
pub struct CacheThread {
    options: Options,
    cache: OnceLock<Arc<Cache>>,
    /// The thread. It is locked while the cache is started, so that one thread starts it.
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl CacheThread {
    /// One that is not started.
    pub fn new(options: Options) -> Self {
        Self { options, cache: OnceLock::new(), thread: Mutex::new(None) }
    }

    /// Ends it.
    pub fn stop(&mut self) {
        if let Some(cache) = self.cache.get() {
            cache.stop();
        }
        if let Some(thread) = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }

    /// Forgets it in a forked child, which has not its thread.
    pub fn forget(&mut self) {
        std::mem::forget((std::mem::take(&mut self.cache), std::mem::take(&mut self.thread)));
    }
}

impl Shared {
    /// The cache.
    ///
    /// # Errors
    /// Its thread cannot be started.
    pub(crate) fn cache(&self) -> Result<&Arc<Cache>> {
        let CacheThread { options, cache, thread } = &self.cache;
        if let Some(cache) = cache.get() {
            return Ok(cache);
        }
        let mut thread = thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cache) = cache.get() {
            return Ok(cache);
        }
        let inbox = self.inbox.clone();
        let count = move |bytes| {
            inbox.bytes_read.fetch_add(bytes, Relaxed);
        };
        let (started, handle) = Cache::start(*options, count)?;
        *thread = Some(handle);
        Ok(cache.get_or_init(|| started))
    }
}
