//! A connection to a server, by the command-line client in batch mode.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Result;

/// Longest time for a client to end when its session is dropped.
const GRACE: Duration = Duration::from_millis(500);

/// The columns of a row as text. A tab, a new line and a backslash are `\t`, `\n` and `\\` in them, and a null is `NULL`.
pub type Row = Vec<String>;

/// A connection. The client ends at the first error, so a session is over then.
#[derive(Debug)]
pub struct Session {
    client: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// Number of requests so far. It is a part of the mark at the end of an answer.
    count: u64,
}

impl Session {
    /// Starts a client that was prepared for a server.
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        command.args(["--batch", "--skip-column-names", "--unbuffered", "--local-infile=1"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut client = command.spawn().map_err(|e| format!("{:?}: {e}", command.get_program()))?;
        let (Some(input), Some(output)) = (client.stdin.take(), client.stdout.take()) else {
            return Err("the client has no pipes".into());
        };
        let mut session = Self { client, input: Some(input), output: BufReader::new(output), count: 0 };
        // This fails if there is no connection.
        session.rows("select 1")?;
        Ok(session)
    }

    /// Runs statements, and returns the rows of all of them.
    pub fn rows(&mut self, statements: &str) -> Result<Vec<Row>> {
        self.send(statements)?;
        self.receive(statements)
    }

    /// Runs statements whose rows are of no interest.
    pub fn run(&mut self, statements: &str) -> Result<()> {
        self.rows(statements).map(drop)
    }

    /// The only value that a query gives.
    pub fn value(&mut self, query: &str) -> Result<String> {
        let rows = self.rows(query)?;
        match &rows[..] {
            [row] if row.len() == 1 => Ok(row[0].clone()),
            _ => Err(format!("{query}: {} rows where there should be one value", rows.len())),
        }
    }

    /// The number of the connection, by which another one can end its query.
    pub fn id(&mut self) -> Result<u64> {
        let text = self.value("select connection_id()")?;
        text.parse().map_err(|_| format!("{text} is no number of a connection"))
    }

    /// Begins statements. [`Session::receive`] has to follow.
    pub fn send(&mut self, statements: &str) -> Result<()> {
        self.count += 1;
        let text = format!("{};\nselect '{}';\n", statements.trim().trim_end_matches(';'), self.mark());
        let input = self.input.as_mut().ok_or("the session is closed")?;
        // If the client has ended, reading its answer gives the reason.
        let _ = input.write_all(text.as_bytes()).and_then(|()| input.flush());
        Ok(())
    }

    /// Waits for the end of statements that were begun.
    pub fn receive(&mut self, statements: &str) -> Result<Vec<Row>> {
        let mark = self.mark();
        let mut rows = Vec::new();
        loop {
            let mut line = Vec::new();
            let read = self.output.read_until(b'\n', &mut line).map_err(|e| format!("{statements}: {e}"))?;
            if read == 0 {
                return Err(format!("{statements}: {}", self.last_words()));
            }
            let line = String::from_utf8_lossy(&line);
            let line = line.strip_suffix('\n').unwrap_or(&line);
            if line == mark {
                return Ok(rows);
            }
            rows.push(line.split('\t').map(str::to_owned).collect());
        }
    }

    fn mark(&self) -> String {
        format!("end of answer {}", self.count)
    }

    /// The client's messages before it ended.
    fn last_words(&mut self) -> String {
        self.input = None;
        let mut text = String::new();
        if let Some(errors) = &mut self.client.stderr {
            let _ = errors.read_to_string(&mut text);
        }
        match text.trim() {
            "" => "the client ended".to_owned(),
            text => text.to_owned(),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The client ends at the end of its input, unless it waits for the server.
        self.input = None;
        let begin = Instant::now();
        while matches!(self.client.try_wait(), Ok(None)) && begin.elapsed() < GRACE {
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = self.client.kill();
        let _ = self.client.wait();
    }
}
