//! TPC-C's random values (clauses 2.1.6 and 4.3.2).

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::rows::Text;

/// Syllables of last names.
const SYLLABLES: [&str; 10] =
    ["BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"];

/// Constants of NURand, the same for a database and all its terminals.
#[derive(Clone, Copy, Debug)]
pub struct Constants {
    /// For last names while loading.
    pub load_name: u32,
    /// For last names in transactions.
    pub run_name: u32,
    /// For customers.
    pub customer: u32,
    /// For items.
    pub item: u32,
}

impl Constants {
    /// Draws them as clause 2.1.6.1 requires: the two for names are 65 to 119 apart, but not 96 or
    /// 112.
    pub fn new(seed: u64) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let load_name = random.random_range(0..=255);
        let run_name = loop {
            let run = random.random_range(0..=255u32);
            if name_constants_fit(load_name, run) {
                break run;
            }
        };
        Self {
            load_name,
            run_name,
            customer: random.random_range(0..=1023),
            item: random.random_range(0..=8191),
        }
    }
}

fn name_constants_fit(load: u32, run: u32) -> bool {
    let apart = load.abs_diff(run);
    (65..=119).contains(&apart) && apart != 96 && apart != 112
}

/// A reproducible stream of random values.
pub struct Random(SmallRng);

impl Random {
    /// Equal seeds give equal streams.
    pub fn new(seed: u64) -> Self {
        Self(SmallRng::seed_from_u64(seed))
    }

    /// From `low` to `high`, both included.
    pub fn within(&mut self, low: u32, high: u32) -> u32 {
        self.0.random_range(low..=high)
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: u32) -> bool {
        self.within(1, 100) <= percent
    }

    /// NURand(a, low, high): not uniform; some values are drawn far more often.
    pub fn nurand(&mut self, a: u32, constant: u32, low: u32, high: u32) -> u32 {
        ((self.within(0, a) | self.within(low, high)) + constant) % (high - low + 1) + low
    }

    /// An item.
    pub fn item(&mut self, constants: &Constants, items: u32) -> u32 {
        self.nurand(8191, constants.item, 1, items)
    }

    /// A customer of a district.
    pub fn customer(&mut self, constants: &Constants, customers: u32) -> u32 {
        self.nurand(1023, constants.customer, 1, customers)
    }

    /// A name that some customers of a district have.
    pub fn last_name(&mut self, constant: u32, customers: u32) -> Text<16> {
        last_name(self.nurand(255, constant, 0, customers.min(1000) - 1))
    }

    /// Letters and digits, `low` to `high` of them.
    pub fn letters<const N: usize>(&mut self, low: u32, high: u32) -> Text<N> {
        self.text(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", low, high)
    }

    /// Digits.
    pub fn digits<const N: usize>(&mut self, count: u32) -> Text<N> {
        self.text(b"0123456789", count, count)
    }

    fn text<const N: usize>(&mut self, alphabet: &[u8], low: u32, high: u32) -> Text<N> {
        let mut bytes = [0; N];
        let len = self.within(low, high) as usize;
        for byte in &mut bytes[..len] {
            *byte = alphabet[self.0.random_range(0..alphabet.len())];
        }
        Text::new(&bytes[..len])
    }

    /// Data of items and stocks: in a tenth of the cases ORIGINAL is somewhere in it.
    pub fn data(&mut self) -> Text<50> {
        let text: Text<50> = self.letters(26, 50);
        if !self.chance(10) {
            return text;
        }
        let mut bytes = text.bytes().to_vec();
        let at = self.within(0, bytes.len() as u32 - 8) as usize;
        bytes[at..at + 8].copy_from_slice(b"ORIGINAL");
        Text::new(&bytes)
    }

    /// A postal code: four digits and 11111.
    pub fn zip(&mut self) -> Text<9> {
        let start: Text<4> = self.digits(4);
        Text::new(&[start.bytes(), b"11111"].concat())
    }

    /// Shuffles the elements.
    pub fn shuffle<T>(&mut self, all: &mut [T]) {
        for i in (1..all.len()).rev() {
            all.swap(i, self.0.random_range(0..=i));
        }
    }
}

/// The name of a number below 1000.
pub fn last_name(number: u32) -> Text<16> {
    let syllable = |digit: u32| SYLLABLES[digit as usize % 10];
    Text::new([syllable(number / 100), syllable(number / 10), syllable(number)].concat().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_specification() {
        assert_eq!(last_name(371).bytes(), b"PRICALLYOUGHT");
        assert_eq!(last_name(40).bytes(), b"BARPRESBAR");
    }

    #[test]
    fn constants_are_as_far_apart_as_demanded() {
        assert!(!name_constants_fit(0, 96) && !name_constants_fit(200, 88) && !name_constants_fit(1, 2));
        for seed in 0..200 {
            let c = Constants::new(seed);
            assert!(name_constants_fit(c.load_name, c.run_name), "{c:?}");
        }
    }

    #[test]
    fn nurand_is_within_and_skewed() {
        let (mut random, mut counts) = (Random::new(1), [0u32; 3001]);
        for _ in 0..300_000 {
            counts[random.nurand(1023, 77, 1, 3000) as usize] += 1;
        }
        assert_eq!(counts[0], 0);
        counts.sort_unstable();
        // Uniform would be 100 each. The most drawn tenth of values gets several times its share.
        let top: u32 = counts[2701..].iter().sum();
        assert!(top > 90_000, "{top}");
    }

    #[test]
    fn texts_have_their_lengths_and_a_tenth_is_original() {
        let mut random = Random::new(2);
        let mut original = 0;
        for _ in 0..10_000 {
            let data = random.data();
            assert!((26..=50).contains(&data.bytes().len()));
            original += u32::from(data.bytes().windows(8).any(|w| w == b"ORIGINAL"));
        }
        assert!((880..1120).contains(&original), "{original}");
        assert!(random.zip().bytes().ends_with(b"11111"));
        assert_eq!(random.letters::<16>(8, 8).bytes().len(), 8);
    }

    #[test]
    fn a_shuffle_loses_nothing() {
        let mut all: Vec<u32> = (0..100).collect();
        Random::new(3).shuffle(&mut all);
        assert_ne!(all, (0..100).collect::<Vec<_>>());
        all.sort_unstable();
        assert_eq!(all, (0..100).collect::<Vec<_>>());
    }
}
