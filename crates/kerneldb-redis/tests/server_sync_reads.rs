//! With durability `sync`, no reply reveals a commit that a crash can undo.

mod common;
mod server;

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bedplate_kerneldb::testing::SimulatedDisk;
use bedplate_kerneldb::wal::WalConfig;
use bedplate_kerneldb::{ACCOUNTS, Durability, Store, StoreConfig};
use bedplate_kerneldb_redis::server::{ServerConfig, ServerHandle};
use common::{can_run, small};
use server::{Client, Random, config, eventually, no_checkpoints, start_on, ways, words};

fn open(disk: &SimulatedDisk, server: ServerConfig) -> (Arc<Store>, ServerHandle) {
    let config = StoreConfig {
        database: small(),
        wal: Some(WalConfig { durability: Durability::Sync, segment_bytes: 1 << 20, ..WalConfig::default() }),
        checkpoint: no_checkpoints(),
        ..StoreConfig::default()
    };
    let (store, server) = start_on(disk, config, server);
    store.load_library("accounts", ACCOUNTS, false).unwrap();
    (store, server)
}

/// Requests that reveal another client's writes, with the replies that reveal nothing and come first. `#` is
/// the number of the request; each one has its own keys.
const REVEALING: &[(&str, &str)] = &[
    ("GET new#", ""),
    ("GET gone#", ""),
    ("GET expired#", ""),
    ("EXISTS new#", ""),
    ("EXISTS gone#", ""),
    ("TOUCH gone# durable", ""),
    ("STRLEN new#", ""),
    ("GETRANGE new# 0 -1", ""),
    ("TTL new#", ""),
    ("PTTL gone#", ""),
    ("EXPIRETIME expired#", ""),
    ("TYPE gone#", ""),
    ("OBJECT ENCODING new#", ""),
    ("MEMORY USAGE new#", ""),
    ("MGET durable new#", ""),
    ("GETEX new#", ""),
    ("GETDEL gone#", ""),
    ("SETNX new# x", ""),
    ("SET new# x NX", ""),
    ("SET gone# x XX", ""),
    ("SET new# x NX GET", ""),
    ("CAS new# wrong x", ""),
    ("CAS gone# wrong x", ""),
    ("MSETNX new# x", ""),
    ("INCR new#", ""),
    ("INCRBYFLOAT new# word", ""),
    ("APPEND new# x", ""),
    ("EXPIRE gone# 10", ""),
    ("PERSIST new#", ""),
    ("RENAMENX durable new#", ""),
    ("RENAME gone# x", ""),
    ("COPY durable new#", ""),
    ("DEL gone#", ""),
    ("CALL account_balance new#", ""),
    ("CALL account_balance gone#", ""),
    ("CALL account_open new# 1", ""),
    ("DBSIZE", ""),
    ("KEYS new*", ""),
    ("SCAN 0", ""),
    ("RANDOMKEY", ""),
    ("MULTI|GET new#|EXEC", "+OK\r\n+QUEUED\r\n"),
    ("MULTI|SETNX new# x|EXEC", "+OK\r\n+QUEUED\r\n"),
    ("MULTI|DBSIZE|EXEC", "+OK\r\n+QUEUED\r\n"),
    ("BEGIN|GET new#", "+OK\r\n"),
    ("BEGIN|DEL gone#", "+OK\r\n"),
    ("BEGIN|DEL new#", "+OK\r\n"),
    ("BEGIN|SETNX gone# x", "+OK\r\n"),
    ("BEGIN READ ONLY|GET new#", "+OK\r\n"),
    ("BEGIN READ ONLY|GET gone#", "+OK\r\n"),
];

fn requests(line: &str, number: usize) -> Vec<u8> {
    line.replace('#', &number.to_string()).split('|').flat_map(words).collect()
}

#[test]
fn a_reply_waits_for_the_commits_that_it_reveals() {
    if !can_run() {
        return;
    }
    for way in ways() {
        let disk = SimulatedDisk::new();
        let (store, server) = open(&disk, way);
        let mut writer = Client::new(server.local_addr());
        writer.ask("SET durable v", "+OK");
        for i in 0..REVEALING.len() {
            writer.ask(&format!("SET gone{i} v"), "+OK");
            writer.ask(&format!("SET expired{i} v"), "+OK");
        }
        disk.hold_syncs(true);
        let durable = store.database().durable_ts();
        for i in 0..REVEALING.len() {
            for line in ["SET new# 1", "DEL gone#", "SET expired# w PX 1"] {
                writer.send(&requests(line, i));
            }
        }
        let writes = 3 * REVEALING.len() as u64;
        eventually("everything is written", || store.database().clock() >= durable + writes);
        std::thread::sleep(Duration::from_millis(5));
        // A client that asks for less is answered at once, and so is a client that sees nothing new.
        let mut relaxed = Client::new(server.local_addr());
        relaxed.ask("BEDPLATE DURABILITY ASYNC", "+OK");
        relaxed.ask("GET new0", "$1\r\n1");
        relaxed.ask("GET gone0", "$-1");
        relaxed.ask("SETNX new0 x", ":0");
        let mut strict = Client::new(server.local_addr());
        for _ in 0..3 {
            strict.ask("GET durable", "$1\r\nv");
            strict.ask("PING", "+PONG");
        }
        strict.ask("EXISTS durable", ":1");
        let released = AtomicBool::new(false);
        let early = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            let mut waiting = Vec::new();
            for (i, (line, first)) in REVEALING.iter().enumerate() {
                let mut client = Client::new(server.local_addr());
                client.send(&requests(line, i));
                let (released, early) = (&released, &early);
                waiting.push(scope.spawn(move || {
                    client.expect(first.as_bytes());
                    client.socket.read_exact(&mut [0]).unwrap();
                    if !released.load(Ordering::SeqCst) {
                        early.lock().unwrap().push(*line);
                    }
                }));
            }
            // The test can only wait for some time, because no reply may come.
            std::thread::sleep(Duration::from_millis(300));
            relaxed.ask("GET durable", "$1\r\nv");
            released.store(true, Ordering::SeqCst);
            disk.hold_syncs(false);
        });
        assert_eq!(*early.lock().unwrap(), [""; 0], "answered before the disk had what the reply reveals");
        writer.expect(&b"+OK\r\n:1\r\n+OK\r\n".repeat(REVEALING.len()));
        drop((writer, relaxed, strict));
        server.shutdown().unwrap();
        store.close(false).unwrap();
    }
}

/// Reads that reveal only durable commits are as cheap as in other modes, because the kernel answers them.
#[test]
fn reads_of_durable_data_stay_with_the_kernel() {
    if !can_run() {
        return;
    }
    let (store, server) = open(&SimulatedDisk::new(), config());
    let mut client = Client::new(server.local_addr());
    client.ask("SET gone v", "+OK");
    client.ask("DEL gone", ":1");
    client.ask("SET durable v", "+OK");
    let before = server.stats().unwrap();
    for _ in 0..100 {
        client.ask("GET durable", "$1\r\nv");
        client.ask("GET gone", "$-1");
        client.ask("GET never", "$-1");
    }
    let after = server.stats().unwrap();
    assert_eq!(after.passed, before.passed, "requests went to user space");
    assert_eq!(after.kernel_commands, before.kernel_commands + 300);
    drop(client);
    server.shutdown().unwrap();
    store.close(false).unwrap();
}

/// The number of the newest state of each writer's keys that a reply has revealed to a client.
type Told = Arc<Mutex<[u64; WRITERS]>>;

const WRITERS: usize = 3;
const READERS: usize = 4;

/// Brings the key `k` from state to state. In odd states its value is the state's number; in even states it is
/// absent. The key `n` always has the number.
fn write(mut client: Client, writer: usize, told: &Told, stop: &AtomicBool) {
    let mut state = told.lock().unwrap()[writer];
    while !stop.load(Ordering::SeqCst) {
        state += 1;
        let change = if state % 2 == 1 { format!("SET k{writer} {state}") } else { format!("DEL k{writer}") };
        let lines = ["MULTI".into(), change, format!("SET n{writer} {state}"), "EXEC".into()];
        client.send(&lines.iter().flat_map(|line| words(line)).collect::<Vec<_>>());
        let Some(lines) = client.try_lines(6) else { return };
        assert_eq!(lines[3], "*2", "{lines:?}");
        let mut told = told.lock().unwrap();
        told[writer] = told[writer].max(state);
    }
}

/// Asks for the state of a writer's keys in many ways, and records the states in the replies.
fn read(mut client: Client, mut random: Random, told: &Told, stop: &AtomicBool) {
    while !stop.load(Ordering::SeqCst) {
        let writer = random.below(WRITERS);
        let before = told.lock().unwrap()[writer];
        let way = random.below(7);
        let (lines, replies) = match way {
            0 => (format!("GET k{writer}"), 1),
            1 => (format!("EXISTS k{writer}"), 1),
            2 => (format!("STRLEN k{writer}"), 1),
            3 => (format!("SET k{writer} x NX"), 1),
            4 => (format!("GET n{writer}"), 1),
            5 => (format!("MULTI|EXISTS k{writer}|EXEC"), 4),
            _ => (format!("BEGIN READ ONLY|EXISTS k{writer}|COMMIT"), 3),
        };
        // This CAS never succeeds, because the key must not get another writer.
        let lines = if way == 3 { format!("CAS k{writer} none x") } else { lines };
        client.send(&requests(&lines, 0));
        let Some(mut lines) = client.try_lines(replies) else { return };
        if lines[0].starts_with('$') && lines[0] != "$-1" {
            let Some(value) = client.try_lines(1) else { return };
            lines.extend(value);
        }
        let odd = |odd: bool| if odd == (before % 2 == 1) { before } else { before + 1 };
        let state = match way {
            0 | 4 if lines[0] == "$-1" => odd(false),
            0 | 4 => lines[1].parse().unwrap(),
            1 => odd(lines[0] == ":1"),
            2 => odd(lines[0] != ":0"),
            3 => before,
            5 => odd(lines[3] == ":1"),
            _ => odd(lines[1] == ":1"),
        };
        let mut told = told.lock().unwrap();
        told[writer] = told[writer].max(state);
    }
}

/// Clients write and read while the disk stalls now and then, and the machine crashes: the recovered state is never
/// older than any reply.
#[test]
fn a_crash_takes_nothing_back_that_a_reply_told() {
    if !can_run() {
        return;
    }
    let seed = std::env::var("BEDPLATE_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()) << 20 | 1);
    println!("BEDPLATE_TEST_SEED={seed}");
    let mut random = Random(seed);
    let mut disk = SimulatedDisk::new();
    let told: Told = Arc::default();
    let rounds =
        std::env::var("BEDPLATE_TEST_CRASHES").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(3);
    for round in 0..rounds {
        let (store, server) = open(&disk, ways().swap_remove(round % ways().len()));
        let addr = server.local_addr();
        let stop = AtomicBool::new(false);
        let (after, promised) = std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (told, stop) = (&told, &stop);
                scope.spawn(move || write(Client::new(addr), writer, told, stop));
            }
            for _ in 0..READERS {
                let (told, stop, random) = (&told, &stop, Random(random.next() | 1));
                scope.spawn(move || read(Client::new(addr), random, told, stop));
            }
            for _ in 0..8 {
                disk.hold_syncs(false);
                std::thread::sleep(Duration::from_micros(random.below(20_000) as u64));
                disk.hold_syncs(true);
                std::thread::sleep(Duration::from_micros(random.below(20_000) as u64));
            }
            // While the lock is held, all recorded states came before the crash.
            let promised = told.lock().unwrap();
            let after = disk.crash(&mut |n| random.below(n));
            let promised_then = *promised;
            drop(promised);
            stop.store(true, Ordering::SeqCst);
            disk.hold_syncs(false);
            (after, promised_then)
        });
        server.shutdown().unwrap();
        store.close(false).unwrap();
        drop(store);

        disk = after;
        let (store, server) = open(&disk, config());
        let mut client = Client::new(server.local_addr());
        let mut recovered = [0; WRITERS];
        for writer in 0..WRITERS {
            client.send(&requests(&format!("GET n{writer}"), 0));
            if client.lines(1)[0] != "$-1" {
                recovered[writer] = client.lines(1)[0].parse().unwrap();
            }
            let (state, told) = (recovered[writer], promised[writer]);
            assert!(state >= told, "round {round}: state {state} of writer {writer} after the reply {told}");
            client.ask(&format!("EXISTS k{writer}"), &format!(":{}", state % 2));
        }
        assert!(round > 0 || recovered.iter().sum::<u64>() > 0, "nothing was written");
        *told.lock().unwrap() = recovered;
        drop(client);
        server.shutdown().unwrap();
        store.close(false).unwrap();
    }
}
