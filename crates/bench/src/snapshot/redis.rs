//! `snapshot-redis`: redis-server under load while it saves, as it is and with snapshots (paper 7.3, Figures 15
//! and 16).
//!
//! Requests are due at a fixed rate, and latencies count from when they were due, so that a server that stands still
//! is charged for all that it kept waiting. How much of its time the server has to spare decides how soon it catches up:
//! so there is more than one rate.
//!
//! A server that has threads of its own, Valkey with I/O threads, is measured by the same loop, with and without
//! snapshots, after the others have ended.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use bedplate_snapshot::{Memory, PAGE};

use super::machine_memory;
use crate::keys::Distribution;
use crate::net::load::{self, Load, Loop, Seen};
use crate::net::server::{Server, figure};
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

impl Cell {
    fn label(&self) -> String {
        format!("{} keys, {} % SET, {}/s", self.distribution.name(), self.set_percent, self.rate)
    }

    fn load(&self, keys: u64, window: Duration) -> Load {
        Load {
            connections: CONNECTIONS,
            pipeline: 1,
            threads: 1,
            keys,
            value_len: VALUE,
            set_percent: self.set_percent,
            distribution: self.distribution,
            timing: Loop::Open { rate: self.rate },
            warm_up: Duration::from_millis(1000),
            window,
            seed: 7,
        }
    }
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

/// The cell of the server that has threads, in every mode.
const THREADED: Cell = cell(Distribution::Gaussian, 50, 5_000.0);
const THREADED_SIDES: [&str; 2] = ["valkey with threads", "valkey with threads, bedplate"];
/// The I/O threads of that server, its main thread included. By default it uses them when several requests are there at
/// once.
const IO_THREADS: usize = 3;
/// The first version whose I/O threads read requests beside the main thread, and count what they do.
const VALKEY_MIN: u32 = 8;

const ROUNDS: usize = 3;

/// The variable that says which engine a server gets, where it is not to be the one that it would get by itself.
const ENGINE: &str = "BEDPLATE_SNAPSHOT_ENGINE";

/// One save of one server under load.
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
    /// The share of reads that a server's I/O threads did, if it has any.
    threaded_reads_pct: Option<f64>,
}

impl Round {
    fn longest(&self) -> f64 {
        self.saving.latencies.max() as f64
    }

    fn p999(&self) -> f64 {
        self.saving.latencies.percentile(99.9) as f64
    }

    /// A percentile of the latencies while it saves, over that of the same server before.
    fn saving_over_idle(&self, percent: f64) -> f64 {
        let of = |seen: &Seen| seen.latencies.percentile(percent) as f64;
        of(&self.saving) / of(&self.idle)
    }
}

fn run(options: &Options, sink: Sink<'_>) -> Result<Report> {
    // A smaller server forks within the time that this kind of machine may keep any thread waiting.
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
    // A claim holds for every cell: what counts is the worst of them.
    for (name, values) in ratios {
        if name.starts_with("stock") {
            report.ratio(&format!("{name}_min"), values.min());
        } else {
            report.ratio(&format!("{name}_max"), values.max());
        }
    }
    report.ratio("idle_throughput_of_stock", throughput(&servers, keys, options)?);
    // There is no memory for all servers at once.
    drop(servers);
    let label = format!("{}, {IO_THREADS} I/O threads", THREADED.label());
    sink(Step { done: cells.len(), total, label: &label });
    match missing(&options.valkey) {
        Some(why) => report.rows.push(Fields::new().with("threaded_server", format!("skipped: {why}"))),
        None => threaded(&mut report, options, &environment, keys, window)?,
    }
    Ok(report)
}

/// Measures a server that has threads, stock and with snapshots, by the same loop.
fn threaded(
    report: &mut Report,
    options: &Options,
    environment: &[(&str, &OsStr)],
    keys: u64,
    window: Duration,
) -> Result<()> {
    let threads = IO_THREADS.to_string();
    let further = ["--io-threads", &threads];
    let servers =
        [Server::valkey_with(options, &[], &further)?, Server::valkey_with(options, environment, &further)?];
    for server in &servers {
        load::fill(server.address(), keys, VALUE)?;
    }
    let load = THREADED.load(keys, window);
    let results = interleave(ROUNDS, servers.len(), |side, round| {
        let server = &servers[side];
        let before = Reads::of(server)?;
        let round = measure(server, &Load { seed: round as u64 * 2 + 1, ..load })?;
        Ok::<_, Error>(Round {
            threaded_reads_pct: Some(Reads::of(server)?.threaded_pct_since(before)),
            ..round
        })
    })?;
    if results.iter().flatten().all(|round| round.threaded_reads_pct == Some(0.0)) {
        return Err(Error::engine("the I/O threads of valkey-server read no request".to_owned()));
    }
    add_rows(report, &THREADED, &THREADED_SIDES, &results);
    for (name, value) in threaded_ratios(&results) {
        report.ratio(name, value);
    }
    Ok(())
}

/// How often a server has read from its clients so far.
#[derive(Clone, Copy)]
struct Reads {
    all: u64,
    by_io_threads: u64,
}

impl Reads {
    fn of(server: &Server) -> Result<Self> {
        let text = server.command("INFO stats")?;
        let (all, by_io_threads) =
            (figure(&text, "total_reads_processed")?, figure(&text, "io_threaded_reads_processed")?);
        Ok(Self { all, by_io_threads })
    }

    /// The share of I/O threads in 100 reads.
    fn threaded_pct_since(self, earlier: Self) -> f64 {
        let all = self.all.saturating_sub(earlier.all).max(1);
        self.by_io_threads.saturating_sub(earlier.by_io_threads) as f64 / all as f64 * 100.0
    }
}

/// The ratios of the cell with threads: the first side is stock, the second has snapshots.
fn threaded_ratios(results: &[Vec<Round>]) -> [(&'static str, f64); 2] {
    let over = |of: &dyn Fn(&Round) -> f64| samples(&results[0], of).over(&samples(&results[1], of));
    [
        ("threaded_stock_max_over_bedplate_max", over(&Round::longest)),
        ("threaded_stock_p999_over_bedplate_p999", over(&Round::p999)),
    ]
}

/// Why a server cannot be measured that has threads of its own, if it cannot.
fn missing(valkey: &Path) -> Option<String> {
    let name = valkey.display();
    let output = match Command::new(valkey).arg("--version").output() {
        Ok(output) => output,
        Err(error) => return Some(format!("{name} does not start: {error}; `make setup` installs Valkey 8")),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    match major_version(&text) {
        Some(VALKEY_MIN..) => None,
        _ => Some(format!("{name} is {:?}; Valkey {VALKEY_MIN} or later is needed", text.trim())),
    }
}

/// The major version of a Valkey server, by what it says of itself.
fn major_version(text: &str) -> Option<u32> {
    let version = text.strip_prefix("Valkey server v=")?;
    version.split('.').next()?.parse().ok()
}

/// Adds two rows for each side: while it saves, and before.
fn add_rows(report: &mut Report, cell: &Cell, sides: &[&str], results: &[Vec<Round>]) {
    for (side, rounds) in sides.iter().zip(results) {
        for is_saving in [true, false] {
            let of = |round: &Round| if is_saving { round.saving.clone() } else { round.idle.clone() };
            let mut row = Fields::new()
                .with("keys", cell.distribution.name())
                .with("set_pct", cell.set_percent)
                .with("due_per_s", cell.rate)
                .with("side", *side)
                .with("when", if is_saving { "saving" } else { "idle" })
                .with("rate_per_s", samples(rounds, |r| of(r).rate()).median());
            for (name, percent) in [("p50_ns", 50.0), ("p99_ns", 99.0), ("p999_ns", 99.9), ("max_ns", 100.0)]
            {
                row.set(name, samples(rounds, |r| of(r).latencies.percentile(percent) as f64).median());
            }
            if is_saving {
                row.set("fork_us", samples(rounds, |r| r.fork_us).median());
                row.set("save_ns", samples(rounds, |r| r.save_ns).median());
                row.set("extra_bytes", samples(rounds, |r| r.extra_bytes).median());
            }
            if rounds.iter().any(|round| round.threaded_reads_pct.is_some()) {
                let share = samples(rounds, |r| r.threaded_reads_pct.unwrap_or(f64::NAN)).median();
                row.set("threaded_reads_pct", share);
            }
            report.rows.push(row);
        }
    }
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
    let mut started = None;
    let (saving, extra_bytes) = machine_memory::most_beside(|| {
        load::run(server.address(), load, || {
            // At the beginning of the window, once.
            if started.is_none() {
                started = Some(SystemTime::now());
                server.command("BGSAVE")?;
            }
            Ok(())
        })
    });
    let (saving, _) = saving?;
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
    Ok(Round { saving, idle, extra_bytes, fork_us, save_ns, threaded_reads_pct: None })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_valkey_is_known_by_what_it_says() {
        let valkey = "Valkey server v=8.0.1 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64\n";
        assert_eq!(major_version(valkey), Some(8));
        assert_eq!(major_version("Valkey server v=10.1.0"), Some(10));
        assert_eq!(major_version("Redis server v=7.0.15"), None);
        assert_eq!(major_version(""), None);
    }

    #[test]
    fn the_share_of_io_threads_is_of_what_was_read_in_between() {
        let [earlier, later] =
            [(100, 10), (300, 60)].map(|(all, by_io_threads)| Reads { all, by_io_threads });
        assert_eq!(later.threaded_pct_since(earlier), 25.0);
        assert_eq!(earlier.threaded_pct_since(earlier), 0.0);
    }

    #[test]
    fn a_server_that_is_missing_or_another_one_is_a_line() {
        let missing_server = missing(Path::new("/no/such/valkey-server")).unwrap();
        assert!(missing_server.contains("/no/such/valkey-server does not start"), "{missing_server}");
        assert!(missing_server.contains("make setup") && !missing_server.contains('\n'));
        assert!(missing(Path::new("true")).unwrap().contains("Valkey 8"));
    }

    /// A round whose longest latency is this, as well as its idle one's.
    fn round(longest_ns: u64) -> Round {
        let mut saving = Seen::default();
        (0..10_000).for_each(|_| saving.latencies.record(10));
        (0..20).for_each(|_| saving.latencies.record(longest_ns / 2));
        saving.latencies.record(longest_ns);
        let idle = saving.clone();
        Round { idle, saving, extra_bytes: 1.0, fork_us: 1.0, save_ns: 1.0, threaded_reads_pct: None }
    }

    #[test]
    fn threaded_ratios_are_stock_over_bedplate_by_round() {
        let results = [vec![round(80_000), round(800_000)], vec![round(20_000), round(100_000)]];
        let ratios = threaded_ratios(&results);
        assert_eq!(
            ratios.map(|(name, _)| name),
            ["threaded_stock_max_over_bedplate_max", "threaded_stock_p999_over_bedplate_p999"]
        );
        assert!(ratios.iter().all(|(_, value)| (value / 6.0 - 1.0).abs() < 0.01), "{ratios:?}");
    }
}
