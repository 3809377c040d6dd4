//! DuckDB on Parquet files, unmodified: `bedplate scan run` serves its reads.
//!
//! Each query, or each client, has a process of its own (`query.py`), because DuckDB caches what a process has read. The processes start
//! and open the tables before they are measured. A process and the daemon that reads for it are counted together.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::daemon::{Daemons, program, statistic};
use super::process::{Client, Task, run, single};
use super::{Files, failed};
use crate::tpch::engine::{Access, Candidate, Engine, Run, Side, Together};
use crate::tpch::oracle::Generator;
use crate::tpch::queries::Q6;
use crate::tpch::{Progress, cold, python};
use crate::{Error, Fields, Options, Result};

pub const CANDIDATE: Candidate = Candidate { name: "duckdb", database: "DuckDB", scales: [1.0, 1.0], load };

const QUERY: &str = include_str!("query.py");
const LIBRARY: &str = "libbedplate_scan_preload.so";
/// The smallest size of files that `bedplate scan run` serves by default.
const MINIMUM_BYTES: u64 = 64 << 20;
/// The daemons and DuckDB each have the control group's memory divided by this.
const PART_OF_MEMORY: u64 = 4;

struct DuckDb {
    files: Files,
    scale: f64,
    /// The version of the DuckDB that is measured.
    version: String,
    /// Files of at least this number of bytes are served.
    minimum: u64,
    /// Their folder has statistics, too.
    daemons: Daemons,
    memory: Option<u64>,
}

fn load(options: &Options, scale: f64, progress: &mut Progress<'_>) -> Result<Box<dyn Engine>> {
    let program = program(options)?;
    let library = program.with_file_name(LIBRARY);
    if !library.is_file() {
        let what = format!("{} is not there", library.display());
        return Err(Error::Missing { what, hint: "run `make build`" });
    }
    let version = version()?;
    let files = Files::make(options, scale, progress)?;
    let minimum = files.minimum(MINIMUM_BYTES)?;
    let daemons = Daemons::new(program)?;
    Ok(Box::new(DuckDb { files, scale, version, minimum, daemons, memory: None }))
}

/// The version of the DuckDB that is measured.
fn version() -> Result<String> {
    let mut python = python::with_engine().map_err(python::missing)?;
    python.args(["-c", "import duckdb; print(duckdb.__version__)"]);
    let output = python.stdin(Stdio::null()).output().map_err(Error::io("run Python"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

impl DuckDb {
    /// Starts the daemons for `clients` clients, if they do not run. Without Bedplate, none is needed.
    fn need_daemons(&mut self, side: Side, clients: usize) -> Result<()> {
        let wanted = match side {
            Side::Vanilla => 0,
            Side::Shared => 1,
            Side::Bedplate | Side::Default => clients,
        };
        self.daemons.start(wanted, self.memory.map(|bytes| bytes / PART_OF_MEMORY))
    }

    /// A command that runs `query.py`, as the client with a number.
    fn command(&self, side: Side, client: usize) -> Result<Command> {
        let python = python::with_engine().map_err(failed)?;
        let mut command = match side {
            Side::Vanilla => Command::new(python.get_program()),
            Side::Bedplate | Side::Shared | Side::Default => {
                let socket = self.daemons.socket(if side == Side::Shared { 0 } else { client });
                let socket = socket.ok_or_else(|| failed("a daemon does not run"))?;
                let mut command = Command::new(self.daemons.program());
                command.args(["scan", "run", "--socket"]).arg(socket);
                command.args(["--minimum", &self.minimum.to_string(), "--statistics"]).arg(self.statistics());
                command.arg("--").arg(python.get_program());
                command
            }
        };
        command.envs(python.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.args(["-c", QUERY]);
        Ok(command)
    }

    fn statistics(&self) -> PathBuf {
        self.daemons.folder().join("statistics")
    }

    /// Runs lists of queries, each in a process.
    fn run(
        &mut self,
        side: Side,
        lists: &[Vec<usize>],
        threads: Option<u32>,
        time_reads: bool,
    ) -> Result<Together> {
        self.need_daemons(side, lists.len())?;
        let (memory, folder) = (self.memory.map(|bytes| bytes / PART_OF_MEMORY), self.files.path());
        let mut clients = Vec::new();
        for (number, queries) in lists.iter().enumerate() {
            let mut command = self.command(side, number)?;
            if time_reads {
                command.env("BEDPLATE_SCAN_TIME_READS", "1");
                if side == Side::Vanilla {
                    command.env("LD_PRELOAD", self.daemons.program().with_file_name(LIBRARY));
                    command.env("BEDPLATE_SCAN_MINIMUM", self.minimum.to_string());
                    command.env("BEDPLATE_SCAN_STATISTICS", self.statistics());
                }
            }
            let task = Task { folder, scale: self.scale, threads, reads_itself: time_reads, memory, queries };
            clients.push(Client::start(command, &task)?);
        }
        let clients = clients.into_iter().map(Client::wait).collect::<Result<Vec<_>>>()?;
        run(clients, &self.daemons, folder, self.memory.is_some())
    }

    /// Forgets the statistics of processes that have ended.
    fn clear_statistics(&self) -> Result<()> {
        match std::fs::remove_file(self.statistics()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::io("remove statistics")(error))
            }
            _ => Ok(()),
        }
    }

    /// A number in the statistics of all processes that have ended.
    fn statistic(&self, name: &str) -> f64 {
        statistic(&std::fs::read_to_string(self.statistics()).unwrap_or_default(), name)
    }
}

impl Engine for DuckDb {
    fn about(&self) -> Fields {
        let engine = Fields::new()
            .with("duckdb", self.version.clone())
            .with("minimum_bytes_of_served_files", self.minimum);
        self.files.about(engine)
    }

    fn sides(&self) -> &'static [Side] {
        &[Side::Vanilla, Side::Bedplate, Side::Shared]
    }

    fn generator(&self) -> Generator {
        Generator::DuckDb
    }

    fn folder(&self) -> &Path {
        self.files.path()
    }

    fn scan_bytes(&mut self, query: usize) -> Result<u64> {
        Ok(self.files.scan_bytes(query))
    }

    fn cold(&mut self, side: Side) -> Result<()> {
        self.daemons.stop();
        cold::forget(self.files.path())?;
        self.need_daemons(side, 1)
    }

    fn warm(&mut self, side: Side) -> Result<()> {
        self.daemons.stop();
        cold::warm(self.files.path())?;
        self.need_daemons(side, 1)
    }

    fn query(&mut self, side: Side, index: usize) -> Result<Run> {
        single(self.run(side, &[vec![index]], None, false)?)
    }

    fn access(&mut self, side: Side, index: usize) -> Result<Option<Access>> {
        self.clear_statistics()?;
        let run = single(self.run(side, &[vec![index]], Some(1), true)?)?;
        Ok(Some(Access { access_ns: self.statistic("timed_ns"), wall_ns: run.wall_ns }))
    }

    fn clients(&mut self, side: Side, lists: &[Vec<usize>]) -> Result<Together> {
        self.run(side, lists, Some(1), false)
    }

    fn serves(&mut self) -> Result<bool> {
        self.clear_statistics()?;
        self.cold(Side::Bedplate)?;
        self.query(Side::Bedplate, Q6)?;
        Ok(self.statistic("bytes_served") > 0.0)
    }

    fn limit_memory(&mut self, bytes: Option<u64>) {
        self.memory = bytes;
    }
}
