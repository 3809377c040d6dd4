//! Upgrades of the server while clients work: connections stay, no request fails, and no data is lost.

mod common;
mod rebuild;
mod server;
mod upgrade;

use std::io::Write;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bedplate_kerneldb::{ACCOUNTS, Config, Durability, Store};
use bedplate_kerneldb_redis::server::{Server, ServerConfig, UpgradeCheck};
use common::{can_run, small};
use rebuild::{attach_handler, change, committed_ticks, scan, store_config, ticks, wait_for_tick};
use server::{Client, bulk, config, config_with, request, start, words};
use upgrade::{Data, Upgraded, in_memory, upgradable, upgrade_under_work};

#[test]
fn connections_and_data_stay() {
    if !can_run() {
        return;
    }
    let dirs: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let dir = |i: usize| Data::Directory(dirs[i].path().into());
    let three = Config { partitions: 3, memory_bytes: 96 << 20, ..small() };
    for (data, store, config) in [
        (dir(0), store_config(Durability::Async), config()),
        (dir(1), store_config(Durability::Sync), config()),
        (dir(2), store_config(Durability::Off), config_with(false)),
        (Data::Memory, in_memory(small()), config()),
        (Data::Memory, in_memory(three), config()),
        (Data::Memory, in_memory(small()), local()),
    ] {
        upgrade_under_work(data, store, config);
    }
}

/// A configuration with the local fast path, if this machine has it.
fn local() -> ServerConfig {
    ServerConfig { local_fast_path: common::has_cgroup2(), ..config() }
}

/// Clients of the local fast path read replies from before an upgrade, and are answered by TCP then. New ones are on the path.
#[test]
fn clients_of_the_local_fast_path_stay() {
    if !can_run() || !local().local_fast_path {
        return;
    }
    let running = Upgraded::start(Data::Memory, in_memory(small()), local());
    let mut admin = Client::new(running.addr);
    admin.ask("SET a 1", "+OK");
    let mut old = Vec::new();
    for upgrades in 0..3 {
        let (mut reader, mut half) = (Client::new(running.addr), Client::new(running.addr));
        for _ in 0..10 {
            reader.ask("GET a", "$1\r\n1");
            half.ask("GET a", "$1\r\n1");
        }
        admin.send(&words("INFO bedplate"));
        let local = counter_in(&admin.until("\r\n\r\n"), "local_commands");
        assert!(local > 0, "{local} after {upgrades} upgrades");
        old.push((reader, half));
        for (reader, _) in &mut old {
            reader.send(&words("GET a"));
        }
        admin.ask("BEDPLATE UPGRADE", "+OK");
        for (reader, half) in &mut old {
            // In the order in which they were asked for.
            reader.send(&words("STRLEN a"));
            reader.expect(b"$1\r\n1\r\n:1\r\n");
            half.ask("GET a", "$1\r\n1");
        }
    }
    for (mut reader, mut half) in old {
        reader.ask("GET a", "$1\r\n1");
        half.send(&words("GET a"));
        half.socket.shutdown(Shutdown::Write).unwrap();
        assert_eq!(half.rest(), b"$1\r\n1\r\n");
    }
    drop(admin);
    assert_eq!(running.stop(), 3);
}

/// The value of a field of INFO.
fn counter_in(info: &str, field: &str) -> u64 {
    let line = info.lines().find_map(|line| line.strip_prefix(&format!("{field}:")));
    line.unwrap_or_else(|| panic!("no {field} in {info}")).trim().parse().unwrap()
}

/// Handlers stay attached, and what they count goes on. Their library is in no data directory.
#[test]
fn handlers_stay_attached() {
    if !can_run() {
        return;
    }
    for (database, local) in
        [(small(), local()), (Config { partitions: 2, memory_bytes: 64 << 20, ..small() }, config())]
    {
        let attached = Store::in_memory(database.clone()).unwrap();
        attach_handler(&attached);
        let running = Upgraded::start_on(attached, Data::Memory, in_memory(database), local);
        let mut admin = Client::new(running.addr);
        for _ in 0..3 {
            wait_for_tick(&mut admin);
            admin.ask("BEDPLATE UPGRADE", "+OK");
        }
        wait_for_tick(&mut admin);
        let before = ticks(&mut admin);
        let committed = committed_ticks(&mut admin);
        assert!((before..=ticks(&mut admin)).contains(&committed), "{committed} of {before}");
        drop(admin);
        assert_eq!(running.stop(), 3);
    }
}

/// Everything that a connection has set stays as it is.
#[test]
fn the_state_of_connections_stays() {
    if !can_run() {
        return;
    }
    for config in [config(), config_with(false)] {
        let dir = tempfile::tempdir().unwrap();
        let data = Data::Directory(dir.path().into());
        let running = Upgraded::start(data, store_config(Durability::Async), config);
        let client = || Client::new(running.addr);
        let mut admin = client();
        admin.ask("SET a 1", "+OK");
        admin.ask("SET b 1", "+OK");
        let (mut resp3, mut quiet, mut skipped) = (client(), client(), client());
        resp3.hello(3);
        resp3.ask("GET never", "_");
        quiet.send(&words("CLIENT REPLY OFF"));
        skipped.send(&words("CLIENT REPLY SKIP"));
        let (mut same, mut changed, mut queue, mut broken) = (client(), client(), client(), client());
        same.ask("WATCH a", "+OK");
        changed.ask("WATCH b", "+OK");
        admin.ask("SET b 2", "+OK");
        queue.ask("MULTI", "+OK");
        queue.ask("SET q 1", "+QUEUED");
        queue.send(&request(&[b"SET", b"binary", b"\r\n\0*$"]));
        queue.expect(b"+QUEUED\r\n");
        queue.ask("GET q", "+QUEUED");
        broken.ask("MULTI", "+OK");
        broken.send(&words("NONSENSE"));
        assert!(broken.lines(1)[0].starts_with("-ERR unknown command"));
        // It asks for an upgrade whose end it does not hear of.
        let mut deaf = client();
        deaf.send(&[words("CLIENT REPLY SKIP"), words("BEDPLATE UPGRADE"), words("PING")].concat());
        deaf.expect(b"+PONG\r\n");
        let (mut chooser, mut failed, mut half) = (client(), client(), client());
        chooser.ask("BEDPLATE DURABILITY SYNC", "+OK");
        let mut holder = client();
        holder.ask("BEGIN", "+OK");
        holder.ask("SET locked 1", "+OK");
        failed.ask("BEGIN", "+OK");
        failed.ask("SET locked 2", "-CONFLICT conflict with another transaction");
        holder.ask("ROLLBACK", "+OK");
        // A request in pieces.
        let set = words("SET half done");
        half.ask("PING", "+PONG");
        half.send(&set[..11]);
        thread::sleep(Duration::from_millis(50));
        let mut shut = client();
        shut.ask("PING", "+PONG");
        let mut monitor = client();
        monitor.ask("MONITOR", "+OK");
        for round in 0..2 {
            admin.ask("BEDPLATE UPGRADE", "+OK");
            if round == 0 {
                half.send(&set[11..15]);
                shut.socket.shutdown(std::net::Shutdown::Write).unwrap();
                assert_eq!(shut.rest(), b"");
            }
        }
        resp3.ask("GET never", "_");
        let seen = monitor.lines(1).remove(0);
        assert!(seen.ends_with("] \"GET\" \"never\""), "{seen}");
        drop(monitor);
        quiet.send(&[words("SET quiet 1"), words("CLIENT REPLY ON")].concat());
        quiet.expect(b"+OK\r\n");
        quiet.ask("GET quiet", "$1\r\n1");
        skipped.send(&[words("SET skipped 1"), words("GET skipped")].concat());
        skipped.expect(b"$1\r\n1\r\n");
        for (client, reply) in [(&mut same, "*1\r\n:1"), (&mut changed, "*-1")] {
            client.ask("MULTI", "+OK");
            client.ask("INCR x", "+QUEUED");
            client.ask("EXEC", reply);
        }
        queue.ask("EXEC", "*3\r\n+OK\r\n+OK\r\n$1\r\n1");
        queue.send(&words("GET binary"));
        queue.expect(&bulk(b"\r\n\0*$"));
        broken.ask("EXEC", "-EXECABORT Transaction discarded because of previous errors.");
        chooser.ask("BEDPLATE DURABILITY", "$4\r\nsync");
        failed.ask("GET a", "-TXFAILED the transaction has failed and can only be rolled back");
        failed.ask("ROLLBACK", "+OK");
        failed.ask("GET a", "$1\r\n1");
        half.send(&set[15..]);
        half.expect(b"+OK\r\n");
        admin.ask("GET half", "$4\r\ndone");
        drop((admin, resp3, quiet, skipped, same, changed, queue, broken, chooser, failed, half, holder));
        drop(deaf);
        assert_eq!(running.stop(), 3);
    }
}

/// Parameters that clients have changed stay changed.
#[test]
fn changed_parameters_stay() {
    if !can_run() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let data = Data::Directory(dir.path().into());
    let running = Upgraded::start(data, store_config(Durability::Async), config());
    let mut admin = Client::new(running.addr);
    let get = |admin: &mut Client, name: &str| {
        admin.send(&words(&format!("CONFIG GET {name}")));
        admin.lines(5).remove(4)
    };
    let sets = [
        "versions 8 maxmemory 128mb",
        "appendfsync always",
        "timeout 300",
        "transaction-timeout 7000",
        "requirepass secret",
        "transaction-idle-timeout 9000",
        "lock-timeout 77",
    ];
    for options in sets {
        assert_eq!(change(&mut admin, options), "+OK", "{options}");
    }
    let names = [
        "versions",
        "maxmemory",
        "appendfsync",
        "timeout",
        "transaction-timeout",
        "requirepass",
        "lock-timeout",
    ];
    let before: Vec<String> = names.iter().map(|name| get(&mut admin, name)).collect();
    admin.ask("SET a 1", "+OK");
    let mut seen = std::collections::BTreeSet::new();
    for round in 0..3 {
        admin.ask("BEDPLATE UPGRADE", "+OK");
        let after: Vec<String> = names.iter().map(|name| get(&mut admin, name)).collect();
        assert_eq!(after, before, "{round}");
        let mut stranger = Client::new(running.addr);
        stranger.ask("GET a", "-NOAUTH Authentication required.");
        // A change after an upgrade has the log of the start, too.
        assert_eq!(change(&mut admin, "appendonly no"), "+OK");
        assert_eq!(change(&mut admin, "appendonly yes"), "+OK");
        assert_eq!(change(&mut admin, "appendfsync always"), "+OK");
        scan(&mut admin, "0", 10, &mut seen);
    }
    assert_eq!(seen.len(), 1);
    admin.send(&words("INFO bedplate"));
    let info = admin.until("\r\n\r\n");
    // Two changes, three upgrades, and three changes after each.
    assert!(info.contains("database_rebuilds:14"), "{info}");
    // A queue with more than somebody may send who has not given the password.
    let mut queue = Client::new(running.addr);
    queue.ask("AUTH secret", "+OK");
    queue.ask("MULTI", "+OK");
    queue.send(&words(&format!("MSET {} 1", "k v ".repeat(20) + "l")));
    queue.expect(b"+QUEUED\r\n");
    queue.send(&request(&[b"SET", b"long", &[b'v'; 30_000]]));
    queue.expect(b"+QUEUED\r\n");
    admin.ask("BEDPLATE UPGRADE", "+OK");
    queue.ask("EXEC", "*2\r\n+OK\r\n+OK");
    queue.ask("STRLEN long", ":30000");
    // CLIENT PAUSE goes on.
    let mut paused = Client::new(running.addr);
    paused.ask("AUTH secret", "+OK");
    let start = Instant::now();
    admin.ask("CLIENT PAUSE 3000 WRITE", "+OK");
    paused.send(&words("SET a 2"));
    admin.ask("BEDPLATE UPGRADE", "+OK");
    admin.ask("GET a", "$1\r\n1");
    assert!(start.elapsed() < Duration::from_secs(3), "the pause is too short for this machine");
    paused.expect(b"+OK\r\n");
    assert!(start.elapsed() >= Duration::from_secs(3));
    // A password need not be text.
    admin.send(&request(&[b"CONFIG", b"SET", b"requirepass", b"\xff\xfe"]));
    admin.expect(b"+OK\r\n");
    admin.ask("BEDPLATE UPGRADE", "+OK");
    let mut knows = Client::new(running.addr);
    knows.send(&request(&[b"AUTH", b"\xff\xfe"]));
    knows.expect(b"+OK\r\n");
    drop((admin, paused, queue, knows));
    assert_eq!(running.stop(), 6);
}

/// Procedures that clients have loaded stay, and the kernel answers calls of them.
#[test]
fn procedures_stay() {
    if !can_run() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let library = dir.path().join("accounts.o");
    std::fs::write(&library, ACCOUNTS).unwrap();
    for (data, store) in [
        (Data::Memory, in_memory(small())),
        (Data::Directory(dir.path().join("data")), store_config(Durability::Async)),
    ] {
        let running = Upgraded::start(data, store, ServerConfig { procedure_loading: true, ..config() });
        let mut admin = Client::new(running.addr);
        admin.send(&words(&format!("PROC LOAD {}", library.display())));
        // Three names.
        assert_eq!(admin.lines(7)[0], "*3");
        admin.ask("CALL account_open ann 7", "+OK");
        for _ in 0..2 {
            admin.ask("BEDPLATE UPGRADE", "+OK");
            admin.ask("CALL account_balance ann", "$1\r\n7");
        }
        drop(admin);
        assert_eq!(running.stop(), 2);
    }
}

/// Bytes are under way in all parts of the kernel while the server is upgraded.
#[test]
fn pipelines_go_on() {
    if !can_run() {
        return;
    }
    for config in [config(), config_with(false)] {
        let running = Upgraded::start(Data::Memory, in_memory(small()), config);
        let stop = Arc::new(AtomicBool::new(false));
        let clients: Vec<_> = (0..4)
            .map(|number: usize| {
                let (stop, addr) = (stop.clone(), running.addr);
                thread::spawn(move || {
                    let mut client = Client::new(addr);
                    let mut sender = client.socket.try_clone().unwrap();
                    let (tell, rounds) = std::sync::mpsc::channel();
                    let sending = thread::spawn(move || {
                        let mut round = 0u64;
                        while !stop.load(Ordering::Relaxed) {
                            let (mut requests, mut replies) = (Vec::new(), Vec::new());
                            for i in 0..200usize {
                                let value =
                                    vec![b'a' + ((round + i as u64) % 26) as u8; (i * 37 * number) % 1500];
                                let key = format!("key{number}-{}", i % 10);
                                requests.extend(request(&[b"SET", key.as_bytes(), &value]));
                                requests.extend(words(&format!("GET {key}")));
                                replies.extend(b"+OK\r\n");
                                replies.extend(bulk(&value));
                            }
                            requests.extend(words(&format!("INCR count{number}")));
                            round += 1;
                            replies.extend(format!(":{round}\r\n").bytes());
                            tell.send(replies).unwrap();
                            sender.write_all(&requests).unwrap();
                        }
                        round
                    });
                    for replies in rounds {
                        client.expect(&replies);
                    }
                    sending.join().unwrap()
                })
            })
            .collect();
        let mut admin = Client::new(running.addr);
        for _ in 0..6 {
            thread::sleep(Duration::from_millis(150));
            admin.ask("BEDPLATE UPGRADE", "+OK");
        }
        stop.store(true, Ordering::Relaxed);
        for (number, client) in clients.into_iter().enumerate() {
            let rounds = client.join().unwrap();
            assert!(rounds > 6, "{rounds}");
            admin.ask(&format!("GET count{number}"), &format!("${}\r\n{rounds}", rounds.to_string().len()));
        }
        drop(admin);
        assert_eq!(running.stop(), 6);
    }
}

/// A client that does not read is cut off if the kernel cannot get rid of its replies. Others do not notice.
#[test]
fn a_client_that_does_not_read_does_not_keep_the_server() {
    if !can_run() {
        return;
    }
    let running = Upgraded::start(Data::Memory, in_memory(small()), config());
    let mut admin = Client::new(running.addr);
    admin.send(&request(&[b"SET", b"k", &vec![b'v'; 4000]]));
    admin.expect(b"+OK\r\n");
    let mut deaf = Client::new(running.addr);
    deaf.socket.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
    let gets = words("GET k").repeat(1000);
    // Until TCP takes no more.
    while deaf.socket.write_all(&gets).is_ok() {}
    let start = Instant::now();
    admin.ask("BEDPLATE UPGRADE", "+OK");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    admin.ask("STRLEN k", ":4000");
    drop((admin, deaf));
    assert_eq!(running.stop(), 1);
}

/// An upgrade that cannot be leaves the server as it is.
#[test]
fn a_refused_upgrade_changes_nothing() {
    if !can_run() {
        return;
    }
    let start_server =
        |config: ServerConfig| Server::start(Arc::new(Store::in_memory(small()).unwrap()), config).unwrap();
    let refused = |config: ServerConfig, reason: &str| {
        let running = start_server(config);
        let mut client = Client::new(running.local_addr());
        client.ask("SET a 1", "+OK");
        client.ask("BEDPLATE UPGRADE", reason);
        client.ask("GET a", "$1\r\n1");
        drop(client);
        running.shutdown().unwrap();
    };
    refused(config(), "-ERR the program that runs this server has no upgrades");
    let check = UpgradeCheck::new(|| Err("there is no program".into()));
    refused(ServerConfig { upgrade: Some(check), ..config() }, "-ERR there is no program");
    let running = start(upgradable(config()));
    let mut client = running.client();
    client.ask("BEDPLATE UPGRADE", "-ERR the program that runs the server has kept the database for itself");
    drop(client);
    running.finish();

    let running = start_server(upgradable(config()));
    let client = || Client::new(running.local_addr());
    let (mut admin, mut holder) = (client(), client());
    holder.ask("BEGIN", "+OK");
    holder.ask("SET held 1", "+OK");
    admin.ask("BEDPLATE UPGRADE", "-TRYAGAIN the server stays as it is: transactions of 1 clients are open");
    holder.ask("BEDPLATE UPGRADE", "-ERR the server cannot be upgraded inside a transaction");
    holder.ask("COMMIT", "+OK");
    admin.ask("GET held", "$1\r\n1");
    drop((admin, holder));
    running.shutdown().unwrap();
}

/// Users, their rights and their passwords stay, and the kernel answers the same connections as before.
#[test]
fn users_stay() {
    if !can_run() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("users.acl");
    std::fs::write(&file, "").unwrap();
    for config in [config(), ServerConfig { acl_file: Some(file.clone()), ..local() }] {
        let running = Upgraded::start(Data::Memory, in_memory(small()), config);
        let mut admin = Client::new(running.addr);
        admin.ask("SET a 1", "+OK");
        admin.ask("ACL SETUSER all on >x +@all ~*", "+OK");
        admin.ask("ACL SETUSER some on >y +get +multi +exec ~a (+set %W~b)", "+OK");
        admin.ask("ACL SETUSER default >z", "+OK");
        let (mut all, mut some) = (Client::new(running.addr), Client::new(running.addr));
        all.ask("AUTH all x", "+OK");
        some.ask("AUTH some y", "+OK");
        some.ask("MULTI", "+OK");
        some.ask("GET a", "+QUEUED");
        let mut stranger = Client::new(running.addr);
        stranger.ask("PING", "-NOAUTH Authentication required.");
        let list = |admin: &mut Client| {
            admin.send(&words("ACL LIST"));
            admin.replies(1)
        };
        // The kernel answers the connection, and its user loses rights before a rebuild. The kernel does not answer it afterwards either.
        for _ in 0..10 {
            all.ask("GET a", "$1\r\n1");
        }
        admin.ask("ACL SETUSER all -get", "+OK");
        assert_eq!(change(&mut admin, "versions 8"), "+OK");
        thread::sleep(Duration::from_millis(50));
        all.ask("GET a", "-NOPERM this user has no permissions to run the 'get' command");
        admin.ask("ACL SETUSER all +@all", "+OK");
        let before = list(&mut admin);
        admin.ask("BEDPLATE UPGRADE", "+OK");
        assert_eq!(list(&mut admin), before);
        all.ask("ACL WHOAMI", "$3\r\nall");
        all.ask("GET a", "$1\r\n1");
        stranger.ask("PING", "-NOAUTH Authentication required.");
        Client::new(running.addr).ask("AUTH z", "+OK");
        some.ask("EXEC", "*1\r\n$1\r\n1");
        let denied = "-NOPERM this user has no permissions to access one of the keys used as arguments";
        some.ask("GET b", denied);
        some.ask("SET b 1", "+OK");
        some.ask("SET b 1 GET", denied);
        drop((admin, all, some, stranger));
        assert_eq!(running.stop(), 1);
    }
}
