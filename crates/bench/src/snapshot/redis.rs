//! `snapshot-redis`: redis-server under load while it saves, as it is and with snapshots (paper 7.3, Figures 15
//! and 16).
//!
//! Requests are due at a fixed rate, and latencies count from when they were due. So a server that stands still is
//! charged for all requests that it kept waiting. The server's spare time determines how soon it catches up, so there
//! is more than one rate.
//!
//! A server that has threads of its own is measured by the same loop, after the others have ended (`valkey`).

use std::path::PathBuf;
use std::time::Duration;

use bedplate_snapshot::{Memory, PAGE};

use super::saving::{CONNECTIONS, Cell, ROUNDS, Round, VALUE, add_rows, cell, measure};
use super::valkey;
use crate::keys::Distribution;
use crate::net::load::{self, Load, Loop, Schedule};
use crate::net::server::Server;
use crate::sample::{Samples, interleave, samples};
use crate::{Benchmark, Error, Fields, Options, Report, Result, Sink, Step};

pub(crate) const BENCH: Benchmark = Benchmark {
    name: "snapshot-redis",
    about: "redis-server's latencies while it saves, stock, with huge pages, and with snapshots (paper 7.3, Figures 15 and 16)",
    run,
};

const LIBRARY: &str = "libbedplate_snapshot_preload.so";
const STOCK: usize = 0;
const STOCK_HUGE: usize = 1;
const BEDPLATE: usize = 2;
const SIDES: [&str; 3] = ["stock", "stock, huge pages", "bedplate"];

const QUICK: &[Cell] = &[cell(Distribution::Gaussian, 50, 2_000.0), cell(Distribution::Uniform, 50, 8_000.0)];

const FULL: &[Cell] = &[
    cell(Distribution::Gaussian, 50, 2_000.0),
    cell(Distribution::Gaussian, 10, 5_000.0),
    cell(Distribution::Gaussian, 50, 5_000.0),
    cell(Distribution::Gaussian, 90, 5_000.0),
    cell(Distribution::Gaussian, 50, 10_000.0),
    cell(Distribution::Uniform, 50, 2_000.0),
    cell(Distribution::Uniform, 50, 10_000.0),
];

/// The variable that selects a server's engine in place of the default.
const ENGINE: &str = "BEDPLATE_SNAPSHOT_ENGINE";

fn run(options: &Options, sink: Sink<'_>) -> Result<Report> {
    // The fork of a smaller server takes no longer than other delays of a thread on this kind of machine.
    let keys: u64 = options.pick(800_000, 3_400_000);
    let rounds = ROUNDS;
    let window = Duration::from_millis(options.pick(4000, 14_000));
    let cells = options.pick(QUICK, FULL);
    let library = library(options)?;
    let by_itself = || Memory::builder(PAGE).in_child(true).build().map(|memory| memory.kind().to_string());
    let engine =
        std::env::var(ENGINE).or_else(|_| by_itself().map_err(|error| Error::engine(error.to_string())))?;
    let config = Fields::new()
        .with("mode", options.mode.name())
        .with("engine", engine.as_str())
        .with("rounds", rounds)
        .with("window_ms", window.as_millis() as u64)
        .with("keys", keys)
        .with("value_bytes", VALUE)
        .with("connections", CONNECTIONS)
        .with("loop", "open: latencies count from when a request was due")
        .with("huge_pages", huge_pages())
        .with("files", "deleted after each save, before they fill memory")
        .with("extra_bytes", "anonymous and shared memory of the machine, so it has to be quiet");
    let mut report = Report::new(BENCH.name, config);
    let environment = [
        ("LD_PRELOAD", library.as_os_str()),
        (ENGINE, engine.as_ref()),
        ("BEDPLATE_SNAPSHOT_REQUIRED", "1".as_ref()),
    ];
    sink(Step { done: 0, total: 1, label: "filling the servers" });
    let servers = [
        Server::redis(options)?,
        // The allocator asks for huge pages, and the server does not turn them off.
        Server::redis_with(options, &[("MALLOC_CONF", "thp:always".as_ref())], &["--disable-thp", "no"])?,
        Server::redis_with(options, &environment, &[])?,
    ];
    for server in &servers {
        load::fill(server.address(), keys, VALUE)?;
    }
    let mut ratios: Vec<(&str, Samples)> = Vec::new();
    // The last step is the server that has threads.
    let total = cells.len() + 1;
    for (done, cell) in cells.iter().enumerate() {
        sink(Step { done, total, label: &cell.label() });
        let load = cell.load(keys, window);
        let results = interleave(rounds, SIDES.len(), |side, round| {
            measure(&servers[side], &Load { seed: round as u64 * 2 + 1, ..load })
        })?;
        add_rows(&mut report, cell, &SIDES, &results);
        let of_cell = ratios_of(&results);
        for (name, value) in of_cell {
            let Cell { distribution, set_percent, rate } = cell;
            report.ratio(&format!("{}_{set_percent}_{rate}_{name}", distribution.name()), value);
            match ratios.iter_mut().find(|(known, _)| *known == name) {
                Some((_, values)) => *values = values.values().iter().copied().chain([value]).collect(),
                None => ratios.push((name, [value].into_iter().collect())),
            }
        }
    }
    // A claim must hold for every cell, so the worst one counts.
    for (name, values) in ratios {
        if name.starts_with("stock") {
            report.ratio(&format!("{name}_min"), values.min());
        } else {
            report.ratio(&format!("{name}_max"), values.max());
        }
    }
    report.ratio("idle_throughput_of_stock", throughput(&servers, keys, options)?);
    // The machine has not enough memory for all servers at once.
    drop(servers);
    sink(Step { done: cells.len(), total, label: &valkey::label() });
    match valkey::missing(&options.valkey) {
        Some(why) => report.rows.push(Fields::new().with("threaded_server", format!("skipped: {why}"))),
        None => valkey::measure_threaded(&mut report, options, &environment, keys, window)?,
    }
    Ok(report)
}

/// The ratios of a cell.
fn ratios_of(results: &[Vec<Round>]) -> [(&'static str, f64); 8] {
    let under = |side: usize, of: &dyn Fn(&Round) -> f64| {
        samples(&results[side], of).over(&samples(&results[BEDPLATE], of))
    };
    let of_itself =
        |percent: f64| samples(&results[BEDPLATE], |round| round.saving_over_idle(percent)).median();
    [
        ("stock_max_over_bedplate_max", under(STOCK, &Round::longest)),
        ("stock_p999_over_bedplate_p999", under(STOCK, &Round::p999)),
        ("stock_huge_max_over_bedplate_max", under(STOCK_HUGE, &Round::longest)),
        ("stock_huge_p999_over_bedplate_p999", under(STOCK_HUGE, &Round::p999)),
        ("saving_over_idle_p999", of_itself(99.9)),
        ("saving_over_idle_max", of_itself(100.0)),
        ("extra_memory_of_stock", 1.0 / under(STOCK, &|round| round.extra_bytes)),
        ("save_time_of_stock", 1.0 / under(STOCK, &|round| round.save_ns)),
    ]
}

/// The machine's setting for huge pages of anonymous memory.
fn huge_pages() -> String {
    let text = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let chosen = text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    chosen.unwrap_or("not offered").to_owned()
}

/// The servers' ratio of throughput when they do not save, in a closed loop, after snapshots were taken.
fn throughput(servers: &[Server; 3], keys: u64, options: &Options) -> Result<f64> {
    let schedule = Schedule {
        connections: CONNECTIONS,
        pipeline: 1,
        threads: 1,
        timing: Loop::Closed,
        warm_up: Duration::from_millis(300),
        window: Duration::from_millis(1500),
    };
    let load = Load {
        schedule,
        keys,
        value_len: VALUE,
        set_percent: 50,
        distribution: Distribution::Gaussian,
        seed: 99,
    };
    const COMPARED: [usize; 2] = [STOCK, BEDPLATE];
    let results = interleave(options.pick(5, 9), COMPARED.len(), |side, round| {
        let (seen, _) =
            load::run(servers[COMPARED[side]].address(), &Load { seed: round as u64, ..load }, || Ok(()))?;
        Ok::<f64, Error>(seen.rate())
    })?;
    let rates = |side: usize| results[side].iter().copied().collect::<Samples>();
    Ok(rates(1).over(&rates(0)))
}

/// The library beside the running program.
fn library(options: &Options) -> Result<PathBuf> {
    let program = match &options.bedplate {
        Some(program) => program.clone(),
        None => std::env::current_exe().map_err(Error::io("path of the running executable"))?,
    };
    let library = program.with_file_name(LIBRARY);
    if library.is_file() {
        return Ok(library);
    }
    Err(Error::Missing { what: format!("{} is not there", library.display()), hint: "make build" })
}
