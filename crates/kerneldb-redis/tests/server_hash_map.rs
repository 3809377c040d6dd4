//! A server of a database on hash maps, whose event loop executes every command. Kernels before Linux 6.14 run this server.

mod calls;
mod common;
mod rebuild;
mod server;
mod upgrade;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::Shutdown;
use std::time::{Duration, Instant};

use bedplate_kerneldb::testing::SimulatedDisk;
use bedplate_kerneldb::wal::WalConfig;
use bedplate_kerneldb::{ACCOUNTS, Config, Durability, EngineKind, StoreConfig, VALUE_MAX, VOTER_PROCEDURES};
use bedplate_kerneldb_redis::server::{Server, ServerConfig};
use common::can_run;
use rebuild::store_config;
use server::{Client, Random, Running, bulk, config, eventually, no_checkpoints, request, start_on, words};
use upgrade::{Data, in_memory, upgrade_under_work};

fn database() -> Config {
    Config { engine: EngineKind::HashMap, memory_bytes: 64 << 20, max_sessions: 256, ..Config::default() }
}

fn start(config: ServerConfig) -> Running {
    server::start_with(database(), config)
}

#[test]
fn the_event_loop_answers_everything() {
    if !can_run() {
        return;
    }
    let running = start(config());
    let (mut c, mut other) = (running.client(), running.client());
    c.ask("SET a 1", "+OK");
    c.ask("INCR a", ":2");
    c.ask("GET a", "$1\r\n2");
    c.ask("SET a 3 NX", "$-1");
    c.ask("SET a 3 XX GET", "$1\r\n2");
    c.ask("APPEND a 45", ":3");
    c.ask("EXPIRE a 100", ":1");
    c.ask("TTL a", ":100");
    c.ask("PERSIST a", ":1");
    c.ask("MGET a b", "*2\r\n$3\r\n345\r\n$-1");
    c.ask("DEL a b", ":1");
    c.ask("DBSIZE", ":0");

    let value = vec![b'x'; VALUE_MAX];
    c.send(&request(&[b"SET", b"long", &value]));
    c.expect(b"+OK\r\n");
    c.ask("STRLEN long", &format!(":{VALUE_MAX}"));
    c.send(&words("GET long"));
    c.expect(&bulk(&value));

    // Transactions, their conflicts, and a snapshot that a later write does not change.
    c.ask("BEGIN", "+OK");
    c.ask("SET t 1", "+OK");
    other.ask("BEGIN READ ONLY", "+OK");
    other.ask("GET t", "$-1");
    let mut third = running.client();
    third.send(&words("SET t 2"));
    c.ask("COMMIT", "+OK");
    third.expect(b"+OK\r\n");
    other.ask("GET t", "$-1");
    other.ask("COMMIT", "+OK");
    c.ask("WATCH t", "+OK");
    c.ask("MULTI", "+OK");
    c.ask("INCR t", "+QUEUED");
    other.ask("SET t 7", "+OK");
    c.ask("EXEC", "*-1");
    c.ask("MULTI", "+OK");
    c.ask("INCR t", "+QUEUED");
    c.ask("GET t", "+QUEUED");
    c.ask("EXEC", "*2\r\n:8\r\n$1\r\n8");

    c.send(&words("BEDPLATE VERIFY"));
    let report = c.lines(2).remove(1);
    assert!(report.starts_with("sound: 2 keys"), "{report}");
    drop((c, other, third));
    running.finish();
}

#[test]
fn the_event_loop_runs_procedures() {
    if !can_run() {
        return;
    }
    let running = start(config());
    running.db.load_library("accounts", ACCOUNTS, false).unwrap();
    let mut client = running.client();
    calls::converse(&mut client);
    // A larger one, which the oldest kernel's verifier accepts, too.
    running.db.load_library("voter", VOTER_PROCEDURES, false).unwrap();
    client.ask("SET contestant:3 somebody", "+OK");
    client.ask("CALL voter_vote 2120000000 3 1", ":0");
    client.ask("CALL voter_vote 2120000000 3 1", ":2");
    client.ask("CALL voter_vote 2120000000 4 1", ":1");
    client.ask("CALL voter_results 3", ":1");
    drop(client);
    running.finish();
}

#[test]
fn pipelines_are_answered_completely_and_in_order() {
    /// The pipeline is sent this many times: 72 MB, more than the kernel's limits of both sockets' buffers
    /// (`tcp_wmem` and `tcp_rmem`: 4 MiB and, since Linux 6.18, 32 MiB).
    const ROUNDS: usize = 8;
    if !can_run() {
        return;
    }
    let running = start(config());
    let mut c = running.client();
    let (mut requests, mut replies) = (Vec::new(), Vec::new());
    for i in 0..6000 {
        let value = vec![b'a' + (i % 26) as u8; i % 3000];
        requests.extend(request(&[b"SET", b"key", &value]));
        requests.extend(words("GET key"));
        replies.extend(b"+OK\r\n");
        replies.extend(bulk(&value));
    }
    // The client sends more than the sockets hold, and reads only then.
    let mut sender = c.socket.try_clone().unwrap();
    let sending = std::thread::spawn(move || (0..ROUNDS).for_each(|_| sender.write_all(&requests).unwrap()));
    std::thread::sleep(Duration::from_millis(200));
    assert!(!sending.is_finished(), "the sockets hold {ROUNDS} times {} bytes of replies", replies.len());
    (0..ROUNDS).for_each(|_| c.expect(&replies));
    sending.join().unwrap();
    // A request that arrives in pieces.
    for byte in words("GET key") {
        c.send(&[byte]);
    }
    c.expect(&bulk(&[b'a' + (5999 % 26) as u8; 5999 % 3000]));
    // A client that has shut its sending side down still gets its replies.
    c.send(&[words("PING"), words("ECHO end")].concat());
    c.socket.shutdown(Shutdown::Write).unwrap();
    assert_eq!(c.rest(), b"+PONG\r\n$3\r\nend\r\n");
    running.finish();
}

#[test]
fn upgrades_keep_connections_and_data() {
    if !can_run() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let logged = StoreConfig {
        database: Config { wal_ring_bytes: 512 << 10, ..database() },
        ..store_config(Durability::Async)
    };
    upgrade_under_work(Data::Directory(dir.path().into()), logged, config());
    upgrade_under_work(Data::Memory, in_memory(database()), config());
}

#[test]
fn connections_are_limited_killed_and_closed_when_idle() {
    if !can_run() {
        return;
    }
    let running =
        start(ServerConfig { max_clients: 3, idle_timeout: Some(Duration::from_secs(1)), ..config() });
    let mut clients: Vec<Client> = (0..3).map(|_| running.client()).collect();
    clients.iter_mut().for_each(|c| c.ask("PING", "+PONG"));
    let mut refused = running.client();
    assert!(refused.rest().starts_with(b"-ERR max number of clients"));
    let (victim, killer) = clients.split_at_mut(1);
    victim[0].ask("CLIENT SETNAME victim", "+OK");
    victim[0].ask("BEGIN", "+OK");
    victim[0].ask("SET locked a", "+OK");
    victim[0].send(&words("CLIENT ID"));
    let id = victim[0].lines(1)[0].trim_start_matches(':').to_owned();
    killer[0].ask(&format!("CLIENT KILL ID {id}"), ":1");
    assert_eq!(victim[0].rest(), b"");
    // The transaction of the killed client is rolled back.
    eventually("the lock is free", || {
        killer[0].send(&words("SET locked b"));
        killer[0].lines(1)[0] == "+OK"
    });
    for c in &mut clients[1..] {
        assert_eq!(c.rest(), b"", "an idle connection is closed");
    }
    drop(clients);
    running.finish();
}

#[test]
fn passwords_pauses_and_timeouts_apply_to_connections() {
    if !can_run() {
        return;
    }
    let running = start(ServerConfig { password: "secret".into(), ..config() });
    let (mut admin, mut c) = (running.client(), running.client());
    admin.ask("AUTH secret", "+OK");
    c.ask("SET k v", "-NOAUTH Authentication required.");
    c.ask("AUTH wrong", "-WRONGPASS invalid username-password pair or user is disabled.");
    c.ask("AUTH secret", "+OK");
    c.ask("SET k v", "+OK");

    admin.ask("CLIENT PAUSE 60000 WRITE", "+OK");
    c.ask("GET k", "$1\r\nv");
    c.send(&[words("GET k"), words("SET k w"), words("GET k")].concat());
    c.expect(b"$1\r\nv\r\n");
    std::thread::sleep(Duration::from_millis(100));
    admin.ask("GET k", "$1\r\nv");
    admin.ask("CLIENT UNPAUSE", "+OK");
    c.expect(b"+OK\r\n$1\r\nw\r\n");
    let started = Instant::now();
    admin.ask("CLIENT PAUSE 300", "+OK");
    c.ask("GET k", "$1\r\nw");
    assert!(started.elapsed() >= Duration::from_millis(290), "{:?}", started.elapsed());

    // The setting holds for the connections that exist.
    admin.ask("CONFIG SET timeout 1", "+OK");
    assert_eq!(c.rest(), b"", "an idle connection is closed");
    drop((admin, c));
    running.finish();
}

/// The cursor of SCAN and the keys that it returned.
fn scan(client: &mut Client, cursor: &str, count: usize) -> (String, Vec<String>) {
    client.send(&words(&format!("SCAN {cursor} COUNT {count}")));
    let head = client.lines(4);
    let (cursor, keys) = (head[2].clone(), head[3].trim_start_matches('*').parse::<usize>().unwrap());
    let lines = client.lines(2 * keys);
    (cursor, lines.into_iter().skip(1).step_by(2).collect())
}

#[test]
fn scan_returns_every_key_that_stays() {
    if !can_run() {
        return;
    }
    const KEYS: usize = 30_000;
    let running = start(config());
    let mut c = running.client();
    let mut requests = Vec::new();
    (0..KEYS).for_each(|i| requests.extend(words(&format!("SET key{i} a"))));
    c.send(&requests);
    c.expect(&b"+OK\r\n".repeat(KEYS));
    c.ask("DBSIZE", &format!(":{KEYS}"));
    let expected: BTreeSet<String> = (0..KEYS).map(|i| format!("key{i}")).collect();
    std::thread::scope(|threads| {
        // Another client creates and deletes keys meanwhile.
        threads.spawn(|| {
            let mut other = running.client();
            let mut random = Random(7);
            for _ in 0..10_000 {
                let key = format!("other{}", random.below(1000));
                other.send(&[words(&format!("SET {key} b")), words(&format!("DEL {key}"))].concat());
                other.expect(b"+OK\r\n:1\r\n");
            }
        });
        for count in [10, 1000, 100_000] {
            let (mut cursor, mut seen, mut most) = ("0".to_owned(), BTreeSet::new(), 0);
            loop {
                let (next, keys) = scan(&mut c, &cursor, count);
                most = most.max(keys.len());
                seen.extend(keys.into_iter().filter(|key| key.starts_with("key")));
                if next == "0" {
                    break;
                }
                cursor = next;
            }
            assert_eq!(seen, expected, "COUNT {count}");
            assert!(most <= 3 * count + 100, "COUNT {count} returned {most} keys");
        }
    });
    for _ in 0..20 {
        c.send(&words("RANDOMKEY"));
        assert!(expected.contains(&c.lines(2)[1]));
    }
    c.ask("FLUSHALL", "+OK");
    // Entries of deleted keys stay for a moment, and make the draw unequal. Without them, each of a few keys has the same probability.
    eventually("the entries of deleted keys are collected", || running.db.stats().entries == 0);
    c.ask("MSET first 1 second 2 third 3", "+OK");
    c.send(&words("RANDOMKEY").repeat(600));
    let mut drawn = BTreeMap::<String, u32>::new();
    c.lines(1200).into_iter().skip(1).step_by(2).for_each(|key| *drawn.entry(key).or_default() += 1);
    assert!(drawn.len() == 3 && drawn.values().all(|times| (100..=300).contains(times)), "{drawn:?}");
    c.ask("DEL first second third", ":3");
    c.ask("DBSIZE", ":0");
    c.ask("RANDOMKEY", "$-1");
    assert_eq!(scan(&mut c, "0", 10), ("0".to_owned(), Vec::new()));
    drop(c);
    running.finish();
}

#[test]
fn a_full_memory_is_an_error_until_keys_are_deleted() {
    if !can_run() {
        return;
    }
    let running = server::start_with(Config { memory_bytes: 16 << 20, ..database() }, config());
    let mut c = running.client();
    let value = vec![b'v'; 10_000];
    let mut stored = 0;
    let error = loop {
        c.send(&request(&[b"SET", format!("key{stored}").as_bytes(), &value]));
        let reply = c.lines(1).remove(0);
        if reply != "+OK" {
            break reply;
        }
        stored += 1;
    };
    assert!(error.starts_with("-OOM"), "{error}");
    assert!(stored > 500, "{stored} values of 10 kB in 16 MiB");
    c.send(&words("GET key0"));
    c.expect(&bulk(&value));
    c.ask(&format!("DEL {}", (0..100).map(|i| format!("key{i}")).collect::<Vec<_>>().join(" ")), ":100");
    eventually("memory is free again", || {
        c.send(&request(&[b"SET", b"again", &value]));
        c.lines(1)[0] == "+OK"
    });
    drop(c);
    running.finish();
}

/// Keys expire, and a data directory is for both engines.
#[test]
fn data_directories_are_for_both_engines() {
    if !can_run() {
        return;
    }
    let engines = match EngineKind::of_this_kernel().unwrap() {
        EngineKind::Arena => [EngineKind::HashMap, EngineKind::Arena, EngineKind::HashMap],
        EngineKind::HashMap => [EngineKind::HashMap; 3],
    };
    let mut disk = SimulatedDisk::new();
    let mut random = Random(11);
    for (round, engine) in engines.into_iter().enumerate() {
        let store = StoreConfig {
            database: Config { engine, ..database() },
            wal: Some(WalConfig { durability: Durability::Sync, ..WalConfig::default() }),
            checkpoint: no_checkpoints(),
            ..StoreConfig::default()
        };
        let (store, server) = start_on(&disk, store, config());
        let mut c = Client::new(server.local_addr());
        for earlier in 0..round {
            c.ask(&format!("GET in-checkpoint{earlier}"), "$1\r\na");
            c.ask(&format!("GET in-log{earlier}"), "$1\r\nb");
            c.ask(&format!("GET deleted{earlier}"), "$-1");
            c.send(&words(&format!("TTL expiring{earlier}")));
            let ttl: u32 = c.lines(1)[0].trim_start_matches(':').parse().unwrap();
            assert!((900..=1000).contains(&ttl), "{ttl}");
        }
        c.ask(&format!("SET in-checkpoint{round} a"), "+OK");
        c.ask(&format!("SET deleted{round} a"), "+OK");
        c.ask("SAVE", "+OK");
        c.ask(&format!("DEL deleted{round}"), ":1");
        c.ask(&format!("SET expiring{round} a EX 1000"), "+OK");
        c.ask("MULTI", "+OK");
        c.ask(&format!("SET in-log{round} b"), "+QUEUED");
        c.ask("EXEC", "*1\r\n+OK");
        c.ask("SET gone a PX 20", "+OK");
        eventually("the key is deleted", || {
            c.send(&words("DBSIZE"));
            c.lines(1)[0] == format!(":{}", 3 * (round + 1))
        });
        let after = disk.crash(&mut |n| random.below(n));
        drop(c);
        server.shutdown().unwrap();
        store.close(false).unwrap();
        disk = after;
    }
}

#[test]
fn the_local_fast_path_is_refused() {
    if !can_run() {
        return;
    }
    let store = StoreConfig { database: database(), ..StoreConfig::default() };
    let (store, _) = SimulatedDisk::new().open(store).unwrap();
    let refused = Server::start(store.into(), ServerConfig { local_fast_path: true, ..config() });
    let error = refused.err().unwrap().to_string();
    assert!(error.contains("needs the arena engine"), "{error}");
}
