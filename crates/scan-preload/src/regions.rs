//! Answers for the regions of a file that hold for a while.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::limits::{ANSWER_TIME, MAX_REGIONS, REGION};

/// For each region, when it was answered, in milliseconds plus one, and the answer in the lowest bit. 0: never.
pub struct Regions(Box<[AtomicU64]>);

fn now_ms() -> u64 {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    BEGIN.get_or_init(Instant::now).elapsed().as_millis() as u64 + 1
}

impl Regions {
    /// Those of a file of so many bytes, which may be sparse.
    pub fn of(bytes: u64) -> Self {
        Self((0..bytes.div_ceil(REGION).min(MAX_REGIONS)).map(|_| AtomicU64::new(0)).collect())
    }

    /// The answer for a region, which is asked for if there is none, or if it is old.
    pub fn answer(&self, region: u64, ask: impl FnOnce() -> bool) -> bool {
        let Some(place) = self.0.get(region as usize) else { return ask() };
        let (known, now) = (place.load(Ordering::Relaxed), now_ms());
        if known != 0 && now - known / 2 < ANSWER_TIME.as_millis() as u64 {
            return known % 2 == 1;
        }
        let answer = ask();
        place.store(now * 2 + u64::from(answer), Ordering::Relaxed);
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_asked_for_once_in_a_while() {
        let regions = Regions::of(3 * REGION - 1);
        assert!(regions.answer(2, || true));
        assert!(regions.answer(2, || panic!("it is known")));
        assert!(!regions.answer(1, || false));
        assert!(!regions.answer(1, || panic!("it is known")));
        assert!(regions.answer(3, || true) && !regions.answer(3, || false), "there is no such region");
        std::thread::sleep(ANSWER_TIME);
        assert!(!regions.answer(2, || false), "it is old");
        assert_eq!(Regions::of(u64::MAX).0.len() as u64, MAX_REGIONS);
    }
}
