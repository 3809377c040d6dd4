//! Writing dirty pages while the caller waits. (`background_writer` writes them while the caller does other things.)
//!
//! Pages are copied, and the copies are sealed and written. So a page can be changed while it is being written, and optimistic
//! readers are not disturbed. The log comes first: no page is written before the records about it are durable.

use std::collections::HashSet;
use std::ptr;

use crate::access::backoff::Backoff;
use crate::buffer::{Buffer, TOGETHER};
use crate::error::{Error, Result};
use crate::images::Images;
use crate::page::{self, PageId};
use crate::pool::{Core, Pool};
use crate::protocol::frame_table::FrameId;
use crate::protocol::sweep;
use crate::storage::Write;

impl Core {
    /// Writes the dirty pages of frames. Frames whose pages other threads hold stay in the list, and the others leave it. Returns
    /// the first error. Pages whose writing failed are dirty as before.
    pub(crate) fn write_back(&self, frames: &mut Vec<FrameId>) -> Result<()> {
        let mut result = Ok(());
        self.sort_by_page(frames);
        let mut held = Vec::new();
        let mut all = frames.iter().copied().peekable();
        while all.peek().is_some() {
            let copies = Copies::make(self, &mut all, &mut held);
            result = result.and(copies.map_or(Ok(()), Copies::write));
        }
        drop(all);
        *frames = held;
        result
    }

    /// Sorts frames by their pages, so that consecutive pages are written at once.
    pub(crate) fn sort_by_page(&self, frames: &mut [FrameId]) {
        // Pages move meanwhile, so each frame's page is read once.
        frames.sort_by_cached_key(|frame| self.frames.page(*frame));
    }

    /// Makes the log durable up to the last records about these copies of pages.
    pub(crate) fn make_log_durable_for<'i>(
        &self,
        images: impl Iterator<Item = &'i page::Image>,
    ) -> Result<()> {
        let Some(log) = &self.log else { return Ok(()) };
        let up_to = images.map(page::lsn).max().unwrap_or(0);
        if up_to > log.durable_lsn() {
            self.counters.log_forced.add(1);
            log.make_durable(up_to).map_err(Error::Log)?;
        }
        Ok(())
    }

    /// Marks pages in memory as dirty again that a failed fsync should have made durable. Those that another thread holds stay in
    /// doubt.
    pub(crate) fn mark_doubtful_dirty(&self) {
        if !self.store.pages_since_sync().take_failure() {
            return;
        }
        let doubtful: HashSet<PageId> = self.store.pages_since_sync().doubtful().into_iter().collect();
        for frame in 0..self.frames.count() as FrameId {
            let page = self.frames.page(frame);
            if doubtful.contains(&PageId(page)) {
                sweep::mark_dirty(&self.frames, frame, page, self.engine.state_of(frame, PageId(page)));
            }
        }
    }
}

impl Pool {
    /// Writes all pages that were dirty when this was called.
    pub(crate) fn write_all(&self) -> Result<()> {
        let mut result = Ok(());
        let mut frames: Vec<FrameId> = (0..self.frames.count() as FrameId).collect();
        let mut backoff = Backoff::default();
        loop {
            let before = frames.len();
            result = result.and(self.write_back(&mut frames));
            if frames.is_empty() {
                return result;
            }
            if frames.len() == before {
                self.pause(&mut backoff);
            }
        }
    }

    /// Marks all pages as dirty that a failed fsync should have made durable, including those not in memory. The caller holds no
    /// page exclusively.
    pub(crate) fn write_again(&self) -> Result<()> {
        for page in self.store.pages_since_sync().doubtful() {
            self.pin_exclusive(page)?.mark_modified();
        }
        Ok(())
    }
}

/// Copies of pages whose writing has begun. Pages that are not settled when this is dropped stay dirty.
pub(crate) struct Copies<'p> {
    core: &'p Core,
    /// None while the storage has the buffer.
    buffer: Option<Buffer>,
    frames: Vec<FrameId>,
    pages: Vec<PageId>,
}

impl<'p> Copies<'p> {
    /// Copies the dirty pages of frames, up to the number that a buffer has room for, and takes these frames from the list.
    /// Frames whose pages other threads hold are added to `held`. Returns none if there is nothing to write.
    pub fn make(
        core: &'p Core,
        frames: &mut impl Iterator<Item = FrameId>,
        held: &mut Vec<FrameId>,
    ) -> Option<Self> {
        let mut copies =
            Copies { core, buffer: Some(core.buffers.take()), frames: Vec::new(), pages: Vec::new() };
        while copies.pages.len() < TOGETHER {
            let Some(frame) = frames.next() else { break };
            match sweep::begin_write(&core.frames, frame, |page| core.engine.state_of(frame, PageId(page))) {
                Ok(None) => {}
                Err(sweep::Held) => held.push(frame),
                Ok(Some(page)) => copies.add(frame, PageId(page)),
            }
        }
        (!copies.pages.is_empty()).then_some(copies)
    }

    fn add(&mut self, frame: FrameId, page: PageId) {
        let from = self.core.engine.memory_of(frame, page);
        let buffer = self.buffer.as_mut().expect("storage does not have it yet");
        let image = buffer.image_mut(self.pages.len());
        // `seal` sets the header word of the copy, so it is not copied.
        // SAFETY: the page is held shared, so no thread writes it, and the buffer does not overlap with it.
        unsafe { ptr::copy_nonoverlapping(from.add(8), image.as_mut_ptr().add(8), image.len() - 8) };
        sweep::copied(self.core.engine.state_of(frame, page));
        page::seal(image, page);
        self.frames.push(frame);
        self.pages.push(page);
    }

    pub fn core(&self) -> &'p Core {
        self.core
    }

    /// The pages, in the order of their copies.
    pub fn pages(&self) -> &[PageId] {
        &self.pages
    }

    /// The frames of the pages.
    pub fn frames(&self) -> &[FrameId] {
        &self.frames
    }

    /// The copies.
    pub fn images(&self) -> Images<'_> {
        self.buffer.as_ref().expect("storage does not have it yet").images(0..self.pages.len())
    }

    /// Lends the memory of the copies to storage.
    pub fn take_buffer(&mut self) -> Buffer {
        self.buffer.take().expect("storage does not have it yet")
    }

    fn write(mut self) -> Result<()> {
        let core = self.core;
        core.make_log_durable_for(self.images().iter())?;
        let gate = core.store.begin()?;
        let buffer = self.take_buffer();
        let writes = core.store.write(&self.pages, buffer.images(0..self.pages.len()));
        drop(gate);
        let result = self.settle(writes);
        core.buffers.put(buffer);
        result
    }

    /// Ends the writes of the copies with these results. Written pages become clean, and the others are dirty. Returns the first
    /// error.
    pub fn settle(mut self, writes: Vec<Write<'_>>) -> Result<()> {
        let core = self.core;
        // This comes before these pages can be evicted, because a failed fsync may have made them doubtful.
        core.mark_doubtful_dirty();
        let mut result = Ok(());
        let mut all = self.frames.drain(..).zip(self.pages.drain(..));
        for write in writes {
            let count = write.images().len();
            let written = write.result.is_ok();
            for (frame, page) in all.by_ref().take(count) {
                sweep::end_write(&core.frames, frame, core.engine.state_of(frame, page), written);
            }
            let counter = if written { &core.counters.written } else { &core.counters.write_failed };
            counter.add(count as u64);
            let page = PageId(write.page());
            result = result.and(write.result.map_err(|source| Error::Write { page, source }));
        }
        result
    }
}

impl Drop for Copies<'_> {
    fn drop(&mut self) {
        for (frame, page) in self.frames.drain(..).zip(self.pages.drain(..)) {
            sweep::end_write(&self.core.frames, frame, self.core.engine.state_of(frame, page), false);
        }
        if let Some(buffer) = self.buffer.take() {
            self.core.buffers.put(buffer);
        }
    }
}
