//! Tests the guarantees of a reply about the disk.

mod common;
mod server;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bedplate_kerneldb::wal::WalConfig;
use bedplate_kerneldb::{Durability, Store, StoreConfig};
use bedplate_kerneldb_redis::server::{Server, ServerConfig, ServerHandle};
use common::{can_run, small};
use server::{Client, bulk, config, words};

fn open(dir: &Path, durability: Durability, server: ServerConfig) -> (Arc<Store>, ServerHandle) {
    let config = StoreConfig {
        database: small(),
        wal: Some(WalConfig { durability, ..WalConfig::default() }),
        ..StoreConfig::default()
    };
    let (store, _) = Store::open(config, dir, &mut |_| {}).unwrap();
    let store = Arc::new(store);
    let server = Server::start(store.clone(), server).unwrap();
    (store, server)
}

/// Under sync durability a write's reply comes after its commit is on disk, from the first write on, in
/// transactions and pipelines too. The kernel still answers reads.
#[test]
fn sync_replies_wait_for_the_disk() {
    if !can_run() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (store, server) = open(dir.path(), Durability::Sync, config());
    let mut c = Client::new(server.local_addr());
    for i in 0..20 {
        c.ask(&format!("SET k{i} v"), "+OK");
        assert!(store.database().durable_ts() >= store.database().clock(), "write {i}");
    }
    c.ask("BEGIN", "+OK");
    c.ask("SET k0 w", "+OK");
    c.ask("COMMIT", "+OK");
    assert!(store.database().durable_ts() >= store.database().clock());
    let mut input = Vec::new();
    let mut output = Vec::new();
    for i in 0..500 {
        input.extend(words(&format!("SET p{i} {i}")));
        output.extend(b"+OK\r\n");
        input.extend(words(&format!("GET p{i}")));
        output.extend(bulk(i.to_string().as_bytes()));
    }
    c.send(&input);
    c.expect(&output);
    assert!(store.database().durable_ts() >= store.database().clock());
    let syncs = store.wal().unwrap().stats().syncs;
    assert!(syncs < 400, "a pipeline's writes share fsyncs: {syncs}");
    c.ask("GET k0", "$1\r\nw");
    drop(c);
    server.shutdown().unwrap();
    store.close(false).unwrap();
    drop(store);

    let (store, server) = open(dir.path(), Durability::Async, config());
    let mut c = Client::new(server.local_addr());
    c.ask("GET k0", "$1\r\nw");
    c.ask("GET p499", "$3\r\n499");
    c.ask("DBSIZE", ":520");
    drop(c);
    server.shutdown().unwrap();
    store.close(true).unwrap();
}

/// Several clients' commits share fsyncs, and each gets its reply.
#[test]
fn group_commit_over_connections() {
    if !can_run() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (store, server) = open(dir.path(), Durability::Sync, config());
    let addr = server.local_addr();
    std::thread::scope(|scope| {
        for t in 0..16 {
            scope.spawn(move || {
                let mut c = Client::new(addr);
                for i in 0..40 {
                    c.ask(&format!("SET {t}:{i} x"), "+OK");
                }
            });
        }
    });
    assert_eq!(store.database().len(), 16 * 40);
    assert!(store.database().durable_ts() >= store.database().clock());
    server.shutdown().unwrap();
    store.close(false).unwrap();
}

/// SAVE, SHUTDOWN SAVE and a restart from the checkpoint; async writes of the kernel are logged.
#[test]
fn save_and_restart() {
    if !can_run() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (store, server) = open(dir.path(), Durability::Async, config());
    let mut c = Client::new(server.local_addr());
    for i in 0..1000 {
        c.send(&words(&format!("SET k{i} {i}")));
    }
    c.expect(&b"+OK\r\n".repeat(1000));
    c.ask("SAVE", "+OK");
    c.ask("DEL k1", ":1");
    c.ask("SET k2 changed", "+OK");
    assert!(store.wait_durable(store.database().clock(), Duration::from_secs(10)).unwrap());
    c.send(&words("SHUTDOWN SAVE"));
    assert_eq!(c.rest(), b"");
    server.wait().unwrap();
    store.close(false).unwrap();
    drop(store);

    let (store, server) = open(dir.path(), Durability::Async, config());
    let mut c = Client::new(server.local_addr());
    c.ask("DBSIZE", ":999");
    c.ask("GET k1", "$-1");
    c.ask("GET k2", "$7\r\nchanged");
    c.ask("GET k999", "$3\r\n999");
    drop(c);
    server.shutdown().unwrap();
    store.close(false).unwrap();
}
