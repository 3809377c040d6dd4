//! Values that are too long for a leaf: chains of pages.
//!
//! | bytes | what |
//! |---|---|
//! | 0 | [`CHAIN`] |
//! | 8..16 | the next page, 0 at the end |
//! | 16..24 | bytes of the value here |
//! | 24.. | the value |
//!
//! A chain is written before its leaf refers to it and never changed. It is freed after its leaf has ceased to refer to
//! it, so a reader that validates the leaf after each page has read the value's pages, or begins again.

use bedplate_bufpool::{PAYLOAD, PageId, Restart};

use crate::MAX_VALUE;
use crate::error::{Attempt, Result, Stop, damaged};
use crate::handle::Handle;
use crate::latch::Readable;

/// What byte 0 of such a page is.
pub(crate) const CHAIN: u8 = 0xb3;
const NEXT: usize = 8;
const LEN: usize = 16;
const DATA: usize = 24;
/// Bytes of a value in one page.
pub(crate) const PART: usize = PAYLOAD - DATA;

impl<'p> Handle<'p> {
    /// Writes a value into pages of its own; returns the first.
    pub fn write_chain(self, value: &[u8]) -> Result<u64> {
        let mut next = 0;
        // From the end, so that each knows the next one.
        for part in value.chunks(PART).rev() {
            let mut page = match self.pool.allocate() {
                Ok(page) => page,
                Err(error) => {
                    // What is to be reported is why the value was not written.
                    let _ = self.free_chain(next);
                    return Err(error.into());
                }
            };
            page[0] = CHAIN;
            page[NEXT..LEN].copy_from_slice(&next.to_le_bytes());
            page[LEN..DATA].copy_from_slice(&(part.len() as u64).to_le_bytes());
            page[DATA..DATA + part.len()].copy_from_slice(part);
            self.log.images([&mut page]);
            next = page.page().0;
        }
        Ok(next)
    }

    /// Reads a value of `len` bytes, to which the reference has been found valid; `valid` says whether it still stands. The
    /// caller holds `held` exclusively, if that is a page.
    pub fn read_chain(
        self,
        first: u64,
        len: u64,
        held: PageId,
        valid: impl Fn() -> std::result::Result<(), Restart>,
        value: &mut Vec<u8>,
    ) -> Attempt<()> {
        value.clear();
        let len = checked_len(first, len)?;
        let mut next = first;
        while value.len() < len {
            let so_far = value.len();
            if next == held.0 {
                return Err(damaged(held, "refers to itself as a value").into());
            }
            let read = self.part(next, len - so_far, value);
            // A page that makes no sense does not count when it is not the value's any more.
            valid()?;
            match read {
                Ok(after) => next = after,
                // It was evicted meanwhile, but is still the value's.
                Err(Stop::Restart) => value.truncate(so_far),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Appends what is in one page, which has at most `left` bytes of the value; returns the next.
    fn part(self, number: u64, left: usize, value: &mut Vec<u8>) -> Attempt<u64> {
        let page = self.pool.optimistic(PageId(number))?;
        let header = |at| u64::from_le_bytes(page.read::<8>(at));
        let (next, len, kind) = (header(NEXT), header(LEN), page.read::<1>(0)[0]);
        let most = left.min(PART) as u64;
        page.view().bytes(DATA, len.min(most) as usize).append_to(value);
        page.validate()?;
        // No part is empty, so a chain comes to an end.
        if kind == CHAIN && (1..=most).contains(&len) {
            Ok(next)
        } else {
            Err(Stop::Failed(damaged(PageId(number), "is no part of a value")))
        }
    }

    /// Gives the pages of a value back that nobody refers to any more.
    pub fn free_chain(self, first: u64) -> Result<()> {
        let mut next = first;
        while next != 0 {
            let page = self.pool.pin_exclusive(PageId(next))?;
            if page[0] != CHAIN {
                return Err(damaged(page.page(), "is no part of a value"));
            }
            (next, _) = next_and_len(&page);
            self.pool.free(page)?;
        }
        Ok(())
    }
}

/// How long a value is to which a reference says so: none that has pages of its own is empty, or longer than values are.
pub(crate) fn checked_len(first: u64, len: u64) -> Result<usize> {
    match usize::try_from(len) {
        Ok(len @ 1..=MAX_VALUE) => Ok(len),
        _ => Err(damaged(PageId(first), format!("is said to begin a value of {len} bytes"))),
    }
}

/// The page after a part that is held, and how much of the value is in this one, which need not be true.
pub(crate) fn next_and_len(page: &[u8; PAYLOAD]) -> (u64, u64) {
    let word = |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().expect("eight bytes"));
    (word(NEXT), word(LEN))
}
