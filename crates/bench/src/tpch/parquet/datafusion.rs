//! DataFusion on Parquet files, by the program `bedplate-datafusion`, which is built apart (`make datafusion-build`).
//!
//! Each query has a process of its own. The program measures itself, from the beginning of the query to its last row, and has a scan
//! service of its own, or a daemon's.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;
use serde_json::Value;
use tempfile::TempDir;

use super::daemon::{Daemon, program};
use super::process::{Measured, finish, single};
use super::{Files, failed};
use crate::tpch::engine::{Access, Answer, Candidate, Engine, Run, Side, Together};
use crate::tpch::oracle::Generator;
use crate::tpch::queries::{Q6, QUERIES, query};
use crate::tpch::{Progress, cold};
use crate::{Error, Fields, Options, Result};

pub const CANDIDATE: Candidate =
    Candidate { name: "datafusion", database: "DataFusion", scales: [1.0, 1.0], load };

const NAME: &str = "bedplate-datafusion";
/// Of a control group's memory, the daemon has one part in so many.
const PART_OF_MEMORY: u64 = 4;

struct DataFusion {
    files: Files,
    datafusion: PathBuf,
    bedplate: PathBuf,
    /// Has the daemon's socket and the texts of the queries.
    folder: TempDir,
    daemons: Vec<Daemon>,
    memory: Option<u64>,
}

/// What the program prints.
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
    /// The rows as text. Nothing is an empty text.
    fn text(self) -> Vec<Vec<String>> {
        let value = |value: Value| match value {
            Value::String(text) => text,
            Value::Null => String::new(),
            other => other.to_string(),
        };
        self.rows.into_iter().map(|row| row.into_iter().map(value).collect()).collect()
    }
}

/// Where the program is: as an option or the environment says, where it is built, or beside `bedplate`.
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
    let folder = tempfile::Builder::new().prefix("bedplate-tpch-").tempdir();
    let folder = folder.map_err(Error::io("create a folder for sockets"))?;
    for index in 0..QUERIES.len() {
        std::fs::write(text(folder.path(), index), query(index, scale))
            .map_err(Error::io("write a query"))?;
    }
    Ok(Box::new(DataFusion { files, datafusion, bedplate, folder, daemons: Vec::new(), memory: None }))
}

/// The file with a query's text.
fn text(folder: &Path, index: usize) -> PathBuf {
    folder.join(format!("{}.sql", index + 1))
}

impl DataFusion {
    fn need_daemon(&mut self, side: Side) -> Result<()> {
        if side == Side::Shared && self.daemons.is_empty() {
            let memory = self.memory.map(|bytes| bytes / PART_OF_MEMORY);
            self.daemons.push(Daemon::start(&self.bedplate, self.folder.path(), 0, memory)?);
        }
        Ok(())
    }

    /// Runs a query in a process.
    fn process(&self, side: Side, index: usize, partitions: Option<u32>) -> Result<Printed> {
        let mut command = Command::new(&self.datafusion);
        command.arg("--data").arg(self.files.path()).arg("--query").arg(text(self.folder.path(), index));
        match (side, self.daemons.first()) {
            (Side::Vanilla, _) => _ = command.arg("--plain"),
            (Side::Shared, Some(daemon)) => _ = command.arg("--socket").arg(daemon.socket()),
            _ => {}
        }
        if let Some(count) = partitions {
            command.args(["--partitions", &count.to_string()]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let printed = finish(command.spawn().map_err(Error::io(format!("run {NAME}")))?)
            .map_err(|error| Error::Store { store: "DataFusion", problem: error.to_string() })?;
        serde_json::from_str(&printed)
            .map_err(|error| failed(format!("{NAME} prints no such object: {error}")))
    }

    /// Runs lists of queries at the same time, each query in a process.
    fn run(&mut self, side: Side, lists: &[Vec<usize>], partitions: Option<u32>) -> Result<Together> {
        self.need_daemon(side)?;
        let engine = &*self;
        let measured = Measured::begin(&engine.daemons, engine.files.path())?;
        let client = |list: &Vec<usize>| {
            let (mut answers, mut cpu_ns) = (Vec::new(), 0.0);
            for &query in list {
                let printed = engine.process(side, query, partitions)?;
                cpu_ns += printed.cpu_ns;
                answers.push(Answer { query, wall_ns: printed.wall_ns, rows: printed.text() });
            }
            Ok((answers, cpu_ns))
        };
        let results: Vec<Result<(Vec<Answer>, f64)>> = std::thread::scope(|scope| {
            let running: Vec<_> = lists.iter().map(|list| scope.spawn(|| client(list))).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|_| Err(failed("a client panicked")))
            };
            running.into_iter().map(join).collect()
        });
        let (mut all, mut cpu_ns) = (Vec::new(), 0.0);
        for result in results {
            let (answers, time) = result?;
            all.extend(answers);
            cpu_ns += time;
        }
        measured.end(cpu_ns, all)
    }
}

impl Engine for DataFusion {
    fn about(&self) -> Fields {
        Fields::new()
            .with("parquet_by_duckdb", self.files.duckdb.clone())
            .with("tables", "Parquet files by DuckDB with its defaults (Snappy, row groups of 122880 rows)")
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
        self.daemons.clear();
        cold::forget(self.files.path())?;
        self.need_daemon(side)
    }

    fn warm(&mut self, side: Side) -> Result<()> {
        self.daemons.clear();
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

    #[test]
    fn a_program_that_is_missing_is_one_line_with_what_to_do() {
        let options = Options { datafusion: Some("/no/such/program".into()), ..Options::new(Mode::Quick) };
        let error = find(&options, Path::new("/none")).unwrap_err().to_string();
        assert!(error.contains("/no/such/program") && error.contains("make datafusion-build"), "{error}");
        assert_eq!(error.lines().count(), 1);
    }
}
