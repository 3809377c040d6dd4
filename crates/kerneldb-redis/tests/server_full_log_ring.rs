//! A full log ring makes the clients of the server wait, inside transactions as well. No client gets an error.

mod common;
mod server;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bedplate_kerneldb::limits::LOG_RING_BYTES_MIN;
use bedplate_kerneldb::testing::SimulatedDisk;
use bedplate_kerneldb::wal::WalConfig;
use bedplate_kerneldb::{Config, Durability, Store, StoreConfig};
use bedplate_kerneldb_redis::server::{ServerConfig, ServerHandle};
use common::{can_run, small};
use server::{Client, bulk, eventually, no_checkpoints, request, start_on, ways, words};

/// Bytes that the log writer takes out of the rings while the disk stalls.
const MOST_UNSYNCED_BYTES: usize = 1 << 20;

fn open(disk: &SimulatedDisk, server: ServerConfig) -> (Arc<Store>, ServerHandle) {
    let config = StoreConfig {
        database: Config { wal_ring_bytes: LOG_RING_BYTES_MIN, ..small() },
        wal: Some(WalConfig {
            durability: Durability::Async,
            sync_interval: Duration::from_millis(1),
            max_unsynced_bytes: MOST_UNSYNCED_BYTES,
            ..WalConfig::default()
        }),
        checkpoint: no_checkpoints(),
        ..StoreConfig::default()
    };
    start_on(disk, config, server)
}

/// Lets the disk continue when the test ends, even by a panic, because the store cannot be closed while the disk stalls.
struct GoesOn<'a>(&'a SimulatedDisk);

impl Drop for GoesOn<'_> {
    fn drop(&mut self) {
        self.0.hold_syncs(false);
    }
}

/// Stalls the disk, and writes until the log writer no longer takes anything out of the rings.
fn stop_log(disk: &SimulatedDisk, store: &Store) {
    disk.hold_syncs(true);
    let mut session = store.database().session().unwrap();
    let mut written = 0;
    while written < 2 * MOST_UNSYNCED_BYTES {
        match session.set(b"other", &[1; 30_000], Default::default()) {
            Ok(_) => written += 30_000,
            // The log writer has stopped already, so the ring is full.
            Err(bedplate_kerneldb::Error::WalFull) => break,
            Err(e) => panic!("{e}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Requests of a transaction, with their replies. They write several times the size of the rings.
fn requests(rings_bytes: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let key = |i: usize| format!("key{}", i % 60);
    let (short, long) = (vec![b's'; 500], vec![b'l'; 50_000]);
    let mut all = Vec::new();
    let mut ask = |args: &[&[u8]], reply: &[u8]| all.push((request(args), [reply, b"\r\n"].concat()));
    // The kernel answers most of these.
    for i in 0..rings_bytes / 500 + 1 {
        ask(&[b"SET", key(i).as_bytes(), &short], b"+OK");
    }
    for i in 0..rings_bytes / 50_000 + 4 {
        ask(&[b"SET", key(i).as_bytes(), &long], b"+OK");
    }
    // Several writes each.
    for i in 0..rings_bytes / 200_000 + 2 {
        let keys: Vec<String> = (4 * i..4 * i + 4).map(key).collect();
        let pairs = keys.iter().flat_map(|key| [key.as_bytes(), &long]);
        let args: Vec<&[u8]> = [&b"MSET"[..]].into_iter().chain(pairs).collect();
        ask(&args, b"+OK");
    }
    ask(&[b"MSETNX", b"new1", &long, b"new2", &long, b"new3", &long], b":1");
    ask(&[b"DEL", b"new1", b"absent", b"new2"], b":2");
    ask(&[b"RENAME", b"new3", b"renamed"], b"+OK");
    for i in 1..=1000 {
        ask(&[b"INCR", b"number"], format!(":{i}").as_bytes());
    }
    all
}

/// A client in BEGIN and one in MULTI write more than the rings hold, while the log is not written for some time. They get
/// only the replies to their requests.
#[test]
fn transactions_wait_for_a_full_log_ring() {
    if !can_run() {
        return;
    }
    let rings_bytes = std::thread::available_parallelism().unwrap().get() * LOG_RING_BYTES_MIN as usize;
    // Both together stay below the limit on a transaction's writes.
    let rings_bytes = rings_bytes.min(3 << 20);
    for (way, config) in ways().into_iter().enumerate() {
        for (begin, end) in [("BEGIN", "COMMIT"), ("MULTI", "EXEC")] {
            let name = format!("way {way}, {begin}");
            let disk = SimulatedDisk::new();
            let (store, server) = open(&disk, config.clone());
            let goes_on = GoesOn(&disk);
            stop_log(&disk, &store);
            let refused = store.database().stats().wal_full;
            let requests = requests(rings_bytes);
            let mut input = words(begin);
            requests.iter().for_each(|(request, _)| input.extend(request));
            input.extend(words(end));
            let mut output = b"+OK\r\n".to_vec();
            if begin == "BEGIN" {
                requests.iter().for_each(|(_, reply)| output.extend(reply));
                output.extend(b"+OK\r\n");
            } else {
                output.extend(b"+QUEUED\r\n".repeat(requests.len()));
                output.extend(format!("*{}\r\n", requests.len()).bytes());
                requests.iter().for_each(|(_, reply)| output.extend(reply));
            }
            let client = Client::new(server.local_addr());
            let mut sender = Client { socket: client.socket.try_clone().unwrap() };
            let mut client = client;
            // The same limit as for the client's reads.
            sender.socket.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
            std::thread::scope(|scope| {
                let started = Instant::now();
                scope.spawn(move || sender.send(&input));
                let receiver = scope.spawn(|| client.expect(&output));
                eventually("the ring is full", || store.database().stats().wal_full > refused + 20);
                assert!(!receiver.is_finished(), "{name}: the transaction did not wait");
                // The disk is slow for a while, and then continues.
                for _ in 0..10 {
                    disk.hold_syncs(false);
                    std::thread::sleep(Duration::from_millis(1));
                    disk.hold_syncs(true);
                    std::thread::sleep(Duration::from_millis(10));
                }
                drop(goes_on);
                receiver.join().unwrap_or_else(|_| panic!("{name}: after {:?}", started.elapsed()));
            });
            client.ask("GET number", "$4\r\n1000");
            client.ask("EXISTS new1 new2 new3 renamed", ":1");
            client.send(&words("GET renamed"));
            client.expect(&bulk(&vec![b'l'; 50_000]));
            drop(client);
            server.shutdown().unwrap();
            store.close(false).unwrap();
            drop(store);

            let (store, server) = open(&disk, config.clone());
            let mut client = Client::new(server.local_addr());
            client.ask("GET number", "$4\r\n1000");
            client.ask("EXISTS new1 new2 new3 renamed", ":1");
            drop(client);
            server.shutdown().unwrap();
            store.close(false).unwrap();
        }
    }
}
