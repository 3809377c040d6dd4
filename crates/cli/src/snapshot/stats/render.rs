//! Statistics for people, and as JSON.

use std::io::{self, IsTerminal, Write};

use bedplate_snapshot::statistics::PAUSE_BOUNDS;
use bedplate_snapshot::statistics::processes::Process;
use serde_json::{Value, json};

use super::figures::{self, FIGURES, Figure};
use crate::units::{count, duration, size};

/// The lines after which a terminal shows the headline again.
const HEADLINE_EVERY: u64 = 20;

fn engine_of(process: &Process) -> String {
    process.page.engine.map_or("none".into(), |engine| engine.to_string())
}

/// Prints all figures of a process for people.
pub fn table(process: &Process) -> io::Result<()> {
    io::stdout().lock().write_all(table_text(process).as_bytes())
}

pub fn table_text(process: &Process) -> String {
    let mut rows = vec![
        ("process".to_owned(), format!("{} ({})", process.pid, process.name)),
        ("engine".to_owned(), format!("{} ({})", engine_of(process), process.page.why)),
    ];
    rows.extend(figures::of(process).map(|figure| (figure.label.to_owned(), figure.text(process))));
    let counts = process.page.statistics.pauses.counts;
    for (index, number) in counts.into_iter().enumerate().filter(|(_, number)| *number > 0) {
        let label = match PAUSE_BOUNDS.get(index) {
            Some(bound) => format!("pauses up to {}", duration(*bound)),
            None => format!("pauses over {}", duration(PAUSE_BOUNDS[index - 1])),
        };
        rows.push((label, count(number)));
    }
    let width = rows.iter().map(|(label, _)| label.len()).max().unwrap_or(0);
    rows.iter().map(|(label, value)| format!("{label:<width$}  {value}\n")).collect()
}

/// Prints a process as JSON.
pub fn json(process: &Process, is_pretty: bool) -> io::Result<()> {
    print_json(&object(process), is_pretty)
}

/// Prints processes as JSON.
pub fn json_list(processes: &[Process], hidden: usize, is_pretty: bool) -> io::Result<()> {
    let processes: Vec<Value> = processes.iter().map(object).collect();
    print_json(&json!({ "processes": processes, "not_permitted": hidden }), is_pretty)
}

fn print_json(value: &Value, is_pretty: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if is_pretty {
        serde_json::to_writer_pretty(&mut out, value)?;
    } else {
        serde_json::to_writer(&mut out, value)?;
    }
    writeln!(out)?;
    out.flush()
}

pub fn object(process: &Process) -> Value {
    let mut object = json!({
        "pid": process.pid,
        "command": process.name,
        "engine": process.page.engine.map(|engine| engine.to_string()),
        "reason": process.page.why,
    });
    for figure in figures::of(process) {
        object[figure.key()] = (figure.get)(process).into();
    }
    let pauses = &process.page.statistics.pauses;
    let bounds = PAUSE_BOUNDS.iter().map(|bound| Value::from(*bound)).chain([Value::Null]);
    let counts = bounds.zip(pauses.counts).map(|(bound, count)| json!({ "up_to_ns": bound, "count": count }));
    object["pauses"] = json!({ "total_ns": pauses.total_ns, "counts": counts.collect::<Vec<_>>() });
    object
}

/// A column of a list: its headline, its width, and its text.
struct Column {
    name: &'static str,
    width: usize,
    show: fn(&Process) -> String,
}

const LIST: &[Column] = &[
    Column { name: "pid", width: 8, show: |process| process.pid.to_string() },
    Column { name: "command", width: 16, show: |process| process.name.clone() },
    Column { name: "engine", width: 7, show: engine_of },
    Column { name: "snapshots", width: 10, show: |process| count(process.page.statistics.snapshots) },
    Column { name: "active", width: 7, show: |process| count(process.page.statistics.active) },
    Column {
        name: "latest pause",
        width: 13,
        show: |process| duration(process.page.statistics.latest_pause_ns),
    },
    Column {
        name: "longest pause",
        width: 14,
        show: |process| duration(process.page.statistics.longest_pause_ns),
    },
    Column { name: "memory", width: 10, show: |process| figure(process, "memory") },
];

const LINES: &[Column] = &[
    Column { name: "snapshots", width: 10, show: |process| count(process.page.statistics.snapshots) },
    Column { name: "failed", width: 7, show: |process| count(process.page.statistics.failed) },
    Column { name: "active", width: 7, show: |process| count(process.page.statistics.active) },
    Column {
        name: "latest pause",
        width: 13,
        show: |process| duration(process.page.statistics.latest_pause_ns),
    },
    Column { name: "memory", width: 10, show: |process| figure(process, "memory") },
    Column { name: "not merged", width: 11, show: |process| figure(process, "private") },
    Column { name: "copied", width: 10, show: |process| figure(process, "copied") },
    Column { name: "faults", width: 12, show: |process| figure(process, "faults") },
    Column { name: "own memory", width: 11, show: |process| size(process.anonymous_bytes) },
];

/// A figure by its name, or a dash where the engine does not have it.
fn figure(process: &Process, name: &str) -> String {
    let is_it = |figure: &&Figure| figure.name == name && (figure.is_of)(process.page.engine);
    FIGURES.iter().find(is_it).map_or("-".into(), |figure| figure.text(process))
}

fn headline(columns: &[Column]) -> String {
    let names: Vec<_> = columns.iter().map(|c| format!("{:>w$}", c.name, w = c.width)).collect();
    names.join(" ")
}

fn line(columns: &[Column], process: &Process) -> String {
    let cells: Vec<_> = columns.iter().map(|c| format!("{:>w$}", (c.show)(process), w = c.width)).collect();
    cells.join(" ")
}

/// Prints a line per process.
pub fn list(processes: &[Process], hidden: usize) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if processes.is_empty() {
        writeln!(out, "no process that may be looked at runs under bedplate snapshot run")?;
    } else {
        writeln!(out, "{}", headline(LIST))?;
        for process in processes {
            writeln!(out, "{}", line(LIST, process))?;
        }
    }
    out.flush()?;
    if hidden > 0 {
        eprintln!("{} processes may not be looked at: run as root to see all", count(hidden as u64));
    }
    Ok(())
}

/// A line per reading of a process.
pub struct Lines {
    printed: u64,
    headline_every: u64,
}

impl Lines {
    pub fn new() -> Self {
        // On a terminal the headline is repeated before it scrolls away.
        let headline_every = if io::stdout().is_terminal() { HEADLINE_EVERY } else { u64::MAX };
        Self { printed: 0, headline_every }
    }

    pub fn print(&mut self, process: &Process) -> io::Result<()> {
        let mut out = io::stdout().lock();
        if self.printed.is_multiple_of(self.headline_every) {
            writeln!(out, "{}", headline(LINES))?;
        }
        self.printed += 1;
        writeln!(out, "{}", line(LINES, process))?;
        out.flush()
    }
}
