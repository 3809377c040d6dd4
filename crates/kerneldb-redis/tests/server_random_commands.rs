//! Random commands on strings have the replies of Redis, in every way of answering.

mod common;
mod server;

use bedplate_kerneldb::testing::SimulatedDisk;
use bedplate_kerneldb::wal::WalConfig;
use bedplate_kerneldb::{Durability, StoreConfig};
use bedplate_suite_support::redis::Redis;
use common::{can_run, small};
use server::{
    Client, Random, Running, agree, config, no_checkpoints, request, start, start_on, start_with_partitions,
    ways, words,
};

/// Values that commands store.
fn value(random: &mut Random) -> Vec<u8> {
    let values = [
        "0",
        "1",
        "-1",
        "10",
        "007",
        "-0",
        "+5",
        " 5",
        "5 ",
        "",
        "-",
        "3.0",
        "9223372036854775807",
        "9223372036854775806",
        "-9223372036854775808",
        "-9223372036854775807",
        "9223372036854775808",
        "12345678901234567890",
        "100000000000000000000000000",
        "value",
    ];
    match random.below(24) {
        0 => vec![b'7'; 64 + random.below(10)],
        1 => vec![b'x'; 1000 + random.below(1000)],
        n => values[n % values.len()].into(),
    }
}

/// Times that commands take. Those that lie in the future are so far away that nothing expires during the test.
fn time(random: &mut Random, absolute: bool) -> Vec<u8> {
    let times = ["10000000", "200000000", "3000000000", "0", "-1", "x", "", "9223372036854775807", "1.5"];
    let points = ["4000000000", "5000000000000", "1", "0", "-1", "x", "9223372036854775807"];
    let all: &[&str] = if absolute { &points } else { &times };
    // Most are good.
    all[if random.below(3) > 0 { random.below(2) } else { random.below(all.len()) }].into()
}

fn key(random: &mut Random) -> Vec<u8> {
    let keys = ["a", "b", "c", "a key of more than eight bytes", "d", "e", "f", "g"];
    keys[random.below(keys.len())].into()
}

/// Options of SET and GETEX, right and wrong ones.
fn options(random: &mut Random, command: &str, args: &mut Vec<Vec<u8>>) {
    for _ in 0..random.below(4) {
        let option = ["EX", "px", "EXAT", "pXat", "NX", "xx", "GET", "KEEPTTL", "PERSIST", "nosuch"];
        let option = option[random.below(option.len())];
        // Wrong options are rare.
        let of_getex = ["EX", "px", "EXAT", "pXat", "PERSIST"].contains(&option);
        if (command == "GETEX") != of_getex && random.below(8) > 0 && !option.to_lowercase().contains('x') {
            continue;
        }
        args.push(option.into());
        if option.len() >= 2 && ["ex", "px", "exat", "pxat"].contains(&&option.to_lowercase()[..]) {
            args.push(time(random, option.len() == 4));
        }
    }
}

/// A random command: its name and its request.
fn command(random: &mut Random) -> (&'static str, Vec<u8>) {
    let names = [
        "GET", "SET", "SET", "SET", "SETNX", "SETEX", "PSETEX", "GETSET", "GETDEL", "GETEX", "INCR", "DECR",
        "INCRBY", "DECRBY", "INCRBY", "EXISTS", "TOUCH", "STRLEN", "TTL", "PTTL", "EXPIRE", "PEXPIRE",
        "EXPIREAT", "PERSIST", "MGET", "MSET", "DEL", "UNLINK", "APPEND", "PING", "LCS",
    ];
    let name = names[random.below(names.len())];
    let mut args = vec![name.as_bytes().to_vec()];
    if name != "PING" {
        args.push(key(random));
    }
    match name {
        "SET" => {
            args.push(value(random));
            options(random, name, &mut args);
        }
        "GETEX" => options(random, name, &mut args),
        "SETNX" | "GETSET" | "INCRBY" | "DECRBY" | "APPEND" => args.push(value(random)),
        "SETEX" | "PSETEX" => args.extend([time(random, false), value(random)]),
        "EXPIRE" | "PEXPIRE" => args.push(time(random, false)),
        "EXPIREAT" => args.push(time(random, true)),
        "EXISTS" | "TOUCH" | "MGET" | "DEL" | "UNLINK" => {
            for _ in 0..random.below(4) * random.below(7) {
                args.push(key(random));
            }
        }
        "LCS" => {
            args.push(key(random));
            let options = ["LEN", "IDX", "WITHMATCHLEN", "MINMATCHLEN", "2"];
            args.extend((0..random.below(4)).map(|_| options[random.below(options.len())].into()));
        }
        "MSET" => {
            args.push(value(random));
            for _ in 0..random.below(9) {
                args.extend([key(random), value(random)]);
            }
        }
        _ => {}
    }
    // Some have an argument too few or too many.
    match random.below(40) {
        0 if args.len() > 1 => drop(args.pop()),
        1 => args.push(b"more".into()),
        _ => {}
    }
    let args: Vec<&[u8]> = args.iter().map(|arg| &arg[..]).collect();
    (name, request(&args))
}

/// Sends random commands to our server and to Redis and compares their replies: alone, in MULTI, and between BEGIN and COMMIT,
/// which only our server gets.
fn compare(ours: &mut Client, theirs: &mut Client, seed: u64, rounds: usize) {
    let mut random = Random(seed);
    for c in [&mut *ours, &mut *theirs] {
        c.send(&words("FLUSHALL"));
        c.expect(b"+OK\r\n");
    }
    for _ in 0..rounds {
        let commands: Vec<_> = (0..1 + random.below(8)).map(|_| command(&mut random)).collect();
        let input = commands.iter().flat_map(|(_, request)| request.clone()).collect::<Vec<_>>();
        let shown = || String::from_utf8_lossy(&input).replace("\r\n", " ");
        match random.below(4) {
            0 => {
                let all = [words("MULTI"), input.clone(), words("EXEC")].concat();
                let [a, b] = [&mut *ours, &mut *theirs].map(|c| {
                    c.send(&all);
                    c.replies(commands.len() + 2)
                });
                // Times to live are in these replies with others, and a transaction takes a moment.
                if commands.iter().all(|(name, _)| !name.ends_with("TTL")) {
                    let text = |replies: &[Vec<u8>]| String::from_utf8_lossy(&replies.concat()).into_owned();
                    assert_eq!(text(&a), text(&b), "in MULTI: {}", shown());
                }
            }
            mode => {
                let around = |word: &str| if mode == 1 { words(word) } else { Vec::new() };
                let extra = 2 * usize::from(mode == 1);
                ours.send(&[around("BEGIN"), input.clone(), around("COMMIT")].concat());
                theirs.send(&input);
                let mut a = ours.replies(commands.len() + extra);
                if mode == 1 {
                    assert_eq!((a.remove(0), a.pop().unwrap()), (b"+OK\r\n".to_vec(), b"+OK\r\n".to_vec()));
                }
                let b = theirs.replies(commands.len());
                for (i, (name, request)) in commands.iter().enumerate() {
                    let text = String::from_utf8_lossy;
                    assert!(
                        agree(name, &a[i], &b[i]),
                        "{:?}: {:?}, but Redis replies {:?}; mode {mode}: {}",
                        text(request),
                        text(&a[i]),
                        text(&b[i]),
                        shown()
                    );
                }
            }
        }
    }
}

#[test]
fn random_commands_have_the_replies_of_redis() {
    if !can_run() {
        return;
    }
    let Some(redis) = Redis::start() else { return };
    let mut servers: Vec<(bool, Running)> =
        ways().into_iter().map(|way| (way.kernel_path, start(way))).collect();
    servers.extend(
        ways().into_iter().filter(|way| way.kernel_path).map(|way| (true, start_with_partitions(way))),
    );
    for (i, (kernel_path, running)) in servers.into_iter().enumerate() {
        for version in [2, 3] {
            let (mut ours, mut theirs) = (running.client(), Client::new(redis.addr()));
            ours.hello(version);
            theirs.hello(version);
            compare(&mut ours, &mut theirs, 7919 * (i as u64 + 1) + u64::from(version), 400);
        }
        let answered = running.server.stats().unwrap().kernel_commands;
        assert_eq!(answered > 0, kernel_path, "{answered}");
        running.finish();
    }
}

/// With durability `sync`, where the event loop answers most of them.
#[test]
fn random_commands_have_the_replies_of_redis_when_they_wait_for_the_disk() {
    if !can_run() {
        return;
    }
    let Some(redis) = Redis::start() else { return };
    let store = StoreConfig {
        database: small(),
        wal: Some(WalConfig { durability: Durability::Sync, ..WalConfig::default() }),
        checkpoint: no_checkpoints(),
        ..StoreConfig::default()
    };
    let (_store, server) = start_on(&SimulatedDisk::default(), store, config());
    let (mut ours, mut theirs) = (Client::new(server.local_addr()), Client::new(redis.addr()));
    compare(&mut ours, &mut theirs, 99, 150);
    drop(ours);
    server.shutdown().unwrap();
}
