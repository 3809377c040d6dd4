//! Lua scripts on a real server: each is a transaction, beside clients of all kinds, with locks, limits and a small log.

mod common;
mod rebuild;
mod server;
mod upgrade;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use bedplate_kerneldb::{Config, Durability, EngineKind, TX_KEYS_MAX};
use bedplate_kerneldb_redis::server::ServerConfig;
use common::{can_run, small};
use rebuild::{open, serve, stop, store_config};
use server::{Client, config, request, start_with, ways, words};
use upgrade::{Data, Upgraded, in_memory};

/// Moves an amount from one account to another one, if there is enough.
const TRANSFER: &str = "
    local from, to = tonumber(redis.call('get', KEYS[1])), tonumber(redis.call('get', KEYS[2]))
    local amount = tonumber(ARGV[1])
    if from < amount then return redis.error_reply('POOR ' .. KEYS[1] .. ' has ' .. from) end
    redis.call('set', KEYS[1], from - amount)
    redis.call('set', KEYS[2], to + amount)
    return redis.call('incr', 'transfers')";

fn eval(client: &mut Client, script: &str, keys: &[&str], arguments: &[&str]) -> String {
    let count = keys.len().to_string();
    let words = [&["EVAL", script, &count], keys, arguments].concat();
    client.send(&request(&words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>()));
    client.lines(1).remove(0)
}

fn databases() -> Vec<(Config, Vec<ServerConfig>)> {
    let hash_maps = Config { engine: EngineKind::HashMap, ..small() };
    if !can_run() {
        return Vec::new();
    }
    let three = Config { partitions: 3, memory_bytes: 96 << 20, ..small() };
    vec![(small(), ways()), (three, vec![config()]), (hash_maps, vec![config()])]
}

/// Transfers by scripts, and by the commands of other clients, keep the sum, and none is lost.
#[test]
fn transfers_keep_the_sum() {
    for (database, ways) in databases() {
        for way in ways {
            let running = start_with(database.clone(), way);
            let mut admin = running.client();
            admin.ask("CONFIG SET lock-timeout 30000", "+OK");
            (0..4).for_each(|i| admin.ask(&format!("SET account{i} 1000"), "+OK"));
            let ends = AtomicBool::new(false);
            let done: u64 = thread::scope(|scope| {
                let clients: Vec<_> = (0..3)
                    .map(|number| {
                        let (mut client, ends) = (running.client(), &ends);
                        scope.spawn(move || {
                            let mut done = 0;
                            for i in number.. {
                                // On a busy machine, this thread may not have begun yet.
                                if ends.load(Ordering::Relaxed) && done > 0 {
                                    break;
                                }
                                let (from, to) =
                                    (format!("account{}", i % 4), format!("account{}", (i + 1) % 4));
                                let reply = eval(&mut client, TRANSFER, &[&from, &to], &["7"]);
                                assert!(reply.starts_with(':') || reply.starts_with("-POOR"), "{reply}");
                                done += u64::from(reply.starts_with(':'));
                            }
                            done
                        })
                    })
                    .collect();
                let mut reader = running.client();
                for _ in 0..100 {
                    reader.send(&words("MGET account0 account1 account2 account3"));
                    let lines = reader.lines(9);
                    let sum: u64 = lines[1..].chunks(2).map(|value| value[1].parse::<u64>().unwrap()).sum();
                    assert_eq!(sum, 4000);
                }
                // Commands of the kernel's path change a key of the scripts.
                for _ in 0..100 {
                    reader.send(&words("GET account0"));
                    reader.lines(2);
                    reader.send(&words("INCRBY account0 0"));
                    assert!(reader.lines(1)[0].starts_with(':'));
                }
                ends.store(true, Ordering::Relaxed);
                clients.into_iter().map(|client| client.join().unwrap()).sum()
            });
            admin.ask("GET transfers", &format!("${}\r\n{done}", done.to_string().len()));
            drop(admin);
            running.finish();
        }
    }
}

/// A lock of another client: the script waits, gives up without effects, and runs from its beginning when the lock is gone.
#[test]
fn a_script_waits_for_locks() {
    for (database, _) in databases() {
        let running = start_with(database, config());
        let (mut holder, mut client) = (running.client(), running.client());
        holder.ask("CONFIG SET lock-timeout 100", "+OK");
        holder.ask("BEGIN", "+OK");
        holder.ask("SET held 5", "+OK");
        let script = "redis.call('incr', 'before') return redis.pcall('incr', 'held')";
        let reply = eval(&mut client, script, &[], &[]);
        assert!(reply.starts_with("-CONFLICT"), "{reply}");
        holder.ask("GET before", "$-1");
        client.ask("CONFIG SET lock-timeout 30000", "+OK");
        let count = ["EVAL", script, "0"];
        client.send(&request(&count.map(str::as_bytes)));
        thread::sleep(Duration::from_millis(200));
        holder.ask("COMMIT", "+OK");
        client.expect(b":6\r\n");
        client.ask("GET before", "$1\r\n1");
        drop((holder, client));
        running.finish();
    }
}

/// A script is a part of the client's transaction.
#[test]
fn scripts_run_in_transactions() {
    for (database, ways) in databases() {
        for way in ways {
            let running = start_with(database.clone(), way);
            let (mut client, mut other) = (running.client(), running.client());
            client.ask("BEGIN", "+OK");
            assert_eq!(eval(&mut client, "return redis.call('incr', 'n')", &[], &[]), ":1");
            assert_eq!(eval(&mut client, "return redis.call('incr', 'n') + nil", &[], &[])[..5], *"-ERR ");
            client.ask("GET n", "$1\r\n2");
            client.ask("ROLLBACK", "+OK");
            other.ask("GET n", "$-1");
            client.ask("BEGIN", "+OK");
            assert_eq!(eval(&mut client, "return redis.call('incr', 'n')", &[], &[]), ":1");
            client.ask("COMMIT", "+OK");
            other.ask("GET n", "$1\r\n1");
            // Another client's script changes a watched key.
            client.ask("WATCH n", "+OK");
            assert_eq!(eval(&mut other, "return redis.call('incr', 'n')", &[], &[]), ":2");
            client.ask("MULTI", "+OK");
            client.ask("SET n 9", "+QUEUED");
            client.ask("EXEC", "*-1");
            client.ask("MULTI", "+OK");
            assert_eq!(eval(&mut client, "return redis.call('incr', 'n')", &[], &[]), "+QUEUED");
            assert_eq!(eval(&mut client, "return redis.call('get', 'n')", &[], &[]), "+QUEUED");
            client.ask("EXEC", "*2\r\n:3\r\n$1\r\n3");
            drop((client, other));
            running.finish();
        }
    }
}

/// A script that locks too many keys is rolled back.
#[test]
fn a_script_has_as_many_keys_as_a_transaction() {
    for (database, _) in databases() {
        let running = start_with(database, config());
        let mut client = running.client();
        let script = "for i = 1, ARGV[1] do redis.call('set', 'key' .. i, i) end return 'done'";
        client.send(&request(&["EVAL", script, "0", &TX_KEYS_MAX.to_string()].map(str::as_bytes)));
        client.expect(b"$4\r\ndone\r\n");
        client.ask("FLUSHALL", "+OK");
        let reply = eval(&mut client, script, &[], &[&(TX_KEYS_MAX + 1).to_string()]);
        assert!(reply.starts_with("-ERR"), "{reply}");
        client.ask("DBSIZE", ":0");
        drop(client);
        running.finish();
    }
}

/// The records of a script do not fit into the log's ring as a whole. After a restart, everything is there.
#[test]
fn a_script_may_write_more_than_the_log_ring_holds() {
    if !can_run() {
        return;
    }
    for durability in [Durability::Async, Durability::Sync] {
        let dir = tempfile::tempdir().unwrap();
        let running = serve(open(dir.path(), store_config(durability)), config());
        let mut client = Client::new(running.local_addr());
        let script = "local v = string.rep('v', 30000) for i = 1, 100 do redis.call('set', 'key' .. i, v .. ARGV[1]) end return #v";
        for round in ["1", "2", "3"] {
            assert_eq!(eval(&mut client, script, &[], &[round]), ":30000");
        }
        drop(client);
        stop(running);
        let running = serve(open(dir.path(), store_config(durability)), config());
        let mut client = Client::new(running.local_addr());
        let check = "for i = 1, 100 do local v = redis.call('get', 'key' .. i) if #v ~= 30001 or v:sub(-1) ~= '3' then return i end end return 'all'";
        client.send(&request(&["EVAL_RO", check, "0"].map(str::as_bytes)));
        client.expect(b"$3\r\nall\r\n");
        drop(client);
        stop(running);
    }
}

/// EVALSHA finds the script after an upgrade.
#[test]
fn scripts_stay_at_an_upgrade() {
    if !can_run() {
        return;
    }
    let running = Upgraded::start(Data::Memory, in_memory(small()), config());
    let mut client = Client::new(running.addr);
    client.ask(
        "EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0",
        "-NOSCRIPT No matching script. Please use EVAL.",
    );
    assert_eq!(eval(&mut client, "return 1", &[], &[]), ":1");
    for _ in 0..2 {
        client.ask("BEDPLATE UPGRADE", "+OK");
        client.ask("EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0", ":1");
    }
    drop(client);
    assert_eq!(running.stop(), 2);
}
