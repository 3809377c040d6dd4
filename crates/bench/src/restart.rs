//! `kv-restart`: how long a server takes from its start to its first reply to PING, on a data directory with a log and
//! nothing else, and on one with a checkpoint and nothing else, against redis-server on an RDB file of the same keys.
//!
//! Every server is killed before the next one starts, so it leaves its directory as it was. All directories have
//! been read before, so their files are in the page cache. `log_over_redis` and `checkpoint_over_redis` are ratios of times;
//! `checkpoint_bytes_over_rdb` is the ratio of the sizes of the checkpoint and of the RDB file. Redis compresses values by
//! default; those here are random bytes, which do not get shorter.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tempfile::TempDir;

use crate::local::run::require_memory;
use crate::net::server::Server;
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
/// The log is complete when its directory has not grown for this long.
const LOG_AT_REST: Duration = Duration::from_secs(1);
/// Longest wait for that.
const PATIENCE: Duration = Duration::from_secs(120);

const SIDES: [&str; 3] = ["redis", "log", "checkpoint"];

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
    // One start of each that does not count: it checks the data, and warms the page cache.
    for (side, directory) in SIDES.into_iter().zip(&directories) {
        let server = start(side, directory.path(), memory, options)?;
        let found = server.command("DBSIZE")?;
        if found != format!(":{keys}") {
            return Err(Error::engine(format!("{side}: {keys} keys were written and DBSIZE is {found}")));
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
                .with("keys", keys)
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
    fill(&server, keys)?;
    match side {
        "redis" => {
            let reply = server.command("SAVE")?;
            if reply != "+OK" {
                return Err(Error::engine(format!("redis-server cannot save: {reply}")));
            }
            server.kill()?;
        }
        "log" => {
            at_rest(data)?;
            server.kill()?;
        }
        _ => drop(server),
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

/// Waits until a directory does not grow any more.
fn at_rest(data: &Path) -> Result<()> {
    let start = Instant::now();
    let (mut size, mut since) = (size_of_files(data)?, Instant::now());
    while since.elapsed() < LOG_AT_REST {
        std::thread::sleep(Duration::from_millis(20));
        let now = size_of_files(data)?;
        if now != size {
            (size, since) = (now, Instant::now());
        }
        if start.elapsed() > PATIENCE {
            return Err(Error::engine("the log does not come to rest".to_owned()));
        }
    }
    Ok(())
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
