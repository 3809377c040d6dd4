//! Loads rows into a table by `LOAD DATA LOCAL INFILE`, whose file is the client's input.

use std::io::{BufWriter, Write};
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::Result;

/// A running load.
#[derive(Debug)]
pub struct Loader {
    client: Child,
    input: BufWriter<ChildStdin>,
    statement: String,
    is_broken: bool,
}

impl Loader {
    pub(crate) fn start(mut client: Command, table: &str) -> Result<Self> {
        let statement =
            format!("load data local infile '/dev/stdin' into table {table} fields terminated by '|'");
        client.args(["--local-infile=1", "--execute", &statement]);
        client.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut client = client.spawn().map_err(|e| format!("{:?}: {e}", client.get_program()))?;
        let input = client.stdin.take().ok_or("the client has no input")?;
        Ok(Self { client, input: BufWriter::with_capacity(1 << 20, input), statement, is_broken: false })
    }

    /// Adds a row: text with a bar between columns. [`Loader::finish`] reports errors.
    pub fn row(&mut self, row: &str) {
        self.is_broken = self.is_broken || writeln!(self.input, "{row}").is_err();
    }

    /// Waits until the table has all rows.
    pub fn finish(self) -> Result<()> {
        let Self { client, input, statement, is_broken } = self;
        let input = input.into_inner();
        let is_broken = is_broken || input.is_err();
        // The file ends when the pipe is closed.
        drop(input);
        let output = client.wait_with_output().map_err(|e| format!("{statement}: {e}"))?;
        match output.status.success() && !is_broken {
            true => Ok(()),
            false => Err(format!("{statement}: {}", String::from_utf8_lossy(&output.stderr).trim())),
        }
    }
}
