//! Functions on a real server: each call is a transaction, and the libraries survive restarts and upgrades.

mod common;
mod rebuild;
mod server;
mod upgrade;

use std::fs;
use std::thread;
use std::time::Duration;

use bedplate_kerneldb::{Config, Durability, EngineKind, Store, TX_KEYS_MAX};
use bedplate_kerneldb_redis::server::Server;
use common::{can_run, small};
use rebuild::{change, open, serve, stop, store_config};
use server::{Client, config, request, start_with, ways};
use upgrade::{Data, Upgraded, in_memory};

const LIBRARY: &str = "#!lua name=accounts
local function number(key) return tonumber(redis.call('get', key) or 0) end
redis.register_function('move', function(keys, args)
    local from, amount = number(keys[1]), tonumber(args[1])
    if from < amount then return redis.error_reply('POOR ' .. from) end
    redis.call('set', keys[1], from - amount)
    redis.call('set', keys[2], number(keys[2]) + amount)
    return redis.call('incr', 'moves')
end)
redis.register_function{function_name='sum', flags={'no-writes'}, description='adds up', callback=function(keys)
    local sum = 0
    for _, key in ipairs(keys) do sum = sum + number(key) end
    return sum
end}
redis.register_function('many', function(_, args)
    for i = 1, args[1] do redis.call('set', 'key' .. i, i) end
end)";

fn ask(client: &mut Client, words: &[&str]) -> String {
    client.send(&request(&words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>()));
    client.lines(1).remove(0)
}

fn load(client: &mut Client) {
    client.send(&request(&["FUNCTION", "LOAD", "REPLACE", LIBRARY].map(str::as_bytes)));
    client.expect(b"$8\r\naccounts\r\n");
}

/// Whether the library is there, and its functions work.
fn check(client: &mut Client) {
    client.ask("MSET one 5 two 6", "+OK");
    client.ask("FCALL_RO sum 2 one two", ":11");
    client.ask("FCALL move 2 one two 9", "-POOR 5");
    client.ask(
        "FUNCTION STATS",
        "*4\r\n$14\r\nrunning_script\r\n$-1\r\n$7\r\nengines\r\n*2\r\n$3\r\nLUA\r\n*4\r\n$15\r\nlibraries_count\r\n:1\r\n$15\r\nfunctions_count\r\n:3",
    );
}

/// Functions of several clients keep the sum, beside clients whose commands the kernel answers.
#[test]
fn calls_are_serializable() {
    if !can_run() {
        return;
    }
    let hash_maps = Config { engine: EngineKind::HashMap, ..small() };
    for (database, ways) in [(small(), ways()), (hash_maps, vec![config()])] {
        for way in ways {
            let running = start_with(database.clone(), way);
            let mut admin = running.client();
            load(&mut admin);
            admin.ask("CONFIG SET lock-timeout 30000", "+OK");
            (0..3).for_each(|i| admin.ask(&format!("SET account{i} 1000"), "+OK"));
            let moved: u32 = thread::scope(|scope| {
                let clients: Vec<_> = (0..3)
                    .map(|number| {
                        let mut client = running.client();
                        scope.spawn(move || {
                            let one_call = |i: u32| {
                                let keys = [format!("account{}", i % 3), format!("account{}", (i + 1) % 3)];
                                let words = ["FCALL", "move", "2", &keys[0], &keys[1], "7"];
                                let reply = ask(&mut client, &words);
                                assert!(reply.starts_with(':') || reply.starts_with("-POOR"), "{reply}");
                                u32::from(reply.starts_with(':'))
                            };
                            (number..number + 200).map(one_call).sum::<u32>()
                        })
                    })
                    .collect();
                let mut reader = running.client();
                for _ in 0..100 {
                    reader.ask("FCALL_RO sum 3 account0 account1 account2", ":3000");
                    assert!(ask(&mut reader, &["INCRBY", "account0", "0"]).starts_with(':'));
                }
                clients.into_iter().map(|client| client.join().unwrap()).sum()
            });
            admin.ask("GET moves", &format!("${}\r\n{moved}", moved.to_string().len()));
            drop(admin);
            running.finish();
        }
    }
}

/// A lock of another client: the function waits, and runs from its beginning when the lock is gone.
#[test]
fn a_call_waits_for_locks() {
    if !can_run() {
        return;
    }
    let running = start_with(small(), config());
    let (mut holder, mut client) = (running.client(), running.client());
    load(&mut client);
    client.ask("MSET one 5 two 6", "+OK");
    holder.ask("CONFIG SET lock-timeout 100", "+OK");
    holder.ask("BEGIN", "+OK");
    holder.ask("SET two 7", "+OK");
    assert!(ask(&mut client, &["FCALL", "move", "2", "one", "two", "1"]).starts_with("-CONFLICT"));
    client.ask("FCALL_RO sum 2 one two", ":11");
    client.ask("CONFIG SET lock-timeout 30000", "+OK");
    client.send(&request(&["FCALL", "move", "2", "one", "two", "1"].map(str::as_bytes)));
    thread::sleep(Duration::from_millis(200));
    holder.ask("COMMIT", "+OK");
    client.expect(b":1\r\n");
    client.ask("MGET one two", "*2\r\n$1\r\n4\r\n$1\r\n8");
    drop((holder, client));
    running.finish();
}

/// A function has as many keys as a transaction, and is a part of the client's transaction.
#[test]
fn calls_are_transactions() {
    if !can_run() {
        return;
    }
    let running = start_with(small(), config());
    let mut client = running.client();
    load(&mut client);
    assert_eq!(ask(&mut client, &["FCALL", "many", "0", &TX_KEYS_MAX.to_string()]), "$-1");
    client.ask("FLUSHALL", "+OK");
    assert!(ask(&mut client, &["FCALL", "many", "0", &(TX_KEYS_MAX + 1).to_string()]).starts_with("-ERR"));
    client.ask("DBSIZE", ":0");
    client.ask("MSET one 5 two 6", "+OK");
    client.ask("MULTI", "+OK");
    client.ask("FCALL move 2 one two 1", "+QUEUED");
    client.ask("FCALL move 2 one two 9", "+QUEUED");
    client.ask("FCALL_RO sum 2 one two", "+QUEUED");
    client.ask("EXEC", "*3\r\n:1\r\n-POOR 4\r\n:11");
    client.ask("BEGIN", "+OK");
    client.ask("FCALL move 2 one two 1", ":2");
    client.ask("ROLLBACK", "+OK");
    client.ask("MGET one two", "*2\r\n$1\r\n4\r\n$1\r\n7");
    drop(client);
    running.finish();
}

/// The libraries are in the data directory, also with another database after a change of its options.
#[test]
fn libraries_survive_a_restart() {
    if !can_run() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("functions");
    let start = || serve(open(dir.path(), store_config(Durability::Off)), config());
    let running = start();
    let mut client = Client::new(running.local_addr());
    assert!(!file.exists());
    load(&mut client);
    assert!(file.exists() && !dir.path().join("functions.partial").exists());
    client.ask("FLUSHALL", "+OK");
    assert_eq!(change(&mut client, "maxmemory 50331648"), "+OK");
    check(&mut client);
    drop(client);
    stop(running);
    let running = start();
    let mut client = Client::new(running.local_addr());
    check(&mut client);
    client.ask("FUNCTION DELETE accounts", "+OK");
    drop(client);
    stop(running);
    let running = start();
    let mut client = Client::new(running.local_addr());
    client.ask("FCALL_RO sum 0", "-ERR Function not found");
    drop(client);
    stop(running);
}

/// A server does not start with a damaged file, and says which file it is. It starts without the file.
#[test]
fn a_damaged_file_is_an_error() {
    if !can_run() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("functions");
    let running = serve(open(dir.path(), store_config(Durability::Off)), config());
    load(&mut Client::new(running.local_addr()));
    stop(running);
    let whole = fs::read(&file).unwrap();
    let mut flipped = whole.clone();
    flipped[200] ^= 1;
    for damaged in [&whole[..whole.len() - 1], &whole[..5], &[], &flipped] {
        fs::write(&file, damaged).unwrap();
        let store = open(dir.path(), store_config(Durability::Off)).into();
        let error = Server::start(store, config()).err().unwrap().to_string();
        assert!(error.contains(&format!("{} cannot be loaded: ", file.display())), "{error}");
        assert!(!error.contains('\n'));
    }
    fs::remove_file(&file).unwrap();
    let running = serve(open(dir.path(), store_config(Durability::Off)), config());
    let mut client = Client::new(running.local_addr());
    client.ask("FUNCTION LIST", "*0");
    drop(client);
    stop(running);
}

/// If the file cannot be written, nothing changes.
#[test]
fn a_library_that_cannot_be_written_is_not_loaded() {
    if !can_run() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let running = serve(open(dir.path(), store_config(Durability::Off)), config());
    let mut client = Client::new(running.local_addr());
    fs::create_dir(dir.path().join("functions.partial")).unwrap();
    let reply = ask(&mut client, &["FUNCTION", "LOAD", LIBRARY]);
    assert!(reply.starts_with("-ERR cannot write "), "{reply}");
    client.ask("FUNCTION LIST", "*0");
    fs::remove_dir(dir.path().join("functions.partial")).unwrap();
    load(&mut client);
    check(&mut client);
    drop(client);
    stop(running);
}

/// The next program has the libraries, with a data directory and without.
#[test]
fn libraries_stay_at_an_upgrade() {
    if !can_run() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (data, store) in [
        (Data::Memory, in_memory(small())),
        (Data::Directory(dir.path().into()), store_config(Durability::Async)),
    ] {
        let running = Upgraded::start(data, store, config());
        let mut client = Client::new(running.addr);
        load(&mut client);
        for _ in 0..2 {
            client.ask("BEDPLATE UPGRADE", "+OK");
            check(&mut client);
        }
        client.ask("FUNCTION FLUSH", "+OK");
        client.ask("BEDPLATE UPGRADE", "+OK");
        client.ask("FUNCTION LIST", "*0");
        drop(client);
        assert_eq!(running.stop(), 3);
    }
}

/// Clients that change libraries at the same time: each change has its effect.
#[test]
fn changes_come_one_after_the_other() {
    if !can_run() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store: Store = open(dir.path(), store_config(Durability::Off));
    let running = serve(store, config());
    thread::scope(|scope| {
        for number in 0..4 {
            let mut client = Client::new(running.local_addr());
            scope.spawn(move || {
                for i in 0..10 {
                    let name = format!("l{number}_{i}");
                    let code = format!(
                        "#!lua name={name}\nredis.register_function('{name}', function() return {i} end)"
                    );
                    assert_eq!(ask(&mut client, &["FUNCTION", "LOAD", &code]), format!("${}", name.len()));
                    assert_eq!(client.lines(1)[0], name);
                    assert_eq!(ask(&mut client, &["FCALL", &name, "0"]), format!(":{i}"));
                }
            });
        }
    });
    let mut client = Client::new(running.local_addr());
    assert_eq!(ask(&mut client, &["FUNCTION", "LIST"]), "*40");
    drop(client);
    stop(running);
    let running = serve(open(dir.path(), store_config(Durability::Off)), config());
    let mut client = Client::new(running.local_addr());
    assert_eq!(ask(&mut client, &["FUNCTION", "LIST"]), "*40");
    drop(client);
    stop(running);
}
