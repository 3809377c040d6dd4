//! The cache of a service. It begins with the first reader.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

use super::Shared;
use crate::Result;
use crate::cache::{Cache, Options};

/// The cache and its threads.
pub struct CacheThreads {
    options: Options,
    cache: OnceLock<Arc<Cache>>,
    /// The threads. They are locked while the cache is started, so that one thread starts it.
    threads: Mutex<Option<[JoinHandle<()>; 2]>>,
}

impl CacheThreads {
    /// A cache that is not started.
    pub fn new(options: Options) -> Self {
        Self { options, cache: OnceLock::new(), threads: Mutex::new(None) }
    }

    /// Ends the cache.
    pub fn stop(&mut self) {
        if let Some(cache) = self.cache.get() {
            cache.stop();
        }
        let threads = self.threads.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        for thread in threads.into_iter().flatten() {
            let _ = thread.join();
        }
    }

    /// Forgets the cache in a forked child, which does not have its threads.
    pub fn forget(&mut self) {
        std::mem::forget((std::mem::take(&mut self.cache), std::mem::take(&mut self.threads)));
    }
}

impl Shared {
    /// Returns the cache, and starts it if necessary.
    ///
    /// # Errors
    /// Its threads cannot be started.
    pub(crate) fn cache(&self) -> Result<&Arc<Cache>> {
        let CacheThreads { options, cache, threads } = &self.cache;
        if let Some(cache) = cache.get() {
            return Ok(cache);
        }
        let mut threads = threads.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cache) = cache.get() {
            return Ok(cache);
        }
        let inbox = self.inbox.clone();
        let count = move |bytes| {
            inbox.bytes_read.fetch_add(bytes, Relaxed);
        };
        let (started, handles) = Cache::start(*options, count)?;
        *threads = Some(handles);
        Ok(cache.get_or_init(|| started))
    }
}
