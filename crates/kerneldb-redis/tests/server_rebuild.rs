//! Changes of the database's options while clients work: no request fails, and no data is lost.

mod common;
mod rebuild;
mod server;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bedplate_kerneldb::testing::SimulatedDisk;
use bedplate_kerneldb::{ACCOUNTS, Config, Durability, EngineKind, Store, StoreConfig};
use bedplate_kerneldb_redis::server::{Server, ServerConfig};
use common::{can_run, small};
use rebuild::work::{Work, check};
use rebuild::{attach_handler, change, open, scan, serve, started, stop, store_config, wait_for_tick};
use server::{Client, Random, config, start, ways, words};

/// Options, each of which differs from the ones before.
const CHANGES: [&str; 8] = [
    "versions 8",
    "maxmemory 128mb",
    "appendonly no",
    "maxmemory 64mb versions 2",
    "appendonly yes",
    "appendfsync always",
    "wal-ring-bytes 1mb",
    "appendfsync everysec versions 1",
];

/// Changes options under work, checks each, and restarts the server at the end.
fn change_under_work(database: Config, server: ServerConfig, changes: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let database = Config { wal_ring_bytes: 512 << 10, ..database };
    let config = || StoreConfig { database: database.clone(), ..store_config(Durability::Async) };
    let running = serve(open(dir.path(), config()), server.clone());
    let mut admin = Client::new(running.local_addr());
    // Values of all kinds of places: in entries, in blocks, in slabs of their own, with an expiry.
    for (key, bytes) in [("short", 3), ("block", 300), ("long", 40_000)] {
        admin.send(&words(&format!("SET {key} {}", "v".repeat(bytes))));
        admin.expect(b"+OK\r\n");
    }
    admin.ask("SET expiring v EX 1000", "+OK");
    admin.ask("CLIENT SETNAME the-admin", "+OK");
    let work = Work::begin(running.local_addr());
    for options in changes {
        assert_eq!(change(&mut admin, options), "+OK", "{options}");
        let words: Vec<&str> = options.split(' ').collect();
        for pair in words.chunks(2) {
            admin.send(&server::words(&format!("CONFIG GET {}", pair[0])));
            let shown = admin.lines(5).remove(4);
            let expected = match pair[1].strip_suffix("mb") {
                Some(mb) => (mb.parse::<u64>().unwrap() << 20).to_string(),
                None => pair[1].to_owned(),
            };
            assert_eq!(shown, expected, "{options}");
        }
        thread::sleep(Duration::from_millis(100));
    }
    let done = work.end();
    check(&mut admin, &done);
    admin.ask("CLIENT GETNAME", "$9\r\nthe-admin");
    admin.ask("STRLEN long", ":40000");
    admin.ask("STRLEN block", ":300");
    admin.ask("STRLEN short", ":3");
    admin.send(&words("TTL expiring"));
    let ttl: u64 = admin.lines(1)[0][1..].parse().unwrap();
    assert!((800..=1000).contains(&ttl), "{ttl}");
    admin.send(&words("INFO bedplate"));
    let info = admin.until("\r\n\r\n");
    assert!(info.contains(&format!("database_rebuilds:{}", changes.len())), "{info}");
    if server.kernel_path && database.engine == EngineKind::Arena {
        // The kernel answers again, on the new database.
        let before = running.stats().unwrap().kernel_commands;
        for _ in 0..100 {
            admin.ask("GET short", "$3\r\nvvv");
        }
        assert!(running.stats().unwrap().kernel_commands >= before + 90);
    }
    assert_eq!(running.stats().unwrap().broken, 0);
    drop(admin);
    stop(running);
    let running = serve(open(dir.path(), config()), server);
    check(&mut Client::new(running.local_addr()), &done);
    stop(running);
}

#[test]
fn options_change_while_clients_work() {
    if !can_run() {
        return;
    }
    for (i, way) in ways().into_iter().enumerate() {
        change_under_work(small(), way, if i == 0 { &CHANGES } else { &CHANGES[..3] });
    }
}

#[test]
fn options_of_hash_maps_change_while_clients_work() {
    if !can_run() {
        return;
    }
    let database = Config { engine: EngineKind::HashMap, ..small() };
    change_under_work(
        database,
        config(),
        &["versions 8", "maxmemory 96mb", "appendonly no", "appendonly yes"],
    );
}

/// A store without a data directory keeps the data in memory, and has no log.
#[test]
fn options_of_a_database_in_memory_change_while_clients_work() {
    if !can_run() {
        return;
    }
    for engine in [EngineKind::Arena, EngineKind::HashMap] {
        let database = Config { engine, ..small() };
        let running = serve(Store::in_memory(database).unwrap(), config());
        let mut admin = Client::new(running.local_addr());
        admin.ask("SET expiring v EX 1000", "+OK");
        let work = Work::begin(running.local_addr());
        for options in ["versions 8", "maxmemory 128mb", "maxmemory 64mb versions 2"] {
            assert_eq!(change(&mut admin, options), "+OK", "{options}");
            thread::sleep(Duration::from_millis(100));
        }
        check(&mut admin, &work.end());
        admin.send(&words("TTL expiring"));
        let ttl: u64 = admin.lines(1)[0][1..].parse().unwrap();
        assert!((800..=1000).contains(&ttl), "{ttl}");
        // Nothing can be saved, as before.
        for options in ["appendonly yes", "appendonly yes versions 4"] {
            assert_eq!(change(&mut admin, options), "-ERR there is no data directory");
        }
        admin.ask("SAVE", "-ERR there is no data directory");
        admin.ask("BGSAVE", "-ERR there is no data directory");
        admin.ask("CONFIG GET versions", "*2\r\n$8\r\nversions\r\n$1\r\n2");
        drop(admin);
        running.shutdown().unwrap();
    }
}

/// The number of partitions goes with the memory, and one that was asked for stays.
#[test]
fn a_database_of_several_partitions_changes() {
    if !can_run() {
        return;
    }
    let database = Config { partitions: 3, memory_bytes: 96 << 20, ..small() };
    change_under_work(database, config(), &["versions 8", "maxmemory 128mb"]);
}

/// A watched key that has not changed is not changed by the new database. One that has changed stays so.
#[test]
fn watches_hold_over_a_change() {
    if !can_run() {
        return;
    }
    let (_dir, running) = started();
    let client = || Client::new(running.local_addr());
    let (mut admin, mut same, mut changed, mut absent, mut late) =
        (client(), client(), client(), client(), client());
    admin.ask("SET a 1", "+OK");
    admin.ask("SET b 1", "+OK");
    same.ask("WATCH a never", "+OK");
    changed.ask("WATCH b", "+OK");
    absent.ask("WATCH c", "+OK");
    late.ask("WATCH a", "+OK");
    late.ask("MULTI", "+OK");
    late.ask("INCR late", "+QUEUED");
    admin.ask("SET b 1", "+OK");
    admin.ask("SET c 1", "+OK");
    admin.ask("DEL c", ":1");
    assert_eq!(change(&mut admin, "versions 8"), "+OK");
    for (client, reply) in [(&mut same, "*1\r\n:1"), (&mut changed, "*-1")] {
        client.ask("MULTI", "+OK");
        client.ask("INCR x", "+QUEUED");
        client.ask("EXEC", reply);
    }
    // As before: a key that came and went is as absent as it was.
    absent.ask("MULTI", "+OK");
    absent.ask("INCR y", "+QUEUED");
    absent.ask("EXEC", "*1\r\n:1");
    admin.ask("SET a 2", "+OK");
    late.ask("EXEC", "*-1");
    drop((admin, same, changed, absent, late));
    stop(running);
}

/// A SCAN that goes on over changes returns every key.
#[test]
fn a_scan_goes_on_over_changes() {
    if !can_run() {
        return;
    }
    let (_dir, running) = started();
    let (mut admin, mut scanner) = (Client::new(running.local_addr()), Client::new(running.local_addr()));
    for i in 0..2000 {
        admin.ask(&format!("SET key{i} {i}"), "+OK");
    }
    let mut seen = BTreeSet::new();
    let (mut cursor, mut calls) = ("0".to_owned(), 0);
    loop {
        cursor = scan(&mut scanner, &cursor, 10, &mut seen);
        calls += 1;
        if calls == 5 || calls == 10 {
            let options = if calls == 5 { "maxmemory 128mb" } else { "maxmemory 64mb" };
            assert_eq!(change(&mut admin, options), "+OK");
        }
        if cursor == "0" {
            break;
        }
    }
    assert!(calls > 10, "{calls}");
    assert_eq!(seen.len(), 2000);
    drop((admin, scanner));
    stop(running);
}

/// A FLUSHALL that is under way ends before the database goes, so it deletes everything.
#[test]
fn a_flush_is_not_cut_in_two() {
    if !can_run() {
        return;
    }
    let (_dir, running) = started();
    let (mut admin, mut flusher) = (Client::new(running.local_addr()), Client::new(running.local_addr()));
    for round in 0..4 {
        let keys: Vec<u8> = (0..5000).flat_map(|i| words(&format!("SET key{i} {i}"))).collect();
        flusher.send(&keys);
        flusher.expect("+OK\r\n".repeat(5000).as_bytes());
        flusher.send(&words("FLUSHALL"));
        assert_eq!(change(&mut admin, &format!("versions {}", 2 + round % 2)), "+OK");
        flusher.expect(b"+OK\r\n");
        flusher.ask("DBSIZE", ":0");
    }
    drop((admin, flusher));
    stop(running);
}

/// An open transaction is waited for. If it takes too long, nothing changes, and it goes on.
#[test]
fn an_open_transaction_is_not_cut_off() {
    if !can_run() {
        return;
    }
    let (_dir, running) = started();
    let client = || Client::new(running.local_addr());
    let (mut admin, mut holder, mut other) = (client(), client(), client());
    holder.ask("BEGIN", "+OK");
    holder.ask("SET held 1", "+OK");
    let start = Instant::now();
    admin.send(&words("CONFIG SET versions 8"));
    // A command that begins a transaction waits, and the open transaction goes on.
    thread::sleep(Duration::from_millis(100));
    other.send(&words("SET waits 1"));
    holder.ask("SET held 2", "+OK");
    let reply = admin.lines(1).remove(0);
    assert_eq!(reply, "-TRYAGAIN the database stays as it is: transactions of 1 clients are open");
    assert!(start.elapsed() >= Duration::from_secs(4));
    other.expect(b"+OK\r\n");
    holder.ask("COMMIT", "+OK");
    admin.ask("CONFIG GET versions", "*2\r\n$8\r\nversions\r\n$1\r\n4");
    // A transaction that ends in time does not hold it up.
    holder.ask("BEGIN", "+OK");
    holder.ask("SET held 3", "+OK");
    admin.send(&words("CONFIG SET versions 8"));
    thread::sleep(Duration::from_millis(100));
    holder.ask("COMMIT", "+OK");
    admin.expect(b"+OK\r\n");
    admin.ask("GET held", "$1\r\n3");
    // In a transaction of its own, the client would wait for itself.
    admin.ask("BEGIN", "+OK");
    admin.ask("CONFIG SET versions 4", "-ERR an option of the database cannot be set inside a transaction");
    admin.ask("ROLLBACK", "+OK");
    admin.ask("MULTI", "+OK");
    admin.ask("CONFIG SET versions 4", "+QUEUED");
    admin.ask("EXEC", "*1\r\n-ERR an option of the database cannot be set inside a transaction");
    drop((admin, holder, other));
    stop(running);
}

/// MULTI's queue is in the kernel, and its keys are in other partitions afterwards.
#[test]
fn a_queue_of_multi_goes_on_in_another_partition() {
    if !can_run() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let database = Config { partitions: 3, memory_bytes: 96 << 20, wal_ring_bytes: 512 << 10, ..small() };
    let running =
        serve(open(dir.path(), StoreConfig { database, ..store_config(Durability::Async) }), config());
    let mut admin = Client::new(running.local_addr());
    let mut clients: Vec<Client> = (0..8).map(|_| Client::new(running.local_addr())).collect();
    for (i, client) in clients.iter_mut().enumerate() {
        client.ask("MULTI", "+OK");
        client.ask(&format!("SET key{i} {i}"), "+QUEUED");
        client.ask(&format!("GET key{i}"), "+QUEUED");
    }
    // There are as many partitions as before, but the hash has another secret.
    assert_eq!(change(&mut admin, "versions 8"), "+OK");
    for (i, client) in clients.iter_mut().enumerate().take(4) {
        client.ask("EXEC", &format!("*2\r\n+OK\r\n$1\r\n{i}"));
    }
    assert_eq!(change(&mut admin, "versions 2"), "+OK");
    for (i, client) in clients.iter_mut().enumerate().skip(4) {
        client.ask("EXEC", &format!("*2\r\n+OK\r\n$1\r\n{i}"));
    }
    admin.ask("DBSIZE", ":8");
    drop((admin, clients));
    stop(running);
}

/// A durability that a client has chosen stays. One that it has not chosen is the server's.
#[test]
fn a_chosen_durability_stays() {
    if !can_run() {
        return;
    }
    let (_dir, running) = started();
    let client = || Client::new(running.local_addr());
    let (mut admin, mut chooser, mut other) = (client(), client(), client());
    chooser.ask("BEDPLATE DURABILITY SYNC", "+OK");
    let modes = |chooser: &mut Client, other: &mut Client, expected: [&str; 2]| {
        for (client, mode) in [chooser, other].into_iter().zip(expected) {
            client.ask("BEDPLATE DURABILITY", &format!("${}\r\n{mode}", mode.len()));
        }
    };
    modes(&mut chooser, &mut other, ["sync", "async"]);
    for (options, expected) in [
        ("appendfsync always", ["sync", "sync"]),
        ("appendfsync everysec", ["sync", "async"]),
        ("appendonly no", ["off", "off"]),
        ("appendonly yes", ["sync", "async"]),
    ] {
        // A reply that waits for the disk, and one that waits for a durable commit, come before the change or after it.
        chooser.send(&words("SET chosen 1"));
        other.send(&words("WAITAOF 1 0 0"));
        let has_log = running.store().get().is_some_and(|store| store.wal().is_some());
        assert_eq!(change(&mut admin, options), "+OK", "{options}");
        chooser.expect(b"+OK\r\n");
        match has_log {
            true => other.expect(b"*2\r\n:1\r\n:0\r\n"),
            false => drop(other.lines(1)),
        }
        modes(&mut chooser, &mut other, expected);
    }
    drop((admin, chooser, other));
    stop(running);
}

/// A transaction that has failed does not hold a change up, and its client still hears of the failure.
#[test]
fn a_failed_transaction_is_no_open_one() {
    if !can_run() {
        return;
    }
    let (_dir, running) = started();
    let client = || Client::new(running.local_addr());
    let (mut admin, mut holder, mut failed) = (client(), client(), client());
    holder.ask("BEGIN", "+OK");
    holder.ask("SET k 1", "+OK");
    failed.ask("BEGIN", "+OK");
    failed.ask("SET k 2", "-CONFLICT conflict with another transaction");
    holder.ask("ROLLBACK", "+OK");
    let mut idle = client();
    admin.ask("CONFIG SET transaction-idle-timeout 300", "+OK");
    idle.ask("BEGIN", "+OK");
    idle.ask("SET idle 1", "+OK");
    thread::sleep(Duration::from_millis(1500));
    admin.ask("CONFIG SET transaction-idle-timeout 60000", "+OK");
    let start = Instant::now();
    assert_eq!(change(&mut admin, "versions 8"), "+OK");
    assert!(start.elapsed() < Duration::from_secs(4), "it did not wait for them");
    failed.ask("GET k", "-TXFAILED the transaction has failed and can only be rolled back");
    failed.ask("COMMIT", "-TXFAILED the transaction had failed and was rolled back");
    failed.ask("GET k", "$-1");
    idle.ask("GET k", "-TXFAILED the transaction exceeded its time limit and was rolled back");
    idle.ask("ROLLBACK", "+OK");
    idle.ask("SET idle 2", "+OK");
    drop((admin, holder, failed, idle));
    stop(running);
}

/// Clients come, go, and are killed while a change waits for a transaction. A shutdown ends the request.
#[test]
fn clients_come_and_go_while_a_change_waits() {
    if !can_run() {
        return;
    }
    let (dir, running) = started();
    let client = || Client::new(running.local_addr());
    let (mut admin, mut holder, mut leaver) = (client(), client(), client());
    leaver.ask("PING", "+PONG");
    holder.ask("BEGIN", "+OK");
    holder.ask("SET k 1", "+OK");
    admin.send(&words("CONFIG SET versions 8"));
    thread::sleep(Duration::from_millis(100));
    drop(leaver);
    let mut newcomer = client();
    newcomer.send(&words("INCR n"));
    // The end of the connection ends its transaction.
    drop(holder);
    admin.expect(b"+OK\r\n");
    newcomer.expect(b":1\r\n");
    let mut second = client();
    let mut holder = client();
    holder.ask("BEGIN", "+OK");
    admin.send(&words("CONFIG SET versions 4"));
    thread::sleep(Duration::from_millis(100));
    second.send(&words("CONFIG SET versions 2"));
    // It waits as others do, and the first one ends with an error.
    let reply = admin.lines(1).remove(0);
    assert!(reply.starts_with("-TRYAGAIN"), "{reply}");
    holder.ask("ROLLBACK", "+OK");
    second.expect(b"+OK\r\n");
    admin.ask("CONFIG GET versions", "*2\r\n$8\r\nversions\r\n$1\r\n2");
    holder.ask("BEGIN", "+OK");
    admin.send(&words("CONFIG SET versions 4"));
    thread::sleep(Duration::from_millis(100));
    drop((newcomer, second));
    stop(running);
    assert_eq!(open(dir.path(), store_config(Durability::Async)).database().len(), 1);
}

/// An option that the server cannot apply changes nothing, and the server goes on. A scan that was under way finds all keys.
#[test]
fn a_refused_option_changes_nothing() {
    if !can_run() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let server = ServerConfig { procedure_loading: true, ..config() };
    let running = serve(open(dir.path(), store_config(Durability::Async)), server);
    let (mut admin, mut client) = (Client::new(running.local_addr()), Client::new(running.local_addr()));
    let value = "v".repeat(60_000);
    for i in 0..600 {
        client.send(&words(&format!("SET key{i} {value}")));
        client.expect(b"+OK\r\n");
    }
    let mut seen = BTreeSet::new();
    let mut cursor = scan(&mut client, "0", 10, &mut seen);
    for (options, reason) in [
        // 36 MB do not fit.
        ("maxmemory 16mb", "which do not fit into 16777216 bytes"),
        // This is found when the old database is gone, so the server goes back to it.
        ("wal-ring-bytes 1gb", "ERR "),
        ("maxmemory 36mb", "which do not fit into 37748736 bytes"),
        ("maxmemory 1mb", "out of range"),
        ("maxmemory many", "must be a memory value"),
        ("versions 0", "out of range"),
        ("versions 65", "out of range"),
        ("wal-ring-bytes 300kb", "power of two"),
        ("appendonly perhaps", "'yes' or 'no'"),
        ("appendfsync no", "'appendonly no'"),
        ("versions 8 timeout 5", "cannot be set together"),
        ("versions 8 versions 9", "duplicate parameter"),
        ("maxmemory 70000mb versions 8", "ERR "),
    ] {
        let reply = change(&mut admin, options);
        assert!(reply.starts_with('-') && reply.contains(reason), "{options}: {reply}");
        client.ask("STRLEN key599", ":60000");
    }
    // The present values need no other database, beside other parameters as well.
    assert_eq!(change(&mut admin, "versions 4 timeout 5 maxmemory 64mb"), "+OK");
    admin.ask("CONFIG GET timeout", "*2\r\n$7\r\ntimeout\r\n$1\r\n5");
    assert_eq!(change(&mut admin, "appendonly yes appendfsync everysec"), "+OK");
    admin.ask("CONFIG GET versions", "*2\r\n$8\r\nversions\r\n$1\r\n4");
    admin.ask("CONFIG GET maxmemory", "*2\r\n$9\r\nmaxmemory\r\n$8\r\n67108864");
    client.ask("DBSIZE", ":600");
    while cursor != "0" {
        cursor = scan(&mut client, &cursor, 100, &mut seen);
    }
    assert_eq!(seen.len(), 600);
    drop((admin, client));
    stop(running);
}

/// The server has to have the only share of the store.
#[test]
fn a_store_that_the_server_cannot_take_stays() {
    if !can_run() {
        return;
    }
    let running = start(config());
    let mut admin = running.client();
    assert_eq!(
        change(&mut admin, "versions 8"),
        "-ERR the program that runs the server has kept the database for itself"
    );
    drop(admin);
    running.finish();

    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(open(dir.path(), store_config(Durability::Async)));
    let running = Server::start(store.clone(), config()).unwrap();
    let mut admin = Client::new(running.local_addr());
    admin.ask("SET a 1", "+OK");
    assert_eq!(
        change(&mut admin, "versions 8"),
        "-ERR the program that runs the server holds a reference to the store"
    );
    admin.ask("GET a", "$1\r\n1");
    drop(store);
    assert_eq!(change(&mut admin, "versions 8"), "+OK");
    admin.ask("GET a", "$1\r\n1");
    drop(admin);
    stop(running);
}

/// Libraries of procedures stay, also those that are not in the data directory, and handlers stay attached.
#[test]
fn procedures_and_handlers_stay() {
    if !can_run() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), store_config(Durability::Async));
    store.database().load_library("accounts", ACCOUNTS, false).unwrap();
    let running = serve(store, config());
    let mut admin = Client::new(running.local_addr());
    admin.ask("CALL account_open ann 7", "+OK");
    assert_eq!(change(&mut admin, "versions 8"), "+OK");
    admin.ask("CALL account_balance ann", "$1\r\n7");
    admin.ask("CALL account_open bob 1", "+OK");
    assert_eq!(change(&mut admin, "appendonly no"), "+OK");
    let before = running.stats().unwrap().kernel_commands;
    for _ in 0..100 {
        admin.ask("CALL account_balance bob", "$1\r\n1");
    }
    assert!(running.stats().unwrap().kernel_commands >= before + 90, "the kernel answers calls");

    attach_handler(&running.store().get().unwrap());
    wait_for_tick(&mut admin);
    for options in ["versions 4", "appendonly yes", "versions 65"] {
        let _ = change(&mut admin, options);
        wait_for_tick(&mut admin);
        admin.ask("CALL account_balance ann", "$1\r\n7");
    }
    drop(admin);
    stop(running);
}

/// After a power failure at any moment of a change, every write is there that was acknowledged under sync.
#[test]
fn a_power_failure_during_a_change_loses_nothing() {
    if !can_run() {
        return;
    }
    let disk = SimulatedDisk::new();
    let (store, _) = disk.open(store_config(Durability::Sync)).unwrap();
    let running = serve(store, config());
    let addr = running.local_addr();
    let (acknowledged, end) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let writer = thread::spawn({
        let (acknowledged, end) = (acknowledged.clone(), end.clone());
        move || {
            let mut client = Client::new(addr);
            let mut i = 0;
            while !end.load(Ordering::Relaxed) {
                i += 1;
                client.ask(&format!("SET n {i}"), "+OK");
                acknowledged.store(i, Ordering::SeqCst);
            }
        }
    });
    let changer = thread::spawn({
        let end = end.clone();
        move || {
            let mut admin = Client::new(addr);
            let mut versions = 4;
            while !end.load(Ordering::Relaxed) {
                versions = 9 - versions;
                assert_eq!(change(&mut admin, &format!("versions {versions}")), "+OK");
            }
        }
    });
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    for _ in 0..12 {
        thread::sleep(Duration::from_millis(100 + random.below(400) as u64));
        let before = acknowledged.load(Ordering::SeqCst);
        let crashed = disk.crash(&mut |n| random.below(n));
        let after = acknowledged.load(Ordering::SeqCst) + 1;
        let (store, _) = crashed.open(store_config(Durability::Sync)).unwrap();
        let value = store.database().session().unwrap().get(b"n").unwrap();
        let found = value.map_or(0, |value| String::from_utf8(value.data).unwrap().parse().unwrap());
        assert!((before..=after).contains(&found), "{found} is not in {before}..={after}");
    }
    end.store(true, Ordering::Relaxed);
    writer.join().unwrap();
    changer.join().unwrap();
    stop(running);
}
