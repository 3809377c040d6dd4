//! Page numbers and the page layout. The layout is the same in every engine and in storage.
//!
//! | bytes | content |
//! |---|---|
//! | 0..8 | header word: in storage, the page's number and the lock bit; in memory, it belongs to the engine |
//! | 8..16 | log sequence number of the last change |
//! | 16..20 | checksum (CRC-32C) of everything else, valid in storage only |
//! | 20..24 | reserved, zero |
//! | 24.. | payload, which belongs to the user, up to the end of the page |
//!
//! Numbers are little-endian.
//!
//! A page that was written has its number in its header, so it never consists of zeros only. An image of zeros is a
//! page that was never written, or a page that storage has lost ([`Damage::Missing`]). The pool knows which pages were
//! written:
//!
//! 1. Every page that is in use and not in memory was written. `allocate` makes its page dirty, and a dirty page does
//!    not leave memory. So `close` and `sync` leave every page in storage that is in use.
//! 2. Pages that are free may never have been written.
//! 3. After a crash, pages from the superblock's `written_up_to` on may never have been written. The same holds for
//!    pages up to one that [`Pool::pin_for_redo`](crate::Pool::pin_for_redo) was called for. The next close fills them
//!    with empty pages.
//!
//! The pool reads zeros as an empty page in cases 2 and 3 only (`PageAllocator::may_be_unwritten`). After a crash it
//! does not know the free pages. So `pin_for_redo` may report a free page below `written_up_to` as torn. This does no
//! harm, because the log's first record about an allocated page has the whole page (rule 4 of [`Log`](crate::Log)).

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a page of the default size, and of a block, in which storage is addressed ([`PageSize`](crate::PageSize)).
pub const PAGE: usize = 4096;
/// Bytes of a page before its payload.
pub const HEADER: usize = 24;
/// Bytes of a page of the default size that belong to the user.
pub const PAYLOAD: usize = PAGE - HEADER;
/// Exclusive upper limit of page numbers, because a page number has 32 bits in the page header.
pub const MAX_PAGES: u64 = 1 << 32;

const LSN: usize = 8;
const CHECKSUM: usize = 16;
const AFTER_CHECKSUM: usize = 20;
/// The lock bit. A page is written with its lock bit set. So after a read into a frame, the page is locked until it is
/// published.
const WRITTEN: u64 = 1 << 10;

/// The number of a page in the storage. In engines that map pages, the page's address is `base + (number << shift)`, where the
/// page size is `1 << shift`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct PageId(pub u64);

impl PageId {
    /// The number of no page. It is that of the pool's own first page, which the pool never hands out.
    pub const NONE: PageId = PageId(0);

    /// Whether this is [`PageId::NONE`].
    pub fn is_none(self) -> bool {
        self == PageId::NONE
    }
}

impl fmt::Display for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The kind of damage of a page that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Damage {
    /// The checksum does not match the content. Part of the page was not written, or it changed in storage.
    Checksum,
    /// The image is intact, but it is another page. A write or a read used the wrong position.
    Identity {
        /// The number in its header.
        found: PageId,
    },
    /// The page was written, and storage has only zeros: it has lost the page.
    Missing,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::Checksum => {
                f.write_str("its checksum does not match (a torn write, or damage in storage)")
            }
            Damage::Identity { found } => write!(f, "in its place is page {found}"),
            Damage::Missing => f.write_str("it was written, and storage has only zeros (lost content)"),
        }
    }
}

/// A copy of one page, outside the pool. Its length is the page size.
pub(crate) type Image = [u8];

fn word(image: &Image, at: usize) -> u64 {
    u64::from_le_bytes(*image[at..].first_chunk().expect("inside the page"))
}

fn checksum(image: &Image) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&image[..CHECKSUM]), &image[AFTER_CHECKSUM..])
}

/// The page number in the header of an image.
pub(crate) fn identity(image: &Image) -> PageId {
    PageId(word(image, 0) >> 32)
}

/// The log sequence number of an image.
pub(crate) fn lsn(image: &Image) -> u64 {
    word(image, LSN)
}

/// The checksum stored in an image.
pub(crate) fn sum(image: &Image) -> u32 {
    u32::from_le_bytes(*image[CHECKSUM..].first_chunk().expect("inside the page"))
}

/// Prepares a copy of a page to be written: sets its number and its checksum.
pub(crate) fn seal(image: &mut Image, page: PageId) {
    image[..8].copy_from_slice(&(page.0 << 32 | WRITTEN).to_le_bytes());
    let sum = checksum(image);
    image[CHECKSUM..AFTER_CHECKSUM].copy_from_slice(&sum.to_le_bytes());
}

/// Sets the log sequence number of an image.
pub(crate) fn set_lsn(image: &mut Image, lsn: u64) {
    image[LSN..CHECKSUM].copy_from_slice(&lsn.to_le_bytes());
}

/// Whether an image consists of zeros only. A page that was written never does.
pub(crate) fn is_unwritten(image: &Image) -> bool {
    word(image, 0) == 0 && image.iter().all(|byte| *byte == 0)
}

/// Checks that an image is this page, as it was written.
pub(crate) fn verify(image: &Image, page: PageId) -> Result<(), Damage> {
    if is_unwritten(image) {
        return Err(Damage::Missing);
    }
    if image[CHECKSUM..AFTER_CHECKSUM] != checksum(image).to_le_bytes() {
        return Err(Damage::Checksum);
    }
    match identity(image) {
        found if found == page => Ok(()),
        found => Err(Damage::Identity { found }),
    }
}

/// Reads the log sequence number of a page in the pool.
///
/// # Safety
/// `memory` is a page that no thread writes meanwhile.
pub(crate) unsafe fn lsn_at(memory: *const u8) -> u64 {
    // SAFETY: inside the page, and pages are aligned.
    u64::from_le(unsafe { memory.add(LSN).cast::<u64>().read() })
}

/// Sets the log sequence number of a page in the pool.
///
/// # Safety
/// `memory` is a page that the caller has locked.
pub(crate) unsafe fn set_lsn_at(memory: *mut u8, lsn: u64) {
    // SAFETY: inside the page, and pages are aligned. Like every store to a page in the pool, this is an atomic store
    // of an aligned word, because optimistic readers may read the page.
    unsafe { &*memory.add(LSN).cast::<AtomicU64>() }.store(lsn.to_le(), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_size::PageSize;
    use proptest::prelude::*;
    use proptest::sample::{Index, select};

    #[test]
    fn an_image_of_zeros_is_missing_and_others_are_damaged() {
        assert_eq!(verify(&[0; PAGE], PageId(7)), Err(Damage::Missing));
        let mut image = [0; PAGE];
        image[4095] = 1;
        assert_eq!(verify(&image, PageId(7)), Err(Damage::Checksum));
    }

    proptest! {
        #[test]
        fn a_sealed_page_is_itself_and_any_damage_shows(
            page in 1..MAX_PAGES,
            size in select(&PageSize::ALL),
            fill: u8,
            at in any::<Index>(),
            flip in 1..=255u8,
        ) {
            let mut image = vec![fill; size.bytes()];
            seal(&mut image, PageId(page));
            prop_assert_eq!(verify(&image, PageId(page)), Ok(()));
            let other = PageId(page ^ 1);
            prop_assert_eq!(verify(&image, other), Err(Damage::Identity { found: PageId(page) }));
            image[at.index(size.bytes())] ^= flip;
            prop_assert_eq!(verify(&image, PageId(page)), Err(Damage::Checksum));
        }

        #[test]
        fn a_torn_page_shows(old: u8, new: u8, size in select(&PageSize::ALL), sectors in any::<Index>()) {
            prop_assume!(old != new);
            let [mut before, mut after] = [old, new].map(|fill| vec![fill; size.bytes()]);
            let sectors = 1 + sectors.index(size.bytes() / 512 - 1);
            seal(&mut before, PageId(9));
            seal(&mut after, PageId(9));
            before[..sectors * 512].copy_from_slice(&after[..sectors * 512]);
            prop_assert_eq!(verify(&before, PageId(9)), Err(Damage::Checksum));
        }
    }
}
