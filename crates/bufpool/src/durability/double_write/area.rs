//! The double-write area in storage: where its regions are, and what their headers say.
//!
//! | pages | content |
//! |---|---|
//! | 2..197 | [`BATCHES`] regions, each of a header and [`TOGETHER`] copies |
//! | 197..255 | [`MOST_BAD_PAGES`] regions, each of a header and one copy |
//!
//! A header names the batch's sequence number, and each copy's page and checksum. So a copy of an older batch, which a crash
//! left under a newer header, is not mistaken for the newer one.
//!
//! Pools of the first version have two regions, which are where the first two of this version are. Their headers have
//! another magic number, and no checksums. A header of the first version proves that a program of the first version wrote
//! the area last, because this version removes such headers when it opens a pool. Then the other headers are stale.

use crate::buffer::{Buffer, TOGETHER};
use crate::durability::superblock::FIRST;
use crate::error::{Error, Result};
use crate::images::Images;
use crate::page::{self, HEADER, Image, PageId};
use crate::page_size::PageSize;
use crate::storage::{Storage, Write, read};

/// Regions for batches. More batches than this wait for each other.
pub(super) const BATCHES: usize = 3;
/// Regions for pages that cannot be written in their places. One more bad page makes its batch's region stay in use.
pub(super) const MOST_BAD_PAGES: usize = 29;
pub(super) const REGIONS: usize = BATCHES + MOST_BAD_PAGES;

/// The area follows the superblock's two copies.
const AREA: u64 = 2;
const BATCH_REGION: u64 = 1 + TOGETHER as u64;
const SINGLE_REGION: u64 = 2;
const MAGIC: u64 = u64::from_le_bytes(*b"BEDTWIC2");
const FIRST_VERSION: u64 = u64::from_le_bytes(*b"BEDTWICE");

const _: () = assert!(AREA + BATCHES as u64 * BATCH_REGION + MOST_BAD_PAGES as u64 * SINGLE_REGION <= FIRST);
/// Words of a header before those of its copies.
const WORDS: usize = 3;
const _: () = assert!(HEADER + 8 * (WORDS + TOGETHER) <= PageSize::MIN.bytes());

/// The page of a region's header.
pub(super) fn first(region: usize) -> u64 {
    match region.checked_sub(BATCHES) {
        None => AREA + region as u64 * BATCH_REGION,
        Some(single) => AREA + BATCHES as u64 * BATCH_REGION + single as u64 * SINGLE_REGION,
    }
}

/// Number of copies that a region has room for.
pub(super) fn capacity(region: usize) -> usize {
    if region < BATCHES { TOGETHER } else { 1 }
}

/// Fills a header for sealed copies.
pub(super) fn encode(header: &mut Image, region: usize, sequence: u64, pages: &[PageId], copies: Images<'_>) {
    header.fill(0);
    let copies =
        pages.iter().zip(copies.iter()).map(|(page, copy)| page.0 << 32 | u64::from(page::sum(copy)));
    let words = [MAGIC, sequence, pages.len() as u64].into_iter().chain(copies);
    for (to, word) in header[HEADER..].chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    page::seal(header, PageId(first(region)));
}

/// The content of a region's header.
pub(super) struct Found {
    pub region: usize,
    pub sequence: u64,
    /// The pages of the copies, and their checksums if the header has them.
    pub copies: Vec<(PageId, Option<u32>)>,
}

/// All regions with a whole header, and whether a program of the first version wrote some.
pub(super) fn find(storage: &dyn Storage, size: PageSize) -> Result<(Vec<Found>, bool)> {
    let mut found = Vec::new();
    let mut buffer = Buffer::new(size, 1);
    let mut first_version = false;
    for region in 0..REGIONS {
        read(storage, first(region), buffer.images_mut(0..1))?;
        if page::verify(buffer.image(0), PageId(first(region))).is_err() {
            continue;
        }
        let mut words = buffer.image(0)[HEADER..]
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(*word.first_chunk().expect("8 bytes")));
        let [magic, sequence, count] = [0; WORDS].map(|_: u64| words.next().unwrap_or(0));
        // The next batch needs a number, too.
        if sequence == u64::MAX || count > capacity(region) as u64 {
            continue;
        }
        let words = words.take(count as usize);
        let copies = match magic {
            MAGIC => words.map(|word| (PageId(word >> 32), Some(word as u32))).collect(),
            FIRST_VERSION if region < 2 => {
                first_version = true;
                words.map(|word| (PageId(word), None)).collect()
            }
            _ => continue,
        };
        found.push(Found { region, sequence, copies });
    }
    Ok((found, first_version))
}

impl Found {
    /// Whether a program that knew only the first two regions wrote this header. Its copies have no checksums in the header.
    pub fn is_of_first_version(&self) -> bool {
        self.copies.first().is_some_and(|(_, sum)| sum.is_none())
    }
}

/// Removes all headers, and returns when that is durable.
pub(super) fn clear(storage: &dyn Storage, size: PageSize) -> Result<()> {
    let buffer = Buffer::new(size, 1);
    for region in 0..REGIONS {
        write(storage, first(region), buffer.all())
            .map_err(|source| Error::Write { page: PageId(first(region)), source })?;
    }
    storage.sync().map_err(Error::storage("forget copies of pages"))
}

/// Writes consecutive pages.
pub(super) fn write(storage: &dyn Storage, first: u64, images: Images<'_>) -> std::io::Result<()> {
    let mut writes = [Write::of(first, images)];
    storage.write(&mut writes);
    let [write] = writes;
    write.result
}
