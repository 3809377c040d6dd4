//! `bedplate scan FILE...`: checksum, lines and bytes of big files, at the speed of their device.

mod accompany;
mod run;
mod serve;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use bedplate_scan::{Channel, Choice, Error, Kind, Scan, Service};
use indicatif::{HumanDuration, ProgressBar, ProgressStyle};

use crate::descriptors;
use crate::failure::hinted;
use crate::units::{parse_size, size};

/// Arguments of `bedplate scan`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Files, or block devices.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The engine that reads: auto, io_uring or threads.
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = parse_engine)]
    engine: Choice,
    /// The memory of the buffers.
    #[arg(long, value_name = "BYTES", default_value = "32M", value_parser = parse_size)]
    ring: u64,
    /// The size of pages in which the files are consumed: a power of two from 4K to 2M.
    #[arg(long, value_name = "BYTES", default_value = "2M", value_parser = parse_size)]
    page_size: u64,
    /// Let the service that listens at this socket read the files (`bedplate scan serve`).
    #[arg(long, value_name = "PATH", conflicts_with = "engine")]
    socket: Option<PathBuf>,
    /// Print one JSON object instead of lines.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Read for other processes, until a signal.
    Serve(serve::Args),
    /// Run a program whose large files are read past the page cache, and shared with other programs that run so.
    Run(run::Args),
}

fn parse_engine(name: &str) -> Result<Choice, String> {
    if name == "auto" { Ok(Choice::Auto) } else { name.parse::<Kind>().map(Choice::Only) }
}

/// The results for a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    crc32c: u32,
    lines: u64,
    bytes: u64,
}

impl Count {
    fn add(&mut self, bytes: &[u8]) {
        self.crc32c = crc32c::crc32c_append(self.crc32c, bytes);
        self.lines += memchr::memchr_iter(b'\n', bytes).count() as u64;
        self.bytes += bytes.len() as u64;
    }
}

/// Reads the files, prints a line for each, and a summary on the standard error.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Some(Command::Serve(args)) => return serve::run(args),
        Some(Command::Run(args)) => return run::run(args),
        None => {}
    }
    // A scan has all of its files open at once.
    descriptors::raise();
    let service = match &args.socket {
        Some(path) => serve::connect(path)?,
        None => Service::builder().engine(args.engine).build().map_err(advised)?,
    };
    let scan = Scan::of(args.files.iter().cloned())
        .page_size(args.page_size.try_into().context("--page-size")?)
        .and_then(|scan| scan.ring_bytes(args.ring.try_into().unwrap_or(usize::MAX)))
        .map_err(advised)?;
    let mut channel = service.open(scan).map_err(advised)?;
    let start = Instant::now();
    let counts = read(&mut channel, args)?;
    let scanned = Scanned { args, service, channel, counts, took: start.elapsed() };
    if args.json { scanned.json() } else { scanned.text() }?;
    Ok(ExitCode::SUCCESS)
}

fn read(channel: &mut Channel, args: &Args) -> anyhow::Result<Vec<Count>> {
    // The bar moves with each frame, which is often enough for people and cheap beside the work on the frame's bytes.
    const STEP: u64 = 2 << 20;
    let bar = bar(channel.total_bytes())?;
    let mut counts = vec![Count::default(); args.files.len()];
    let (mut seen, mut shown) = (0, 0);
    loop {
        let page = match channel.next_page() {
            Ok(Some(page)) => page,
            Ok(None) => break,
            Err(error) => {
                bar.finish_and_clear();
                return Err(named(error, args));
            }
        };
        counts[page.file() as usize].add(&page);
        seen += page.len() as u64;
        if seen - shown >= STEP {
            bar.set_position(seen);
            shown = seen;
        }
    }
    bar.finish_and_clear();
    Ok(counts)
}

fn bar(bytes: u64) -> anyhow::Result<ProgressBar> {
    if !io::stderr().is_terminal() {
        return Ok(ProgressBar::hidden());
    }
    let bar = ProgressBar::new(bytes);
    let template = "{bar:40} {binary_bytes}/{binary_total_bytes}  {binary_bytes_per_sec}  {eta} left";
    bar.set_style(ProgressStyle::with_template(template).context("progress bar")?);
    Ok(bar)
}

/// Files that were read, and the cost.
struct Scanned<'a> {
    args: &'a Args,
    service: Service,
    channel: Channel,
    counts: Vec<Count>,
    took: Duration,
}

impl Scanned<'_> {
    /// Prints a line for each file, and the cost on the standard error.
    fn text(&self) -> anyhow::Result<()> {
        let Self { args, service, channel, counts, took } = self;
        let mut out = io::stdout().lock();
        for (path, count) in args.files.iter().zip(counts) {
            writeln!(out, "{:08x} {:>12} {:>15} {}", count.crc32c, count.lines, count.bytes, path.display())?;
        }
        let statistics = channel.statistics();
        let rate = size((statistics.bytes as f64 / took.as_secs_f64().max(1e-9)) as u64);
        let waited = Duration::from_nanos(statistics.starved_ns);
        writeln!(
            io::stderr(),
            "{} in {}: {rate}/s; waited {waited:.1?} for the device; {}",
            size(statistics.bytes),
            human(*took),
            service.about()
        )?;
        for (file, path) in (0..).zip(&args.files) {
            if let Err(error) = channel.is_direct(file) {
                writeln!(io::stderr(), "{}: read through the page cache ({error})", path.display())?;
            }
        }
        Ok(())
    }

    /// Prints the same for programs.
    fn json(&self) -> anyhow::Result<()> {
        let Self { args, service, channel, counts, took } = self;
        let files: Vec<_> = (0..)
            .zip(args.files.iter().zip(counts))
            .map(|(file, (path, count))| {
                serde_json::json!({
                    "file": path.to_string_lossy(),
                    "crc32c": format!("{:08x}", count.crc32c),
                    "lines": count.lines,
                    "bytes": count.bytes,
                    "direct": channel.is_direct(file).is_ok(),
                })
            })
            .collect();
        let statistics = channel.statistics();
        let object = serde_json::json!({
            "files": files,
            "engine": service.engine().to_string(),
            "memory": channel.memory().to_string(),
            "took_ns": took.as_nanos() as u64,
            "waited_ns": statistics.starved_ns,
            "worker_calls": statistics.calls,
            "bytes_read": statistics.bytes_read,
            "read_again": statistics.read_again,
        });
        writeln!(io::stdout().lock(), "{object}")?;
        Ok(())
    }
}

/// "850 ms", "12 seconds".
fn human(time: Duration) -> String {
    if time < Duration::from_secs(10) { format!("{time:.1?}") } else { HumanDuration(time).to_string() }
}

/// Puts the file's name into an error of a page, which has only the file's number.
fn named(error: Error, args: &Args) -> anyhow::Error {
    let file = match &error {
        Error::Read { file, .. }
        | Error::Truncated { file, .. }
        | Error::Changing { file, .. }
        | Error::Replaced { file, .. } => *file as usize,
        _ => return advised(error),
    };
    match args.files.get(file) {
        Some(path) => anyhow::Error::new(error).context(path.display().to_string()),
        None => advised(error),
    }
}

fn advised(error: Error) -> anyhow::Error {
    match &error {
        Error::Unavailable { .. } => hinted(error.to_string(), "--engine auto takes what works here"),
        _ => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_do_not_depend_on_pages() {
        let text: Vec<u8> =
            (0..100_000u32).map(|i| if i % 37 == 0 { b'\n' } else { i as u8 | 1 << 7 }).collect();
        let mut whole = Count::default();
        whole.add(&text);
        let mut parts = Count::default();
        text.chunks(4096).for_each(|part| parts.add(part));
        assert_eq!(whole, parts);
        assert_eq!((whole.lines, whole.bytes), (100_000u64.div_ceil(37), 100_000));
    }
}
