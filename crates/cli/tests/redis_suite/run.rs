//! Running one file of Redis's test suite, and what became of each of its tests.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The outcome of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    /// It failed, with this explanation.
    Failed(String),
    /// The suite itself did not run it, for this reason.
    NotRun(String),
}

/// The tests of a file with their outcomes. A name that occurs several times has passed if all of them have.
pub type Outcomes = BTreeMap<String, Outcome>;

/// The time after which a file is given up.
const UNIT_LIMIT: Duration = Duration::from_secs(100);

/// The folder into which `make setup` unpacks the suite, or the one that `BEDPLATE_REDIS_SUITE` names.
pub fn folder() -> PathBuf {
    let path = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    path("BEDPLATE_REDIS_SUITE").unwrap_or_else(|| {
        let home = || path("HOME").unwrap_or_default().join(".cache");
        path("XDG_CACHE_HOME").unwrap_or_else(home).join("bedplate/redis-suite")
    })
}

/// Runs a file of the suite against a server. The error is about the run as a whole.
pub fn run(suite: &Path, unit: &str, port: u16) -> Result<Outcomes, String> {
    let driver = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/redis_suite/driver.tcl");
    let port = port.to_string();
    let mut child = Command::new("tclsh")
        .args([driver, unit, "--host", "127.0.0.1", "--port", &port, "--singledb", "--durable"])
        .current_dir(suite)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("tclsh does not start: {e}"))?;
    let (stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let (send, lines) = mpsc::channel();
    std::thread::spawn(move || {
        // A message that is not UTF-8 is shown as well as it can be: lines are hexadecimal.
        BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|line| send.send(line))
    });
    let errors = std::thread::spawn(move || {
        let mut text = Vec::new();
        stderr.read_to_end(&mut text).map(|_| String::from_utf8_lossy(&text).into_owned())
    });

    let started = Instant::now();
    let mut report = Report::default();
    let result = loop {
        match lines.recv_timeout(UNIT_LIMIT.saturating_sub(started.elapsed())) {
            Ok(line) => report.line(&line),
            Err(mpsc::RecvTimeoutError::Disconnected) => break Ok(()),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                break Err(format!("{unit} hangs in the test '{}'", report.current));
            }
        }
    };
    let _ = child.kill();
    let status = child.wait().map_err(|e| e.to_string())?;
    let errors = errors.join().unwrap().unwrap_or_default();
    result?;
    if !report.done || !report.stray.is_empty() {
        let stray = report.stray.join("\n");
        return Err(format!("{unit} was not run to its end ({status})\n{stray}\n{errors}"));
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

/// The reports of the driver so far.
#[derive(Default)]
struct Report {
    outcomes: Outcomes,
    /// The test that began last.
    current: String,
    done: bool,
    /// Failures outside of tests: the rest of the group that they happened in was not run.
    stray: Vec<String>,
}

impl Report {
    fn line(&mut self, line: &str) {
        let Some((status, text)) = line.split_once('\t').and_then(|(s, hex)| Some((s, decode(hex)?))) else {
            self.stray.push(line.to_owned());
            return;
        };
        match status {
            "testing" => self.current = text,
            "ok" => self.add(text, Outcome::Passed),
            "err" => match text.strip_prefix(&self.current) {
                Some(details) if !self.current.is_empty() => {
                    let details = details.lines().skip(1).take(6).collect::<Vec<_>>().join("\n    ");
                    self.add(self.current.clone(), Outcome::Failed(details));
                }
                _ => self.stray.push(text),
            },
            "skip" => self.add(text, Outcome::NotRun("skipped".into())),
            "ignore" => {
                // Without a name it is about a group of tests.
                if let Some((name, reason)) = split_ignored(&text) {
                    self.add(name.to_owned(), Outcome::NotRun(reason.to_owned()));
                }
            }
            "done" => self.done = true,
            _ => {}
        }
    }

    fn add(&mut self, name: String, outcome: Outcome) {
        let slot = self.outcomes.entry(name).or_insert(Outcome::Passed);
        if *slot == Outcome::Passed {
            *slot = outcome;
        }
    }
}

fn decode(hex: &str) -> Option<String> {
    let digits = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Option<Vec<u8>> = hex.as_bytes().chunks(2).map(digits).collect();
    Some(String::from_utf8_lossy(&bytes?).into_owned())
}

/// Splits "name: reason" before one of the suite's reasons; both parts can contain colons.
fn split_ignored(text: &str) -> Option<(&str, &str)> {
    const REASONS: [&str; 3] = [": Tag: ", ": Not supported ", ": large memory flag "];
    let at = REASONS.iter().filter_map(|reason| text.find(reason)).min()?;
    Some((&text[..at], &text[at + 2..]))
}

/// The names of the tests in a file that are written as they are, without variables.
fn literal_names(source: &str) -> Vec<String> {
    let name = |line: &str| {
        let rest = line.trim_start().strip_prefix("test ")?.trim_start();
        if let Some(rest) = rest.strip_prefix('{') {
            return Some(rest[..rest.find("} {")?].to_owned());
        }
        let rest = rest.strip_prefix('"')?;
        let name = &rest[..rest.find("\" {")?];
        (!name.contains(['$', '[', '\\'])).then(|| name.to_owned())
    };
    source.lines().filter_map(name).collect()
}
