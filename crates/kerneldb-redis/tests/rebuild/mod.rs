//! A server on a data directory whose options change, and what its tests ask it.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod work;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bedplate_kerneldb::wal::WalConfig;
use bedplate_kerneldb::{Config, Durability, Store, StoreConfig, sdk};
use bedplate_kerneldb_redis::server::{Server, ServerConfig, ServerHandle};
use tempfile::TempDir;

use crate::common::small;
use crate::server::{Client, config, no_checkpoints, words};

pub fn store_config(durability: Durability) -> StoreConfig {
    StoreConfig {
        database: Config { wal_ring_bytes: 512 << 10, ..small() },
        wal: Some(WalConfig { durability, ..WalConfig::default() }),
        checkpoint: no_checkpoints(),
        ..StoreConfig::default()
    }
}

pub fn open(dir: &Path, config: StoreConfig) -> Store {
    Store::open(config, dir, &mut |_| {}).unwrap().0
}

pub fn serve(store: Store, config: ServerConfig) -> ServerHandle {
    Server::start(Arc::new(store), config).unwrap()
}

/// A server on a new data directory.
pub fn started() -> (TempDir, ServerHandle) {
    let dir = tempfile::tempdir().unwrap();
    let running = serve(open(dir.path(), store_config(Durability::Async)), config());
    (dir, running)
}

/// Stops a server as `bedplate kv serve` does.
pub fn stop(server: ServerHandle) {
    let store = server.store();
    server.shutdown().unwrap();
    store.get().unwrap().close(true).unwrap();
}

/// Asks for a change; returns the reply.
pub fn change(admin: &mut Client, options: &str) -> String {
    admin.send(&words(&format!("CONFIG SET {options}")));
    admin.lines(1).remove(0)
}

const TICKS: &str = r#"
#include <bedplate/handler.h>
KDB_LICENSE("Dual MIT/GPL");
KDB_TIMER_HANDLER(tick)
{
	__s64 ticks = 0;

	KDB_TRY(kdb_key(p, "ticks"));
	if (KDB_TRY(kdb_read_for_update(p)) == KDB_OK)
		KDB_TRY(kdb_value_integer(p, &ticks));
	return kdb_write_integer(p, ticks + 1);
}
"#;

/// Attaches the handler `tick`, which counts the key `ticks` up, to a timer.
pub fn attach_handler(store: &Store) {
    let dir = tempfile::tempdir().unwrap();
    let headers = dir.path().join("headers");
    sdk::write_headers(&headers).unwrap();
    let source = dir.path().join("ticks.c");
    std::fs::write(&source, TICKS).unwrap();
    let ticks = sdk::compile(&headers, &source, &[]).unwrap();
    let timer = "timer:5ms".parse().unwrap();
    store.database().load_library("ticks", &ticks, false).unwrap();
    store.database().attach_handler("tick", &timer).unwrap();
}

/// The key that the handler counts up.
pub fn ticks(client: &mut Client) -> u64 {
    client.send(&words("INCRBY ticks 0"));
    client.lines(1)[0][1..].parse().unwrap()
}

/// The committed runs of the handler, as PROC LIST has them.
pub fn committed_ticks(client: &mut Client) -> u64 {
    client.send(&words("PROC LIST"));
    // An array of one map with four texts, an array of one text, and six numbers.
    let list = client.lines(2 + 4 * 4 + 5 + 6 * 3);
    let count = list.iter().skip_while(|line| *line != "committed").nth(1).unwrap();
    count[1..].parse().unwrap()
}

/// Waits until the handler has run again.
pub fn wait_for_tick(client: &mut Client) {
    let (before, start) = (ticks(client), Instant::now());
    while ticks(client) <= before {
        assert!(start.elapsed() < Duration::from_secs(30), "the timer stands still");
        thread::sleep(Duration::from_millis(5));
    }
}

/// The value of a counter that clients see.
pub fn counter(client: &mut Client, key: &str) -> u64 {
    client.send(&words(&format!("GET {key}")));
    client.lines(2)[1].parse().unwrap()
}

/// One SCAN: adds the keys to `seen`, and returns the cursor to continue with.
pub fn scan(client: &mut Client, cursor: &str, count: u32, seen: &mut BTreeSet<String>) -> String {
    client.send(&words(&format!("SCAN {cursor} COUNT {count}")));
    let next = client.lines(3).remove(2);
    let keys: usize = client.lines(1)[0][1..].parse().unwrap();
    seen.extend((0..keys).map(|_| client.lines(2).remove(1)));
    next
}
