//! Chooses the keys to evict: each key has a score, and those from a threshold on are evicted.
//!
//! The threshold comes from a sample of the keys. It is the highest score for which the keys that reach it take the wanted
//! share of the sample's bytes.

use crate::engine::{Candidate, EvictionOrder, EvictionPolicy};

/// Number of scores. The key with the highest one goes first.
const SCORES: usize = 256;

/// The score of a key; `None` if the policy does not evict it. `random` is drawn for each call.
pub(super) fn score(policy: EvictionPolicy, key: &Candidate, now_ms: u64, random: u8) -> Option<u8> {
    if policy.is_volatile() && key.expire_at_ms.is_none() {
        return None;
    }
    Some(match policy.order()? {
        EvictionOrder::LeastRecent => key.usage,
        EvictionOrder::LeastFrequent => u8::MAX - key.usage,
        EvictionOrder::Random => random,
        EvictionOrder::FirstToExpire => u8::MAX - logarithm(key.expire_at_ms?.saturating_sub(now_ms)),
    })
}

/// Eight times the binary logarithm of a time in milliseconds, rounded; at most 255, which is seven weeks.
fn logarithm(ms: u64) -> u8 {
    let value = ms.saturating_add(1);
    let whole = value.ilog2();
    let eighths = if whole >= 3 { value >> (whole - 3) } else { value << (3 - whole) } & 7;
    u8::try_from(u64::from(whole) * 8 + eighths).unwrap_or(u8::MAX)
}

/// The bytes of a sample of keys, by score.
pub(super) struct Sample {
    bytes: [u64; SCORES],
}

impl Sample {
    pub(super) fn new() -> Sample {
        Sample { bytes: [0; SCORES] }
    }

    pub(super) fn add(&mut self, score: u8, bytes: u64) {
        self.bytes[usize::from(score)] += bytes;
    }

    /// The highest score for which the keys that reach it take at least `share` of the bytes.
    pub(super) fn threshold(&self, share: f64) -> u8 {
        let wanted = self.bytes.iter().sum::<u64>() as f64 * share;
        let mut sum = 0;
        for score in (0..SCORES).rev() {
            sum += self.bytes[score];
            if sum as f64 >= wanted && sum > 0 {
                return score as u8;
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(usage: u8, expire_at_ms: Option<u64>) -> Candidate {
        Candidate { usage, expire_at_ms, commit_ts: 1, bytes: 100 }
    }

    #[test]
    fn scores_follow_the_policy() {
        use EvictionPolicy::*;
        let of = |policy, key: &Candidate| score(policy, key, 1000, 77);
        assert_eq!(of(NoEviction, &key(3, None)), None);
        assert!(of(AllkeysLru, &key(9, None)) > of(AllkeysLru, &key(3, None)));
        assert!(of(AllkeysLfu, &key(9, None)) < of(AllkeysLfu, &key(3, None)));
        assert_eq!(of(AllkeysRandom, &key(3, None)), Some(77));
        for policy in [VolatileLru, VolatileLfu, VolatileRandom, VolatileTtl] {
            assert_eq!(of(policy, &key(3, None)), None);
            assert!(of(policy, &key(3, Some(5000))).is_some());
        }
        let mut times: Vec<u64> = (0..40).map(|shift| 1u64 << shift).collect();
        times.insert(0, 0);
        let scores: Vec<_> = times.iter().map(|ms| of(VolatileTtl, &key(0, Some(1000 + ms)))).collect();
        assert!(scores.windows(2).all(|pair| pair[0] >= pair[1]) && scores[0] > scores[20], "{scores:?}");
        assert_eq!(of(VolatileTtl, &key(0, Some(1))), Some(255), "expired");
    }

    #[test]
    fn the_threshold_covers_the_share() {
        let mut sample = Sample::new();
        assert_eq!(sample.threshold(0.5), 0);
        for score in 0..=99 {
            sample.add(score, 10);
        }
        assert_eq!(sample.threshold(0.0), 99);
        assert_eq!(sample.threshold(0.01), 99);
        assert_eq!(sample.threshold(0.015), 98);
        assert_eq!(sample.threshold(0.5), 50);
        assert_eq!(sample.threshold(1.0), 0);
    }

    #[test]
    fn logarithms_grow() {
        assert_eq!((logarithm(0), logarithm(1), logarithm(3)), (0, 8, 16));
        assert!((0..10_000).all(|ms| logarithm(ms) <= logarithm(ms + 1)));
        assert_eq!(logarithm(u64::MAX), 255);
    }
}
