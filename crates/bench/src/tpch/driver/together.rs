//! Clients at the same time: different queries (Figure 11), and the same query, whose reads are shared (Figures 12 and
//! 13).

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use super::{CLIENTS, Driver, Plan, Q12, Q14, over, samples};
use crate::sample::interleave;
use crate::tpch::engine::{Answer, Side, Together};
use crate::tpch::queries::Q6;
use crate::{Fields, Result};

/// The queries of Figure 11, which scan the largest table.
const MIXED: [usize; 6] = [0, Q6, 6, Q12, Q14, 14];

/// The part of the files that is in the page cache when a run begins.
#[derive(Clone, Copy)]
enum Cache {
    /// Nothing.
    Cold,
    /// As much as it has room for.
    Warm,
}

impl Cache {
    fn name(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::Warm => "warm",
        }
    }
}

/// Number of steps of the experiments.
pub fn steps(plan: &Plan) -> usize {
    (2 + 4 * plan.clients.len() + 2 * 3) * plan.share_rounds
}

impl Driver<'_, '_> {
    pub fn together(&mut self) -> Result<()> {
        self.mixed()?;
        self.shared()?;
        self.joins()
    }

    /// Runs clients and checks their answers.
    fn clients(&mut self, side: Side, cache: Cache, lists: &[Vec<usize>]) -> Result<Together> {
        match cache {
            Cache::Cold => self.engine.cold(side)?,
            Cache::Warm => self.engine.warm(side)?,
        }
        let together = self.engine.clients(side, lists)?;
        for Answer { query, rows, .. } in &together.answers {
            self.answers.check(*query, side.name(), rows)?;
        }
        Ok(together)
    }

    /// Figure 11: each client runs all queries of a group once, in an order of its own. Nothing is shared.
    fn mixed(&mut self) -> Result<()> {
        let (sides, clients) = ([Side::Vanilla, Side::Bedplate], self.plan.mixed_clients);
        let lists: Vec<Vec<usize>> = (0..clients).map(|client| shuffled(client as u64)).collect();
        let results = interleave(self.plan.share_rounds, sides.len(), |side, _| {
            let side = sides[side];
            self.progress.step(&format!("{} queries of {clients} clients, {}", MIXED.len(), side.name()));
            self.clients(side, Cache::Cold, &lists)
        })?;
        for (side, runs) in sides.iter().zip(&results) {
            for index in MIXED {
                self.report.rows.push(row("11", index, *side, Cache::Cold, clients, runs));
            }
        }
        self.report.ratio("mixed_time_of_vanilla", over(&results[1], &results[0], |run| run.wall_ns));
        Ok(())
    }

    /// Figure 12: query 6 of several clients.
    fn shared(&mut self) -> Result<()> {
        let bytes = self.engine.scan_bytes(Q6)?;
        self.report.config.set("q6_bytes_of_lineitem", bytes);
        // The last lane reads nothing from the device, so no other lane can be faster.
        let lanes = [
            (Side::Vanilla, Cache::Cold),
            (Side::Bedplate, Cache::Cold),
            (Side::Shared, Cache::Cold),
            (Side::Vanilla, Cache::Warm),
        ];
        for clients in self.plan.clients.clone() {
            let lists = vec![vec![Q6]; clients];
            let results = interleave(self.plan.share_rounds, lanes.len(), |lane, _| {
                let (side, cache) = lanes[lane];
                self.progress.step(&format!(
                    "query 6 of {clients} clients, {}, {}",
                    side.name(),
                    cache.name()
                ));
                self.clients(side, cache, &lists)
            })?;
            for ((side, cache), runs) in lanes.iter().zip(&results) {
                self.report.rows.push(row("12", Q6, *side, *cache, clients, runs));
            }
            if clients == CLIENTS {
                let device = samples(&results[2], device).median();
                self.report.ratio("device_over_files_8", device / bytes as f64);
                self.report.ratio("time_of_vanilla_8", over(&results[2], &results[0], |run| run.wall_ns));
                self.report.ratio("cpu_of_vanilla_8", over(&results[2], &results[0], |run| run.cpu_ns));
                self.report
                    .ratio("warm_time_of_vanilla_8", over(&results[3], &results[0], |run| run.wall_ns));
            }
        }
        Ok(())
    }

    /// Figure 13: queries 12 and 14, whose scans are parts of joins.
    fn joins(&mut self) -> Result<()> {
        let (sides, clients) = ([Side::Vanilla, Side::Bedplate, Side::Shared], self.plan.join_clients);
        for index in [Q12, Q14] {
            let lists = vec![vec![index]; clients];
            let results = interleave(self.plan.share_rounds, sides.len(), |side, _| {
                let side = sides[side];
                self.progress.step(&format!("query {} of {clients} clients, {}", index + 1, side.name()));
                self.clients(side, Cache::Cold, &lists)
            })?;
            for (side, runs) in sides.iter().zip(&results) {
                self.report.rows.push(row("13", index, *side, Cache::Cold, clients, runs));
            }
            let name = format!("q{}_time_of_vanilla_{clients}", index + 1);
            self.report.ratio(&name, over(&results[2], &results[0], |run| run.wall_ns));
        }
        Ok(())
    }
}

/// The queries of Figure 11 in a client's order.
fn shuffled(client: u64) -> Vec<usize> {
    let mut list = MIXED.to_vec();
    list.shuffle(&mut SmallRng::seed_from_u64(client));
    list
}

fn device(run: &Together) -> f64 {
    run.device_bytes.unwrap_or(f64::NAN)
}

/// A row of a query of clients: their times, and their cost together.
fn row(figure: &str, index: usize, side: Side, cache: Cache, clients: usize, runs: &[Together]) -> Fields {
    let times = |run: &Together| -> Vec<f64> {
        run.answers.iter().filter(|answer| answer.query == index).map(|answer| answer.wall_ns).collect()
    };
    let mean = |run: &Together| times(run).iter().sum::<f64>() / times(run).len() as f64;
    Fields::new()
        .with("figure", figure)
        .with("query", index + 1)
        .with("clients", clients)
        .with("cache", cache.name())
        .with("side", side.name())
        .with("mean_time_ns", samples(runs, mean).median())
        .with("min_time_ns", samples(runs, |run| times(run).into_iter().fold(f64::NAN, f64::min)).median())
        .with("max_time_ns", samples(runs, |run| times(run).into_iter().fold(f64::NAN, f64::max)).median())
        .with("all_time_ns", samples(runs, |run| run.wall_ns).median())
        .with("all_cpu_ns", samples(runs, |run| run.cpu_ns).median())
        .with("all_device_bytes", samples(runs, device).median())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_have_all_queries_in_orders_of_their_own() {
        let lists: Vec<_> = (0..7).map(shuffled).collect();
        assert!(lists.windows(2).any(|two| two[0] != two[1]));
        for mut list in lists {
            list.sort_unstable();
            assert_eq!(list, MIXED);
        }
    }

    #[test]
    fn a_row_has_the_times_of_its_own_query() {
        let answer = |query, wall_ns| Answer { query, wall_ns, rows: Vec::new() };
        let answers = vec![answer(Q6, 2.0), answer(Q6, 6.0), answer(0, 100.0)];
        let run = Together { wall_ns: 9.0, cpu_ns: 8.0, device_bytes: None, answers };
        let row = row("12", Q6, Side::Shared, Cache::Cold, 2, &[run]);
        let number = |key| row.number(key).unwrap();
        assert_eq!((number("mean_time_ns"), number("min_time_ns"), number("max_time_ns")), (4.0, 2.0, 6.0));
        assert!(row.get("all_device_bytes").unwrap().is_null());
    }
}
