//! DataFusion on Parquet files, by the program `bedplate-datafusion`, which is built separately (`make
//! datafusion-build`).
//!
//! Each query has a process of its own. The program measures itself, from the beginning of the query to its last row, and has a scan
//! service of its own, or a daemon's.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;
use serde_json::Value;

use super::Files;
use super::daemon::{Daemons, program};
use super::process::{finish, single, together};
use crate::tpch::engine::{Access, Answer, Candidate, Engine, Run, Side, Together};
use crate::tpch::measure::at_once;
use crate::tpch::oracle::Generator;
use crate::tpch::queries::{Q6, QUERIES, query};
use crate::tpch::{Progress, cold};
use crate::{Error, Fields, Options, Result};

pub const CANDIDATE: Candidate =
    Candidate { name: "datafusion", database: "DataFusion", scales: [1.0, 1.0], load };

const NAME: &str = "bedplate-datafusion";
/// The smallest size of files that the program serves by default.
const MINIMUM_BYTES: u64 = 16 << 20;
/// The daemon has the control group's memory divided by this.
const PART_OF_MEMORY: u64 = 4;

/// Memory of the program without the service, and of the service for each partition of a scan.
const ENGINE_BYTES: u64 = 128 << 20;
const PARTITION_BYTES: u64 = 64 << 20;

/// An error of DataFusion, or of the program that runs it.
fn failed(problem: impl ToString) -> Error {
    Error::Store { store: CANDIDATE.database, problem: problem.to_string() }
}

struct DataFusion {
    files: Files,
    datafusion: PathBuf,
    /// Files of at least this number of bytes are served.
    minimum: u64,
    /// Their folder has the texts of the queries, too.
    daemons: Daemons,
    memory: Option<u64>,
}

/// The output of the program.
#[derive(Deserialize)]
struct Printed {
    rows: Vec<Vec<Value>>,
    wall_ns: f64,
    cpu_ns: f64,
    read_ns: Option<f64>,
    #[serde(default)]
    served_bytes: f64,
}

impl Printed {
    /// The rows as text. A null is an empty text.
    fn text(self) -> Vec<Vec<String>> {
        let value = |value: Value| match value {
            Value::String(text) => text,
            Value::Null => String::new(),
            other => other.to_string(),
        };
        self.rows.into_iter().map(|row| row.into_iter().map(value).collect()).collect()
    }
}

/// The path of the program: from an option or the environment, where it is built, or beside `bedplate`.
fn find(options: &Options, bedplate: &Path) -> Result<PathBuf> {
    let asked =
        options.datafusion.clone().or_else(|| std::env::var_os("BEDPLATE_DATAFUSION").map(PathBuf::from));
    let built = bedplate.ancestors().nth(2).map(|target| target.join("datafusion/release").join(NAME));
    let places = match asked {
        Some(path) => vec![path],
        None => built.into_iter().chain([bedplate.with_file_name(NAME)]).collect(),
    };
    places.iter().find(|path| path.is_file()).cloned().ok_or_else(|| Error::Missing {
        what: format!("there is no {}", places[0].display()),
        hint: "run `make datafusion-build`, or name the program: --datafusion FILE",
    })
}

fn load(options: &Options, scale: f64, progress: &mut Progress<'_>) -> Result<Box<dyn Engine>> {
    let bedplate = program(options)?;
    let datafusion = find(options, &bedplate)?;
    let files = Files::make(options, scale, progress)?;
    let minimum = files.minimum(MINIMUM_BYTES)?;
    let daemons = Daemons::new(bedplate)?;
    for index in 0..QUERIES.len() {
        std::fs::write(text(daemons.folder(), index), query(index, scale))
            .map_err(Error::io("write a query"))?;
    }
    Ok(Box::new(DataFusion { files, datafusion, minimum, daemons, memory: None }))
}

/// The file with a query's text.
fn text(folder: &Path, index: usize) -> PathBuf {
    folder.join(format!("{}.sql", index + 1))
}

/// The memory that the program needs for scans of `partitions` partitions.
fn least_memory(partitions: usize) -> u64 {
    ENGINE_BYTES + partitions as u64 * PARTITION_BYTES
}

impl DataFusion {
    fn need_daemon(&mut self, side: Side) -> Result<()> {
        let count = usize::from(side == Side::Shared);
        self.daemons.start(count, self.memory.map(|bytes| bytes / PART_OF_MEMORY))
    }

    /// Runs a query in a process.
    fn process(&self, side: Side, index: usize, partitions: Option<u32>) -> Result<Printed> {
        let mut command = Command::new(&self.datafusion);
        command.arg("--data").arg(self.files.path()).arg("--query").arg(text(self.daemons.folder(), index));
        match (side, self.daemons.socket(0)) {
            (Side::Vanilla, _) => _ = command.arg("--plain"),
            (Side::Shared, Some(socket)) => _ = command.arg("--socket").arg(socket),
            _ => {}
        }
        if side != Side::Vanilla {
            command.args(["--min-file-bytes", &self.minimum.to_string()]);
        }
        if let Some(count) = partitions {
            command.args(["--partitions", &count.to_string()]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let printed = finish(CANDIDATE.database, command.spawn().map_err(Error::io(format!("run {NAME}")))?)?;
        serde_json::from_str(&printed)
            .map_err(|error| failed(format!("{NAME} prints no such object: {error}")))
    }

    /// Runs lists of queries at the same time, each query in a process.
    fn run(&mut self, side: Side, lists: &[Vec<usize>], partitions: Option<u32>) -> Result<Together> {
        self.need_daemon(side)?;
        let engine = &*self;
        let client = |list: &Vec<usize>| {
            let (mut answers, mut cpu_ns) = (Vec::new(), 0.0);
            for &query in list {
                let printed = engine.process(side, query, partitions)?;
                cpu_ns += printed.cpu_ns;
                answers.push(Answer { query, wall_ns: printed.wall_ns, rows: printed.text() });
            }
            Ok((answers, cpu_ns))
        };
        together(&engine.daemons, engine.files.path(), engine.memory.is_some(), || at_once(lists, client))
    }
}

impl Engine for DataFusion {
    fn about(&self) -> Fields {
        self.files.about(Fields::new().with("minimum_bytes_of_served_files", self.minimum))
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
        self.need_daemon(side)
    }

    fn warm(&mut self, side: Side) -> Result<()> {
        self.daemons.stop();
        cold::warm(self.files.path())?;
        self.need_daemon(side)
    }

    fn query(&mut self, side: Side, index: usize) -> Result<Run> {
        single(self.run(side, &[vec![index]], None)?)
    }

    fn access(&mut self, side: Side, index: usize) -> Result<Option<Access>> {
        self.need_daemon(side)?;
        let printed = self.process(side, index, Some(1))?;
        Ok(printed.read_ns.map(|access_ns| Access { access_ns, wall_ns: printed.wall_ns }))
    }

    fn clients(&mut self, side: Side, lists: &[Vec<usize>]) -> Result<Together> {
        self.run(side, lists, Some(1))
    }

    fn serves(&mut self) -> Result<bool> {
        self.cold(Side::Bedplate)?;
        Ok(self.process(Side::Bedplate, Q6, None)?.served_bytes > 0.0)
    }

    fn least_memory(&self) -> u64 {
        least_memory(std::thread::available_parallelism().map_or(1, usize::from))
    }

    fn limit_memory(&mut self, bytes: Option<u64>) {
        self.memory = bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mode;

    #[test]
    fn what_the_program_prints_becomes_rows_of_text() {
        let text = r#"{"rows": [["a", 1, null, 2.50]], "wall_ns": 5, "cpu_ns": 6, "read_ns": null, "served_bytes": 7}"#;
        let printed: Printed = serde_json::from_str(text).unwrap();
        assert_eq!((printed.wall_ns, printed.read_ns, printed.served_bytes), (5.0, None, 7.0));
        assert_eq!(printed.text(), [["a", "1", "", "2.5"]]);
    }

    /// The MiB that the service takes for a number of readers of a file. Each partition has one reader
    /// (docs/scan-run.md).
    #[test]
    fn a_control_group_has_room_for_the_memory_of_the_service() {
        for (readers, mib) in [(1, 32), (2, 128), (8, 320)] {
            assert!(least_memory(readers) >= ENGINE_BYTES + (mib << 20), "{readers} readers");
        }
    }

    #[test]
    fn a_program_that_is_killed_is_an_error_of_datafusion() {
        let mut command = Command::new("sh");
        command.args(["-c", "kill -9 $$"]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let error = finish(CANDIDATE.database, command.spawn().unwrap()).unwrap_err().to_string();
        assert_eq!(error, "DataFusion: signal: 9 (SIGKILL)");
    }

    #[test]
    fn a_program_that_is_missing_is_one_line_with_what_to_do() {
        let options = Options { datafusion: Some("/no/such/program".into()), ..Options::new(Mode::Quick) };
        let error = find(&options, Path::new("/none")).unwrap_err().to_string();
        assert!(error.contains("/no/such/program") && error.contains("make datafusion-build"), "{error}");
        assert_eq!(error.lines().count(), 1);
    }
}
