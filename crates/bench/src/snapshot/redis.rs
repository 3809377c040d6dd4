//! `snapshot-redis`: redis-server under load while it saves, as it is and with snapshots (paper 7.3, Figures 15
//! and 16).
//!
//! Requests are due at a fixed rate, and latencies count from when they were due, so that a server that stands still
//! is charged for all that it kept waiting. How much of its time the server has to spare decides how soon it catches up:
//! so there is more than one rate.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use bedplate_snapshot::{Memory, PAGE};

use crate::keys::Distribution;
use crate::net::load::{self, Load, Loop, Seen};
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
const VALUE: usize = 1024;
const CONNECTIONS: usize = 50;

struct Cell {
    distribution: Distribution,
    set_percent: u32,
    /// Requests that are due in a second.
    rate: f64,
}

const fn cell(distribution: Distribution, set_percent: u32, rate: f64) -> Cell {
    Cell { distribution, set_percent, rate }
}

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

/// The variable that says which engine a server gets, where it is not to be the one that it would get by itself.
const ENGINE: &str = "BEDPLATE_SNAPSHOT_ENGINE";

struct Round {
    /// While it saves.
    saving: Seen,
    /// Before.
    idle: Seen,
    /// The most memory of the server and its child during the save, beyond what the server had before it.
    extra_bytes: f64,
    fork_us: f64,
    /// How long the save took.
    save_ns: f64,
}

impl Round {
    /// A percentile of the latencies while it saves, over that of the same server before.
    fn saving_over_idle(&self, percent: f64) -> f64 {
        let of = |seen: &Seen| seen.latencies.percentile(percent) as f64;
        of(&self.saving) / of(&self.idle)
    }
}

fn run(options: &Options, sink: Sink<'_>) -> Result<Report> {
    // A smaller server forks within the time that this kind of machine may keep any thread waiting.
    let keys: u64 = options.pick(800_000, 3_400_000);
    let rounds = 3;
    let cells = options.pick(QUICK, FULL);
    let library = library(options)?;
    let by_itself = || Memory::builder(PAGE).in_child(true).build().map(|memory| memory.kind().to_string());
    let engine =
        std::env::var(ENGINE).or_else(|_| by_itself().map_err(|error| Error::engine(error.to_string())))?;
    let config = Fields::new()
        .with("mode", options.mode.name())
        .with("engine", engine.as_str())
        .with("rounds", rounds)
        .with("keys", keys)
        .with("value_bytes", VALUE)
        .with("connections", CONNECTIONS)
        .with("loop", "open: latencies count from when a request was due")
        .with("huge_pages", huge_pages())
        .with("files", "deleted after each save, before they fill memory")
        .with("extra_bytes", "anonymous and shared memory of the machine, so it has to be quiet");
    let mut report = Report::new(BENCH.name, config);
    sink(Step { done: 0, total: 1, label: "filling the servers" });
    let servers = [
        Server::redis(options)?,
        // The allocator asks for huge pages, and the server does not turn them off.
        Server::redis_with(options, &[("MALLOC_CONF", "thp:always".as_ref())], &["--disable-thp", "no"])?,
        Server::redis_with(
            options,
            &[
                ("LD_PRELOAD", library.as_os_str()),
                (ENGINE, engine.as_ref()),
                ("BEDPLATE_SNAPSHOT_REQUIRED", "1".as_ref()),
            ],
            &[],
        )?,
    ];
    for server in &servers {
        load::fill(server.address(), keys, VALUE)?;
    }
    let mut ratios: Vec<(&str, Samples)> = Vec::new();
    for (done, &Cell { distribution, set_percent, rate }) in cells.iter().enumerate() {
        sink(Step {
            done,
            total: cells.len(),
            label: &format!("{} keys, {set_percent} % SET, {rate}/s", distribution.name()),
        });
        let load = Load {
            connections: CONNECTIONS,
            pipeline: 1,
            threads: 1,
            keys,
            value_len: VALUE,
            set_percent,
            distribution,
            timing: Loop::Open { rate },
            warm_up: Duration::from_millis(1000),
            window: Duration::from_millis(options.pick(4000, 15_000)),
            seed: 7,
        };
        let results = interleave(rounds, SIDES.len(), |side, round| {
            measure(&servers[side], &Load { seed: round as u64 * 2 + 1, ..load })
        })?;
        for (side, rounds) in SIDES.iter().zip(&results) {
            for (when, seen) in [("saving", true), ("idle", false)] {
                let of = |round: &Round| if seen { round.saving.clone() } else { round.idle.clone() };
                let mut row = Fields::new()
                    .with("keys", distribution.name())
                    .with("set_pct", set_percent)
                    .with("due_per_s", rate)
                    .with("side", *side)
                    .with("when", when)
                    .with("rate_per_s", samples(rounds, |r| of(r).rate()).median());
                for (name, percent) in
                    [("p50_ns", 50.0), ("p99_ns", 99.0), ("p999_ns", 99.9), ("max_ns", 100.0)]
                {
                    row.set(name, samples(rounds, |r| of(r).latencies.percentile(percent) as f64).median());
                }
                if seen {
                    row.set("fork_us", samples(rounds, |r| r.fork_us).median());
                    row.set("save_ns", samples(rounds, |r| r.save_ns).median());
                    row.set("extra_bytes", samples(rounds, |r| r.extra_bytes).median());
                }
                report.rows.push(row);
            }
        }
        let of_cell = ratios_of(&results);
        for (name, value) in of_cell {
            report.ratio(&format!("{}_{set_percent}_{rate}_{name}", distribution.name()), value);
            match ratios.iter_mut().find(|(known, _)| *known == name) {
                Some((_, values)) => *values = values.values().iter().copied().chain([value]).collect(),
                None => ratios.push((name, [value].into_iter().collect())),
            }
        }
    }
    // A claim holds for every cell: what counts is the worst of them.
    for (name, values) in ratios {
        if name.starts_with("stock") {
            report.ratio(&format!("{name}_min"), values.min());
        } else {
            report.ratio(&format!("{name}_max"), values.max());
        }
    }
    report.ratio("idle_throughput_of_stock", throughput(&servers, keys, options)?);
    Ok(report)
}

/// The ratios of a cell.
fn ratios_of(results: &[Vec<Round>]) -> [(&'static str, f64); 8] {
    let under = |side: usize, of: &dyn Fn(&Round) -> f64| {
        samples(&results[side], of).over(&samples(&results[BEDPLATE], of))
    };
    let longest = |round: &Round| round.saving.latencies.max() as f64;
    let p999 = |round: &Round| round.saving.latencies.percentile(99.9) as f64;
    let of_itself =
        |percent: f64| samples(&results[BEDPLATE], |round| round.saving_over_idle(percent)).median();
    [
        ("stock_max_over_bedplate_max", under(STOCK, &longest)),
        ("stock_p999_over_bedplate_p999", under(STOCK, &p999)),
        ("stock_huge_max_over_bedplate_max", under(STOCK_HUGE, &longest)),
        ("stock_huge_p999_over_bedplate_p999", under(STOCK_HUGE, &p999)),
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

/// What a server can do when it does not save: closed loop, with snapshots having been taken before.
fn throughput(servers: &[Server; 3], keys: u64, options: &Options) -> Result<f64> {
    let load = Load {
        connections: CONNECTIONS,
        pipeline: 1,
        threads: 1,
        keys,
        value_len: VALUE,
        set_percent: 50,
        distribution: Distribution::Gaussian,
        timing: Loop::Closed,
        warm_up: Duration::from_millis(300),
        window: Duration::from_millis(1500),
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

fn measure(server: &Server, load: &Load) -> Result<Round> {
    let idle = Load { window: Duration::from_millis(1500), ..*load };
    let (idle, _) = load::run(server.address(), &idle, || Ok(()))?;
    let before = memory();
    let mut most = 0.0f64;
    let over = std::sync::atomic::AtomicBool::new(false);
    let saving = std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = 0.0f64;
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                most = most.max(memory());
                std::thread::sleep(Duration::from_millis(20));
            }
            most
        });
        let mut started = None;
        let result = load::run(server.address(), load, || {
            // At the beginning of the window, once.
            if started.is_none() {
                started = Some(SystemTime::now());
                server.command("BGSAVE")?;
            }
            Ok(())
        });
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        most = watch.join().unwrap_or(f64::NAN);
        result.map(|(seen, _)| (seen, started))
    });
    let (saving, started) = saving?;
    let fork_us = loop {
        let text = server.command("INFO")?;
        let find =
            |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
        if find("rdb_bgsave_in_progress:") == Some(0.0) {
            break find("latest_fork_usec:").unwrap_or(f64::NAN);
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let file = server.directory().join("dump.rdb");
    let written = file.metadata().and_then(|of| of.modified()).map_err(Error::io("find what was saved"))?;
    let save = started.and_then(|started| written.duration_since(started).ok());
    // It would fill the machine's memory, which all servers' children and writers need.
    std::fs::remove_file(file).map_err(Error::io("delete what was saved"))?;
    let save_ns = save.map_or(f64::NAN, |save| save.as_nanos() as f64);
    Ok(Round { saving, idle, extra_bytes: most - before, fork_us, save_ns })
}

/// The anonymous and shared memory of all processes. What a process has by itself the kernel would have to count page by
/// page, and keep it from forking meanwhile.
fn memory() -> f64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let of = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.split_whitespace().next().and_then(|n| n.parse::<f64>().ok()).unwrap_or(f64::NAN) * 1024.0
    };
    of("AnonPages:") + of("Shmem:")
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
