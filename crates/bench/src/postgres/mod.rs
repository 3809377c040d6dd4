//! `scan-postgres`: TPC-H in PostgreSQL, as it is and with the extension `bedplate_scan` (zicIO paper 5.3 and 5.4).
//!
//! Each version of PostgreSQL has one data directory, on which the sides take turns: a server without the extension, and one
//! with it. Before a cold run, the server is stopped, which writes everything out. Every file is synced and dropped from the
//! page cache, and a check makes sure that the page cache has nothing left. Warm runs take place in one server, so that both
//! sides have the same caches. There, the side without the extension is a session that has it switched off.
//!
//! The time of sequential access is the server's own count of the time for reading blocks (`track_io_timing`).
//!
//! Processor time is that of all processes of the server, its I/O workers and the daemon included, but not of the kernel's
//! workers. Bytes are those that the device read for all processes, so the machine has to be quiet.
//!
//! The answers of all sides must be equal, and equal to those that DuckDB has for the scale factor.

mod data;
pub(crate) mod server;
mod writers;

use std::time::Duration;

use bedplate_postgres_suite::Installation;

use crate::latency::Latencies;
use crate::sample::{Samples, interleave, samples};
use crate::tpch::answers::Answers;
use crate::tpch::engine::{Run, Side};
use crate::tpch::oracle::{Generator, Oracle};
use crate::tpch::queries::{Q6, QUERIES, query};
use crate::tpch::{Progress, scale};
use crate::{Benchmark, Error, Fields, Mode, Options, Report, Result, Sink};
use server::Server;
use writers::Writing;

pub(crate) const BENCH: Benchmark = Benchmark {
    name: "scan-postgres",
    about: "TPC-H in PostgreSQL 15 and 18, as they are and with the extension (zicIO paper 5.3, 5.4)",
    run,
};

/// The versions whose ratios have names.
pub(crate) const VERSIONS: [u32; 2] = [15, 18];
/// The sides that are compared; the first one is the baseline.
const SIDES: [Side; 2] = [Side::Vanilla, Side::Bedplate];
/// Clients that scan at the same time.
const CLIENTS: usize = 8;
/// Queries that run cold in quick mode: scans of the largest table, alone and in a join.
const COLD_QUICK: [usize; 3] = [0, Q6, 13];

/// An error of the server or of its tools.
pub(crate) fn failed(problem: String) -> Error {
    Error::Store { store: "PostgreSQL", problem }
}

/// The extent of the measurements.
struct Plan {
    scale: f64,
    q6_rounds: usize,
    query_rounds: usize,
    share_rounds: usize,
    /// Time for which writers write in a round.
    writing: Duration,
    cold: Vec<usize>,
}

impl Plan {
    fn new(options: &Options) -> Result<Self> {
        let scale = scale(options, options.pick(0.1, 1.0))?;
        Ok(match options.mode {
            Mode::Quick => Self {
                scale,
                q6_rounds: 3,
                query_rounds: 1,
                share_rounds: 1,
                writing: Duration::from_secs(5),
                cold: COLD_QUICK.to_vec(),
            },
            Mode::Full => Self {
                scale,
                q6_rounds: 7,
                query_rounds: 5,
                share_rounds: 3,
                writing: Duration::from_secs(20),
                cold: (0..QUERIES.len()).collect(),
            },
        })
    }
}

fn run(options: &Options, sink: Sink<'_>) -> Result<Report> {
    let plan = Plan::new(options)?;
    let mut config = Fields::new()
        .with("mode", options.mode.name())
        .with("scale_factor", plan.scale)
        .with("q6_rounds", plan.q6_rounds)
        .with("query_rounds", plan.query_rounds)
        .with("clients", CLIENTS)
        .with("tables", "vacuumed, with the indexes that correlated subqueries need; JIT off")
        .with(
            "extension",
            "cache_share = 0, as for tables that do not fit into memory; defaults where a row says so",
        );
    let mut installations = Vec::new();
    for version in VERSIONS {
        match Installation::of_version(version) {
            Ok(installation) => installations.push(installation),
            Err(reason) => config.set(&format!("no_postgresql_{version}"), reason),
        }
    }
    if installations.is_empty() {
        return Err(Error::Missing {
            what: "there is no PostgreSQL 15 or 18".to_owned(),
            hint: "run `make setup`",
        });
    }
    let oracle = Oracle::ask(Generator::Tpch, plan.scale);
    match &oracle {
        Ok(oracle) => config.set("oracle", oracle.about()),
        Err(reason) => config.set("oracle", format!("skipped: {reason}")),
    }
    let steps = installations.len() * (2 + 6 * plan.q6_rounds)
        + 3 * plan.cold.len() * plan.query_rounds
        + QUERIES.len()
        + 7 * plan.share_rounds;
    let mut progress = Progress::new(sink, steps);
    let mut servers = Vec::new();
    for installation in &installations {
        progress.step(&format!("PostgreSQL {}: loading", installation.version));
        servers.push(Server::load(options, installation, plan.scale, |_| ())?);
    }
    let mut report = Report::new(BENCH.name, config);
    let table = servers[0].table_bytes("lineitem")?;
    report.config.set("lineitem_bytes", table);
    let mut answers = Answers::new("PostgreSQL", plan.scale, oracle.ok());
    for server in &mut servers {
        progress.step(&format!("PostgreSQL {}: choosing settings", server.version()));
        if options.mode == Mode::Full {
            let chosen = server.choose_baseline(&query(Q6, plan.scale))?;
            report.config.set(&format!("baseline_{}", server.version()), chosen);
        }
        q6(server, &plan, &mut answers, &mut report, &mut progress)?;
    }
    let server = &mut servers[0];
    let [past_the_cache, by_default] = cold_queries(server, &plan, &mut answers, &mut report, &mut progress)?;
    let warm = warm_queries(server, &plan, &mut answers, &mut report, &mut progress)?;
    for (name, cells) in
        [("worst_query", [by_default, warm].concat()), ("worst_query_past_the_cache", past_the_cache)]
    {
        let (worst, ratio) = worst(cells);
        report.config.set(name, worst);
        report.ratio(&format!("{name}_of_vanilla"), ratio);
    }
    share(server, &plan, &mut answers, table, &mut report, &mut progress)?;
    three_scans(server, &plan, &mut answers, &mut report, &mut progress)?;
    // This comes last, because it changes the table.
    write(server, &plan, &mut report, &mut progress)?;
    Ok(report)
}

/// Query 6, cold, serially and in parallel.
fn q6(
    server: &mut Server,
    plan: &Plan,
    answers: &mut Answers,
    report: &mut Report,
    progress: &mut Progress<'_>,
) -> Result<()> {
    let (version, text) = (server.version(), query(Q6, plan.scale));
    let (mut cpu, mut time) = (Vec::new(), Vec::new());
    for workers in [0, 2] {
        let results = interleave(plan.q6_rounds, SIDES.len(), |side, _| {
            let side = SIDES[side];
            progress.step(&format!("PostgreSQL {version}: query 6, {}", side.name()));
            server.start_cold(side)?;
            let run = server.query(&text, workers, None)?;
            answers.check(Q6, side.name(), &run.rows)?;
            Ok::<_, Error>(run)
        })?;
        server.require_direct(&text, workers)?;
        for (side, runs) in SIDES.iter().zip(&results) {
            report.rows.push(row(version, Q6, "cold", workers, *side, runs));
        }
        let over = |of: &dyn Fn(&Run) -> f64| samples(&results[1], of).over(&samples(&results[0], of));
        cpu.push(over(&|run| run.cpu_ns));
        time.push(over(&|run| run.wall_ns));
    }
    if version == 15 {
        let access = q6_access(server, plan, report, progress)?;
        report.ratio("q6_sequential_of_vanilla_15", access);
    }
    let largest = |values: &[f64]| values.iter().copied().collect::<Samples>().max();
    report.ratio(&format!("cpu_of_vanilla_{version}"), largest(&cpu));
    report.ratio(&format!("time_of_vanilla_{version}"), largest(&time));
    Ok(())
}

/// The time for which query 6, serial and cold, waits for blocks: with the extension over without it.
fn q6_access(
    server: &mut Server,
    plan: &Plan,
    report: &mut Report,
    progress: &mut Progress<'_>,
) -> Result<f64> {
    let (version, text) = (server.version(), query(Q6, plan.scale));
    let results = interleave(plan.q6_rounds, SIDES.len(), |side, _| {
        let side = SIDES[side];
        progress.step(&format!("PostgreSQL {version}: sequential access of query 6, {}", side.name()));
        server.start_cold(side)?;
        Ok::<_, Error>(server.access(&text)?.access_ns)
    })?;
    let times = results.iter().map(|times| times.iter().copied().collect::<Samples>());
    let times: Vec<Samples> = times.collect();
    for (side, times) in SIDES.iter().zip(&times) {
        let row = Fields::new().with("postgresql", version).with("query", Q6 + 1).with("side", side.name());
        report.rows.push(row.with("sequential_access_ns", times.median()).with("spread", times.spread()));
    }
    Ok(times[1].over(&times[0]))
}

/// A row of a cell.
fn row(version: u32, index: usize, cache: &str, workers: u32, side: Side, runs: &[Run]) -> Fields {
    let median = |of: &dyn Fn(&Run) -> f64| samples(runs, of).median();
    Fields::new()
        .with("postgresql", version)
        .with("query", index + 1)
        .with("cache", cache)
        .with("workers", workers)
        .with("side", side.name())
        .with("time_ns", median(&|run| run.wall_ns))
        .with("time_spread", samples(runs, |run| run.wall_ns).spread())
        .with("cpu_ns", median(&|run| run.cpu_ns))
        .with("device_bytes", median(&|run| run.device_bytes.unwrap_or(f64::NAN)))
}

/// A query, cold or warm, and its time with the extension over that without.
type Cell = (String, f64);

/// Queries that run cold, with the plans that PostgreSQL chooses: past the page cache, and with the extension as it is installed.
fn cold_queries(
    server: &mut Server,
    plan: &Plan,
    answers: &mut Answers,
    report: &mut Report,
    progress: &mut Progress<'_>,
) -> Result<[Vec<Cell>; 2]> {
    let sides = [Side::Vanilla, Side::Bedplate, Side::Default];
    let mut cells = [Vec::new(), Vec::new()];
    for &index in &plan.cold {
        let text = query(index, plan.scale);
        let results = interleave(plan.query_rounds, sides.len(), |side, _| {
            let side = sides[side];
            progress.step(&format!("cold query {}, {}", index + 1, side.name()));
            server.start_cold(side)?;
            let run = server.query(&text, 2, None)?;
            answers.check(index, side.name(), &run.rows)?;
            Ok::<_, Error>(run)
        })?;
        for (side, runs) in sides.iter().zip(&results) {
            report.rows.push(row(server.version(), index, "cold", 2, *side, runs));
        }
        for (cells, runs) in cells.iter_mut().zip(&results[1..]) {
            cells.push(cell(index, "cold", &results[0], runs));
        }
    }
    Ok(cells)
}

/// All queries, with as much of the data in the page cache as it has room for.
fn warm_queries(
    server: &mut Server,
    plan: &Plan,
    answers: &mut Answers,
    report: &mut Report,
    progress: &mut Progress<'_>,
) -> Result<Vec<Cell>> {
    server.start_warm()?;
    let mut cells = Vec::new();
    for index in 0..QUERIES.len() {
        progress.step(&format!("warm query {}", index + 1));
        let text = query(index, plan.scale);
        // An unmeasured run has the costs that only the first run of a query has.
        let first = server.query(&text, 2, Some(Side::Vanilla))?;
        answers.check(index, Side::Vanilla.name(), &first.rows)?;
        let results = interleave(plan.query_rounds.max(3), SIDES.len(), |side, _| {
            let side = SIDES[side];
            let run = server.query(&text, 2, Some(side))?;
            answers.check(index, side.name(), &run.rows)?;
            Ok::<_, Error>(run)
        })?;
        for (side, runs) in SIDES.iter().zip(&results) {
            report.rows.push(row(server.version(), index, "warm", 2, *side, runs));
        }
        cells.push(cell(index, "warm", &results[0], &results[1]));
    }
    Ok(cells)
}

/// A query's time with the extension over that without.
fn cell(index: usize, cache: &str, vanilla: &[Run], bedplate: &[Run]) -> Cell {
    let time = |runs: &[Run]| samples(runs, |run| run.wall_ns);
    (format!("{} {cache}", index + 1), time(bedplate).over(&time(vanilla)))
}

/// The cell whose ratio is the largest.
fn worst(cells: Vec<Cell>) -> Cell {
    cells.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or(("none".to_owned(), f64::NAN))
}

/// Query 6 of one client and of several at the same time, whose scans share reads.
fn share(
    server: &mut Server,
    plan: &Plan,
    answers: &mut Answers,
    table: u64,
    report: &mut Report,
    progress: &mut Progress<'_>,
) -> Result<()> {
    let text = query(Q6, plan.scale);
    let cells = [(Side::Shared, 1), (Side::Shared, CLIENTS), (Side::Vanilla, CLIENTS)];
    let results = interleave(plan.share_rounds, cells.len(), |cell, _| {
        let (side, clients) = cells[cell];
        progress.step(&format!("query 6 of {clients} clients, {}", side.name()));
        server.start_cold(side)?;
        let run = server.queries(&text, clients)?;
        answers.check(Q6, side.name(), &run.rows)?;
        Ok::<_, Error>(run)
    })?;
    for ((side, clients), runs) in cells.iter().zip(&results) {
        report.rows.push(row(server.version(), Q6, "cold", 0, *side, runs).with("clients", *clients));
    }
    let device = samples(&results[1], |run| run.device_bytes.unwrap_or(f64::NAN));
    report.ratio("device_over_table_8_clients", device.median() / table as f64);
    let time = |runs: &[Run]| samples(runs, |run| run.wall_ns);
    report.ratio("q6_8_clients_over_1", time(&results[1]).over(&time(&results[0])));
    report.ratio("q6_8_clients_of_vanilla", time(&results[1]).over(&time(&results[2])));
    Ok(())
}

/// Query 6 three times, beginning cold, with the extension as it is installed. A table that fits into the page cache is not read
/// from the device each time.
fn three_scans(
    server: &mut Server,
    plan: &Plan,
    answers: &mut Answers,
    report: &mut Report,
    progress: &mut Progress<'_>,
) -> Result<()> {
    let (text, sides) = (query(Q6, plan.scale), [Side::Vanilla, Side::Default]);
    let results = interleave(plan.share_rounds, sides.len(), |side, _| {
        let side = sides[side];
        progress.step(&format!("query 6 three times, {}", side.name()));
        server.start_cold(side)?;
        let mut all = server.query(&text, 2, None)?;
        answers.check(Q6, side.name(), &all.rows)?;
        for _ in 1..3 {
            all.add(&server.query(&text, 2, None)?);
        }
        Ok::<_, Error>(all)
    })?;
    for (side, runs) in sides.iter().zip(&results) {
        report.rows.push(row(server.version(), Q6, "cold, 3 times", 2, *side, runs));
    }
    let time = |runs: &[Run]| samples(runs, |run| run.wall_ns);
    report.ratio("three_scans_of_vanilla", time(&results[1]).over(&time(&results[0])));
    Ok(())
}

/// Updates of the table beside scans of it.
fn write(server: &mut Server, plan: &Plan, report: &mut Report, progress: &mut Progress<'_>) -> Result<()> {
    let text = query(Q6, plan.scale);
    let results = interleave(plan.share_rounds, SIDES.len(), |side, _| {
        let side = SIDES[side];
        progress.step(&format!("updates beside query 6, {}", side.name()));
        writers::write(server, side, &text, plan.writing)
    })?;
    for (side, runs) in SIDES.iter().zip(&results) {
        let mut all = Latencies::default();
        runs.iter().for_each(|run| all.merge(&run.latencies));
        let mut row = Fields::new().with("postgresql", server.version()).with("side", side.name());
        row.set("updates", all.count());
        row.set("scans", runs.iter().map(|run| run.scans).sum::<u64>());
        all.fill(&mut row);
        report.rows.push(row);
    }
    let p99 = |runs: &[Writing]| samples(runs, |run| run.latencies.percentile(99.0) as f64);
    report.ratio("writers_p99_of_vanilla", p99(&results[1]).over(&p99(&results[0])));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_cell_is_the_one_with_the_largest_ratio() {
        let cells = vec![("1 cold".to_owned(), 0.5), ("2 warm".to_owned(), 1.25), ("3 cold".to_owned(), 1.0)];
        assert_eq!(worst(cells), ("2 warm".to_owned(), 1.25));
        assert!(worst(Vec::new()).1.is_nan());
    }
}
