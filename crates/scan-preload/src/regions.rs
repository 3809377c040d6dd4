//! Answers about the regions of a file, which the library remembers for a while.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::limits::{MAX_REGIONS, REGION};

/// For each region, the time of its latest answer in milliseconds plus one, and the answer in the lowest bit. 0: there is none.
pub struct Regions(Box<[AtomicU64]>);

fn now_ms() -> u64 {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    BEGIN.get_or_init(Instant::now).elapsed().as_millis() as u64 + 1
}

impl Regions {
    /// The regions of a file of this size. A sparse file may be very large.
    pub fn of(bytes: u64) -> Self {
        Self((0..bytes.div_ceil(REGION).min(MAX_REGIONS)).map(|_| AtomicU64::new(0)).collect())
    }

    /// The answer for a region. If there is none, or it is older than `time`, this calls `ask` for it.
    pub fn answer(&self, region: u64, time: Duration, ask: impl FnOnce() -> bool) -> bool {
        let Some(entry) = self.0.get(region as usize) else { return ask() };
        let (known, now) = (entry.load(Ordering::Relaxed), now_ms());
        if known != 0 && now - known / 2 < time.as_millis() as u64 {
            return known % 2 == 1;
        }
        let answer = ask();
        entry.store(now * 2 + u64::from(answer), Ordering::Relaxed);
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_asked_for_once_in_a_while() {
        let regions = Regions::of(3 * REGION - 1);
        let hour = Duration::from_secs(3600);
        assert!(regions.answer(2, hour, || true));
        assert!(regions.answer(2, hour, || panic!("it is known")));
        assert!(!regions.answer(1, hour, || false));
        assert!(!regions.answer(1, hour, || panic!("it is known")));
        assert!(
            regions.answer(3, hour, || true) && !regions.answer(3, hour, || false),
            "there is no such region"
        );
        assert!(!regions.answer(2, Duration::ZERO, || false), "it is old");
        assert_eq!(Regions::of(u64::MAX).0.len() as u64, MAX_REGIONS);
    }
}
