//! The interface of an engine: a trait with one implementation for each database.
//!
//! The driver ([`super::driver`]) loads an engine once ([`Candidate::load`]). Then it starts the engine as one side after the other,
//! cold or warm, and asks it to run queries. The driver interleaves, compares answers and computes ratios; an engine only runs and
//! measures.

use std::path::Path;

use super::Progress;
use super::oracle::Generator;
use crate::{Fields, Options, Result};

/// The way in which an engine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Without Bedplate, as the baseline.
    Vanilla,
    /// With it, past the page cache, as for data that is larger than memory. Processes do not share their reads.
    Bedplate,
    /// With it, and with a daemon that reads for all processes or sessions.
    Shared,
    /// With it, as it is installed, where that differs from [`Side::Bedplate`].
    Default,
}

impl Side {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vanilla => "vanilla",
            Self::Bedplate => "bedplate",
            Self::Shared => "bedplate, shared",
            Self::Default => "bedplate, defaults",
        }
    }
}

/// Rows of columns, as text. A missing value is `NULL` or an empty text.
pub type Rows = Vec<Vec<String>>;

/// The measurements and the rows of a run.
#[derive(Clone, Debug)]
pub struct Run {
    pub wall_ns: f64,
    /// Processor time of all processes that take part: clients are not among them if they are the benchmark, a daemon is.
    pub cpu_ns: f64,
    /// Bytes that the device read for all processes of the machine.
    pub device_bytes: Option<f64>,
    pub rows: Rows,
}

impl Run {
    /// Adds the following run.
    pub fn add(&mut self, next: &Self) {
        self.wall_ns += next.wall_ns;
        self.cpu_ns += next.cpu_ns;
        self.device_bytes = self.device_bytes.zip(next.device_bytes).map(|(all, more)| all + more);
    }
}

/// A client's answer to one of its queries.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The query's index.
    pub query: usize,
    /// Time from when the client sent the query until it had all rows.
    pub wall_ns: f64,
    pub rows: Rows,
}

/// The measurements of clients that ran at the same time.
#[derive(Clone, Debug)]
pub struct Together {
    /// Time from the first query to the last answer.
    pub wall_ns: f64,
    /// As in [`Run`].
    pub cpu_ns: f64,
    /// As in [`Run`].
    pub device_bytes: Option<f64>,
    /// The answers of all clients, in any order.
    pub answers: Vec<Answer>,
}

/// The data-access time and the whole time of a query.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// The time for which the query read, or waited for, data of tables.
    pub access_ns: f64,
    /// The time of the whole query, access included.
    pub wall_ns: f64,
}

/// An engine that may be chosen on the command line ([`super::ENGINES`]).
pub struct Candidate {
    /// The name on the command line.
    pub name: &'static str,
    /// The database's name in errors.
    pub database: &'static str,
    /// The scale factors of quick and of full mode. From the first one on, tables are large enough for Bedplate to serve their scans.
    pub scales: [f64; 2],
    /// Makes the tables of [`super::queries::TABLES`] and fills them, in a folder on a disk (`crate::scan::directory`). Calls
    /// `Progress::step` once for each table. [`crate::Error::Missing`]: the engine is not installed.
    pub load: fn(&Options, f64, &mut Progress<'_>) -> Result<Box<dyn Engine>>,
}

/// A database with TPC-H's tables. Dropping it ends its processes and removes its data.
pub trait Engine {
    /// The report's description of the engine: its version, and settings that matter.
    fn about(&self) -> Fields;

    /// The sides that the engine has, [`Side::Vanilla`] first.
    fn sides(&self) -> &'static [Side];

    /// The generator of the data, which decides how far DuckDB's answers apply.
    fn generator(&self) -> Generator {
        Generator::Tpch
    }

    /// The folder that has all data: its device is the one whose reads are counted.
    fn folder(&self) -> &Path;

    /// The bytes of `lineitem`'s files that a query must read to scan the table: the table's file, or the query's
    /// columns.
    fn scan_bytes(&mut self, query: usize) -> Result<u64>;

    /// Stops the engine, syncs all files and drops them from the page cache. Makes sure that the page cache has nothing of
    /// them, and starts the engine as a side. ([`super::cold::forget`] does the steps in the middle.)
    fn cold(&mut self, side: Side) -> Result<()>;

    /// Makes the engine run as a side, with as much of the files in the page cache as it has room for. The engine may go on
    /// running if that makes no difference to queries of the side. ([`super::cold::warm`] reads the files.)
    fn warm(&mut self, side: Side) -> Result<()>;

    /// Runs one query, as a side that was started.
    fn query(&mut self, side: Side, query: usize) -> Result<Run>;

    /// Runs one query, as a side that was started, in one thread or worker, and measures its data-access time. `None`: the
    /// engine cannot measure it.
    fn access(&mut self, side: Side, query: usize) -> Result<Option<Access>>;

    /// Runs clients at the same time, as a side that was started. Each runs its list of queries, one query after the other. A query
    /// has one thread or worker, if the engine can limit it.
    fn clients(&mut self, side: Side, lists: &[Vec<usize>]) -> Result<Together>;

    /// Whether [`Side::Bedplate`] serves the scan of query 6. If it leaves the scan to the page cache, as it may do with small
    /// tables, a comparison is meaningless. This starts the engine anew.
    fn serves(&mut self) -> Result<bool>;

    /// The memory that the engine needs for its processes and a scan, apart from the page cache. It determines which control
    /// groups are too small.
    fn least_memory(&self) -> u64 {
        192 << 20
    }

    /// From its next start on, the engine is in a control group with `bytes` bytes of memory (`None`: in no group). The driver
    /// makes the group, and the engine's processes inherit it. The engine limits its own caches, a daemon's too, to a fraction of
    /// the memory.
    fn limit_memory(&mut self, bytes: Option<u64>);
}
