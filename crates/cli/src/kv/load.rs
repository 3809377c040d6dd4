//! `bedplate kv load`: SETs every key of a dump in a running server.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use redis::{Connection, RedisResult, Value};

use super::commands_file::{Key, Reader};
use super::progress;
use super::target::Target;
use crate::failure::hinted;
use crate::units::count;

/// Arguments of `bedplate kv load`.
///
/// Keys that are not in the dump stay as they are. Loading can be repeated. To start from a checkpoint
/// instead, see `bedplate kv restore`.
#[derive(clap::Args)]
pub struct Args {
    /// The dump; `-` for the standard input.
    file: PathBuf,
    #[command(flatten)]
    target: Target,
}

/// Keys and bytes of one batch, which are enough to hide the round-trip time.
const BATCH_KEYS: usize = 500;
const BATCH_BYTES: u64 = 1 << 20;

/// The outcome of a load.
#[derive(Default)]
struct Outcome {
    loaded: u64,
    refused: u64,
    /// The first refused key and the reason.
    first: Option<String>,
}

/// Loads as many keys as possible; fails if the dump is damaged or the server refused a key.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut reader = Reader::open(&args.file)?;
    let mut connection = args.target.connect()?;
    let bar = progress::bar("load", reader.size().unwrap_or(0));
    let mut outcome = Outcome::default();
    let mut batch = Vec::with_capacity(BATCH_KEYS);
    let mut sent = 0;
    loop {
        let next = reader.next();
        let full = batch.len() == BATCH_KEYS || reader.bytes() - sent > BATCH_BYTES;
        if full || !matches!(next, Ok(Some(_))) {
            send(&mut connection, &batch, &mut outcome).map_err(|e| args.target.failed("load", e))?;
            batch.clear();
            sent = reader.bytes();
            bar.set_position(sent);
            bar.set_message(format!("{} keys", count(outcome.loaded)));
        }
        match next {
            Ok(Some(key)) => batch.push(key),
            Ok(None) => break,
            Err(error) => {
                let loaded = count(outcome.loaded);
                return Err(error.context(format!("{loaded} keys were loaded from {}", args.file.display())));
            }
        }
    }
    bar.finish_and_clear();
    writeln!(io::stdout(), "{} keys loaded", count(outcome.loaded))?;
    match outcome.first {
        None => Ok(ExitCode::SUCCESS),
        Some(first) => Err(hinted(
            format!("the server refused {} keys, the first: {first}", count(outcome.refused)),
            "keys have at most 255 bytes, values 65,536; with too little memory start it with more --memory",
        )),
    }
}

fn send(connection: &mut Connection, batch: &[Key], outcome: &mut Outcome) -> RedisResult<()> {
    if batch.is_empty() {
        return Ok(());
    }
    let mut pipeline = redis::pipe();
    for key in batch {
        pipeline.add_command(key.command());
    }
    let replies: Vec<RedisResult<Value>> = pipeline.ignore_errors().query(connection)?;
    for (key, reply) in batch.iter().zip(replies) {
        match reply {
            Ok(_) => outcome.loaded += 1,
            Err(error) => {
                outcome.refused += 1;
                let name = || String::from_utf8_lossy(&key.key).chars().take(60).collect::<String>();
                outcome.first.get_or_insert_with(|| format!("{} ({error})", name()));
            }
        }
    }
    Ok(())
}
