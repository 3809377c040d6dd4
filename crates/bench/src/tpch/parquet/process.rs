//! Processes that run queries, and what they measure themselves.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use serde::Deserialize;
use serde_json::json;

use super::daemon::Daemon;
use super::failed;
use crate::tpch::cold;
use crate::tpch::engine::{Answer, Rows, Run, Together};
use crate::tpch::queries::{TABLES, query};
use crate::{Error, Result};

/// Waits for a process, whose standard error was not read. A failure is an error with the last line of that.
pub fn finish(child: Child) -> Result<String> {
    let output = child.wait_with_output().map_err(Error::io("wait for a process"))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(failed(format!("{}: {}", output.status, said.lines().next_back().unwrap_or_default()))),
    }
}

/// How a process of `query.py` runs its queries.
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
        finish(self.child)?;
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

/// Lets processes begin at the same time, and collects their answers. The daemons' processor time is counted from the first query to the
/// last answer.
pub fn run(mut clients: Vec<Client>, daemons: &[Daemon], folder: &std::path::Path) -> Result<Together> {
    let measured = Measured::begin(daemons, folder)?;
    clients.iter_mut().try_for_each(Client::begin)?;
    let (mut answers, mut cpu_ns, mut wanted) = (Vec::new(), 0.0, 0);
    for client in &mut clients {
        let (more, time) = client.answers()?;
        answers.extend(more);
        cpu_ns += time;
        wanted += client.queries;
    }
    let together = measured.end(cpu_ns, answers)?;
    for client in clients {
        drop((client.input, client.output));
        finish(client.child)?;
    }
    match together.answers.len() == wanted {
        true => Ok(together),
        false => Err(failed("a process has ended before its answers")),
    }
}

/// The state before processes begin.
pub struct Measured<'a> {
    daemons: &'a [Daemon],
    folder: &'a std::path::Path,
    daemons_ns: u64,
    device: Option<u64>,
    start: Instant,
}

impl<'a> Measured<'a> {
    pub fn begin(daemons: &'a [Daemon], folder: &'a std::path::Path) -> Result<Self> {
        let (daemons_ns, device) = (cpu_of(daemons)?, cold::device_bytes(folder));
        Ok(Self { daemons, folder, daemons_ns, device, start: Instant::now() })
    }

    /// What was measured since, with the processor time and the answers of the processes.
    pub fn end(self, cpu_ns: f64, answers: Vec<Answer>) -> Result<Together> {
        let wall_ns = self.start.elapsed().as_nanos() as f64;
        let device = self.device.zip(cold::device_bytes(self.folder));
        let device_bytes = device.map(|(before, now)| now.saturating_sub(before) as f64);
        let daemons_ns = cpu_of(self.daemons)?.saturating_sub(self.daemons_ns);
        Ok(Together { wall_ns, cpu_ns: cpu_ns + daemons_ns as f64, device_bytes, answers })
    }
}

fn cpu_of(daemons: &[Daemon]) -> Result<u64> {
    daemons.iter().map(Daemon::cpu_ns).sum()
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
