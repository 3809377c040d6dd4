//! Back pressure: a client that sends faster than the server works is slowed down by TCP. It is never
//! disconnected, and it does not slow down the clients beside it.

mod common;
mod server;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bedplate_kerneldb::server::{Server, ServerConfig, ServerHandle};
use bedplate_kerneldb::wal::WalConfig;
use bedplate_kerneldb::{Config, Durability, Store, StoreConfig};
use common::can_run;
use server::{Client, Random, config, config_with, request, start, start_with, words};

/// The longest time for which a client beside a busy one may wait for a reply. The machine that runs the tests
/// may be busy with other things, so this is far above what an idle machine needs.
const BYSTANDER_MAX: Duration = Duration::from_secs(5);

fn open(dir: &Path, durability: Durability, server: ServerConfig) -> (Arc<Store>, ServerHandle) {
    let database = Config { memory_bytes: 64 << 20, max_sessions: 256, ..Config::default() };
    let wal = (durability != Durability::Off).then(|| WalConfig { durability, ..WalConfig::default() });
    let config = StoreConfig { database, wal, ..StoreConfig::default() };
    let (store, _) = Store::open(config, dir, &mut |_| {}).unwrap();
    let store = Arc::new(store);
    let server = Server::start(store.clone(), server).unwrap();
    (store, server)
}

/// Sends everything in one call while this thread reads exactly the expected replies.
fn exchange(client: &mut Client, requests: Vec<u8>, replies: &[u8]) {
    let mut writer = client.socket.try_clone().unwrap();
    let sender = std::thread::spawn(move || writer.write_all(&requests));
    client.expect(replies);
    sender.join().unwrap().unwrap();
}

/// Runs `work` while another client asks for one reply after the other; returns that client's longest wait.
fn with_bystander(addr: SocketAddr, work: impl FnOnce()) -> Duration {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let bystander = scope.spawn(|| {
            let mut client = Client::new(addr);
            let mut longest = Duration::ZERO;
            while !stop.load(Ordering::Relaxed) {
                // The kernel answers the first two, the event loop the last one.
                for (line, reply) in [("PING", "+PONG"), ("GET nothing", "$-1"), ("STRLEN nothing", ":0")] {
                    let start = Instant::now();
                    client.ask(line, reply);
                    longest = longest.max(start.elapsed());
                }
            }
            longest
        });
        work();
        stop.store(true, Ordering::Relaxed);
        bystander.join().unwrap()
    })
}

/// 5,000 SETEX of 200 bytes in one call, replies read by a second thread.
fn setex(count: usize) -> (Vec<u8>, Vec<u8>) {
    let value = [b'v'; 200];
    let one = |i: usize| request(&[b"SETEX", format!("key:{i}").as_bytes(), b"1000", &value]);
    ((0..count).flat_map(one).collect(), b"+OK\r\n".repeat(count))
}

#[test]
fn pipelined_setex_is_answered_at_every_durability() {
    if !can_run() {
        return;
    }
    for durability in [Durability::Off, Durability::Async, Durability::Sync] {
        let dir = tempfile::tempdir().unwrap();
        let (store, server) = open(dir.path(), durability, config());
        let (requests, replies) = setex(5000);
        let longest = with_bystander(server.local_addr(), || {
            let mut client = Client::new(server.local_addr());
            for _ in 0..4 {
                exchange(&mut client, requests.clone(), &replies);
            }
            // More than any buffer on the way holds.
            exchange(&mut client, requests.repeat(20), &replies.repeat(20));
            client.ask("GET key:7", &format!("$200\r\n{}", "v".repeat(200)));
        });
        assert!(longest < BYSTANDER_MAX, "{durability:?}: the client beside it waited {longest:?}");
        let stats = server.stats().unwrap();
        assert_eq!(stats.broken, 0, "{stats:?}");
        server.shutdown().unwrap();
        store.close(false).unwrap();
    }
}

/// Several such clients at once, more than any buffer of the server holds.
#[test]
fn many_pipelining_clients_are_answered() {
    if !can_run() {
        return;
    }
    let running = start(config());
    let (requests, replies) = setex(5000);
    std::thread::scope(|scope| {
        for _ in 0..24 {
            let (requests, replies, addr) = (requests.clone(), &replies, running.addr);
            scope.spawn(move || exchange(&mut Client::new(addr), requests, replies));
        }
    });
    running.finish();
}
