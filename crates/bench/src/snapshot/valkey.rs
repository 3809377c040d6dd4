//! The part of `snapshot-redis` about a server that has threads of its own: Valkey with I/O threads, stock and with
//! snapshots, by the same loop.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::saving::{Cell, ROUNDS, Round, VALUE, add_rows, cell, measure};
use crate::keys::Distribution;
use crate::net::load::{self, Load};
use crate::net::server::{Server, figure};
use crate::sample::{interleave, samples};
use crate::{Error, Options, Report, Result};

/// The cell of the server that has threads, in every mode.
const CELL: Cell = cell(Distribution::Gaussian, 50, 5_000.0);
const SIDES: [&str; 2] = ["valkey with threads", "valkey with threads, bedplate"];
/// The I/O threads of that server, its main thread included. By default it uses them when several requests are there at
/// once.
const IO_THREADS: usize = 3;
/// The first version whose I/O threads read requests beside the main thread, and count their reads.
const VALKEY_MIN: u32 = 8;

/// The description of the measurement in the report.
pub(super) fn label() -> String {
    format!("{}, {IO_THREADS} I/O threads", CELL.label())
}

/// Measures a server that has threads, stock and with snapshots, by the same loop.
pub(super) fn measure_threaded(
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
    let load = CELL.load(keys, window);
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
    add_rows(report, &CELL, &SIDES, &results);
    for (name, value) in threaded_ratios(&results) {
        report.ratio(name, value);
    }
    Ok(())
}

/// Numbers of reads of a server from its clients so far.
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

/// The reason why a server with threads of its own cannot be measured, if there is one.
pub(super) fn missing(valkey: &Path) -> Option<String> {
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

/// The major version of a Valkey server, from the text of its version.
fn major_version(text: &str) -> Option<u32> {
    let version = text.strip_prefix("Valkey server v=")?;
    version.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::load::Seen;

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

    /// A round whose longest latency is `longest_ns`, while it saves and before.
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
