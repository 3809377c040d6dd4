//! The keys that a workload uses: uniform, Zipf as in YCSB (θ = 0.99), or Gaussian as in memtier_benchmark.

use std::f64;

use rand::{Rng, RngExt, SeedableRng, rngs::SmallRng};
use rand_distr::{Distribution as _, Normal, Zipf};

/// The skew of YCSB and of the paper's experiments.
pub const ZIPF_THETA: f64 = 0.99;

/// Distribution of the keys of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Distribution {
    /// Every key equally likely.
    Uniform,
    /// Zipf with θ = 0.99. The popular keys are scattered over the key space.
    Zipf,
    /// Normal around the middle key with a standard deviation of a sixth of the keys. Keys of similar popularity
    /// have neighbouring numbers.
    Gaussian,
}

impl Distribution {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Distribution::Uniform => "uniform",
            Distribution::Zipf => "zipf",
            Distribution::Gaussian => "gaussian",
        }
    }
}

/// A reproducible stream of key numbers in `0..keys`.
#[derive(Debug)]
pub struct KeyStream {
    keys: u64,
    popularity: Popularity,
    /// Multiplier of the bijection rank → key; coprime to `keys`.
    scatter: u64,
    rng: SmallRng,
}

#[derive(Debug)]
enum Popularity {
    Uniform,
    Zipf(Zipf<f64>),
    Gaussian(Normal<f64>),
}

impl KeyStream {
    /// A stream over `keys` keys (at least 1); equal seeds give equal streams.
    pub fn new(distribution: Distribution, keys: u64, seed: u64) -> Self {
        let keys = keys.max(1);
        let n = keys as f64;
        let popularity = match distribution {
            Distribution::Uniform => Popularity::Uniform,
            Distribution::Zipf => Popularity::Zipf(Zipf::new(n, ZIPF_THETA).expect("θ > 0 and keys ≥ 1")),
            Distribution::Gaussian => {
                Popularity::Gaussian(Normal::new(n / 2.0, n / 6.0).expect("a finite deviation"))
            }
        };
        KeyStream { keys, popularity, scatter: coprime(keys), rng: SmallRng::seed_from_u64(seed) }
    }

    /// The next key number.
    pub fn next_key(&mut self) -> u64 {
        match &self.popularity {
            Popularity::Uniform => self.rng.random_range(0..self.keys),
            Popularity::Zipf(zipf) => {
                // Ranks are 1..=keys. A bijection maps them to keys, so that popular keys are not
                // neighbours in memory or in one bucket.
                let rank = (zipf.sample(&mut self.rng) as u64).clamp(1, self.keys) - 1;
                key_of_rank(rank, self.scatter, self.keys)
            }
            Popularity::Gaussian(normal) => loop {
                let key = normal.sample(&mut self.rng);
                if (0.0..self.keys as f64).contains(&key) {
                    break key as u64;
                }
            },
        }
    }

    /// True with a probability of `percent` in 100.
    pub fn chance(&mut self, percent: u32) -> bool {
        self.rng.random_range(0..100) < percent
    }

    /// The stream's random number generator, for other random values of the workload.
    pub fn rng(&mut self) -> &mut impl Rng {
        &mut self.rng
    }
}

pub(crate) fn key_of_rank(rank: u64, scatter: u64, keys: u64) -> u64 {
    (u128::from(rank) * u128::from(scatter) % u128::from(keys)) as u64
}

/// A multiplier near `keys` × golden ratio that is coprime to `keys`.
pub(crate) fn coprime(keys: u64) -> u64 {
    let mut m = (keys as f64 * (f64::consts::GOLDEN_RATIO - 1.0)) as u64 | 1;
    while gcd(m, keys) != 1 {
        m += 2;
    }
    m
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn counts(distribution: Distribution, keys: u64, draws: usize) -> Vec<u64> {
        let mut stream = KeyStream::new(distribution, keys, 7);
        let mut counts = vec![0; keys as usize];
        for _ in 0..draws {
            counts[stream.next_key() as usize] += 1;
        }
        counts
    }

    #[test]
    fn uniform_touches_all_keys_about_equally() {
        let counts = counts(Distribution::Uniform, 100, 100_000);
        // Expected 1000 each, standard deviation 31.5: 6 σ.
        assert!(counts.iter().all(|c| (810..1190).contains(c)), "{counts:?}");
    }

    #[test]
    fn zipf_has_the_textbook_frequencies() {
        let keys = 1000u64;
        let draws = 400_000;
        let mut seen = counts(Distribution::Zipf, keys, draws);
        seen.sort_unstable_by(|a, b| b.cmp(a));
        let harmonic: f64 = (1..=keys).map(|r| (r as f64).powf(-ZIPF_THETA)).sum();
        for rank in [1usize, 2, 3, 10, 50] {
            let expected = draws as f64 * (rank as f64).powf(-ZIPF_THETA) / harmonic;
            let got = seen[rank - 1] as f64;
            assert!((got / expected - 1.0).abs() < 0.1, "rank {rank}: {got}, expected {expected}");
        }
    }

    #[test]
    fn popular_keys_are_scattered() {
        let counts = counts(Distribution::Zipf, 10_000, 200_000);
        let mut order: Vec<usize> = (0..counts.len()).collect();
        order.sort_unstable_by_key(|i| std::cmp::Reverse(counts[*i]));
        let close = order[..10].windows(2).filter(|w| w[0].abs_diff(w[1]) < 100).count();
        assert!(close <= 1, "the ten most popular keys: {:?}", &order[..10]);
    }

    #[test]
    fn equal_seeds_equal_streams() {
        for d in [Distribution::Uniform, Distribution::Zipf] {
            let draw = |seed| {
                let mut s = KeyStream::new(d, 1 << 20, seed);
                (0..100).map(|_| s.next_key()).collect::<Vec<_>>()
            };
            assert_eq!(draw(1), draw(1));
            assert_ne!(draw(1), draw(2));
        }
    }

    #[test]
    fn chance_is_a_percentage() {
        let mut s = KeyStream::new(Distribution::Uniform, 1, 3);
        assert!((0..1000).all(|_| !s.chance(0) && s.chance(100)));
        let hits = (0..100_000).filter(|_| s.chance(10)).count();
        assert!((9_400..10_600).contains(&hits), "{hits}");
    }

    proptest! {
        #[test]
        fn rank_to_key_is_a_bijection(keys in 1u64..3000) {
            let scatter = coprime(keys);
            let mut seen = vec![false; keys as usize];
            for rank in 0..keys {
                seen[key_of_rank(rank, scatter, keys) as usize] = true;
            }
            prop_assert!(seen.iter().all(|s| *s));
        }

        #[test]
        fn keys_are_in_range(keys in 1u64..u64::from(u32::MAX), seed: u64) {
            for d in [Distribution::Uniform, Distribution::Zipf] {
                let mut s = KeyStream::new(d, keys, seed);
                prop_assert!((0..50).all(|_| s.next_key() < keys));
            }
        }
    }
}
