//! Writing dirty pages while the caller does other things: the page provider's part of write-back.
//!
//! A batch of pages is copied, as `write_back` does. Then the log is made durable up to the last record about the pages, and with
//! a double-write area the copies are made durable there. The caller waits for both, but one fsync covers all batches that begin
//! together. Then the writes of the pages in their places are in flight, for up to [`MOST_BATCHES`] batches. They end in any
//! order ([`BackgroundWriter::reap`]).
//!
//! The gate of `page_store` is held from the first write in flight until the last one has ended.

use std::collections::HashMap;
use std::io;
use std::sync::RwLockReadGuard;

use crate::buffer::TOGETHER;
use crate::durability::page_store::Places;
use crate::durability::write_back::Copies;
use crate::error::{Error, Result};
use crate::images::Images;
use crate::page::PageId;
use crate::pool::Core;
use crate::protocol::frame_table::FrameId;
use crate::storage::{AtOnce, WriteBatch, WriteQueue};

/// Maximum number of batches in flight. The next batch waits until one of them has ended.
pub(crate) const MOST_BATCHES: usize = 4;

/// The writes of one thread that are in flight.
pub(crate) struct BackgroundWriter<'c> {
    core: &'c Core,
    /// Is dropped before `batches`, because the drop waits for the writes in flight.
    queue: Box<dyn WriteQueue + 'c>,
    batches: HashMap<u64, InFlight<'c>>,
    /// Pages in flight.
    pages: usize,
    next_number: u64,
    gate: Option<RwLockReadGuard<'c, ()>>,
}

struct InFlight<'c> {
    copies: Copies<'c>,
    places: Places<'c>,
}

/// A batch whose writes have ended, or could not begin.
pub(crate) struct Ended {
    /// The frames of its pages.
    pub frames: Vec<FrameId>,
    /// The first error. Pages whose writing failed are dirty.
    pub result: Result<()>,
}

impl<'c> BackgroundWriter<'c> {
    pub fn new(core: &'c Core) -> Self {
        let storage = &*core.store.storage;
        let queue = storage.write_queue(MOST_BATCHES * TOGETHER);
        Self {
            core,
            queue: queue.unwrap_or_else(|| Box::new(AtOnce::new(storage))),
            batches: HashMap::new(),
            pages: 0,
            next_number: 0,
            gate: None,
        }
    }

    /// Number of pages in flight.
    pub fn pages_in_flight(&self) -> usize {
        self.pages
    }

    /// Number of batches that can begin now. If it is 0, one of those in flight has to end first.
    pub fn room(&self) -> usize {
        let in_flight = self.batches.len();
        // A thread that has no batch in flight may wait for a region of the double-write area.
        let regions = self.core.store.room_for_batches().max(usize::from(in_flight == 0));
        (MOST_BATCHES - in_flight).min(regions)
    }

    /// Begins to write the dirty pages of frames, up to the number that there is room for. Pages that other threads hold are left
    /// out. Returns batches that could not begin. Their pages are dirty as before.
    pub fn begin(&mut self, frames: &mut [FrameId]) -> Vec<Ended> {
        let core = self.core;
        core.sort_by_page(frames);
        let mut frames = frames.iter().copied();
        let room = self.room();
        let copy = || Copies::make(core, &mut frames, &mut Vec::new());
        let group: Vec<Copies<'c>> = std::iter::from_fn(copy).take(room).collect();
        if group.is_empty() { Vec::new() } else { self.begin_group(group) }
    }

    fn begin_group(&mut self, group: Vec<Copies<'c>>) -> Vec<Ended> {
        let core = self.core;
        let ready = core
            .make_log_durable_for(group.iter().flat_map(|copies| copies.images().iter()))
            .and_then(|()| self.hold_gate());
        if let Err(error) = ready {
            return group.into_iter().map(|copies| Ended::not_begun(copies, error.same())).collect();
        }
        let parts: Vec<(&[PageId], Images<'_>)> =
            group.iter().map(|copies| (copies.pages(), copies.images())).collect();
        // A thread that has regions of the double-write area does not wait for another one.
        let begun = core.store.begin_group(&parts, self.batches.is_empty());
        let mut failed = Vec::new();
        // The copies that have no region are dropped, so their pages are dirty, and the provider finds them again.
        for (copies, result) in group.into_iter().zip(begun) {
            match result {
                Ok(places) => self.begin_places(copies, places),
                Err(source) => failed.push(Ended::not_written(copies, source)),
            }
        }
        if !failed.is_empty() {
            core.mark_doubtful_dirty();
        }
        self.release_gate();
        failed
    }

    fn begin_places(&mut self, mut copies: Copies<'c>, places: Places<'c>) {
        let number = self.next_number;
        self.next_number += 1;
        let images = copies.take_buffer();
        let batch = WriteBatch::new(number, images, copies.pages().iter().map(|page| page.0));
        self.pages += copies.pages().len();
        self.batches.insert(number, InFlight { copies, places });
        self.queue.begin(batch);
    }

    /// Takes batches whose writes have ended. With `wait`, it waits until there is one, if any is in flight.
    pub fn reap(&mut self, wait: bool) -> Vec<Ended> {
        let ended = self.queue.ended(wait && !self.batches.is_empty());
        ended.into_iter().filter_map(|batch| self.end(batch)).collect()
    }

    fn end(&mut self, mut batch: WriteBatch) -> Option<Ended> {
        let core = self.core;
        let InFlight { copies, places } = self.batches.remove(&batch.number())?;
        self.pages -= copies.pages().len();
        let frames = copies.frames().to_vec();
        let mut writes = batch.results();
        core.store.end_places(places, &mut writes);
        let written: usize =
            writes.iter().filter(|write| write.result.is_ok()).map(|write| write.images().len()).sum();
        core.counters.provider_written.add(written as u64);
        let result = copies.settle(writes);
        core.buffers.put(batch.into_images());
        self.release_gate();
        Some(Ended { frames, result })
    }

    /// Keeps the pool from being closed while writes are in flight, and has the superblock say that the pool is open.
    fn hold_gate(&mut self) -> Result<()> {
        if self.gate.is_none() {
            self.gate = Some(self.core.store.begin()?);
        }
        Ok(())
    }

    fn release_gate(&mut self) {
        if self.batches.is_empty() {
            self.gate = None;
        }
    }
}

impl Ended {
    fn not_begun(copies: Copies<'_>, error: Error) -> Self {
        Self { frames: copies.frames().to_vec(), result: Err(error) }
    }

    fn not_written(copies: Copies<'_>, source: io::Error) -> Self {
        let core = copies.core();
        core.counters.write_failed.add(copies.pages().len() as u64);
        let page = copies.pages()[0];
        Self::not_begun(copies, Error::Write { page, source })
    }
}
