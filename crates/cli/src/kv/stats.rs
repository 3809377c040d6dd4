//! `bedplate kv stats`: a line per interval with the figures of a running server.

use std::collections::HashMap;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use redis::Connection;

use super::target::Target;
use crate::units::{count, parse_time, size};

/// Arguments of `bedplate kv stats`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Time between lines.
    #[arg(long, short, default_value = "1s", value_parser = parse_time)]
    interval: Duration,
    /// Lines to print; endless without it.
    #[arg(long, short = 'n')]
    count: Option<u64>,
    /// Print all figures once, as one JSON object.
    #[arg(long)]
    json: bool,
}

/// The fields of INFO, by name.
struct Info(HashMap<String, String>);

impl Info {
    fn read(connection: &mut Connection, target: &Target) -> anyhow::Result<Info> {
        let text: String = redis::cmd("INFO").query(connection).map_err(|e| target.failed("stats", e))?;
        Ok(Info::parse(&text))
    }

    fn parse(text: &str) -> Info {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        Info(
            lines
                .filter_map(|l| l.split_once(':'))
                .map(|(k, v)| (k.to_owned(), v.trim().to_owned()))
                .collect(),
        )
    }

    fn number(&self, name: &str) -> u64 {
        self.0.get(name).and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    fn keys(&self) -> u64 {
        let first = self.text("db0").split(',').next().and_then(|field| field.strip_prefix("keys="));
        first.and_then(|n| n.parse().ok()).unwrap_or(0)
    }
}

/// A column: its headline, and its text from the figures before and now.
struct Column {
    name: &'static str,
    width: usize,
    show: fn(&Info, &Info, f64) -> String,
}

/// A figure that grows, as a rate per second.
fn rate(before: &Info, now: &Info, seconds: f64, name: &str) -> String {
    let grown = now.number(name).saturating_sub(before.number(name));
    count((grown as f64 / seconds).round() as u64)
}

const COLUMNS: &[Column] = &[
    Column { name: "clients", width: 8, show: |_, now, _| now.text("connected_clients").to_owned() },
    Column { name: "keys", width: 13, show: |_, now, _| count(now.keys()) },
    Column { name: "memory", width: 10, show: |_, now, _| size(now.number("used_memory")) },
    Column { name: "gets/s", width: 10, show: |old, now, s| rate(old, now, s, "gets") },
    Column { name: "sets/s", width: 10, show: |old, now, s| rate(old, now, s, "sets") },
    Column { name: "commits/s", width: 10, show: |old, now, s| rate(old, now, s, "commits") },
    Column { name: "conflicts/s", width: 11, show: |old, now, s| rate(old, now, s, "conflicts") },
    Column { name: "kernel/s", width: 10, show: |old, now, s| rate(old, now, s, "kernel_commands") },
    Column { name: "user/s", width: 10, show: |old, now, s| rate(old, now, s, "total_commands_processed") },
    Column {
        name: "not on disk",
        width: 11,
        show: |_, now, _| match now.number("aof_enabled") {
            0 => "-".to_owned(),
            _ => count(now.number("clock").saturating_sub(now.number("durable_ts"))),
        },
    },
    Column {
        name: "saving",
        width: 6,
        show: |_, now, _| if now.number("rdb_bgsave_in_progress") == 1 { "yes" } else { "-" }.to_owned(),
    },
];

/// Prints until the count is reached, the server stops or the reader closes the pipe.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut connection = args.target.connect()?;
    let mut before = Info::read(&mut connection, &args.target)?;
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &before.0)?;
        writeln!(out)?;
        return Ok(ExitCode::SUCCESS);
    }
    // On a terminal the headline is repeated before it scrolls away.
    let headline_every = if io::stdout().is_terminal() { 20 } else { u64::MAX };
    let mut taken = Instant::now();
    for line in 0..args.count.unwrap_or(u64::MAX) {
        if line % headline_every == 0 {
            let names: Vec<_> = COLUMNS.iter().map(|c| format!("{:>w$}", c.name, w = c.width)).collect();
            writeln!(out, "{}", names.join(" "))?;
        }
        thread::sleep(args.interval.max(Duration::from_millis(10)));
        let now = Info::read(&mut connection, &args.target)?;
        let seconds = taken.elapsed().as_secs_f64();
        taken = Instant::now();
        let cells: Vec<_> = COLUMNS
            .iter()
            .map(|c| format!("{:>w$}", (c.show)(&before, &now, seconds), w = c.width))
            .collect();
        writeln!(out, "{}", cells.join(" "))?;
        out.flush()?;
        before = now;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_is_read_and_shown_as_rates() {
        let info = |sets: u64| {
            Info::parse(&format!("# Stats\r\nsets:{sets}\r\nused_memory:2048\r\ndb0:keys=12,expires=0\r\n"))
        };
        let (before, now) = (info(100), info(2_100));
        assert_eq!(now.keys(), 12);
        assert_eq!(rate(&before, &now, 2.0, "sets"), "1,000");
        assert_eq!(rate(&now, &before, 2.0, "sets"), "0", "a restarted server counts from 0");
        assert_eq!(rate(&before, &now, 2.0, "absent"), "0");
        for column in COLUMNS {
            let cell = (column.show)(&before, &now, 2.0);
            assert!(cell.len() <= column.width, "{}: {cell}", column.name);
        }
    }
}
