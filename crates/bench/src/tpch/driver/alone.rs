//! One client: query 6 (Figures 1 and 9), and all queries, cold and warm (Figure 8).

use std::time::{Duration, Instant};

use super::{Cell, Driver, Plan, over, row, samples, time_over, worst};
use crate::sample::interleave;
use crate::tpch::engine::{Access, Run, Side};
use crate::tpch::queries::{Q6, QUERIES};
use crate::{Fields, Result};

/// The two sides of query 6; the first one is the baseline.
const SIDES: [Side; 2] = [Side::Vanilla, Side::Bedplate];
/// Vanilla, Bedplate and its defaults, at most.
const SIDES_MAX: usize = 3;

/// Largest number of steps of the experiments.
pub fn steps(plan: &Plan) -> usize {
    4 * plan.q6_rounds + SIDES_MAX * plan.cold.len() * plan.cold_rounds + 2 * plan.cold.len() + QUERIES.len()
}

/// In a round, each side runs a warm query as often as this time allows, because the time of a short query varies most.
const WARM_TURN: Duration = Duration::from_secs(1);
const WARM_RUNS_MAX: usize = 5;

/// Number of times that a side runs a warm query in a round. One run takes `run`, with the start of the process that it needs.
fn warm_runs(run: Duration) -> usize {
    let fitting = WARM_TURN.as_nanos() / run.as_nanos().max(1);
    (fitting as usize).clamp(1, WARM_RUNS_MAX)
}

impl Driver<'_, '_> {
    pub fn alone(&mut self) -> Result<()> {
        self.q6()?;
        let (by_default, past_the_cache) = self.cold()?;
        let warm = self.warm()?;
        let (name, ratio) = worst([by_default, warm].concat());
        self.report.config.set("worst_query", name);
        self.report.ratio("worst_query_of_vanilla", ratio);
        if let Some(cells) = past_the_cache {
            let (name, ratio) = worst(cells);
            self.report.config.set("worst_query_past_the_cache", name);
            self.report.ratio("worst_query_past_the_cache_of_vanilla", ratio);
        }
        Ok(())
    }

    /// Query 6, cold: its time, its processor time, and its data-access time.
    fn q6(&mut self) -> Result<()> {
        let rounds = self.plan.q6_rounds;
        let results = interleave(rounds, SIDES.len(), |side, _| {
            self.progress.step(&format!("cold query 6, {}", SIDES[side].name()));
            self.cold_run(SIDES[side], Q6)
        })?;
        for (side, runs) in SIDES.iter().zip(&results) {
            self.report.rows.push(row("8", Q6, "cold", *side, runs));
        }
        self.report.ratio("cpu_of_vanilla", over(&results[1], &results[0], |run| run.cpu_ns));
        self.report.ratio("time_of_vanilla", time_over(&results[1], &results[0]));
        let access = self.access(Q6, rounds)?;
        self.report.ratio("q6_sequential_of_vanilla", access);
        Ok(())
    }

    /// A query's data-access time with Bedplate over that without it. NaN if the engine cannot measure it.
    fn access(&mut self, index: usize, rounds: usize) -> Result<f64> {
        let results = interleave(rounds, SIDES.len(), |side, _| {
            let side = SIDES[side];
            self.progress.step(&format!("data access of query {}, {}", index + 1, side.name()));
            self.engine.cold(side)?;
            self.engine.access(side, index)
        })?;
        let known: Option<Vec<Vec<Access>>> =
            results.into_iter().map(|side| side.into_iter().collect()).collect();
        let Some(known) = known else {
            self.report.config.set("sequential_access", "not measured: the engine does not say it");
            return Ok(f64::NAN);
        };
        for (side, runs) in SIDES.iter().zip(&known) {
            let access = samples(runs, |run| run.access_ns);
            let row = Fields::new()
                .with("figure", if index == Q6 { "1, 8, 9" } else { "8" })
                .with("query", index + 1)
                .with("side", side.name())
                .with("time_one_thread_ns", samples(runs, |run| run.wall_ns).median())
                .with("sequential_access_ns", access.median())
                .with("access_spread", access.spread())
                .with("access_of_time", samples(runs, |run| run.access_ns / run.wall_ns).median());
            self.report.rows.push(row);
        }
        Ok(over(&known[1], &known[0], |run| run.access_ns))
    }

    /// Queries that run cold. Returns the cells of Bedplate as it is installed, and those past the page cache where they differ.
    fn cold(&mut self) -> Result<(Vec<Cell>, Option<Vec<Cell>>)> {
        let sides = self.sides_alone();
        let mut cells = vec![Vec::new(); sides.len() - 1];
        for index in self.plan.cold.clone() {
            let results = interleave(self.plan.cold_rounds, sides.len(), |side, _| {
                self.progress.step(&format!("cold query {}, {}", index + 1, sides[side].name()));
                self.cold_run(sides[side], index)
            })?;
            for (side, runs) in sides.iter().zip(&results) {
                self.report.rows.push(row("8", index, "cold", *side, runs));
            }
            for (cells, runs) in cells.iter_mut().zip(&results[1..]) {
                cells.push((format!("{} cold", index + 1), time_over(runs, &results[0])));
            }
            // Quick mode has only the access of query 6.
            if self.plan.cold.len() == QUERIES.len() && index != Q6 {
                self.access(index, 1)?;
            }
        }
        // Where the engine has defaults, they are the last side.
        let last = cells.pop().unwrap_or_default();
        Ok((last, cells.pop()))
    }

    /// All queries, with as much of the files in the page cache as it has room for.
    fn warm(&mut self) -> Result<Vec<Cell>> {
        let mut cells = Vec::new();
        for index in 0..QUERIES.len() {
            self.progress.step(&format!("warm query {}", index + 1));
            // An unmeasured run has the costs that only the first run of a query has. A single round measures nothing
            // anyway.
            let runs = match self.plan.warm_rounds {
                1 => 1,
                _ => {
                    self.engine.warm(Side::Vanilla)?;
                    let begin = Instant::now();
                    self.run(Side::Vanilla, index)?;
                    warm_runs(begin.elapsed())
                }
            };
            let results = interleave(self.plan.warm_rounds, SIDES.len(), |side, _| {
                self.engine.warm(SIDES[side])?;
                (0..runs).map(|_| self.run(SIDES[side], index)).collect::<Result<Vec<_>>>()
            })?;
            let results: Vec<Vec<Run>> = results.into_iter().map(|rounds| rounds.concat()).collect();
            for (side, runs) in SIDES.iter().zip(&results) {
                self.report.rows.push(row("8", index, "warm", *side, runs));
            }
            cells.push((format!("{} warm", index + 1), time_over(&results[1], &results[0])));
        }
        Ok(cells)
    }
}
