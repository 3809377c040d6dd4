//! The entries in a vCPU's ring of requests.
//!
//! An entry is one word, so it is read completely or not at all. It has 36 bits of page number, 2 of page size, 6
//! of count, and 20 that identify the lap of the ring. The lap distinguishes an entry from those of other laps.
//! Only an entry written 2^20 laps too late would be mistaken for a current one.

use crate::paging::PageSize;

use super::Pages;

/// Number of requests in the ring. A vCPU that is further behind flushes everything.
pub(super) const RING: u64 = 32;
const COUNT_BITS: u32 = 6;
const LAP: u64 = (1 << 20) - 1;

const fn lap(generation: u64) -> u64 {
    (generation / RING) & LAP
}

/// Encodes an entry for some pages. Pages that do not fit into an entry become a full flush.
pub(super) fn encode(pages: Pages, generation: u64) -> u64 {
    if pages.count == 0 || pages.count >= 1 << COUNT_BITS || pages.start >= 1 << 48 {
        return encode_full();
    }
    let size = match pages.size {
        PageSize::Size4K => 1,
        PageSize::Size2M => 2,
        PageSize::Size1G => 3,
    };
    lap(generation) << 44 | (pages.start >> 12) << 8 | size << COUNT_BITS | u64::from(pages.count)
}

/// Encodes a full flush: an entry that [`decode`] rejects for every request.
pub(super) const fn encode_full() -> u64 {
    0
}

/// Decodes an entry as the request with number `generation`. Returns `None` if the entry belongs to another
/// request, or is a full flush.
pub(super) fn decode(entry: u64, generation: u64) -> Option<Pages> {
    let size = match (entry >> COUNT_BITS) & 3 {
        1 => PageSize::Size4K,
        2 => PageSize::Size2M,
        3 => PageSize::Size1G,
        _ => return None,
    };
    let count = (entry & ((1 << COUNT_BITS) - 1)) as u32;
    let current = entry >> 44 == lap(generation);
    current.then_some(Pages { start: ((entry >> 8) & ((1 << 36) - 1)) << 12, count, size })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn entries_decode_to_their_request_in_their_own_lap_only(
            page in 0u64..1 << 35, count in 1u32..64, size in 0usize..3, generation: u64, laps in 1u64..1 << 20,
        ) {
            let size = [PageSize::Size4K, PageSize::Size2M, PageSize::Size1G][size];
            let pages = Pages { start: page << 12, count, size };
            let entry = encode(pages, generation);
            prop_assert_eq!(decode(entry, generation), Some(pages));
            prop_assert_eq!(decode(entry, generation.wrapping_add(laps * RING)), None);
            prop_assert_eq!(decode(encode_full(), generation), None);
        }
    }
}
