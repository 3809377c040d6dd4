//! CLIENT PAUSE and SHUTDOWN also hold commands that the kernel answers.

mod common;
mod server;

use std::io::{ErrorKind, Read};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bedplate_kerneldb::{Durability, Store, StoreConfig, wal::WalConfig};
use bedplate_kerneldb_redis::server::{Server, ServerConfig};
use common::{can_run, has_cgroup2, small};
use server::{Client, Running, config, eventually, start, words};

/// Length of a pause that the test ends, in milliseconds.
const LONG_MS: u64 = 60_000;

/// Sends a request and makes sure that no reply comes for a while.
fn is_held(client: &mut Client, line: &str) {
    client.send(&words(line));
    client.socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut byte = [0];
    match client.socket.read(&mut byte) {
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
        other => panic!("{line} is answered: {other:?} {byte:?}"),
    }
    client.socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
}

fn pauses(running: &Running) {
    let (mut admin, mut reader, mut writer) = (running.client(), running.client(), running.client());
    for c in [&mut reader, &mut writer] {
        c.ask("SET k v", "+OK");
        c.ask("GET k", "$1\r\nv");
    }
    admin.ask(&format!("CLIENT PAUSE {LONG_MS} WRITE"), "+OK");
    reader.ask("GET k", "$1\r\nv");
    reader.ask("PING", "+PONG");
    is_held(&mut writer, "SET k w");
    reader.ask("MULTI", "+OK");
    reader.ask("SET k x", "+QUEUED");
    is_held(&mut reader, "EXEC");
    admin.ask("GET k", "$1\r\nv");
    admin.ask("CLIENT UNPAUSE", "+OK");
    writer.expect(b"+OK\r\n");
    reader.expect(b"*1\r\n+OK\r\n");

    // The COMMIT of a transaction that was open before waits.
    writer.ask("BEGIN", "+OK");
    writer.ask("SET t 1", "+OK");
    admin.ask(&format!("CLIENT PAUSE {LONG_MS} WRITE"), "+OK");
    is_held(&mut writer, "COMMIT");
    admin.ask("CLIENT UNPAUSE", "+OK");
    writer.expect(b"+OK\r\n");

    admin.ask(&format!("CLIENT PAUSE {LONG_MS} ALL"), "+OK");
    is_held(&mut writer, "SET k y");
    is_held(&mut reader, "GET t");
    admin.ask("CLIENT UNPAUSE", "+OK");
    writer.expect(b"+OK\r\n");
    reader.expect(b"$1\r\n1\r\n");

    // A pause ends by itself.
    let started = Instant::now();
    admin.ask("CLIENT PAUSE 300", "+OK");
    reader.send(&words("GET t"));
    reader.expect(b"$1\r\n1\r\n");
    assert!(started.elapsed() >= Duration::from_millis(290), "{:?}", started.elapsed());
    // Afterwards the kernel answers again.
    let before = running.server.stats().unwrap().kernel_commands;
    for c in [&mut reader, &mut writer] {
        for _ in 0..20 {
            c.ask("SET k v", "+OK");
            c.ask("GET k", "$1\r\nv");
        }
    }
    let answered = running.server.stats().unwrap().kernel_commands - before;
    assert!(answered >= 70, "{answered} of 80");
}

#[test]
fn a_pause_holds_what_the_kernel_answers() {
    if !can_run() {
        return;
    }
    let running = start(config());
    pauses(&running);
    running.finish();
}

#[test]
fn a_pause_holds_the_local_fast_path() {
    if !can_run() || !has_cgroup2() {
        return;
    }
    let running = start(ServerConfig { local_fast_path: true, ..config() });
    pauses(&running);
    assert!(running.server.stats().unwrap().local_commands > 0);
    running.finish();
}

/// While the last checkpoint is written, reads are answered and writes wait.
#[test]
fn a_shutdown_with_checkpoint_serves_until_it_is_done() {
    if !can_run() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let open = |rate_limit| {
        let config = StoreConfig {
            database: small(),
            wal: Some(WalConfig { durability: Durability::Async, ..WalConfig::default() }),
            checkpoint: bedplate_kerneldb::checkpoint::CheckpointConfig { rate_limit, ..Default::default() },
            ..StoreConfig::default()
        };
        let (store, _) = Store::open(config, dir.path(), &mut |_| {}).unwrap();
        let store = Arc::new(store);
        let server = Server::start(store.clone(), server_config()).unwrap();
        (store, server)
    };
    // A checkpoint of 4 MiB at 1 MiB per second takes some seconds.
    let (store, server) = open(Some(1 << 20));
    let mut filler = Client::new(server.local_addr());
    let value = "v".repeat(4096);
    for i in 0..1024 {
        filler.ask(&format!("SET big{i} {value}"), "+OK");
    }
    let (mut admin, mut other) = (Client::new(server.local_addr()), Client::new(server.local_addr()));
    other.ask("SHUTDOWN ABORT", "-ERR No shutdown in progress.");
    admin.send(&words("SHUTDOWN SAVE"));
    eventually("the checkpoint has begun", || store.checkpoint_status().running.is_some());
    other.ask("PING", "+PONG");
    other.ask("STRLEN big7", ":4096");
    is_held(&mut filler, "SET late 1");
    assert!(store.checkpoint_status().running.is_some(), "the checkpoint takes longer than this");
    other.ask("SHUTDOWN ABORT", "+OK");
    admin.expect(b"-ERR Errors trying to SHUTDOWN. Check logs.\r\n");
    filler.expect(b"+OK\r\n");
    other.ask("GET late", "$1\r\n1");
    // The next shutdown is not aborted, although its client disconnects.
    admin.send(&words("SHUTDOWN"));
    drop(admin);
    assert_eq!(other.rest(), b"");
    server.wait().unwrap();
    store.close(false).unwrap();
    drop(store);
    let (store, server) = open(None);
    let mut c = Client::new(server.local_addr());
    c.ask("DBSIZE", ":1025");
    drop(c);
    server.shutdown().unwrap();
    store.close(false).unwrap();
}

fn server_config() -> ServerConfig {
    config()
}
