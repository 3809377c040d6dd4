//! The measurement of a server under load while it saves.

use std::time::{Duration, SystemTime};

use super::machine_memory;
use crate::keys::Distribution;
use crate::net::load::{self, Load, Loop, Schedule, Seen};
use crate::net::server::Server;
use crate::sample::samples;
use crate::{Error, Fields, Report, Result};

pub(super) const VALUE: usize = 1024;
pub(super) const CONNECTIONS: usize = 50;
pub(super) const ROUNDS: usize = 3;

/// A load.
pub(super) struct Cell {
    pub(super) distribution: Distribution,
    pub(super) set_percent: u32,
    /// Requests that are due in a second.
    pub(super) rate: f64,
}

pub(super) const fn cell(distribution: Distribution, set_percent: u32, rate: f64) -> Cell {
    Cell { distribution, set_percent, rate }
}

impl Cell {
    pub(super) fn label(&self) -> String {
        format!("{} keys, {} % SET, {}/s", self.distribution.name(), self.set_percent, self.rate)
    }

    pub(super) fn load(&self, keys: u64, window: Duration) -> Load {
        let schedule = Schedule {
            connections: CONNECTIONS,
            pipeline: 1,
            threads: 1,
            timing: Loop::Open { rate: self.rate },
            warm_up: Duration::from_millis(1000),
            window,
        };
        Load {
            schedule,
            keys,
            value_len: VALUE,
            set_percent: self.set_percent,
            distribution: self.distribution,
            seed: 7,
        }
    }
}

/// One save of one server under load.
pub(super) struct Round {
    /// Results while it saves.
    pub(super) saving: Seen,
    /// Results before the save.
    pub(super) idle: Seen,
    /// The most memory of the server and its child during the save, beyond what the server had before it.
    pub(super) extra_bytes: f64,
    pub(super) fork_us: f64,
    /// Time that the save took.
    pub(super) save_ns: f64,
    /// The share of reads that a server's I/O threads did, if it has any.
    pub(super) threaded_reads_pct: Option<f64>,
}

impl Round {
    pub(super) fn longest(&self) -> f64 {
        self.saving.latencies.max() as f64
    }

    pub(super) fn p999(&self) -> f64 {
        self.saving.latencies.percentile(99.9) as f64
    }

    /// A percentile of the latencies while it saves, over that of the same server before.
    pub(super) fn saving_over_idle(&self, percent: f64) -> f64 {
        let of = |seen: &Seen| seen.latencies.percentile(percent) as f64;
        of(&self.saving) / of(&self.idle)
    }
}

pub(super) fn measure(server: &Server, load: &Load) -> Result<Round> {
    let schedule = Schedule { window: Duration::from_millis(1500), ..load.schedule };
    let idle = Load { schedule, ..*load };
    let (idle, _) = load::run(server.address(), &idle, || Ok(()))?;
    let mut started = None;
    let (saving, extra_bytes) = machine_memory::most_beside(|| {
        load::run(server.address(), load, || {
            // The save begins once, at the beginning of the window.
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
    // The file would fill the machine's memory, which all servers' children and writers need.
    std::fs::remove_file(file).map_err(Error::io("delete what was saved"))?;
    let save_ns = save.map_or(f64::NAN, |save| save.as_nanos() as f64);
    Ok(Round { saving, idle, extra_bytes, fork_us, save_ns, threaded_reads_pct: None })
}

/// Adds two rows for each side: while it saves, and before.
pub(super) fn add_rows(report: &mut Report, cell: &Cell, sides: &[&str], results: &[Vec<Round>]) {
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
