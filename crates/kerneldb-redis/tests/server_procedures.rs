//! CALL and PROC over the Redis port: replies, transactions, loading by clients, and what a restart keeps.

mod calls;
mod common;
mod server;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use bedplate_kerneldb::{ACCOUNTS, Config, Durability, EngineKind, Store, StoreConfig};
use bedplate_kerneldb_redis::server::{Server, ServerConfig};
use calls::compile;
use common::{can_run, small};
use server::{Client, config, no_checkpoints, start, start_with, ways, words};

#[test]
fn calls_have_the_same_replies_in_every_way_of_answering() {
    if !can_run() {
        return;
    }
    let of_partitions = |partitions| ways().into_iter().map(move |way| (partitions, way));
    for (partitions, way) in of_partitions(1).chain(of_partitions(3)) {
        let database = Config { memory_bytes: 64 << 20, partitions, max_sessions: 256, ..Config::default() };
        let running = start_with(database, way);
        running.db.load_library("accounts", ACCOUNTS, false).unwrap();
        calls::converse(&mut running.client());
        running.finish();
    }
}

/// Procedures with more arguments than an ordinary command that the kernel answers, and with replies of all lengths.
const ECHO: &str = r#"
#include <bedplate/procedure.h>
KDB_LICENSE("Dual MIT/GPL");
KDB_READ_ONLY_PROCEDURE(last_argument)
{
	KDB_TRY(kdb_value_argument(p, kdb_arguments(p) - 1));
	return kdb_reply_value(p);
}
KDB_READ_ONLY_PROCEDURE(count)
{
	return kdb_reply_integer(p, kdb_arguments(p));
}
KDB_PROCEDURE(keep_last)
{
	KDB_TRY(kdb_key_argument(p, 0));
	KDB_TRY(kdb_value_argument(p, kdb_arguments(p) - 1));
	return kdb_write(p);
}
"#;

/// A procedure whose variables and the engine's together exceed 512 bytes of stack.
const LARGE: &str = r#"
#include <bedplate/procedure.h>
KDB_LICENSE("Dual MIT/GPL");
KDB_PROCEDURE(large)
{
	volatile __u64 numbers[40] = {};

	numbers[kdb_arguments(p) & 31] = 41;
	KDB_TRY(kdb_key_argument(p, 0));
	KDB_TRY(kdb_read(p));
	return kdb_reply_integer(p, numbers[1]);
}
"#;

/// A library with a procedure and a handler.
const HANDLERS: &str = r#"
#include <bedplate/handler.h>
KDB_LICENSE("Dual MIT/GPL");
KDB_PROCEDURE(nothing)
{
	return KDB_OK;
}
KDB_TIMER_HANDLER(tick)
{
	return KDB_OK;
}
"#;

#[test]
fn the_kernel_answers_calls_on_the_connection() {
    if !can_run() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let echo = compile(folder.path(), "echo", ECHO);
    for partitions in [1, 3] {
        let database = Config { memory_bytes: 64 << 20, partitions, max_sessions: 256, ..Config::default() };
        let running = start_with(database, config());
        running.db.load_library("accounts", ACCOUNTS, false).unwrap();
        running.db.load_library("echo", &echo, false).unwrap();
        let mut client = running.client();
        let before = running.server.stats().unwrap();
        let mut commands = 0;
        let mut ask = |line: &str, reply: &str| {
            client.ask(line, reply);
            commands += 1;
        };
        for i in 0..20 {
            ask(&format!("CALL account_open a{i} {i}"), "+OK");
            ask(&format!("call account_balance a{i}"), &format!("${}\r\n{i}", i.to_string().len()));
        }
        ask("CALL account_open a1 5", "-EXISTS the account exists already");
        ask("CALL account_transfer a1 a1 2", "-OVERDRAWN the balance is too low");
        ask("CALL account_balance nobody", "$-1");
        ask("CALL count", ":0");
        for arguments in 1..=16 {
            let words: Vec<String> = (0..arguments).map(|i| format!("word{i}")).collect();
            let last = words.last().unwrap();
            let text = words.join(" ");
            ask(&format!("CALL count {text}"), &format!(":{arguments}"));
            ask(&format!("CALL last_argument {text}"), &format!("${}\r\n{last}", last.len()));
            ask(&format!("CALL keep_last {text}"), "+OK");
            ask("GET word0", &format!("${}\r\n{last}", last.len()));
        }
        // Transactions: one that only reads, and queues.
        ask("BEGIN READ ONLY", "+OK");
        let by_event_loop = 1;
        ask("CALL account_balance a7", "$1\r\n7");
        ask("COMMIT", "+OK");
        ask("MULTI", "+OK");
        ask("CALL account_open m 10", "+QUEUED");
        ask("CALL account_transfer m m 1", "+QUEUED");
        ask("GET m", "+QUEUED");
        ask("CALL account_balance m", "+QUEUED");
        ask("EXEC", "*4\r\n+OK\r\n:9\r\n$2\r\n10\r\n$2\r\n10");
        let after = running.server.stats().unwrap();
        assert_eq!(after.kernel_commands - before.kernel_commands, commands - by_event_loop, "{after:?}");
        // A name that is padded is another one.
        client.send(b"*2\r\n$4\r\nCALL\r\n$6\r\ncount\0\r\n");
        client.expect(b"-ERR there is no procedure count\0\r\n");
        // A call without a key belongs to no partition. It is queued once.
        let text = "long".repeat(100);
        let lines =
            ["MULTI", "CALL count", &format!("CALL count {text}"), "CALL last_argument word0", "EXEC"];
        let replies = ["+OK", "+QUEUED", "+QUEUED", "+QUEUED", "*3\r\n:0\r\n:1\r\n$5\r\nword0"];
        for (line, reply) in lines.iter().zip(replies) {
            client.ask(line, reply);
        }
        // Queues around the number of tail calls of a packet.
        for calls in [1, 13, 14, 15, 16, 40] {
            client.ask("MULTI", "+OK");
            (0..calls).for_each(|_| client.ask("CALL count one", "+QUEUED"));
            client.ask("EXEC", &format!("*{calls}\r\n{}", vec![":1"; calls].join("\r\n")));
        }
        // Refusals are errors in the statistics.
        client.send(&words("INFO commandstats"));
        let line = std::iter::repeat_with(|| client.lines(1).remove(0))
            .find(|line| line.starts_with("cmdstat_call:"));
        assert!(line.as_ref().unwrap().ends_with(",failed_calls=3"), "{line:?}");
        drop(client);
        let mut client = running.client();
        // Many in one packet: the kernel does as many as it has tail calls for.
        let line = words("CALL keep_last many 1 2 3 4");
        client.send(&line.repeat(100));
        client.expect(&b"+OK\r\n".repeat(100));
        drop(client);
        running.finish();
    }
}

/// The event loop runs the calls that the kernel cannot run on a connection. The replies are the same.
#[test]
fn the_event_loop_runs_the_calls_that_the_kernel_cannot() {
    if !can_run() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let echo = compile(folder.path(), "echo", ECHO);
    let running = start(config());
    running.db.load_library("accounts", ACCOUNTS, false).unwrap();
    running.db.load_library("echo", &echo, false).unwrap();
    let mut client = running.client();
    // Long arguments and replies, around every limit of the kernel's side.
    for bytes in [1, 63, 64, 65, 1000, 1024, 4096, 16_000, 32_000, 32_700, 32_768, 33_000, 65_000, 65_536] {
        let text = "x".repeat(bytes);
        client.ask(&format!("CALL last_argument {text}"), &format!("${bytes}\r\n{text}"));
    }
    client.ask(
        &format!("CALL last_argument {}", "x".repeat(65_537)),
        "-ERR a call has at most 16 arguments, of 65536 bytes together",
    );
    // In a transaction that writes, a call cannot be repeated.
    let before = running.server.stats().unwrap();
    client.ask("BEGIN", "+OK");
    client.ask("CALL keep_last k v", "+OK");
    client.ask("CALL last_argument v", "$1\r\nv");
    client.ask("COMMIT", "+OK");
    client.ask("GET k", "$1\r\nv");
    let after = running.server.stats().unwrap();
    assert_eq!(after.passed - before.passed, 2, "{after:?}");
    // A procedure with more stack than a program on a connection may have.
    let large = compile(folder.path(), "large", LARGE);
    running.db.load_library("large", &large, false).unwrap();
    let before = running.server.stats().unwrap();
    client.ask("CALL large 1", ":41");
    let after = running.server.stats().unwrap();
    assert_eq!(after.passed - before.passed, 1, "{after:?}");
    // A second server on the same database: its calls do not return to the programs of the first.
    let second = Server::start_in_memory(running.db.clone(), config()).unwrap();
    let mut other = Client::new(second.local_addr());
    other.ask("CALL keep_last k w", "+OK");
    client.ask("CALL last_argument w", "$1\r\nw");
    other.ask("GET k", "$1\r\nw");
    drop(other);
    second.shutdown().unwrap();
    client.ask("CALL count", ":0");
    drop(client);
    running.finish();
}

#[test]
fn transfers_of_many_clients_keep_the_sum() {
    if !can_run() {
        return;
    }
    let of_partitions = |partitions| ways().into_iter().map(move |way| (partitions, way));
    for (partitions, way) in of_partitions(1).chain(of_partitions(3)) {
        let database = Config { memory_bytes: 64 << 20, partitions, max_sessions: 256, ..Config::default() };
        let running = start_with(database, way);
        running.db.load_library("accounts", ACCOUNTS, false).unwrap();
        let mut client = running.client();
        (0..4).for_each(|i| client.ask(&format!("CALL account_open a{i} 1000"), "+OK"));
        std::thread::scope(|scope| {
            for c in 0..4usize {
                let mut client = running.client();
                scope.spawn(move || {
                    for i in 0..300 {
                        let (from, to) = ((c + i) % 4, (c + i * 3 + 1) % 4);
                        let line = match i % 3 {
                            0 => format!("CALL account_transfer a{from} a{to} 1"),
                            1 => format!("CALL account_balance a{from}"),
                            _ => format!("INCRBY other{c} 1"),
                        };
                        client.send(&words(&line));
                        let reply = client.lines(1).remove(0);
                        if reply.starts_with('$') {
                            client.lines(1);
                        }
                        // A server tries again for a second: conflicts of four clients do not last that long.
                        assert!(reply.starts_with([':', '$']) || reply.starts_with("-OVERDRAWN"), "{reply}");
                    }
                });
            }
        });
        client.send(&words("MGET a0 a1 a2 a3"));
        let lines = client.lines(9);
        let sum: i64 = lines.iter().skip(2).step_by(2).map(|text| text.parse::<i64>().unwrap()).sum();
        assert_eq!(sum, 4000);
        drop(client);
        running.finish();
    }
}

fn object(folder: &Path, name: &str) -> PathBuf {
    let file = folder.join(name);
    std::fs::write(&file, ACCOUNTS).unwrap();
    file
}

const NAMES: &str = "*3\r\n$15\r\naccount_balance\r\n$12\r\naccount_open\r\n$16\r\naccount_transfer";

#[test]
fn clients_load_procedures_only_where_they_may() {
    if !can_run() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = object(folder.path(), "accounts.bpf.o");
    let load = format!("PROC LOAD {}", file.display());
    let running = start(config());
    let mut client = running.client();
    client.send(&words(&load));
    let refused = client.lines(1).remove(0);
    assert!(refused.starts_with("-ERR clients may not load procedures"), "{refused}");
    client.ask("PROC LIST", "*0");
    client.send(&words("PROC ATTACH count timer:1s"));
    let refused = client.lines(1).remove(0);
    assert!(refused.starts_with("-ERR clients may not load procedures or attach handlers"), "{refused}");
    drop(client);
    running.finish();

    let running = start(ServerConfig { procedure_loading: true, ..config() });
    let mut client = running.client();
    let error = |client: &mut Client, line: &str, part: &str| {
        client.send(&words(line));
        let reply = client.lines(1).remove(0);
        assert!(reply.starts_with("-ERR ") && reply.contains(part), "{line}: {reply}");
    };
    error(&mut client, "PROC LOAD /nowhere/x.o", "cannot read /nowhere/x.o");
    error(&mut client, "PROC LOAD", "wrong number of arguments");
    error(&mut client, "PROC ATTACH count", "wrong number of arguments");
    error(&mut client, "PROC ATTACH count timer", "timer is not an event");
    error(&mut client, "PROC ATTACH count timer:1s", "there is no handler count");
    error(&mut client, "PROC DETACH count timer:1s", "there is no handler count");
    client.ask("PROC UNLOAD accounts", "-ERR there is no library accounts");
    error(&mut client, &format!("PROC LOAD {}", folder.path().display()), "it is not a regular file");
    let pipe = folder.path().join("pipe.o");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    error(&mut client, &format!("PROC LOAD {}", pipe.display()), "it is not a regular file");
    let text = folder.path().join("text.o");
    std::fs::write(&text, "no object").unwrap();
    error(&mut client, &format!("PROC LOAD {}", text.display()), "cannot open the eBPF programs (text)");
    client.ask(&load, NAMES);
    error(&mut client, &load, "loaded already");
    error(
        &mut client,
        &format!("PROC LOAD {}", object(folder.path(), "other.o").display()),
        "in the library accounts",
    );
    client.ask("CALL account_open ann 1", "+OK");
    client.ask("MULTI", "+OK");
    client.ask(&load, "-ERR Command not allowed inside a transaction");
    client.ask("DISCARD", "+OK");
    client.ask(&load.replace("LOAD", "REPLACE"), NAMES);
    client.ask("CALL account_balance ann", "$1\r\n1");
    client.send(&words("PROC LIST"));
    let lines = client.lines(1 + 3 * 13);
    assert_eq!(lines[..4], ["*3", "*6", "$4", "name"]);
    assert_eq!(lines.iter().filter(|line| *line == "read-only").count(), 1);
    client.ask("PROC UNLOAD accounts", "*1\r\n$8\r\naccounts");
    client.ask("CALL account_balance ann", "-ERR there is no procedure account_balance");
    drop(client);
    running.finish();
}

/// A library whose procedures reply a number: as many as wanted.
fn numbered(number: usize, procedures: usize) -> String {
    let mut text = String::from("#include <bedplate/procedure.h>\nKDB_LICENSE(\"Dual MIT/GPL\");\n");
    for i in 0..procedures {
        let kind = if number.is_multiple_of(2) { "KDB_PROCEDURE" } else { "KDB_READ_ONLY_PROCEDURE" };
        text += &format!("{kind}(number{i}) {{ return kdb_reply_integer(p, {number}); }}\n");
    }
    text
}

/// Versions with other replies, other procedures and other kinds take turns, while clients call them, hang up, and the server's
/// programs are exchanged. Slots are used again many times.
#[test]
fn a_call_runs_the_version_that_it_has_found() {
    if !can_run() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let versions: Vec<Vec<u8>> = [(0, 10), (1, 3), (2, 10)]
        .map(|(number, procedures)| {
            compile(folder.path(), &format!("v{number}"), &numbered(number, procedures))
        })
        .into();
    let running = start(config());
    running.db.load_library("numbers", &versions[0], false).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let calling = scope.spawn(|| {
            let mut client = running.client();
            while !stop.load(SeqCst) {
                for name in ["number2", "number9", "number0"] {
                    client.send(&words(&format!("CALL {name}")));
                    let reply = client.lines(1).remove(0);
                    let missing = name == "number9" && reply == "-ERR there is no procedure number9";
                    let number = reply.strip_prefix(':').and_then(|number| number.parse::<u32>().ok());
                    assert!(missing || number.is_some_and(|number| number < 3), "{reply}");
                    assert!(!(name == "number9" && number == Some(1)), "a version has another's procedure");
                }
            }
        });
        let leaving = scope.spawn(|| {
            while !stop.load(SeqCst) {
                let mut client = running.client();
                client.send(&words("CALL number0").repeat(40));
            }
        });
        for i in 0..12 {
            running.db.load_library("numbers", &versions[(i + 1) % 3], true).unwrap();
            let mut client = running.client();
            let before = running.server.stats().unwrap().kernel_commands;
            client.ask("CALL number0", &format!(":{}", (i + 1) % 3));
            assert!(running.server.stats().unwrap().kernel_commands > before);
            if i % 5 == 0 {
                running.server.reload().unwrap();
            }
        }
        stop.store(true, SeqCst);
        calling.join().unwrap();
        leaving.join().unwrap();
    });
    assert!(running.db.unload_library("numbers").unwrap());
    running.client().ask("CALL number0", "-ERR there is no procedure number0");
    running.finish();
}

#[test]
fn procedures_are_replaced_while_clients_call_them() {
    if !can_run() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = object(folder.path(), "accounts.bpf.o");
    let running = start(ServerConfig { procedure_loading: true, ..config() });
    let mut client = running.client();
    client.ask(&format!("PROC LOAD {}", file.display()), NAMES);
    client.ask("CALL account_open ann 1000000", "+OK");
    client.ask("CALL account_open bob 0", "+OK");
    let calls = 2000;
    std::thread::scope(|scope| {
        let calling = scope.spawn(|| {
            let mut client = running.client();
            (1..=calls)
                .for_each(|i| client.ask("CALL account_transfer ann bob 1", &format!(":{}", 1_000_000 - i)));
        });
        let mut replaced = 0;
        while !calling.is_finished() {
            client.ask(&format!("PROC REPLACE {}", file.display()), NAMES);
            replaced += 1;
        }
        assert!(replaced > 0);
        calling.join().unwrap();
    });
    client.ask("CALL account_balance bob", &format!("$4\r\n{calls}"));
    drop(client);
    running.finish();
}

/// A library that a client has loaded is there again after a restart, with either engine, and one that was removed is not. A library that
/// this engine cannot have stays where it is.
#[test]
fn a_restart_keeps_data_and_libraries() {
    if !can_run() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = object(folder.path(), "accounts.bpf.o");
    let handlers = folder.path().join("handlers.o");
    std::fs::write(&handlers, compile(folder.path(), "handlers", HANDLERS)).unwrap();
    let data = folder.path().join("data");
    let open = |engine| {
        let wal = bedplate_kerneldb::wal::WalConfig { durability: Durability::Async, ..Default::default() };
        let store = StoreConfig {
            database: Config { engine, ..small() },
            wal: Some(wal),
            checkpoint: no_checkpoints(),
            ..StoreConfig::default()
        };
        let store = Arc::new(Store::open(store, &data, &mut |_| ()).unwrap().0);
        let server =
            Server::start(store.clone(), ServerConfig { procedure_loading: true, ..config() }).unwrap();
        let client = Client::new(server.local_addr());
        (store, server, client)
    };
    let close = |(store, server, client): (Arc<Store>, _, Client)| {
        drop(client);
        bedplate_kerneldb_redis::server::ServerHandle::shutdown(server).unwrap();
        store.close(false).unwrap();
    };
    let mut parts = open(EngineKind::Arena);
    parts.2.ask(&format!("PROC LOAD {}", file.display()), NAMES);
    parts.2.ask("CALL account_open ann 7", "+OK");
    close(parts);
    let mut parts = open(EngineKind::HashMap);
    parts.2.ask("GET ann", "$1\r\n7");
    parts.2.ask("CALL account_balance ann", "$1\r\n7");
    parts.2.ask(&format!("PROC REPLACE {}", file.display()), NAMES);
    parts.2.ask("CALL account_open bob 8", "+OK");
    parts.2.send(&words(&format!("PROC LOAD {}", handlers.display())));
    let refused = parts.2.lines(1).remove(0);
    assert!(refused.contains("handlers need the arena engine"), "{refused}");
    close(parts);
    // An object that a compiler has written has nothing for hash maps.
    let library = data.join("procedures/accounts.o");
    let bytes = std::fs::read(&library).unwrap();
    std::fs::write(&library, &bytes[..bytes.len() - 24]).unwrap();
    let mut parts = open(EngineKind::HashMap);
    parts.2.ask("PROC LIST", "*0");
    parts.2.ask("GET bob", "$1\r\n8");
    close(parts);
    std::fs::remove_file(&file).unwrap();
    let mut parts = open(EngineKind::Arena);
    parts.2.ask("CALL account_balance bob", "$1\r\n8");
    parts.2.ask("PROC UNLOAD accounts", "*1\r\n$8\r\naccounts");
    close(parts);
    // A file that the kernel does not take, and what a crash while loading has left, do not keep the data from being served.
    std::fs::write(data.join("procedures/broken.o"), "no object").unwrap();
    std::fs::write(data.join("procedures/new.o.partial"), "half").unwrap();
    let mut parts = open(EngineKind::Arena);
    parts.2.ask("PROC LIST", "*0");
    parts.2.ask("GET ann", "$1\r\n7");
    close(parts);
}
