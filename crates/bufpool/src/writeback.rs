//! Writing dirty pages.
//!
//! Pages are copied, and the copies are sealed and written: a page can be changed while it is being written, and whoever
//! reads it optimistically is not disturbed. The log comes first: no page is written before the records about it are durable.

use std::collections::HashSet;
use std::ptr;

use crate::buffer::{Buffer, TOGETHER};
use crate::error::{Error, Result};
use crate::page::{self, PAGE, PageId};
use crate::pool::Pool;
use crate::protocol::slots::Slot;
use crate::protocol::sweep;
use crate::wait::Backoff;

impl Pool {
    /// Writes what is dirty in slots. Slots that somebody holds stay in the list, the others leave it. If the list has
    /// become shorter by pages whose writing failed, the first error is returned; they are dirty as before.
    pub(crate) fn write_back(&self, slots: &mut Vec<Slot>) -> Result<()> {
        let mut result = Ok(());
        // Pages move meanwhile: each is asked once.
        slots.sort_by_cached_key(|slot| self.slots.page(*slot));
        let mut held = Vec::new();
        let mut all = slots.iter().copied().peekable();
        while all.peek().is_some() {
            result = result.and(self.write_some(&mut all, &mut held));
        }
        drop(all);
        *slots = held;
        result
    }

    fn write_some(&self, slots: &mut impl Iterator<Item = Slot>, held: &mut Vec<Slot>) -> Result<()> {
        let mut copies =
            Copies { pool: self, buffer: Some(self.buffers.take()), slots: Vec::new(), pages: Vec::new() };
        while copies.pages.len() < TOGETHER {
            let Some(slot) = slots.next() else { break };
            match sweep::begin_write(&self.slots, slot, |page| self.engine.word_of(slot, PageId(page))) {
                Ok(None) => {}
                Err(sweep::Held) => held.push(slot),
                Ok(Some(page)) => copies.add(slot, PageId(page)),
            }
        }
        if copies.pages.is_empty() { Ok(()) } else { copies.write() }
    }

    /// Writes everything that was dirty when this was called.
    pub(crate) fn write_all(&self) -> Result<()> {
        let mut result = Ok(());
        let mut slots: Vec<Slot> = (0..self.slots.count() as Slot).collect();
        let mut backoff = Backoff::default();
        loop {
            let before = slots.len();
            result = result.and(self.write_back(&mut slots));
            if slots.is_empty() {
                return result;
            }
            if slots.len() == before {
                self.pause(&mut backoff);
            }
        }
    }

    /// After a failed fsync, pages in memory that it was to make durable are dirty again. Those that somebody holds are in
    /// doubt as before.
    pub(crate) fn soil_doubtful(&self) {
        if !self.home.unsynced().take_failure() {
            return;
        }
        let doubtful: HashSet<PageId> = self.home.unsynced().doubtful().into_iter().collect();
        for slot in 0..self.slots.count() as Slot {
            let page = self.slots.page(slot);
            if doubtful.contains(&PageId(page)) {
                sweep::soil(&self.slots, slot, page, self.engine.word_of(slot, PageId(page)));
            }
        }
    }

    /// Makes all pages dirty that a failed fsync was to make durable, also those that are not in memory. The caller holds no
    /// page exclusively.
    pub(crate) fn write_again(&self) -> Result<()> {
        for page in self.home.unsynced().doubtful() {
            let _ = self.pin_exclusive(page)?.as_mut_ptr();
        }
        Ok(())
    }
}

/// Pages whose writing has begun. What is not settled when this is dropped stays dirty.
struct Copies<'p> {
    pool: &'p Pool,
    buffer: Option<Buffer>,
    slots: Vec<Slot>,
    pages: Vec<PageId>,
}

impl Copies<'_> {
    fn add(&mut self, slot: Slot, page: PageId) {
        let from = self.pool.engine.memory_of(slot, page);
        let buffer = self.buffer.as_mut().expect("it is given back last");
        let image = &mut buffer[self.pages.len()];
        // The header word is in storage what `seal` makes it.
        // SAFETY: the page is held shared, so nobody writes it; the buffer is another memory.
        unsafe { ptr::copy_nonoverlapping(from.add(8), image.as_mut_ptr().add(8), PAGE - 8) };
        sweep::copied(self.pool.engine.word_of(slot, page));
        page::seal(image, page);
        self.slots.push(slot);
        self.pages.push(page);
    }

    fn write(mut self) -> Result<()> {
        let pool = self.pool;
        let buffer = self.buffer.take().expect("it is given back last");
        let images = &buffer[..self.pages.len()];
        let result = self.write_images(pool, images);
        pool.buffers.give(buffer);
        result
    }

    fn write_images(&mut self, pool: &Pool, images: &[[u8; PAGE]]) -> Result<()> {
        if let Some(log) = &pool.log {
            let up_to = images.iter().map(page::lsn).max().unwrap_or(0);
            if up_to > log.durable_lsn() {
                pool.counters.log_forced.add(1);
                log.make_durable(up_to).map_err(Error::Log)?;
            }
        }
        let gate = pool.home.begin()?;
        let writes = pool.home.write(&self.pages, images);
        drop(gate);
        pool.soil_doubtful();
        let mut result = Ok(());
        let mut all = self.slots.drain(..).zip(self.pages.drain(..));
        for write in writes {
            let count = write.bytes().len() / PAGE;
            let written = write.result.is_ok();
            for (slot, page) in all.by_ref().take(count) {
                sweep::end_write(&pool.slots, slot, pool.engine.word_of(slot, page), written);
            }
            let counter = if written { &pool.counters.written } else { &pool.counters.write_failed };
            counter.add(count as u64);
            let page = PageId(write.page());
            result = result.and(write.result.map_err(|source| Error::Write { page, source }));
        }
        result
    }
}

impl Drop for Copies<'_> {
    fn drop(&mut self) {
        for (slot, page) in self.slots.drain(..).zip(self.pages.drain(..)) {
            sweep::end_write(&self.pool.slots, slot, self.pool.engine.word_of(slot, page), false);
        }
        if let Some(buffer) = self.buffer.take() {
            self.pool.buffers.give(buffer);
        }
    }
}
