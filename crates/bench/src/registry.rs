//! The benchmarks by name, and what all of them are given.

use std::path::PathBuf;

use crate::{
    Error, Report, Result, checkpoint, local, net, partitions, pool, restart, scan, shootdown, snapshot,
    versions, voter, wal,
};
#[cfg(target_arch = "x86_64")]
use crate::{evict, ring0};

/// How long a benchmark may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// A subset of the cells, within two minutes on two cores.
    #[default]
    Quick,
    /// Every cell of the paper's experiment.
    Full,
}

impl Mode {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Quick => "quick",
            Mode::Full => "full",
        }
    }
}

/// What a benchmark is given.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long it may take.
    pub mode: Mode,
    /// The `bedplate` executable whose `kv serve` is measured. Default: the running executable.
    pub bedplate: Option<PathBuf>,
    /// The Redis server to compare with.
    pub redis: PathBuf,
    /// Where files of benchmarks that write are created (removed afterwards). Default: the temporary
    /// directory, which must then be on a disk for a result about disks.
    pub directory: PathBuf,
}

impl Options {
    /// The defaults for a mode.
    pub fn new(mode: Mode) -> Self {
        Options {
            mode,
            bedplate: None,
            redis: PathBuf::from("redis-server"),
            directory: std::env::temp_dir(),
        }
    }

    /// One of two values by mode.
    pub(crate) fn pick<T>(&self, quick: T, full: T) -> T {
        match self.mode {
            Mode::Quick => quick,
            Mode::Full => full,
        }
    }
}

/// Progress of a benchmark: `done` of `total` steps are complete, `label` is what runs now.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// Completed steps.
    pub done: usize,
    /// All steps.
    pub total: usize,
    /// What runs now.
    pub label: &'a str,
}

/// Receives the progress of a benchmark.
pub type Sink<'a> = &'a mut dyn FnMut(Step<'_>);

/// A benchmark.
#[derive(Clone, Copy)]
pub struct Benchmark {
    /// Its name on the command line and in the report.
    pub name: &'static str,
    /// What it shows, in one line.
    pub about: &'static str,
    pub(crate) run: fn(&Options, Sink<'_>) -> Result<Report>,
}

const ALL: &[Benchmark] = &[
    local::BENCH,
    net::BENCH,
    wal::BENCH,
    checkpoint::BENCH,
    restart::BENCH,
    versions::BENCH,
    partitions::BENCH,
    voter::BENCH,
    snapshot::latency::BENCH,
    snapshot::fault::BENCH,
    snapshot::redis::BENCH,
    snapshot::htap::BENCH,
    shootdown::BENCH,
    pool::ycsb::BENCH,
    pool::tpcc::BENCH,
    scan::seq::BENCH,
    scan::ranges::BENCH,
    scan::share::BENCH,
    scan::pace::BENCH,
    #[cfg(target_arch = "x86_64")]
    ring0::BENCH,
    #[cfg(target_arch = "x86_64")]
    snapshot::ring0::BENCH,
    #[cfg(target_arch = "x86_64")]
    evict::BENCH,
];

/// All benchmarks.
pub fn benchmarks() -> &'static [Benchmark] {
    ALL
}

/// Names of all benchmarks.
pub fn names() -> Vec<&'static str> {
    ALL.iter().map(|b| b.name).collect()
}

/// Runs one benchmark.
pub fn run(name: &str, options: &Options, sink: Sink<'_>) -> Result<Report> {
    let bench = ALL.iter().find(|b| b.name == name).ok_or_else(|| Error::Unknown(name.to_owned()))?;
    (bench.run)(options, sink)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names = names();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_known() {
        let e = run("no-such", &Options::new(Mode::Quick), &mut |_| {}).unwrap_err().to_string();
        assert!(e.contains("no-such") && e.contains("kv-net"), "{e}");
    }
}
