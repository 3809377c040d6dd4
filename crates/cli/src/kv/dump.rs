//! `bedplate kv dump`: all keys of a running server, Bedplate's or Redis's, to a file.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use redis::Connection;
use tempfile::NamedTempFile;

use super::commands_file::{Key, Writer};
use super::progress;
use super::target::Target;
use crate::units::{count, size};

/// Arguments of `bedplate kv dump`.
///
/// Each key is written as it was at some moment during the dump. For an image of one moment take a
/// checkpoint (`bedplate kv checkpoint`) and keep its file.
#[derive(clap::Args)]
pub struct Args {
    /// The file to write; `-` for the standard output. It appears when it is complete.
    file: PathBuf,
    #[command(flatten)]
    target: Target,
}

/// Number of keys in one request.
const BATCH: usize = 500;

/// Dumps.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut connection = args.target.connect()?;
    if args.file == Path::new("-") {
        let (out, keys, _) = dump(&mut connection, &args.target, io::stdout())?;
        out.lock().flush()?;
        tracing::debug!(keys, "dumped");
        return Ok(ExitCode::SUCCESS);
    }
    let directory = args.file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let file = NamedTempFile::new_in(directory)
        .with_context(|| format!("creating a file in {}", directory.display()))?;
    let (file, keys, bytes) = dump(&mut connection, &args.target, file)?;
    let saving = || format!("saving {}", args.file.display());
    file.as_file().sync_all().with_context(saving)?;
    file.persist(&args.file).with_context(saving)?;
    File::open(directory).and_then(|d| d.sync_all()).with_context(saving)?;
    writeln!(io::stdout(), "{} keys ({}) in {}", count(keys), size(bytes), args.file.display())?;
    Ok(ExitCode::SUCCESS)
}

fn dump<W: Write>(connection: &mut Connection, target: &Target, out: W) -> anyhow::Result<(W, u64, u64)> {
    let failed = |e| target.failed("dump", e);
    let total: u64 = redis::cmd("DBSIZE").query(connection).map_err(failed)?;
    let bar = progress::bar("dump", total.max(1));
    let mut writer = Writer::new(out);
    let mut cursor = "0".to_owned();
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(&cursor).arg("COUNT").arg(BATCH).arg("TYPE").arg("string");
        let (next, keys): (String, Vec<Vec<u8>>) = scan.query(connection).map_err(failed)?;
        for key in values(connection, keys).map_err(failed)? {
            writer.key(&key).context("writing the dump")?;
        }
        bar.set_position(writer.keys());
        bar.set_message(size(writer.bytes()));
        cursor = next;
        if cursor == "0" {
            break;
        }
    }
    bar.finish_and_clear();
    let (keys, bytes) = (writer.keys(), writer.bytes());
    Ok((writer.finish().context("writing the dump")?, keys, bytes))
}

/// Values and expiry of those keys that still exist.
fn values(connection: &mut Connection, keys: Vec<Vec<u8>>) -> redis::RedisResult<Vec<Key>> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let mut pipeline = redis::pipe();
    for key in &keys {
        pipeline.cmd("GET").arg(key).cmd("PTTL").arg(key);
    }
    let replies: Vec<(Option<Vec<u8>>, i64)> = pairs(pipeline.query(connection)?)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let with_value = keys.into_iter().zip(replies).filter_map(|(key, (value, ttl_ms))| {
        let expire_at_ms = match ttl_ms {
            // The key has disappeared between SCAN and GET, or between GET and PTTL.
            -2 => return None,
            ..0 => None,
            ttl => Some((now + Duration::from_millis(ttl as u64)).as_millis() as u64),
        };
        Some(Key { key, value: value?, expire_at_ms })
    });
    Ok(with_value.collect())
}

/// The replies to GET and PTTL in turns.
fn pairs(replies: Vec<redis::Value>) -> redis::RedisResult<Vec<(Option<Vec<u8>>, i64)>> {
    let mut replies = replies.into_iter();
    let mut pairs = Vec::with_capacity(replies.len() / 2);
    while let (Some(value), Some(ttl)) = (replies.next(), replies.next()) {
        pairs.push((redis::from_redis_value(value)?, redis::from_redis_value(ttl)?));
    }
    Ok(pairs)
}
