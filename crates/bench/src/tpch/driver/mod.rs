//! The part that all engines have in common: the rounds of the experiments, comparisons of answers, and ratios.
//!
//! The sides of a cell take turns in each round, and the side that begins rotates. A ratio is the median over rounds of the ratio within a
//! round. Bytes are those that the device read for all processes, so the machine has to be quiet.
//!
//! [`alone`] has one client (Figures 1, 8 and 9), and [`together`] has several (Figures 11, 12 and 13). [`memory`] has control
//! groups that are smaller than the data.

mod alone;
mod memory;
mod neighbour;
mod together;

use super::answers::Answers;
use super::engine::{Candidate, Engine, Run, Side};
use super::oracle::Oracle;
use super::queries::{Q6, QUERIES, TABLES};
use super::read_ahead::{self, ReadAhead};
use super::{BENCH, Progress, scale};
use crate::sample::samples;
use crate::{Error, Fields, Mode, Options, Report, Result, Sink};

/// Queries that run cold in quick mode: scans of the largest table, alone and in joins.
const COLD_QUICK: [usize; 3] = [0, Q6, Q14];
const Q12: usize = 11;
const Q14: usize = 13;
/// The clients whose device bytes and time have a ratio.
const CLIENTS: usize = 8;

/// The extent of the measurements.
struct Plan {
    scale: f64,
    q6_rounds: usize,
    cold_rounds: usize,
    warm_rounds: usize,
    share_rounds: usize,
    /// Queries that run cold.
    cold: Vec<usize>,
    /// Numbers of clients that scan together.
    clients: Vec<usize>,
    /// Clients whose queries differ.
    mixed_clients: usize,
    /// Clients whose queries join.
    join_clients: usize,
}

impl Plan {
    fn new(candidate: &Candidate, options: &Options) -> Result<Self> {
        let [quick, full] = candidate.scales;
        let scale = scale(options, options.pick(quick, full))?;
        Ok(match options.mode {
            // Tables that are smaller than those of quick mode are for tests of the benchmark: everything runs once.
            Mode::Quick if scale < quick => Self {
                scale,
                q6_rounds: 1,
                cold_rounds: 1,
                warm_rounds: 1,
                share_rounds: 1,
                cold: vec![Q6],
                clients: vec![CLIENTS],
                mixed_clients: 2,
                join_clients: 2,
            },
            Mode::Quick => Self {
                scale,
                q6_rounds: 5,
                cold_rounds: 5,
                warm_rounds: 2,
                share_rounds: 3,
                cold: COLD_QUICK.to_vec(),
                clients: vec![1, CLIENTS],
                mixed_clients: 3,
                join_clients: CLIENTS,
            },
            Mode::Full => Self {
                scale,
                q6_rounds: 7,
                cold_rounds: 5,
                warm_rounds: 4,
                share_rounds: 3,
                cold: (0..QUERIES.len()).collect(),
                clients: vec![1, 2, 4, CLIENTS, 16, 32],
                mixed_clients: 7,
                join_clients: 32,
            },
        })
    }
}

/// The state of the experiments.
struct Driver<'e, 's> {
    engine: &'e mut dyn Engine,
    plan: Plan,
    answers: Answers,
    report: Report,
    progress: Progress<'s>,
}

pub fn run(candidate: &Candidate, options: &Options, sink: Sink<'_>) -> Result<Report> {
    let plan = Plan::new(candidate, options)?;
    let mut progress = Progress::new(
        sink,
        TABLES.len() + alone::steps(&plan) + together::steps(&plan) + memory::steps(&plan),
    );
    let mut engine = (candidate.load)(options, plan.scale, &mut progress)?;
    let config = Fields::new()
        .with("mode", options.mode.name())
        .with("engine", candidate.name)
        .with("scale_factor", plan.scale)
        .with("q6_rounds", plan.q6_rounds)
        .with("cold_rounds", plan.cold_rounds)
        .with("warm_rounds", plan.warm_rounds)
        .with("share_rounds", plan.share_rounds);
    let mut report = Report::new(BENCH.name, config);
    report.config.extend(engine.about());
    let _read_ahead = options.read_ahead.map(|kib| ReadAhead::set(engine.folder(), kib)).transpose()?;
    report.config.set("read_ahead_kib", read_ahead::of(engine.folder()));
    let oracle = Oracle::ask(engine.generator(), plan.scale);
    match &oracle {
        Ok(oracle) => report.config.set("oracle", oracle.about()),
        Err(reason) => report.config.set("oracle", format!("skipped: {reason}")),
    }
    let answers = Answers::new(candidate.database, plan.scale, oracle.ok());
    let mut driver = Driver { engine: &mut *engine, plan, answers, report, progress };
    driver.require_bedplate(candidate)?;
    driver.alone()?;
    driver.together()?;
    driver.memory(options)?;
    Ok(driver.report)
}

impl Driver<'_, '_> {
    /// An error if Bedplate does not serve the scan of query 6. Tables that are smaller than those of quick mode are
    /// for tests of the benchmark.
    fn require_bedplate(&mut self, candidate: &Candidate) -> Result<()> {
        let is_served = self.engine.serves()?;
        self.report.config.set("bedplate_serves_query_6", is_served);
        match is_served || self.plan.scale < candidate.scales[0] {
            true => Ok(()),
            false => {
                let problem = "Bedplate leaves the scan of query 6 to the page cache".to_owned();
                Err(Error::Store { store: candidate.database, problem })
            }
        }
    }

    /// The sides that have one client: all that the engine has but the one that shares.
    fn sides_alone(&self) -> Vec<Side> {
        self.engine.sides().iter().copied().filter(|side| *side != Side::Shared).collect()
    }

    /// Starts the engine cold, runs a query and checks its answer.
    fn cold_run(&mut self, side: Side, index: usize) -> Result<Run> {
        self.engine.cold(side)?;
        self.run(side, index)
    }

    /// Runs a query and checks its answer.
    fn run(&mut self, side: Side, index: usize) -> Result<Run> {
        let run = self.engine.query(side, index)?;
        self.answers.check(index, side.name(), &run.rows)?;
        Ok(run)
    }
}

/// The median of a quantity.
fn median(runs: &[Run], of: impl Fn(&Run) -> f64) -> f64 {
    samples(runs, of).median()
}

/// The time of a side over that of another one.
fn time_over(side: &[Run], other: &[Run]) -> f64 {
    over(side, other, |run| run.wall_ns)
}

/// A quantity of a side over that of another one.
fn over<T>(side: &[T], other: &[T], of: impl Fn(&T) -> f64) -> f64 {
    samples(side, &of).over(&samples(other, &of))
}

/// The device's bytes, if they are known.
fn device(run: &Run) -> f64 {
    run.device_bytes.unwrap_or(f64::NAN)
}

/// A row of one client's runs.
fn row(figure: &str, index: usize, cache: &str, side: Side, runs: &[Run]) -> Fields {
    Fields::new()
        .with("figure", figure)
        .with("query", index + 1)
        .with("cache", cache)
        .with("side", side.name())
        .with("time_ns", median(runs, |run| run.wall_ns))
        .with("time_spread", samples(runs, |run| run.wall_ns).spread())
        .with("cpu_ns", median(runs, |run| run.cpu_ns))
        .with("device_bytes", median(runs, device))
}

/// A query, cold or warm, and its time over that without Bedplate.
type Cell = (String, f64);

/// The cell whose ratio is the largest.
fn worst(cells: Vec<Cell>) -> Cell {
    cells.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or(("none".to_owned(), f64::NAN))
}

#[cfg(test)]
mod tests;
