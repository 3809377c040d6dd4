//! Handlers of page faults by address: for libraries whose memory has faults of its own.
//!
//! A library claims its range of addresses once. Then neither the program's own handler nor another library displaces it.
//! The table is read in the handler of page faults, without locks; claims are made one after the other.

use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::trap::TrapHandler;
use crate::error::{Error, Result};
use crate::paging::VirtRange;

/// How many ranges there can be at a time.
pub const MOST_RANGES: usize = 16;

#[derive(Debug)]
struct Claim {
    start: AtomicU64,
    end: AtomicU64,
    /// Null where there is no claim.
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
/// No claim from this one on was ever made.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Held while a claim is made or given up.
static CHANGING: Mutex<()> = Mutex::new(());

/// Has `handler` handle the page faults in a range of addresses. What it passes goes to the handler that
/// [`set_page_fault_handler`](super::set_page_fault_handler) has set, if any, and then happens natively. A range that was
/// claimed before gets the new handler. All processors use it at once.
///
/// # Errors
/// [`Error::BadRange`] if it overlaps another claimed range; [`Error::TooManyRanges`].
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

/// Takes the handler of a claimed range away; nothing happens if there is none. It may still run on other processors when
/// this returns, if they touch the range.
pub fn release_page_faults(range: VirtRange) {
    let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(claim) = CLAIMS.iter().find(|claim| claim.is(range)) {
        claim.handler.store(std::ptr::null_mut(), Ordering::Release);
    }
}

/// The handler of the range that an address is in.
pub(super) fn handler_at(address: u64) -> Option<TrapHandler> {
    CLAIMS[..USED.load(Ordering::Acquire)].iter().find_map(|claim| {
        let handler = claim.handler.load(Ordering::Acquire);
        // The second look: if it is the same handler, the range that was looked at is its.
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

    /// Claims are the whole process's.
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
