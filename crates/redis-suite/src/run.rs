//! Runs one unit of the suite.

use std::io::{BufRead, BufReader, Read, Seek};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::report::{Outcome, Outcomes, Report, literal_names};
use crate::workspace::Workspace;

/// The servers that a unit's tests use.
#[derive(Clone, Copy, Debug)]
pub enum Servers<'a> {
    /// A server that runs already, on this port of 127.0.0.1. It has one database.
    Running(u16),
    /// Servers that the tests start in this folder.
    Started(&'a Workspace),
}

/// Runs a unit. The error is about the run as a whole: it took longer than `limit`, or something failed that is not part
/// of a test. Servers that the tests started may still run; dropping the workspace ends them.
pub fn run(suite: &Path, unit: &str, servers: Servers<'_>, limit: Duration) -> Result<Outcomes, String> {
    let driver = concat!(env!("CARGO_MANIFEST_DIR"), "/src/driver.tcl");
    let mut command = Command::new("tclsh");
    command.args([driver, unit]);
    match servers {
        Servers::Running(port) => {
            command
                .args(["", "--host", "127.0.0.1", "--port", &port.to_string(), "--singledb"])
                // Without these tags, whole groups fail that need DEBUG or replication, which is an error outside of tests.
                .args(["--tags", "-needs:repl -needs:debug"])
                .current_dir(suite);
        }
        Servers::Started(workspace) => {
            let first = workspace.first_port.to_string();
            command.arg(tcl_list(&workspace.environment)).args(["--baseport", &first]);
            // With one client, tests that must run alone run like the others.
            command.args(["--portcount", &Workspace::PORTS.to_string(), "--clients", "1"]);
            command.current_dir(workspace.path());
        }
    }
    // A file, unlike a pipe, is complete when the driver has ended, even if processes that it started still hold it open.
    let mut errors = tempfile::tempfile().map_err(|e| format!("no file for the driver's errors: {e}"))?;
    let mut child = command
        .arg("--durable")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(errors.try_clone().map_err(|e| e.to_string())?)
        .spawn()
        .map_err(|e| format!("tclsh does not start: {e}"))?;
    let stdout = child.stdout.take().unwrap();
    let (send, lines) = mpsc::channel();
    std::thread::spawn(move || {
        // Processes that the tests left behind may hold the other end open after the driver has ended.
        let mut lines = BufReader::new(stdout).split(b'\n').map_while(Result::ok);
        lines.try_for_each(|line| send.send(String::from_utf8_lossy(&line).into_owned()))
    });

    let started = Instant::now();
    let mut report = Report::default();
    let result = loop {
        match lines.recv_timeout(limit.saturating_sub(started.elapsed())) {
            Ok(line) => report.line(&line),
            Err(mpsc::RecvTimeoutError::Disconnected) => break Ok(()),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                let seconds = limit.as_secs();
                break Err(format!(
                    "{unit} has not ended after {seconds} s; its test is '{}'",
                    report.current
                ));
            }
        }
        if report.is_done {
            break Ok(());
        }
    };
    let _ = child.kill();
    let status = child.wait().map_err(|e| e.to_string())?;
    result.map_err(|error| format!("{error}\n{}", report.printed()))?;
    if !report.is_done || !report.stray.is_empty() {
        let stray = report.stray.join("\n");
        let printed = report.printed();
        let mut bytes = Vec::new();
        errors.rewind().and_then(|()| errors.read_to_end(&mut bytes)).map_err(|e| e.to_string())?;
        let errors = String::from_utf8_lossy(&bytes);
        return Err(format!("{unit} was not run to its end ({status})\n{stray}\n{printed}\n{errors}"));
    }
    let mut outcomes = report.outcomes;
    let source =
        std::fs::read_to_string(suite.join(format!("tests/{unit}.tcl"))).map_err(|e| e.to_string())?;
    for name in literal_names(&source) {
        let reason = || Outcome::NotRun("its group of tests was not run".into());
        outcomes.entry(name).or_insert_with(reason);
    }
    Ok(outcomes)
}

/// A list in Tcl's notation.
fn tcl_list(words: &[String]) -> String {
    let mut list = String::new();
    for word in words {
        if !list.is_empty() {
            list.push(' ');
        }
        for c in word.chars() {
            if c.is_whitespace() || matches!(c, '{' | '}' | '[' | ']' | '"' | '\\' | '$' | ';' | '#') {
                list.push('\\');
            }
            list.push(c);
        }
    }
    list
}

#[test]
fn tcl_reads_a_list_as_it_was() {
    let words = ["A=1", "B=a b", "C={\\\"}", "D=[exit]$x;#"].map(str::to_owned);
    let script = "puts [llength $argv]; foreach words $argv { foreach word $words { puts $word } }";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("list.tcl");
    std::fs::write(&path, script).unwrap();
    let output = Command::new("tclsh").arg(&path).arg(tcl_list(&words)).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("1\n{}\n", words.join("\n")));
}
