//! Page-fault handlers for ranges of addresses, for libraries whose memory causes page faults by design.
//!
//! A library claims its range of addresses once. Neither the program's own handler nor another library can then
//! displace its handler. The page-fault handler reads the table without locks. Claims change under the lock
//! `CHANGING`.

use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::trap::TrapHandler;
use crate::error::{Error, Result};
use crate::paging::VirtRange;

/// The limit of simultaneous ranges.
pub const MOST_RANGES: usize = 16;

#[derive(Debug)]
struct Claim {
    start: AtomicU64,
    end: AtomicU64,
    /// Null if the entry has no claim.
    handler: AtomicPtr<()>,
}

impl Claim {
    const fn none() -> Self {
        Self {
            start: AtomicU64::new(0),
            end: AtomicU64::new(0),
            handler: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    fn is_taken(&self) -> bool {
        !self.handler.load(Ordering::Relaxed).is_null()
    }

    fn contains(&self, address: u64) -> bool {
        (self.start.load(Ordering::Acquire)..self.end.load(Ordering::Acquire)).contains(&address)
    }

    fn is(&self, range: VirtRange) -> bool {
        let (start, end) = (self.start.load(Ordering::Relaxed), self.end.load(Ordering::Relaxed));
        self.is_taken() && (start, end) == (range.start(), range.end())
    }

    fn overlaps(&self, range: VirtRange) -> bool {
        let (start, end) = (self.start.load(Ordering::Relaxed), self.end.load(Ordering::Relaxed));
        self.is_taken() && start < range.end() && range.start() < end
    }
}

static CLAIMS: [Claim; MOST_RANGES] = [const { Claim::none() }; MOST_RANGES];
/// Number of entries up to the last one that was ever claimed.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Held while a claim is made or released.
static CHANGING: Mutex<()> = Mutex::new(());

/// Makes `handler` handle the page faults in a range of addresses. A fault that it passes goes to the handler set
/// by [`set_page_fault_handler`](super::set_page_fault_handler), if any, and otherwise recurs in ring 3. If the
/// same range is claimed already, the new handler replaces the old one. The claim takes effect on all processors at
/// once.
///
/// # Errors
/// [`Error::BadRange`] if the range overlaps another claimed range; [`Error::TooManyRanges`] if [`MOST_RANGES`]
/// ranges are claimed.
pub fn claim_page_faults(range: VirtRange, handler: TrapHandler) -> Result<()> {
    let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
    let pointer = handler as *mut ();
    if let Some(claim) = CLAIMS.iter().find(|claim| claim.is(range)) {
        claim.handler.store(pointer, Ordering::Release);
        return Ok(());
    }
    if CLAIMS.iter().any(|claim| claim.overlaps(range)) {
        let why = "page faults in a part of it have a handler";
        return Err(Error::BadRange { address: range.start(), bytes: range.bytes(), why });
    }
    let free = CLAIMS.iter().position(|claim| !claim.is_taken());
    let free = free.ok_or(Error::TooManyRanges { limit: MOST_RANGES })?;
    let claim = &CLAIMS[free];
    claim.start.store(range.start(), Ordering::Release);
    claim.end.store(range.end(), Ordering::Release);
    claim.handler.store(pointer, Ordering::Release);
    USED.fetch_max(free + 1, Ordering::Release);
    Ok(())
}

/// Releases a claimed range. Does nothing if the range is not claimed. The handler may still be running on other
/// processors when this returns, if they touch the range.
pub fn release_page_faults(range: VirtRange) {
    let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(claim) = CLAIMS.iter().find(|claim| claim.is(range)) {
        claim.handler.store(std::ptr::null_mut(), Ordering::Release);
    }
}

/// The handler of the claimed range that contains an address.
pub(super) fn handler_at(address: u64) -> Option<TrapHandler> {
    CLAIMS[..USED.load(Ordering::Acquire)].iter().find_map(|claim| {
        let handler = claim.handler.load(Ordering::Acquire);
        // The handler is read twice. If it has not changed, the range read in between belongs to it.
        let is_its =
            !handler.is_null() && claim.contains(address) && claim.handler.load(Ordering::Acquire) == handler;
        // SAFETY: only `claim_page_faults` stores here, and stores such functions.
        is_its.then(|| unsafe { std::mem::transmute::<*mut (), TrapHandler>(handler) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::frame::TrapFrame;
    use crate::cpu::Cpu;
    use crate::handlers::Outcome;

    /// All tests share the claims of the process.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    fn range(start: u64, bytes: u64) -> VirtRange {
        VirtRange::at(start, bytes).unwrap()
    }

    fn first(_: Cpu, frame: &mut TrapFrame, _: u64) -> Outcome {
        frame.rax = 1;
        Outcome::Handled
    }

    fn second(_: Cpu, frame: &mut TrapFrame, _: u64) -> Outcome {
        frame.rax = 2;
        Outcome::Handled
    }

    fn found(address: u64) -> Option<usize> {
        handler_at(address).map(|handler| handler as usize)
    }

    #[test]
    fn an_address_has_the_handler_of_its_range() {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let (low, high) = (range(0x10_0000, 0x2000), range(0x10_2000, 0x1000));
        claim_page_faults(low, first).unwrap();
        claim_page_faults(high, second).unwrap();
        let (one, two) = (first as TrapHandler as usize, second as TrapHandler as usize);
        assert_eq!(
            [0xf_ffff, 0x10_0000, 0x10_1fff, 0x10_2000, 0x10_3000].map(found),
            [None, Some(one), Some(one), Some(two), None]
        );
        claim_page_faults(low, second).unwrap();
        assert_eq!(found(0x10_0000), Some(two), "the same range gets the new handler");
        for range in [range(0x10_1000, 0x1000), range(0xf_f000, 0x9000), range(0x10_1000, 0x2000)] {
            let refused = claim_page_faults(range, first);
            assert!(matches!(refused, Err(Error::BadRange { .. })), "{range:?}: {refused:?}");
        }
        release_page_faults(low);
        release_page_faults(low);
        assert_eq!([found(0x10_0000), found(0x10_2000)], [None, Some(two)]);
        release_page_faults(high);
        assert_eq!(found(0x10_2000), None);
    }

    #[test]
    fn one_range_too_many_is_an_error_until_one_is_released() {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let number = |number: usize| range(0x100_0000 + number as u64 * 0x1000, 0x1000);
        for index in 0..MOST_RANGES {
            claim_page_faults(number(index), first).unwrap();
        }
        let refused = claim_page_faults(number(MOST_RANGES), first);
        assert!(matches!(refused, Err(Error::TooManyRanges { limit: MOST_RANGES })), "{refused:?}");
        release_page_faults(number(3));
        claim_page_faults(number(MOST_RANGES), first).unwrap();
        assert!(found(number(MOST_RANGES).start()).is_some() && found(number(3).start()).is_none());
        (0..=MOST_RANGES).for_each(|index| release_page_faults(number(index)));
    }
}
