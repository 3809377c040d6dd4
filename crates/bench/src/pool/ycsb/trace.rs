//! Operations of YCSB's clients, drawn before the measurement, because drawing one takes as long as it takes
//! some stores.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution as _, Zipf};
use serde::{Deserialize, Serialize};

use crate::keys::{coprime, key_of_rank};

/// The paper's skew: 80 % of the accesses are to about 10 % of the keys.
pub const SKEW: f64 = 0.9;

/// The popularity of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Popularity {
    /// All records are equally popular.
    Uniform,
    /// Zipf with [`SKEW`]. Popular records are scattered.
    Zipf,
}

impl Popularity {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Popularity::Uniform => "uniform",
            Popularity::Zipf => "zipf",
        }
    }
}

/// Number of records that a client reads or updates at once, in the workloads that are named for it.
pub const TOGETHER: usize = 16;

/// The core workloads of YCSB that are measured, and two that YCSB does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Mix {
    /// Half reads, half updates.
    A,
    /// Reads of [`TOGETHER`] records at once, and updates of as many others in one transaction, in turns.
    A16,
    /// 95 % reads, 5 % updates.
    B,
    /// Reads.
    C,
    /// Reads of [`TOGETHER`] records at once.
    C16,
    /// 95 % scans of 1 to 100 records, 5 % inserts.
    E,
}

impl Mix {
    /// All workloads.
    pub const ALL: [Mix; 6] = [Mix::A, Mix::A16, Mix::B, Mix::C, Mix::C16, Mix::E];
}

/// An operation on a record, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Read(u32),
    ReadMany([u32; TOGETHER]),
    Update(u32),
    UpdateMany([u32; TOGETHER]),
    /// A record that was not loaded, beside this one.
    Insert(u32),
    /// A scan from this record over a number of records.
    Scan(u32, u32),
}

/// Draws operations. Equal seeds give equal operations.
pub fn draw(mix: Mix, popularity: Popularity, records: u32, count: usize, seed: u64) -> Vec<Op> {
    let mut random = SmallRng::seed_from_u64(seed);
    let zipf = Zipf::new(f64::from(records), SKEW).expect("there are records");
    let scatter = coprime(records.into());
    let draw_record = |random: &mut SmallRng| match popularity {
        Popularity::Uniform => random.random_range(0..records),
        Popularity::Zipf => {
            let rank = (zipf.sample(random) as u64).clamp(1, records.into()) - 1;
            key_of_rank(rank, scatter, records.into()) as u32
        }
    };
    if matches!(mix, Mix::A16 | Mix::C16) {
        let several = |at| {
            let records = std::array::from_fn(|_| draw_record(&mut random));
            if mix == Mix::A16 && at % 2 == 1 { Op::UpdateMany(records) } else { Op::ReadMany(records) }
        };
        return (0..count / TOGETHER).map(several).collect();
    }
    let mut ops = Vec::with_capacity(count);
    for _ in 0..count {
        let record = draw_record(&mut random);
        let chance = random.random_range(0..100);
        ops.push(match mix {
            Mix::A if chance < 50 => Op::Update(record),
            Mix::B if chance < 5 => Op::Update(record),
            Mix::A | Mix::A16 | Mix::B | Mix::C | Mix::C16 => Op::Read(record),
            Mix::E if chance < 5 => Op::Insert(record),
            Mix::E => Op::Scan(record, random.random_range(1..=100)),
        });
    }
    ops
}

/// The order in which records are loaded, which is not that of their keys.
pub fn load_order(records: u32) -> impl Iterator<Item = u32> {
    let scatter = coprime(records.into());
    (0..u64::from(records)).map(move |i| key_of_rank(i, scatter, records.into()) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(mix: Mix, is: impl Fn(&Op) -> bool) -> f64 {
        let ops = draw(mix, Popularity::Uniform, 1000, 100_000, 1);
        ops.iter().filter(|op| is(op)).count() as f64 / ops.len() as f64
    }

    #[test]
    fn mixes_are_those_of_ycsb() {
        let near =
            |share: f64, expected: f64| assert!((share - expected).abs() < 0.01, "{share}, not {expected}");
        near(share(Mix::A, |op| matches!(op, Op::Update(_))), 0.5);
        near(share(Mix::A, |op| matches!(op, Op::Read(_))), 0.5);
        near(share(Mix::A16, |op| matches!(op, Op::ReadMany(_))), 0.5);
        near(share(Mix::A16, |op| matches!(op, Op::UpdateMany(_))), 0.5);
        near(share(Mix::B, |op| matches!(op, Op::Update(_))), 0.05);
        near(share(Mix::C, |op| matches!(op, Op::Read(_))), 1.0);
        near(share(Mix::C16, |op| matches!(op, Op::ReadMany(_))), 1.0);
        near(share(Mix::E, |op| matches!(op, Op::Insert(_))), 0.05);
        near(share(Mix::E, |op| matches!(op, Op::Scan(_, 1..=100))), 0.95);
        near(share(Mix::E, |op| matches!(op, Op::Scan(_, 1..=10))), 0.095);
    }

    #[test]
    fn four_fifths_of_the_accesses_are_to_a_tenth_of_the_keys_or_so() {
        let (records, count) = (100_000, 1_000_000);
        let mut counts = vec![0u32; records as usize];
        for op in draw(Mix::C, Popularity::Zipf, records, count, 2) {
            let Op::Read(record) = op else { panic!("{op:?}") };
            counts[record as usize] += 1;
        }
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let sum = |n: usize| counts[..n].iter().sum::<u32>() as f64;
        // The exact share of the first ranks, from their weights.
        let weight = |n: u32| (1..=n).map(|rank| f64::from(rank).powf(-SKEW)).sum::<f64>();
        for n in [1, 10, 1000, 10_000] {
            let (got, expected) = (sum(n as usize) / count as f64, weight(n) / weight(records));
            assert!((got / expected - 1.0).abs() < 0.1, "first {n}: {got}, expected {expected}");
        }
        let tenth = sum(10_000) / count as f64;
        assert!((0.7..0.9).contains(&tenth), "{tenth}");
    }

    #[test]
    fn every_record_is_loaded_once() {
        let mut all: Vec<u32> = load_order(1000).collect();
        assert!(all.windows(2).filter(|two| two[0].abs_diff(two[1]) < 10).count() < 10);
        all.sort_unstable();
        assert_eq!(all, (0..1000).collect::<Vec<_>>());
    }
}
