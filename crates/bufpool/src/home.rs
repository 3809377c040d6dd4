//! Writing to storage in an order that a crash cannot make worse.
//!
//! Before the first page is written after the pool was closed, the record of the pool durably says that it is open
//! ([`Home::begin`]). An fsync that fails is final: the kernel may have forgotten what it could not write, and would report
//! success the next time ([`Home::sync`]).
//!
//! Locks, in this order: `gate`, which all who write pages hold shared and [`close`](crate::Pool::close) holds alone;
//! the allocator's (`space`); `meta`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::doublewrite::DoubleWrite;
use crate::error::{Error, Result};
use crate::meta::Meta;
use crate::page::{Image, PageId};
use crate::storage::{Storage, Write};

pub(crate) struct Home {
    pub storage: Arc<dyn Storage>,
    double: Option<DoubleWrite>,
    gate: RwLock<()>,
    meta: Mutex<Meta>,
    /// Storage says that the pool is open.
    open: AtomicBool,
    /// An fsync has failed.
    broken: AtomicBool,
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
            broken: AtomicBool::new(false),
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
        self.check()?;
        if meta.clean {
            // Should this fail, it may be in storage nevertheless.
            self.open.store(false, Ordering::Release);
        }
        meta.store(&*self.storage)?;
        self.sync()?;
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
            Some(double) => double.write(&*self.storage, || self.sync(), pages, images, &mut writes),
        }
        writes
    }

    /// Makes what was written durable.
    pub fn sync(&self) -> Result<()> {
        self.check()?;
        self.storage.sync().map_err(|source| {
            self.broken.store(true, Ordering::Release);
            Error::Storage { what: "make what was written durable", source }
        })
    }

    fn check(&self) -> Result<()> {
        if self.broken.load(Ordering::Acquire) { Err(Error::NotDurable) } else { Ok(()) }
    }
}
