//! A batch of pages and the region that it has.

use std::io;

use super::area::{self, BATCHES, REGIONS};
use super::state::State;
use super::{DoubleWrite, source};
use crate::buffer::Buffer;
use crate::error::Result;
use crate::images::Images;
use crate::page::PageId;
use crate::storage::{Storage, Write};

/// A batch in an active region. If it is dropped early, its region is free, or kept with all pages unplaced if their places
/// may have been written.
pub(crate) struct Batch<'a> {
    area: &'a DoubleWrite,
    region: usize,
    sequence: u64,
    pages: Vec<PageId>,
    buffer: Option<Buffer>,
    stage: Stage,
    /// Number of fsyncs that had failed when the last write began.
    failures: u64,
}

#[derive(PartialEq, Eq)]
enum Stage {
    Copies,
    Places,
    Done,
}

/// The reason why the copies of a batch are not durable.
pub(super) enum Failed {
    Copies(io::Error),
    Fsync(io::Error),
}

impl Failed {
    pub fn into_io_error(self) -> io::Error {
        match self {
            Self::Copies(error) | Self::Fsync(error) => error,
        }
    }
}

impl<'a> Batch<'a> {
    /// Takes a free region.
    pub(super) fn new(area: &'a DoubleWrite, state: &mut State, region: usize, pages: &[PageId]) -> Self {
        let sequence = state.next;
        state.next += 1;
        let buffer = Some(state.activate(region, sequence, pages));
        let pages = pages.to_vec();
        Self { area, region, sequence, pages, buffer, stage: Stage::Copies, failures: state.failures }
    }

    /// Copies the pages, and makes a header for them.
    pub(super) fn fill(&mut self, images: Images<'_>) {
        fill(
            self.buffer.as_mut().expect("until it is done"),
            self.region,
            self.sequence,
            &self.pages,
            images,
        );
    }

    /// Writes the copies, and returns when they are durable.
    pub(super) fn write_copies(
        &mut self,
        storage: &dyn Storage,
        fsync: &impl Fn() -> Result<()>,
    ) -> std::result::Result<(), Failed> {
        loop {
            self.write_unsynced(storage).map_err(Failed::Copies)?;
            fsync().map_err(|error| Failed::Fsync(source(error)))?;
            // An earlier fsync that failed meanwhile may have dropped the copies.
            if self.is_unharmed() {
                return Ok(());
            }
        }
    }

    /// Writes the copies. They are durable when an fsync that begins later has succeeded, and the batch [`Batch::is_unharmed`].
    pub(super) fn write_unsynced(&mut self, storage: &dyn Storage) -> io::Result<()> {
        self.failures = self.area.state().failures;
        let copies = self.buffer.as_ref().expect("until it is done").images(0..1 + self.pages.len());
        let written = area::write(storage, area::first(self.region), copies);
        if written.is_err() {
            self.area.state().regions[self.region].errors += 1;
        }
        written
    }

    /// Whether no fsync has failed since the last write began.
    pub(super) fn is_unharmed(&self) -> bool {
        self.area.state().failures == self.failures
    }

    /// Records that the copies are durable, and that the places are about to be written.
    pub(super) fn begin_places(&mut self) {
        let mut state = self.area.state();
        state.supersede(self.region);
        self.failures = state.failures;
        self.stage = Stage::Places;
    }

    /// Ends the batch after the places have been written, or could not be.
    pub fn end_places(mut self, storage: &dyn Storage, places: &[Write<'_>]) {
        let failed = places.iter().filter(|place| place.result.is_err());
        let bad = failed.flat_map(|place| (place.page()..).map(PageId).zip(place.images().singly()));
        let singles: Vec<(PageId, Option<Single<'a>>)> = bad
            .map(|(page, image)| (page, Single::write(self.area, storage, self.sequence, page, image)))
            .collect();
        let mut state = self.area.state();
        for page in &self.pages {
            state.unplaced.remove(page);
        }
        for (page, single) in singles {
            let region = match single {
                Some(single) => single.keep(&mut state),
                None => self.region,
            };
            state.unplaced.insert(page, region);
        }
        state.keep(self.region, self.buffer.take().expect("until it is done"));
        if state.failures != self.failures {
            state.doubt(self.region);
        }
        self.stage = Stage::Done;
        drop(state);
        self.area.changed.notify_all();
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        if self.stage == Stage::Done {
            return;
        }
        let mut state = self.area.state();
        match (&self.stage, self.buffer.take()) {
            (Stage::Places, Some(buffer)) => {
                state.keep(self.region, buffer);
                state.doubt(self.region);
            }
            (_, buffer) => state.free(self.region, buffer),
        }
        drop(state);
        self.area.changed.notify_all();
    }
}

/// A copy of a bad page in a region of its own, so that its batch's region can become free.
struct Single<'a> {
    area: &'a DoubleWrite,
    region: usize,
    buffer: Option<Buffer>,
}

impl<'a> Single<'a> {
    /// Returns none if no region is free, or if the region cannot be written. The copy is durable after the next fsync.
    fn write(
        area: &'a DoubleWrite,
        storage: &dyn Storage,
        sequence: u64,
        page: PageId,
        image: Images<'_>,
    ) -> Option<Self> {
        let mut state = area.state();
        let region = state.find_free(BATCHES..REGIONS)?;
        let mut buffer = state.activate(region, sequence, &[page]);
        drop(state);
        fill(&mut buffer, region, sequence, &[page], image);
        let single = Self { area, region, buffer: Some(buffer) };
        let written =
            area::write(storage, area::first(region), single.buffer.as_ref().expect("just put there").all());
        if written.is_err() {
            area.state().regions[region].errors += 1;
        }
        written.is_ok().then_some(single)
    }

    /// Keeps the region, which has the page's live copy.
    fn keep(mut self, state: &mut State) -> usize {
        state.keep(self.region, self.buffer.take().expect("until it is kept"));
        self.region
    }
}

impl Drop for Single<'_> {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.area.state().free(self.region, Some(buffer));
        }
    }
}

fn fill(buffer: &mut Buffer, region: usize, sequence: u64, pages: &[PageId], images: Images<'_>) {
    buffer.put(1, images);
    area::encode(buffer.image_mut(0), region, sequence, pages, images);
}
