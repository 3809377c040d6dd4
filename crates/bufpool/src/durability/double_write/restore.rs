//! Opening a pool: its double-write area restores the pages that a crash tore.

use std::collections::BTreeMap;

use super::area::{self, BATCHES, Found, find};
use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::images::Images;
use crate::page::{self, Image, PageId};
use crate::page_size::PageSize;
use crate::storage::{Storage, read};

/// The result of [`restore()`].
pub(crate) struct Restored {
    /// The sequence number of the next batch.
    pub next: u64,
    /// Number of torn pages that it wrote again.
    pub pages: u64,
    /// Torn pages that could not be written.
    pub unplaced: Vec<Copy>,
}

/// A whole copy of a page, and where it is.
pub(crate) struct Copy {
    pub page: PageId,
    pub image: Box<Image>,
    pub region: usize,
    pub sequence: u64,
}

/// Restores torn pages from their newest whole copies, where a crash left some.
pub(crate) fn restore(storage: &dyn Storage, size: PageSize, after_crash: bool) -> Result<Restored> {
    let (mut found, first_version) = find(storage, size)?;
    let next = found.iter().map(|found| found.sequence + 1).max().unwrap_or(1);
    let mut restored = Restored { next, pages: 0, unplaced: Vec::new() };
    if after_crash {
        if first_version {
            // A program of the first version did not know the other regions, so their copies are older.
            found.retain(Found::is_of_first_version);
        }
        for copy in newest(storage, size, found)? {
            restored.place(storage, size, copy)?;
        }
        if restored.pages > 0 {
            storage.sync().map_err(Error::storage("make restored pages durable"))?;
        }
    }
    // A header of the first version must not stay, because it declares the others stale. It stays only while a page has no other
    // copy, and the next opening tries again.
    if first_version {
        if let Some(Copy { page, .. }) = restored.unplaced.first() {
            let source =
                std::io::Error::other("it is torn, and its copy is of an older version of the pool's format");
            return Err(Error::Write { page: *page, source });
        }
        area::clear(storage, size)?;
    }
    Ok(restored)
}

/// The newest whole copy of each page.
fn newest(storage: &dyn Storage, size: PageSize, mut found: Vec<Found>) -> Result<Vec<Copy>> {
    // Among equal copies, the one in a region for a single page counts, because it does not keep a batch's region.
    found.sort_by_key(|found| (found.sequence, found.region >= BATCHES));
    let mut buffer = Buffer::new(size, 1);
    let mut copies = BTreeMap::new();
    for Found { region, sequence, copies: pages } in found {
        for (at, (page, sum)) in (area::first(region) + 1..).zip(pages) {
            read(storage, at, buffer.images_mut(0..1))?;
            let image = buffer.image(0);
            // If a copy is torn, its place was not written.
            let is_whole = page::verify(image, page).is_ok() && page::identity(image) == page;
            if is_whole && sum.is_none_or(|sum| sum == page::sum(image)) {
                copies.insert(page, Copy { page, image: image.into(), region, sequence });
            }
        }
    }
    Ok(copies.into_values().collect())
}

impl Restored {
    /// Writes a copy in its place, if the place does not have a whole page.
    fn place(&mut self, storage: &dyn Storage, size: PageSize, copy: Copy) -> Result<()> {
        let mut buffer = Buffer::new(size, 1);
        let place = read(storage, copy.page.0, buffer.images_mut(0..1));
        if place.is_ok() && page::verify(buffer.image(0), copy.page).is_ok() {
            return Ok(());
        }
        buffer.put(0, Images::new(&copy.image, size));
        match area::write(storage, copy.page.0, buffer.all()) {
            Ok(()) => self.pages += 1,
            Err(_) => self.unplaced.push(copy),
        }
        Ok(())
    }
}

/// Removes all copies, because pages will be written without copies, and an old copy would then be older than its page.
pub(crate) fn forget(storage: &dyn Storage, size: PageSize, restored: &Restored) -> Result<()> {
    if let Some(Copy { page, .. }) = restored.unplaced.first() {
        let source = std::io::Error::other("it is torn, and its copy is kept with double writes only");
        return Err(Error::Write { page: *page, source });
    }
    if find(storage, size)?.0.is_empty() { Ok(()) } else { area::clear(storage, size) }
}
