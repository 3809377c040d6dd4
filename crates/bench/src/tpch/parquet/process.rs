//! Processes that run queries, and their own measurements.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::Deserialize;
use serde_json::json;

use super::daemon::Daemons;
use super::{DUCKDB, failed};
use crate::tpch::engine::{Answer, Rows, Run, Together};
use crate::tpch::measure::measure;
use crate::tpch::queries::{TABLES, query};
use crate::{Error, Result};

/// Waits for a process, whose standard error was not read. A failure is an error of `store` with the last line of the
/// standard error.
pub fn finish(store: &'static str, child: Child) -> Result<String> {
    let output = child.wait_with_output().map_err(Error::io("wait for a process"))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            let problem = match said.lines().next_back() {
                Some(last) => format!("{}: {last}", output.status),
                None => output.status.to_string(),
            };
            Err(Error::Store { store, problem })
        }
    }
}

/// The task of a process of `query.py`.
pub struct Task<'a> {
    pub folder: &'a std::path::Path,
    pub scale: f64,
    /// `None`: as many as the engine chooses.
    pub threads: Option<u32>,
    /// The threads of a query read for themselves, so that the time of reads is time of the query.
    pub reads_itself: bool,
    /// Bytes that the engine may have. `None`: as many as the engine chooses.
    pub memory: Option<u64>,
    pub queries: &'a [usize],
}

/// A process of `query.py`, which waits before its queries.
pub struct Client {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    queries: usize,
}

#[derive(Deserialize)]
struct Reply {
    query: usize,
    wall_ns: f64,
    cpu_ns: f64,
    rows: Rows,
}

impl Client {
    /// Starts a process, which opens the tables. [`Self::wait`] returns when it has done so.
    pub fn start(mut command: Command, task: &Task<'_>) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(Error::io("start a process"))?;
        let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed("a process has no input or output"));
        };
        let queries: Vec<_> =
            task.queries.iter().map(|index| json!([index, query(*index, task.scale)])).collect();
        let tables = TABLES.map(|(table, _)| table);
        let task_text = json!({"folder": task.folder, "tables": tables, "threads": task.threads,
            "memory": task.memory, "reads_itself": task.reads_itself, "queries": queries});
        // A process that cannot read has failed, which `wait` reports.
        let _ = writeln!(input, "{task_text}");
        Ok(Self { child, input, output: BufReader::new(output), queries: task.queries.len() })
    }

    /// Waits until the process can begin.
    pub fn wait(mut self) -> Result<Self> {
        let mut line = String::new();
        self.output.read_line(&mut line).map_err(Error::io("wait for a process"))?;
        if line.trim() == "ready" {
            return Ok(self);
        }
        drop(self.input);
        finish(DUCKDB, self.child)?;
        Err(failed(format!("a process says {line:?} before its queries")))
    }

    /// Lets the process begin.
    fn begin(&mut self) -> Result<()> {
        writeln!(self.input).map_err(Error::io("begin a process"))
    }

    /// The answers to all queries, and the processor time that they took.
    fn answers(&mut self) -> Result<(Vec<Answer>, f64)> {
        let (mut answers, mut cpu_ns) = (Vec::new(), 0.0);
        for line in (&mut self.output).lines().take(self.queries) {
            let reply: Reply =
                serde_json::from_str(&line.map_err(Error::io("read an answer"))?).map_err(failed)?;
            answers.push(Answer { query: reply.query, wall_ns: reply.wall_ns, rows: reply.rows });
            cpu_ns += reply.cpu_ns;
        }
        Ok((answers, cpu_ns))
    }
}

/// Lets processes begin at the same time, and collects their answers. `is_limited` is as for [`measure`]. The daemons' processor time is counted from the first query to the
/// last answer.
pub fn run(
    mut clients: Vec<Client>,
    daemons: &Daemons,
    folder: &std::path::Path,
    is_limited: bool,
) -> Result<Together> {
    let together = together(daemons, folder, is_limited, || {
        clients.iter_mut().try_for_each(Client::begin)?;
        clients.iter_mut().map(Client::answers).collect()
    })?;
    let wanted: usize = clients.iter().map(|client| client.queries).sum();
    for client in clients {
        drop((client.input, client.output));
        finish(DUCKDB, client.child)?;
    }
    match together.answers.len() == wanted {
        true => Ok(together),
        false => Err(failed("a process has ended before its answers")),
    }
}

/// Measures clients as [`measure`] does. Each of them returns its answers and the processor time of its processes. The daemons' processor time is added.
pub fn together(
    daemons: &Daemons,
    folder: &std::path::Path,
    is_limited: bool,
    work: impl FnOnce() -> Result<Vec<(Vec<Answer>, f64)>>,
) -> Result<Together> {
    let (mut measured, clients) = measure(folder, is_limited, || daemons.cpu_ns(), work)?;
    let (answers, cpu_ns): (Vec<_>, Vec<_>) = clients.into_iter().unzip();
    measured.cpu_ns += cpu_ns.iter().sum::<f64>();
    Ok(measured.together(answers.concat()))
}

/// The run of one process that had one query. Its time is the process's own.
pub fn single(together: Together) -> Result<Run> {
    let answer = together.answers.into_iter().next().ok_or_else(|| failed("a process has no answer"))?;
    Ok(Run {
        wall_ns: answer.wall_ns,
        cpu_ns: together.cpu_ns,
        device_bytes: together.device_bytes,
        rows: answer.rows,
    })
}
