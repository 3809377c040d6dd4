//! Writing to storage in an order that a crash cannot make worse.
//!
//! Before the first page is written after the pool was closed, the record of the pool durably says that it is open
//! ([`Home::begin`]). What an fsync was to make durable that fails is in doubt until it has been written once more
//! (`unsynced`); what an fsync without those says is not believed ([`Home::check`]).
//!
//! Locks, in this order: `gate`, which all who write pages hold shared and [`close`](crate::Pool::close) holds alone;
//! the allocator's (`space`); `meta`; that of `double`; `syncing`, for one fsync at a time, because the kernel tells one
//! of two of an error.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::doublewrite::DoubleWrite;
use crate::error::{Error, Result};
use crate::meta::Meta;
use crate::page::{Image, PageId};
use crate::storage::{Storage, Write};
use crate::unsynced::Unsynced;

pub(crate) struct Home {
    pub storage: Arc<dyn Storage>,
    double: Option<DoubleWrite>,
    gate: RwLock<()>,
    meta: Mutex<Meta>,
    /// Storage says that the pool is open.
    open: AtomicBool,
    syncing: Mutex<()>,
    unsynced: Unsynced,
}

impl Home {
    pub fn new(storage: Arc<dyn Storage>, double: Option<DoubleWrite>, meta: Meta) -> Self {
        let open = AtomicBool::new(!meta.clean);
        Self {
            storage,
            double,
            gate: RwLock::new(()),
            meta: Mutex::new(meta),
            open,
            syncing: Mutex::new(()),
            unsynced: Unsynced::default(),
        }
    }

    pub fn meta(&self) -> MutexGuard<'_, Meta> {
        self.meta.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody writes pages, and keeps others from it.
    pub fn stop(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Before pages are written, and until they are.
    pub fn begin(&self) -> Result<RwLockReadGuard<'_, ()>> {
        let gate = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        if !self.open.load(Ordering::Acquire) {
            let mut meta = self.meta();
            if !self.open.load(Ordering::Acquire) {
                meta.open();
                self.store(&mut meta)?;
            }
        }
        Ok(gate)
    }

    /// Makes a record durable.
    pub fn store(&self, meta: &mut Meta) -> Result<()> {
        if meta.clean {
            // Should this fail, it may be in storage nevertheless.
            self.open.store(false, Ordering::Release);
        }
        let before = meta.generation;
        meta.store(&*self.storage)?;
        if let Err(error) = self.sync() {
            // The same copy is written again: the other one is durable.
            meta.generation = before;
            return Err(error);
        }
        self.open.store(!meta.clean, Ordering::Release);
        Ok(())
    }

    /// Writes pages in their places. The images are in the order of the pages, and each result is of as many as the write
    /// has.
    pub fn write<'m>(&self, pages: &[PageId], images: &'m [Image]) -> Vec<Write<'m>> {
        let mut writes = Vec::with_capacity(images.len());
        let mut rest = images;
        // Neighbours are written at once.
        for run in pages.chunk_by(|one, next| one.0 + 1 == next.0) {
            let (now, later) = rest.split_at(run.len());
            writes.push(Write::new(run[0].0, now));
            rest = later;
        }
        match &self.double {
            None => self.storage.write(&mut writes),
            Some(double) => double.write(&*self.storage, || self.fsync(), pages, images, &mut writes),
        }
        let mut many = false;
        for write in writes.iter().filter(|write| write.result.is_ok()) {
            many |= self.unsynced.written(write.page(), write.images());
        }
        if many {
            // Nobody asked: what is in doubt if it fails is written once more when somebody does.
            let _ = self.sync();
        }
        writes
    }

    /// Makes what was written durable.
    pub fn sync(&self) -> Result<()> {
        let result = self.fsync();
        if let (Err(_), Some(double)) = (&result, &self.double) {
            double.doubt();
        }
        result
    }

    fn fsync(&self) -> Result<()> {
        let _one = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        self.unsynced.begin();
        let result = self.storage.sync();
        self.unsynced.end(result.is_ok());
        result.map_err(Error::storage("make what was written durable"))
    }

    /// Whether everything that was written before the last fsync is durable.
    pub fn check(&self) -> Result<()> {
        if self.unsynced.doubtful().is_empty() { Ok(()) } else { Err(Error::NotDurable) }
    }

    /// What may not be durable.
    pub fn unsynced(&self) -> &Unsynced {
        &self.unsynced
    }

    /// A copy of a page that may not be in its place.
    pub fn copy(&self, page: PageId) -> Option<Box<Image>> {
        self.double.as_ref()?.copy(page)
    }
}
