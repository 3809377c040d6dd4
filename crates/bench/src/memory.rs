//! `kv-memory`: bytes of memory per key of a server with its default configuration, against redis-server.
//!
//! Keys have 16 bytes. Each cell starts both servers anew, reads their memory figures, writes all keys, reads every key
//! back, and reads the figures again. The reads also let Redis finish moving its hash table to the larger one. Each
//! read moves one bucket, so the old table is freed before the measurement.
//!
//! Redis is charged with the growth of `used_memory` (INFO) divided by the number of keys. This is what Redis requested
//! from its allocator, rounded up to the allocator's size classes, and the hash table. Redis has neither a memory limit
//! nor persistence. Unused parts of the allocator's pages do not count.
//!
//! Bedplate is charged with the growth of `used_memory` divided by the number of keys, and with the key's share of the
//! index. The growth is whole slabs of 64 KiB of entries, inline versions and values. The buckets of the index are allocated
//! at the start for the whole memory limit. So the share is `index_bucket_bytes` divided by the number of keys that fit into
//! the heap (`heap_bytes` divided by the slab bytes per key). The server has its default options: a log, asynchronous
//! durability, and four versions.
//!
//! Neither side is charged with the memory of a server without keys, or with buffers of connections. For Bedplate, this
//! includes the log's rings, the slabs' descriptors and bitmaps, and the programs. `other_fixed_bytes` of a row is the
//! size of those that are parts of the arena, per key when the heap is full. No figure depends on time, so there is one
//! measurement of each cell.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::local::run::require_memory;
use crate::net::load::{fill, read_back};
use crate::net::server::{Server, figure};
use crate::net::wire::KEY_LEN;
use crate::{Benchmark, Error, Fields, Options, Report, Result, Sink, Step};

pub(crate) const BENCH: Benchmark =
    Benchmark { name: "kv-memory", about: "bytes of memory per key, against redis-server", run };

/// Lengths of values, and their names in ratios.
const VALUES: [(usize, &str); 3] = [(16, "16b"), (100, "100b"), (1000, "1k")];

/// Longest time until a server notices that a connection was closed.
const CLOSING_LIMIT: Duration = Duration::from_secs(10);

/// The parts of Bedplate's arena, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Arena {
    /// The memory limit.
    limit: u64,
    /// Slabs that are in use, free slabs, and those that were never used.
    heap: u64,
    /// Buckets of the index.
    buckets: u64,
}

/// Bytes per key of one server.
#[derive(Clone, Copy, Debug, PartialEq)]
struct BytesPerKey {
    /// Growth of `used_memory`.
    used: f64,
    /// Share of the memory that is allocated at the start for the index.
    index: f64,
    /// Share of everything else in the arena that is allocated at the start; it does not count.
    other_fixed: f64,
}

impl BytesPerKey {
    /// Bytes per key, where `keys` keys made `used_memory` grow by `growth` bytes. Redis has no arena.
    fn new(keys: u64, growth: u64, arena: Option<Arena>) -> BytesPerKey {
        let used = growth as f64 / keys as f64;
        let share = |bytes: u64, heap: u64| {
            let keys_that_fit = heap as f64 / used;
            bytes as f64 / keys_that_fit
        };
        BytesPerKey {
            used,
            index: arena.map_or(0.0, |arena| share(arena.buckets, arena.heap)),
            other_fixed: arena.map_or(0.0, |arena| {
                share(arena.limit.saturating_sub(arena.heap + arena.buckets), arena.heap)
            }),
        }
    }

    fn total(&self) -> f64 {
        self.used + self.index
    }

    fn row(&self, side: &str, keys: u64, value_len: usize) -> Fields {
        Fields::new()
            .with("value_bytes", value_len)
            .with("side", side)
            .with("keys", keys)
            .with("used_bytes", self.used)
            .with("index_share_bytes", self.index)
            .with("bytes_per_key", self.total())
            .with("overhead_bytes", self.total() - (KEY_LEN + value_len) as f64)
            .with("other_fixed_bytes", self.other_fixed)
    }
}

fn run(options: &Options, progress: Sink<'_>) -> Result<Report> {
    let keys: u64 = options.pick(200_000, 2_000_000);
    // The default of `kv serve`, or as much as the largest cell needs.
    let memory: u64 = options.pick(1 << 30, 3 << 30);
    require_memory(2 * memory)?;
    let config = Fields::new()
        .with("mode", options.mode.name())
        .with("keys", keys)
        .with("key_bytes", KEY_LEN)
        .with("memory_limit_bytes", memory)
        .with("durability", "default")
        .with("versions", "default")
        .with("directory", options.directory.display().to_string());
    let mut report = Report::new(BENCH.name, config);
    for (cell, (value_len, name)) in VALUES.into_iter().enumerate() {
        let mut step = |side: usize, label: &str| {
            let label = format!("{label}: values of {value_len} bytes");
            progress(Step { done: 2 * cell + side, total: 2 * VALUES.len(), label: &label });
        };
        step(0, "redis");
        let redis = measure_redis(keys, value_len, options)?;
        step(1, "bedplate");
        let bedplate = measure_bedplate(keys, value_len, memory, options)?;
        report.rows.push(redis.row("redis", keys, value_len));
        report.rows.push(bedplate.row("bedplate", keys, value_len));
        report.ratio(&format!("bytes_over_redis_{name}"), bedplate.total() / redis.total());
    }
    Ok(report)
}

fn measure_redis(keys: u64, value_len: usize, options: &Options) -> Result<BytesPerKey> {
    let server = Server::redis(options)?;
    if figure(&server.command("INFO memory")?, "maxmemory")? != 0 {
        return Err(Error::engine("redis-server has a memory limit, and evicts keys".to_owned()));
    }
    Ok(BytesPerKey::new(keys, growth(&server, keys, value_len)?, None))
}

fn measure_bedplate(keys: u64, value_len: usize, memory: u64, options: &Options) -> Result<BytesPerKey> {
    let directory = tempfile::Builder::new()
        .prefix("bedplate-bench-")
        .tempdir_in(&options.directory)
        .map_err(Error::io("create a data directory"))?;
    let server = Server::bedplate_on(options, memory, directory.path(), &[])?;
    let growth = growth(&server, keys, value_len)?;
    let text = server.command("INFO bedplate")?;
    let arena = Arena {
        limit: figure(&text, "memory_limit")?,
        heap: figure(&text, "heap_bytes")?,
        buckets: figure(&text, "index_bucket_bytes")?,
    };
    Ok(BytesPerKey::new(keys, growth, Some(arena)))
}

/// Bytes by which `used_memory` grows because of the keys, all of which must be there afterwards.
fn growth(server: &Server, keys: u64, value_len: usize) -> Result<u64> {
    let before = used_memory(server)?;
    fill(server.address(), keys, value_len)?;
    read_back(server.address(), keys, value_len)?;
    let found = server.command("DBSIZE")?;
    if found != format!(":{keys}") {
        return Err(Error::engine(format!("{keys} keys were written and DBSIZE is {found}")));
    }
    let after = used_memory(server)?;
    after
        .checked_sub(before)
        .filter(|growth| *growth > 0)
        .ok_or_else(|| Error::engine(format!("used_memory is {after} bytes with keys and {before} without")))
}

/// Reads `used_memory` after the server has noticed that all other connections are closed. Until then, Redis includes a
/// connection's buffers, some 50 KB for a pipelined one.
fn used_memory(server: &Server) -> Result<u64> {
    let deadline = Instant::now() + CLOSING_LIMIT;
    loop {
        // The connection of this command is the only one.
        if figure(&server.command("INFO clients")?, "connected_clients")? == 1 {
            return figure(&server.command("INFO memory")?, "used_memory");
        }
        if Instant::now() >= deadline {
            return Err(Error::engine("connections that were closed still count as clients".to_owned()));
        }
        sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mode;
    use std::net::TcpStream;

    #[test]
    fn a_key_has_its_share_of_the_index_when_the_heap_is_full() {
        // 1,000 keys of 100 bytes; 9,000 keys fit into the heap, so each has 2 bytes of the buckets' 18,000.
        let arena = Arena { limit: 1_000_000, heap: 900_000, buckets: 18_000 };
        let bytes = BytesPerKey::new(1000, 100_000, Some(arena));
        assert_eq!(bytes.used, 100.0);
        assert!((bytes.index - 2.0).abs() < 1e-9 && (bytes.total() - 102.0).abs() < 1e-9, "{bytes:?}");
        assert!((bytes.other_fixed - 82_000.0 / 9000.0).abs() < 1e-9, "{bytes:?}");
        let row = bytes.row("bedplate", 1000, 16);
        assert_eq!(row.number("bytes_per_key"), Some(102.0));
        assert_eq!(row.number("overhead_bytes"), Some(70.0));
        let redis = BytesPerKey::new(1000, 50_000, None);
        assert_eq!((redis.total(), redis.index, redis.other_fixed), (50.0, 0.0, 0.0));
    }

    /// Redis must have freed its old hash table: 140,000 keys take a table of 262,144 pointers, and the old one
    /// would be half as large.
    #[test]
    fn redis_is_measured_with_one_hash_table() {
        let keys = 140_000;
        let bytes = measure_redis(keys, 16, &Options::new(Mode::Quick)).unwrap();
        let without_table = bytes.used - (262_144 * 8) as f64 / keys as f64;
        // An entry, a key and a value take a multiple of the allocator's 8 bytes. The connection of the command adds
        // less than 1 byte per key, and an old table would add 7.5.
        let rest = without_table % 8.0;
        assert!((80.0..200.0).contains(&bytes.used) && rest < 2.0, "{bytes:?}");
    }

    /// The buffers of an open connection would count.
    #[test]
    fn memory_is_read_when_other_connections_are_closed() {
        let server = Server::redis(&Options::new(Mode::Quick)).unwrap();
        let other = TcpStream::connect(server.address()).unwrap();
        while figure(&server.command("INFO clients").unwrap(), "connected_clients").unwrap() < 2 {
            sleep(Duration::from_millis(1));
        }
        let open = Duration::from_millis(200);
        let asked = Instant::now();
        let closing = std::thread::spawn(move || {
            sleep(open);
            drop(other);
        });
        assert!(used_memory(&server).unwrap() > 0);
        assert!(asked.elapsed() >= open, "memory was read beside another connection");
        closing.join().unwrap();
    }
}
