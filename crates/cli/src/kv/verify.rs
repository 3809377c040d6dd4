//! `bedplate kv verify` checks every invariant of a running server, or every checksum of saved data.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use bedplate_kerneldb::checkpoint::CheckpointConfig;
use bedplate_kerneldb::wal::WalConfig;
use bedplate_kerneldb::{Config, EngineKind, Store, StoreConfig, checkpoint, store};

use super::target::Target;
use super::{commands_file, progress};
use crate::units::{count, parse_size, size};

/// Arguments of `bedplate kv verify`.
#[derive(clap::Args)]
pub struct Args {
    /// A data directory (its server must not be running), a checkpoint file, or a dump. Without it the
    /// running server is asked to check itself.
    path: Option<PathBuf>,
    /// Also recover the data directory, as `serve` would, and check every invariant of the database in
    /// memory: index, versions, and that each byte of it is accounted for. This takes root.
    #[arg(long, requires = "path")]
    deep: bool,
    /// Memory for it.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_size, requires = "deep")]
    memory: u64,
    #[command(flatten)]
    target: Target,
}

/// Checks; fails if it finds an error.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let text = match &args.path {
        None => running(&args.target)?,
        Some(path) if path.is_dir() && args.deep => {
            let saved = directory(path)?;
            format!("{saved}\n{}", deep(path, args.memory)?)
        }
        Some(_) if args.deep => bail!("--deep is for data directories"),
        Some(path) if path.is_dir() => directory(path)?,
        Some(path) if is_commands(path)? => commands(path)?,
        Some(path) => checkpoint_file(path)?,
    };
    writeln!(io::stdout(), "{text}")?;
    Ok(ExitCode::SUCCESS)
}

fn running(target: &Target) -> anyhow::Result<String> {
    let mut connection = target.connect()?;
    let bar = progress::bar("verify", 0);
    bar.enable_steady_tick(Duration::from_millis(100));
    let reply = redis::cmd("BEDPLATE").arg("VERIFY").query::<String>(&mut connection);
    bar.finish_and_clear();
    reply.map_err(|e| target.failed("verify", e))
}

fn directory(path: &Path) -> anyhow::Result<String> {
    let bar = progress::bar("verify", 1);
    let report = store::verify_data_dir(path, &mut |progress| {
        progress::recovered(&bar, "checkpoints", progress);
    });
    bar.finish_and_clear();
    let report = report?;
    let mut text = format!(
        "sound: {} keys in the checkpoint, {} transactions in {} log segments ({}), up to commit {}",
        count(report.checkpoint_entries),
        count(report.txns),
        report.segments,
        size(report.log_bytes),
        report.recovered_ts,
    );
    if report.torn_bytes > 0 {
        text += &format!(
            "\n{} at the end of the log do not count: the write that was the last one is not complete, or is damaged",
            size(report.torn_bytes)
        );
    }
    for skipped in &report.checkpoints_skipped {
        text += &format!("\ndamaged, not needed: {skipped}");
    }
    Ok(text)
}

fn deep(path: &Path, memory_bytes: u64) -> anyhow::Result<String> {
    let engine = EngineKind::of_this_kernel()?;
    let partitions = engine.partitions_for(memory_bytes);
    let database = Config { engine, memory_bytes, partitions, ..Config::default() };
    let checkpoint = CheckpointConfig { interval: None, log_bytes: None, ..CheckpointConfig::default() };
    let config =
        StoreConfig { database, wal: Some(WalConfig::default()), checkpoint, ..StoreConfig::default() };
    let (store, _) = Store::open(config, path, &mut |_| {})?;
    let verified = store.database().verify();
    store.close(false)?;
    let verified = verified?;
    Ok(format!(
        "every invariant holds: {} keys in {} entries with {} versions; {} in use, {} free",
        count(verified.keys),
        count(verified.entries),
        count(verified.versions),
        size(verified.used_bytes),
        size(verified.free_bytes),
    ))
}

fn checkpoint_file(path: &Path) -> anyhow::Result<String> {
    let (bar, mut update) = progress::follow("verify");
    let info = checkpoint::verify(path, &mut update);
    bar.finish_and_clear();
    let info = info?;
    Ok(format!(
        "sound: {} keys, {} in {} blocks, up to commit {}",
        count(info.entries),
        size(info.bytes),
        count(info.blocks),
        info.ts
    ))
}

/// Whether a file is a dump. Dumps start with an array of the protocol, checkpoints do not.
fn is_commands(path: &Path) -> anyhow::Result<bool> {
    let mut file = std::fs::File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let mut first = [0];
    Ok(file.read(&mut first).with_context(|| format!("reading {}", path.display()))? == 1 && first == *b"*")
}

fn commands(path: &Path) -> anyhow::Result<String> {
    let mut reader = commands_file::Reader::open(path)?;
    while reader.next()?.is_some() {}
    Ok(format!("sound: {} keys, complete", count(reader.keys())))
}
