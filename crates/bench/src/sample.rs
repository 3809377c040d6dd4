//! The interleaving runner and the statistics of its samples.
//!
//! Timing noise on a shared machine is larger than most effects. So the compared sides take turns
//! within each round. The side that begins rotates from round to round, so that an effect of a round's
//! start, such as a warm cache or a throttled host, does not always hit the same side. A ratio is the
//! median over rounds of the ratio within a round.

/// Samples of one quantity, one per round.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// The samples in the order of rounds.
    pub fn values(&self) -> &[f64] {
        &self.0
    }

    /// Median; NaN without samples.
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        match sorted.len() {
            0 => f64::NAN,
            n if n % 2 == 1 => sorted[n / 2],
            n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
        }
    }

    /// Smallest sample; NaN without samples.
    pub fn min(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::min)
    }

    /// Largest sample; NaN without samples.
    pub fn max(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::max)
    }

    /// (largest − smallest) ÷ median: 0.1 means that the samples differ by 10 % of the median.
    pub fn spread(&self) -> f64 {
        (self.max() - self.min()) / self.median()
    }

    /// Median over rounds of this side's sample ÷ the other side's sample of the same round.
    pub fn over(&self, other: &Samples) -> f64 {
        self.0.iter().zip(&other.0).map(|(a, b)| a / b).collect::<Samples>().median()
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(iter: I) -> Self {
        Samples(iter.into_iter().collect())
    }
}

/// Runs `rounds` rounds. Each calls `run(side, round)` once for every side; the first side rotates.
/// Returns the results by side, each in the order of rounds. Stops at the first error.
pub fn interleave<T, E>(
    rounds: usize,
    sides: usize,
    mut run: impl FnMut(usize, usize) -> Result<T, E>,
) -> Result<Vec<Vec<T>>, E> {
    let mut results: Vec<Vec<T>> = (0..sides).map(|_| Vec::with_capacity(rounds)).collect();
    for round in 0..rounds {
        for turn in 0..sides {
            let side = (round + turn) % sides;
            results[side].push(run(side, round)?);
        }
    }
    Ok(results)
}

/// One quantity of every result of a side.
pub fn samples<T>(results: &[T], quantity: impl Fn(&T) -> f64) -> Samples {
    results.iter().map(quantity).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(values: &[f64]) -> Samples {
        values.iter().copied().collect()
    }

    #[test]
    fn medians_and_spread() {
        assert_eq!(of(&[3.0, 1.0, 2.0]).median(), 2.0);
        assert_eq!(of(&[4.0, 1.0, 2.0, 3.0]).median(), 2.5);
        assert!(of(&[]).median().is_nan() && of(&[]).spread().is_nan());
        assert_eq!(of(&[8.0, 10.0, 12.0]).spread(), 0.4);
    }

    #[test]
    fn ratio_is_paired_by_round() {
        // The machine became ten times slower in round 2: a ratio of medians would be wrong, this one
        // is right.
        let a = of(&[2.0, 20.0, 2.0]);
        let b = of(&[1.0, 10.0, 1.0]);
        assert_eq!(a.over(&b), 2.0);
    }

    #[test]
    fn sides_take_turns_and_the_first_rotates() {
        let mut order = Vec::new();
        let results = interleave::<_, ()>(3, 2, |side, round| {
            order.push((round, side));
            Ok((side, round))
        })
        .unwrap();
        assert_eq!(order, [(0, 0), (0, 1), (1, 1), (1, 0), (2, 0), (2, 1)]);
        assert_eq!(results[1], [(1, 0), (1, 1), (1, 2)]);
    }

    #[test]
    fn first_error_stops_the_run() {
        let mut calls = 0;
        let r = interleave::<(), _>(5, 2, |_, round| {
            calls += 1;
            if round == 1 { Err("broken") } else { Ok(()) }
        });
        assert_eq!((r.unwrap_err(), calls), ("broken", 3));
    }

    proptest! {
        #[test]
        fn median_has_half_of_the_samples_on_each_side(values in prop::collection::vec(-1e9f64..1e9, 1..50)) {
            let s = of(&values);
            let m = s.median();
            prop_assert!(s.min() <= m && m <= s.max());
            prop_assert!(values.iter().filter(|v| **v <= m).count() * 2 >= values.len());
            prop_assert!(values.iter().filter(|v| **v >= m).count() * 2 >= values.len());
        }
    }
}
