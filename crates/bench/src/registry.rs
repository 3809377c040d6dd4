//! The benchmarks by name, and their options.

use std::path::PathBuf;

use crate::limits::THREADS_MAX;
use crate::{
    Error, Report, Result, checkpoint, examples, language, local, memory, net, partitions, pool, postgres,
    programs, restart, scan, shootdown, snapshot, tpch, versions, voter, wal,
};
#[cfg(target_arch = "x86_64")]
use crate::{evict, ring0};

/// The extent of a benchmark.
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

/// The options of a benchmark.
#[derive(Clone, Debug)]
pub struct Options {
    /// The extent of the benchmark.
    pub mode: Mode,
    /// The `bedplate` executable whose `kv serve` is measured. Default: the running executable.
    pub bedplate: Option<PathBuf>,
    /// The Redis server to compare with.
    pub redis: PathBuf,
    /// The directory for the files of benchmarks that write; they are removed afterwards. Default:
    /// the temporary directory, which must be on a disk for a result about disks.
    pub directory: PathBuf,
    /// The Valkey server whose I/O threads are measured (`snapshot-redis`).
    pub valkey: PathBuf,
    /// Number of writing threads (`htap`, `snapshot-fault`), at most [`crate::THREADS_MAX`]. Default: the benchmark's
    /// own numbers of threads, one after the other.
    pub writers: Option<usize>,
    /// The scale factor of TPC-H (`scan-postgres`, `scan-tpch`), 0.01 to 100. Default: the benchmark's, or the engine's, own.
    pub scale: Option<f64>,
    /// The database of `scan-tpch`.
    pub engine: Option<String>,
    /// The program `bedplate-datafusion` (`scan-tpch`). Default: where `make datafusion-build` puts it, or beside `bedplate`.
    pub datafusion: Option<PathBuf>,
    /// The kernel's read-ahead on the device of the files of scan-tpch and scan-programs, in KiB, in place of its
    /// setting.
    pub read_ahead: Option<u64>,
}

impl Options {
    /// The defaults for a mode.
    pub fn new(mode: Mode) -> Self {
        Options {
            mode,
            bedplate: None,
            redis: PathBuf::from("redis-server"),
            directory: std::env::temp_dir(),
            valkey: PathBuf::from("valkey-server"),
            writers: None,
            scale: None,
            engine: None,
            datafusion: None,
            read_ahead: None,
        }
    }

    /// The numbers of threads that write: the one that was asked for, or the benchmark's own.
    pub(crate) fn threads(&self, own: &[usize]) -> Result<Vec<usize>> {
        match self.writers {
            None => Ok(own.to_vec()),
            Some(writers @ 1..=THREADS_MAX) => Ok(vec![writers]),
            Some(writers) => Err(Error::Threads(writers)),
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

/// Progress of a benchmark: `done` of `total` steps are complete, `label` names the running step.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// Completed steps.
    pub done: usize,
    /// Number of all steps.
    pub total: usize,
    /// Name of the running step.
    pub label: &'a str,
}

/// Receives the progress of a benchmark.
pub type Sink<'a> = &'a mut dyn FnMut(Step<'_>);

/// A benchmark.
#[derive(Clone, Copy)]
pub struct Benchmark {
    /// Its name on the command line and in the report.
    pub name: &'static str,
    /// Its description in one line.
    pub about: &'static str,
    pub(crate) run: fn(&Options, Sink<'_>) -> Result<Report>,
}

const ALL: &[Benchmark] = &[
    local::BENCH,
    net::BENCH,
    net::mix::BENCH,
    net::cache::BENCH,
    wal::BENCH,
    checkpoint::BENCH,
    restart::BENCH,
    memory::BENCH,
    versions::BENCH,
    partitions::BENCH,
    voter::BENCH,
    language::BENCH,
    examples::BENCH,
    snapshot::latency::BENCH,
    snapshot::fault::BENCH,
    snapshot::redis::BENCH,
    snapshot::htap::BENCH,
    shootdown::BENCH,
    pool::ycsb::BENCH,
    pool::tpcc::BENCH,
    pool::scaling::BENCH,
    scan::seq::BENCH,
    scan::ranges::BENCH,
    scan::share::BENCH,
    scan::pace::BENCH,
    scan::pool::BENCH,
    postgres::BENCH,
    tpch::BENCH,
    programs::BENCH,
    #[cfg(target_arch = "x86_64")]
    ring0::BENCH,
    #[cfg(target_arch = "x86_64")]
    snapshot::ring0::BENCH,
    #[cfg(target_arch = "x86_64")]
    evict::BENCH,
    #[cfg(target_arch = "x86_64")]
    pool::ring0::BENCH,
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
    fn threads_are_the_benchmark_s_own_or_those_asked_for_within_the_limit() {
        let of = |writers| Options { writers, ..Options::new(Mode::Quick) }.threads(&[2, 1]);
        assert_eq!(of(None).unwrap(), [2, 1]);
        assert_eq!(of(Some(1)).unwrap(), [1]);
        assert_eq!(of(Some(THREADS_MAX)).unwrap(), [THREADS_MAX]);
        for wrong in [0, THREADS_MAX + 1] {
            let error = of(Some(wrong)).unwrap_err().to_string();
            assert!(error.contains(&wrong.to_string()) && error.contains("64"), "{error}");
        }
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_known() {
        let e = run("no-such", &Options::new(Mode::Quick), &mut |_| {}).unwrap_err().to_string();
        assert!(e.contains("no-such") && e.contains("kv-net"), "{e}");
    }
}
