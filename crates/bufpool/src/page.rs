//! Pages: their numbers and their layout, which is the same in every engine and in storage.
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | header word: in storage the page's number and the lock bit; in memory it belongs to the engine |
//! | 8..16 | log sequence number of the last change |
//! | 16..20 | checksum (CRC-32C) of everything else, valid in storage only |
//! | 20..24 | reserved, zero |
//! | 24..4096 | payload, the user's |
//!
//! Numbers are little-endian. A page of nothing but zeros was never written, and is read as an empty page.

use std::fmt;

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Bytes of a page before its payload.
pub const HEADER: usize = 24;
/// Bytes of a page that belong to the user.
pub const PAYLOAD: usize = PAGE - HEADER;
/// There are fewer pages than this: a page's number has 32 bits in its header.
pub const MAX_PAGES: u64 = 1 << 32;

const LSN: usize = 8;
const CHECKSUM: usize = 16;
const AFTER_CHECKSUM: usize = 20;
/// A page is written with its lock bit on, so that whoever reads it has it locked until it is published.
const WRITTEN: u64 = 1 << 10;

/// The number of a page in the storage; in engines that map pages, its address is `base + number * PAGE`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct PageId(pub u64);

impl PageId {
    /// No page: the number of the pool's own first page, which nobody is given.
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

/// What is wrong with a page that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Damage {
    /// Its checksum is of another content: part of it was not written, or it changed in storage.
    Checksum,
    /// It is intact, but another page: a write or a read went elsewhere.
    Identity {
        /// The number in its header.
        found: PageId,
    },
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::Checksum => {
                f.write_str("its checksum does not match (a torn write, or damage in storage)")
            }
            Damage::Identity { found } => write!(f, "in its place is page {found}"),
        }
    }
}

/// The content of one page, outside of the pool.
pub(crate) type Image = [u8; PAGE];

fn word(image: &Image, at: usize) -> u64 {
    u64::from_le_bytes(*image[at..].first_chunk().expect("inside the page"))
}

fn checksum(image: &Image) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&image[..CHECKSUM]), &image[AFTER_CHECKSUM..])
}

/// The number in a page's header.
pub(crate) fn identity(image: &Image) -> PageId {
    PageId(word(image, 0) >> 32)
}

/// The log sequence number of a page.
pub(crate) fn lsn(image: &Image) -> u64 {
    word(image, LSN)
}

/// The checksum that a page says it has.
pub(crate) fn sum(image: &Image) -> u32 {
    u32::from_le_bytes(*image[CHECKSUM..].first_chunk().expect("inside the page"))
}

/// Makes a copy of a page what is written: gives it its number and its checksum.
pub(crate) fn seal(image: &mut Image, page: PageId) {
    image[..8].copy_from_slice(&(page.0 << 32 | WRITTEN).to_le_bytes());
    let sum = checksum(image);
    image[CHECKSUM..AFTER_CHECKSUM].copy_from_slice(&sum.to_le_bytes());
}

/// Whether what was read is the page, or was never written.
pub(crate) fn verify(image: &Image, page: PageId) -> Result<(), Damage> {
    if word(image, 0) == 0 && image.iter().all(|byte| *byte == 0) {
        return Ok(());
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
/// `memory` is a page that nobody writes.
pub(crate) unsafe fn lsn_at(memory: *const u8) -> u64 {
    // SAFETY: in the page; pages are aligned.
    u64::from_le(unsafe { memory.add(LSN).cast::<u64>().read() })
}

/// Sets the log sequence number of a page in the pool.
///
/// # Safety
/// `memory` is a page that only the caller uses.
pub(crate) unsafe fn set_lsn_at(memory: *mut u8, lsn: u64) {
    // SAFETY: in the page; pages are aligned.
    unsafe { memory.add(LSN).cast::<u64>().write(lsn.to_le()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn pages_never_written_are_valid_and_others_are_not() {
        assert_eq!(verify(&[0; PAGE], PageId(7)), Ok(()));
        let mut image = [0; PAGE];
        image[4095] = 1;
        assert_eq!(verify(&image, PageId(7)), Err(Damage::Checksum));
    }

    proptest! {
        #[test]
        fn a_sealed_page_is_itself_and_any_damage_shows(
            page in 1..MAX_PAGES,
            fill: u8,
            at in 0..PAGE,
            flip in 1..=255u8,
        ) {
            let mut image = [fill; PAGE];
            seal(&mut image, PageId(page));
            prop_assert_eq!(verify(&image, PageId(page)), Ok(()));
            let other = PageId(page ^ 1);
            prop_assert_eq!(verify(&image, other), Err(Damage::Identity { found: PageId(page) }));
            image[at] ^= flip;
            prop_assert_eq!(verify(&image, PageId(page)), Err(Damage::Checksum));
        }

        #[test]
        fn a_torn_page_shows(old: u8, new: u8, sectors in 1..8usize) {
            prop_assume!(old != new);
            let [mut before, mut after] = [[old; PAGE], [new; PAGE]];
            seal(&mut before, PageId(9));
            seal(&mut after, PageId(9));
            before[..sectors * 512].copy_from_slice(&after[..sectors * 512]);
            prop_assert_eq!(verify(&before, PageId(9)), Err(Damage::Checksum));
        }
    }
}
