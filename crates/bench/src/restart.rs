//! `kv-restart`: the time from a server's start to its first reply to PING, against redis-server on an RDB file of the
//! same keys. One data directory has only a log, another one only a checkpoint.
//!
//! Every server is killed before the next one starts, so it leaves its directory as it was. All directories have
//! been read before, so their files are in the page cache. `log_over_redis` and `checkpoint_over_redis` are ratios of times;
//! `checkpoint_bytes_over_rdb` is the ratio of the sizes of the checkpoint and of the RDB file. Redis compresses values by
//! default; those here are random bytes, which do not get shorter. The row `no keys` is the part of Bedplate's time that does
//! not depend on the data: loading the eBPF programs and preparing the memory.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tempfile::TempDir;

use crate::local::run::require_memory;
use crate::net::server::{Server, figure};
use crate::sample::{interleave, samples};
use crate::{Benchmark, Error, Fields, Options, Report, Result, Sink, Step};

pub(crate) const BENCH: Benchmark = Benchmark {
    name: "kv-restart",
    about: "time from the start of a server to its first reply, from log, checkpoint and RDB",
    run,
};

const VALUE_BYTES: usize = 100;
/// Options that keep the server from taking checkpoints by itself.
const NO_CHECKPOINTS: [&str; 3] =
    ["--durability=async", "--checkpoint-interval=7d", "--checkpoint-wal-bytes=0"];
/// Nothing is logged; the server takes a checkpoint when it ends.
const CHECKPOINT_AT_THE_END: [&str; 1] = ["--durability=off"];
/// Longest wait until the log contains all keys.
const LOG_LIMIT: Duration = Duration::from_secs(120);

const SIDES: [&str; 4] = ["redis", "log", "checkpoint", NO_KEYS];
/// The start of Bedplate on an empty log.
const NO_KEYS: &str = "no keys";

fn run(options: &Options, progress: Sink<'_>) -> Result<Report> {
    let keys: u64 = options.pick(200_000, 2_000_000);
    let rounds = options.pick(3, 7);
    let memory = keys * 600 + (256 << 20);
    require_memory(2 * memory)?;
    let config = Fields::new()
        .with("mode", options.mode.name())
        .with("keys", keys)
        .with("value_bytes", VALUE_BYTES)
        .with("rounds", rounds)
        .with("directory", options.directory.display().to_string());
    let mut report = Report::new(BENCH.name, config);
    let mut directories = Vec::new();
    for (done, side) in SIDES.into_iter().enumerate() {
        progress(Step { done, total: SIDES.len() + rounds, label: &format!("{side}: writing keys") });
        directories.push(prepare(side, keys, memory, options)?);
    }
    let bytes: Vec<u64> =
        directories.iter().map(|directory| size_of_files(directory.path())).collect::<Result<_>>()?;
    // The first start of each does not count. It checks the data and warms the page cache.
    for (side, directory) in SIDES.into_iter().zip(&directories) {
        let server = start(side, directory.path(), memory, options)?;
        let found = server.command("DBSIZE")?;
        let written = keys_of(side, keys);
        if found != format!(":{written}") {
            return Err(Error::engine(format!("{side}: {written} keys were written and DBSIZE is {found}")));
        }
        server.kill()?;
    }
    let times = interleave(rounds, SIDES.len(), |side, round| -> Result<Duration> {
        progress(Step { done: SIDES.len() + round, total: SIDES.len() + rounds, label: SIDES[side] });
        let server = start(SIDES[side], directories[side].path(), memory, options)?;
        let took = server.started_in();
        server.kill()?;
        only_what_was_prepared(SIDES[side], directories[side].path())?;
        Ok(took)
    })?;
    let of = |side: usize| samples(&times[side], |took| took.as_nanos() as f64);
    for (side, name) in SIDES.into_iter().enumerate() {
        report.rows.push(
            Fields::new()
                .with("from", name)
                .with("keys", keys_of(name, keys))
                .with("took_ns", of(side).median())
                .with("spread", of(side).spread())
                .with("data_bytes", bytes[side]),
        );
    }
    report.ratio("log_over_redis", of(1).over(&of(0)));
    report.ratio("checkpoint_over_redis", of(2).over(&of(0)));
    report.ratio("checkpoint_bytes_over_rdb", bytes[2] as f64 / bytes[0] as f64);
    Ok(report)
}

/// Number of keys that are written for `side`.
fn keys_of(side: &str, keys: u64) -> u64 {
    if side == NO_KEYS { 0 } else { keys }
}

fn start(side: &str, data: &Path, memory: u64, options: &Options) -> Result<Server> {
    match side {
        "redis" => Server::redis_on(options, data),
        _ => Server::bedplate_on(options, memory, data, &NO_CHECKPOINTS),
    }
}

/// A directory with the keys in one form.
fn prepare(side: &str, keys: u64, memory: u64, options: &Options) -> Result<TempDir> {
    let directory = tempfile::Builder::new()
        .prefix("bedplate-bench-")
        .tempdir_in(&options.directory)
        .map_err(Error::io("create a data directory"))?;
    let data = directory.path();
    let server = match side {
        "checkpoint" => Server::bedplate_on(options, memory, data, &CHECKPOINT_AT_THE_END)?,
        _ => start(side, data, memory, options)?,
    };
    fill(&server, keys_of(side, keys))?;
    match side {
        "redis" => {
            server.command("SAVE")?;
            server.kill()?;
        }
        // The server takes its checkpoint when it ends by itself.
        "checkpoint" => drop(server),
        _ => {
            wait_for_log(&server)?;
            server.kill()?;
        }
    }
    only_what_was_prepared(side, data)?;
    Ok(directory)
}

/// Writes all keys with random values.
fn fill(server: &Server, keys: u64) -> Result<()> {
    const BATCH: u64 = 256;
    const REPLY: &[u8] = b"+OK\r\n";
    let mut socket = TcpStream::connect(server.address()).map_err(Error::io("connect to the server"))?;
    let mut random = SmallRng::seed_from_u64(1);
    let mut value = [0u8; VALUE_BYTES];
    let mut key = 0;
    while key < keys {
        let batch = BATCH.min(keys - key);
        let mut requests = Vec::new();
        for key in key..key + batch {
            random.fill_bytes(&mut value);
            requests.extend_from_slice(b"*3\r\n$3\r\nSET\r\n");
            requests.extend_from_slice(format!("$16\r\nkey:{key:012}\r\n${VALUE_BYTES}\r\n").as_bytes());
            requests.extend_from_slice(&value);
            requests.extend_from_slice(b"\r\n");
        }
        socket.write_all(&requests).map_err(Error::io("send to the server"))?;
        let mut replies = vec![0; REPLY.len() * batch as usize];
        socket.read_exact(&mut replies).map_err(Error::io("receive from the server"))?;
        if replies.chunks(REPLY.len()).any(|reply| reply != REPLY) {
            return Err(Error::engine("the server refused to store the keys".to_owned()));
        }
        key += batch;
    }
    Ok(())
}

/// Waits until every commit is durable.
fn wait_for_log(server: &Server) -> Result<()> {
    let start = Instant::now();
    loop {
        let text = server.command("INFO bedplate")?;
        if figure(&text, "durable_ts")? >= figure(&text, "clock")? {
            return Ok(());
        }
        if start.elapsed() > LOG_LIMIT {
            return Err(Error::engine("the log does not become durable".to_owned()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Fails unless the directory of `side` has the checkpoints that it should have: one, or none.
fn only_what_was_prepared(side: &str, data: &Path) -> Result<()> {
    let checkpoints = data.join("checkpoint");
    let found = match std::fs::read_dir(&checkpoints) {
        Ok(files) => files.count(),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => 0,
        Err(e) => return Err(Error::io("list checkpoints")(e)),
    };
    let expected = usize::from(side == "checkpoint");
    if found != expected {
        return Err(Error::engine(format!("{side}: {found} checkpoints instead of {expected}")));
    }
    Ok(())
}

/// Bytes of all files below a directory.
fn size_of_files(directory: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(directory).map_err(Error::io("list a data directory"))? {
        let entry = entry.map_err(Error::io("list a data directory"))?;
        // The server may remove a file meanwhile.
        let Ok(metadata) = entry.metadata() else { continue };
        bytes += if metadata.is_dir() { size_of_files(&entry.path())? } else { metadata.len() };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_all_folders_count() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("checkpoint")).unwrap();
        std::fs::write(directory.path().join("checkpoint/1"), [0; 100]).unwrap();
        std::fs::write(directory.path().join("log"), [0; 11]).unwrap();
        assert_eq!(size_of_files(directory.path()).unwrap(), 111);
        assert!(only_what_was_prepared("checkpoint", directory.path()).is_ok());
        assert!(only_what_was_prepared("log", directory.path()).is_err());
    }
}
