//! MULTI, EXEC and DISCARD have the same replies and effects in every way of answering.

mod common;
mod server;

use std::time::Duration;

use bedplate_kerneldb_redis::server::ServerConfig;
use bedplate_suite_support::redis::Redis;
use common::can_run;
use server::{
    Client, Random, Running, bulk, config, config_with, eventually, request, start, start_with, words,
};

/// Commands with their replies: everything that can happen between MULTI and EXEC.
fn conversation() -> Vec<(&'static str, &'static str)> {
    vec![
        ("SET k 1", "+OK"),
        ("MULTI", "+OK"),
        ("GET k", "+QUEUED"),
        ("SET k 2", "+QUEUED"),
        ("GET k", "+QUEUED"),
        ("DEL none", "+QUEUED"),
        ("PING", "+QUEUED"),
        ("EXEC", "*5\r\n$1\r\n1\r\n+OK\r\n$1\r\n2\r\n:0\r\n+PONG"),
        ("GET k", "$1\r\n2"),
        ("MULTI", "+OK"),
        ("EXEC", "*0"),
        ("EXEC", "-ERR EXEC without MULTI"),
        ("DISCARD", "-ERR DISCARD without MULTI"),
        ("MULTI", "+OK"),
        ("SET k 3", "+QUEUED"),
        ("DISCARD", "+OK"),
        ("GET k", "$1\r\n2"),
        // A request that only the event loop knows, behind one that was queued before.
        ("MULTI", "+OK"),
        ("SET k 12", "+QUEUED"),
        ("STRLEN k", "+QUEUED"),
        ("GET k", "+QUEUED"),
        ("EXEC", "*3\r\n+OK\r\n:2\r\n$2\r\n12"),
        // Errors while queueing.
        ("MULTI", "+OK"),
        ("SET k 99", "+QUEUED"),
        ("GET", "-ERR wrong number of arguments for 'get' command"),
        ("GET k", "+QUEUED"),
        ("EXEC", "-EXECABORT Transaction discarded because of previous errors."),
        ("MULTI", "+OK"),
        ("MULTI", "-ERR MULTI calls can not be nested"),
        ("GET k", "+QUEUED"),
        ("DISCARD", "+OK"),
        // An error of one of the commands.
        ("SET text abc", "+OK"),
        ("MULTI", "+OK"),
        ("SET k 5", "+QUEUED"),
        ("INCR text", "+QUEUED"),
        ("GET k", "+QUEUED"),
        ("EXEC", "*3\r\n+OK\r\n-ERR value is not an integer or out of range\r\n$1\r\n5"),
        // WATCH.
        ("WATCH k", "+OK"),
        ("SET k 6", "+OK"),
        ("MULTI", "+OK"),
        ("SET k 7", "+QUEUED"),
        ("EXEC", "*-1"),
        ("GET k", "$1\r\n6"),
        ("DEL k", ":1"),
    ]
}

fn bytes(conversation: &[(&str, &str)]) -> (Vec<u8>, Vec<u8>) {
    let mut input = Vec::new();
    let mut output = Vec::new();
    for (line, reply) in conversation {
        input.extend(words(line));
        output.extend(format!("{reply}\r\n").bytes());
    }
    (input, output)
}

/// A server for each way in which MULTI can be executed.
fn servers() -> Vec<Running> {
    let partitions = bedplate_kerneldb::Config {
        partitions: 3,
        memory_bytes: 96 << 20,
        max_sessions: 256,
        ..Default::default()
    };
    let mut servers =
        vec![start(config()), start(config_with(false)), start_with(partitions.clone(), config())];
    if common::has_cgroup2() {
        let local = ServerConfig { local_fast_path: true, ..config() };
        servers.extend([start(local.clone()), start_with(partitions, local)]);
    }
    servers
}

#[test]
fn one_by_one_and_together() {
    if !can_run() {
        return;
    }
    for running in servers() {
        let mut c = running.client();
        for (line, reply) in conversation() {
            c.ask(line, reply);
        }
        let (input, output) = bytes(&conversation());
        c.send(&input);
        c.expect(&output);
        drop(c);
        running.finish();
    }
}

#[test]
fn split_at_every_byte() {
    if !can_run() {
        return;
    }
    let (input, output) = bytes(&conversation());
    for running in servers() {
        let mut c = running.client();
        for at in 1..input.len() {
            c.send(&input[..at]);
            if at % 7 == 0 {
                std::thread::sleep(Duration::from_micros(200));
            }
            c.send(&input[at..]);
            c.expect(&output);
        }
        drop(c);
        running.finish();
    }
}

#[test]
fn the_kernel_executes() {
    if !can_run() {
        return;
    }
    let local_fast_path = common::has_cgroup2();
    for running in [start(config()), start(ServerConfig { local_fast_path, ..config() })] {
        let mut c = running.client();
        c.ask("PING", "+PONG");
        let before = running.server.stats().unwrap();
        for i in 0..100 {
            c.ask("MULTI", "+OK");
            c.ask(&format!("SET a {i}"), "+QUEUED");
            c.ask("GET a", "+QUEUED");
            c.ask(
                "EXEC",
                &format!(
                    "*2\r\n+OK\r\n{}",
                    String::from_utf8(bulk(i.to_string().as_bytes())).unwrap().trim_end()
                ),
            );
        }
        let after = running.server.stats().unwrap();
        assert_eq!(after.passed, before.passed, "nothing went to the event loop");
        assert_eq!(after.kernel_commands - before.kernel_commands, 400);
        assert_eq!(running.db.stats().commits, 100);
        drop(c);
        running.finish();
    }
}

/// The client sees no difference if a queue is too long, if keys are in many partitions, or if results are too long.
#[test]
fn large_ones() {
    if !can_run() {
        return;
    }
    for running in servers() {
        let mut c = running.client();
        for (requests, length) in [(100, 10), (60, 600), (30, 2000), (20, 9000)] {
            let value = vec![b'x'; length];
            let (mut input, mut output) = (words("MULTI"), b"+OK\r\n".to_vec());
            let mut results = format!("*{}\r\n", 2 * requests).into_bytes();
            for i in 0..requests {
                let key = format!("large{i}");
                input.extend(request(&[b"SET", key.as_bytes(), &value]));
                input.extend(request(&[b"GET", key.as_bytes()]));
                output.extend(b"+QUEUED\r\n+QUEUED\r\n");
                results.extend(b"+OK\r\n");
                results.extend(bulk(&value));
            }
            input.extend(words("EXEC"));
            output.extend(results);
            for _ in 0..3 {
                c.send(&input);
                c.expect(&output);
            }
        }
        drop(c);
        running.finish();
    }
}

/// Connections that go away within MULTI leave nothing behind; when all queues are taken, the rest is
/// served as well.
#[test]
fn more_than_there_are_queues() {
    if !can_run() {
        return;
    }
    let database =
        bedplate_kerneldb::Config { memory_bytes: 64 << 20, max_sessions: 512, ..Default::default() };
    let running = start_with(database, ServerConfig { max_clients: 400, ..config() });
    for round in 0..3 {
        let mut clients: Vec<Client> = (0..300).map(|_| running.client()).collect();
        for (i, c) in clients.iter_mut().enumerate() {
            c.ask("MULTI", "+OK");
            c.ask(&format!("SET q{i} {round}"), "+QUEUED");
        }
        for (i, c) in clients.iter_mut().enumerate().filter(|(i, _)| i % 2 == 0) {
            c.ask(&format!("GET q{i}"), "+QUEUED");
            c.ask("EXEC", &format!("*2\r\n+OK\r\n$1\r\n{round}"));
        }
        drop(clients);
        eventually("all connections are closed", || running.server.stats().unwrap().clients == 0);
    }
    let mut c = running.client();
    let before = running.server.stats().unwrap().passed;
    c.ask("MULTI", "+OK");
    c.ask("GET q1", "+QUEUED");
    c.ask("EXEC", "*1\r\n$-1");
    assert_eq!(running.server.stats().unwrap().passed, before, "there is a free queue again");
    drop(c);
    running.finish();
}

/// Money moves between accounts in transactions of several kinds while others read all accounts at
/// once. The sum never changes.
#[test]
fn serializable() {
    if !can_run() {
        return;
    }
    const ACCOUNTS: usize = 8;
    const START: i64 = 100;
    let all = |c: &mut Client| -> i64 {
        let mut input = words("MULTI");
        (0..ACCOUNTS).for_each(|i| input.extend(words(&format!("GET acc{i}"))));
        input.extend(words("EXEC"));
        c.send(&input);
        c.expect(b"+OK\r\n");
        (0..ACCOUNTS).for_each(|_| c.expect(b"+QUEUED\r\n"));
        let lines = c.lines(1 + 2 * ACCOUNTS);
        assert_eq!(lines[0], format!("*{ACCOUNTS}"));
        lines[1..].chunks(2).map(|value| value[1].parse::<i64>().unwrap()).sum()
    };
    for running in servers() {
        let mut c = running.client();
        for i in 0..ACCOUNTS {
            c.ask(&format!("SET acc{i} {START}"), "+OK");
        }
        std::thread::scope(|scope| {
            for thread in 0..3u64 {
                let mut c = running.client();
                scope.spawn(move || {
                    let mut random = Random(thread * 31 + 5);
                    for round in 0..150 {
                        let (from, to) = (random.below(ACCOUNTS), random.below(ACCOUNTS));
                        if from == to {
                            continue;
                        }
                        // A discarded write keeps the sum, too.
                        let mut input = words("MULTI");
                        input.extend(words(&format!("SET acc{from} {}", START + round)));
                        if thread == 2 {
                            // Only the event loop knows this command.
                            input.extend(words(&format!("STRLEN acc{from}")));
                        }
                        input.extend(words("DISCARD"));
                        c.send(&input);
                        c.expect(b"+OK\r\n+QUEUED\r\n");
                        if thread == 2 {
                            c.expect(b"+QUEUED\r\n");
                        }
                        c.expect(b"+OK\r\n");
                        transfer(&mut c, from, to);
                    }
                });
            }
            for _ in 0..2 {
                let mut c = running.client();
                scope.spawn(move || {
                    for _ in 0..200 {
                        assert_eq!(all(&mut c), ACCOUNTS as i64 * START);
                    }
                });
            }
        });
        assert_eq!(all(&mut c), ACCOUNTS as i64 * START);
        drop(c);
        running.finish();
    }
}

/// Moves 1 from one account to another: reads them under WATCH and writes them in MULTI, until EXEC succeeds.
fn transfer(c: &mut Client, from: usize, to: usize) {
    loop {
        c.send(
            &[words(&format!("WATCH acc{from} acc{to}")), words(&format!("MGET acc{from} acc{to}"))].concat(),
        );
        let read = c.lines(6);
        let (a, b): (i64, i64) = (read[3].parse().unwrap(), read[5].parse().unwrap());
        let sets = [format!("SET acc{from} {}", a - 1), format!("SET acc{to} {}", b + 1)];
        c.send(&[words("MULTI"), words(&sets[0]), words(&sets[1]), words("EXEC")].concat());
        c.expect(b"+OK\r\n+QUEUED\r\n+QUEUED\r\n");
        if c.lines(1)[0] == "*2" {
            c.expect(b"+OK\r\n+OK\r\n");
            return;
        }
    }
}

/// Transactions that write two keys together, with everything in the kernel, against readers of both.
#[test]
fn all_or_nothing() {
    if !can_run() {
        return;
    }
    for running in servers() {
        let mut c = running.client();
        c.ask("MSET x 0 y 0", "+OK");
        std::thread::scope(|scope| {
            for thread in 0..3u64 {
                let mut c = running.client();
                scope.spawn(move || {
                    for i in 0..400 {
                        let value = format!("{thread}:{i}");
                        let keys = if thread % 2 == 0 { ["x", "y"] } else { ["y", "x"] };
                        let mut input = words("MULTI");
                        keys.iter().for_each(|key| input.extend(words(&format!("SET {key} {value}"))));
                        keys.iter().for_each(|key| input.extend(words(&format!("GET {key}"))));
                        input.extend(words("EXEC"));
                        c.send(&input);
                        c.expect(b"+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*4\r\n+OK\r\n+OK\r\n");
                        c.expect(&[bulk(value.as_bytes()), bulk(value.as_bytes())].concat());
                    }
                });
            }
            let mut c = running.client();
            scope.spawn(move || {
                for _ in 0..400 {
                    c.send(&[words("MULTI"), words("GET x"), words("GET y"), words("EXEC")].concat());
                    c.expect(b"+OK\r\n+QUEUED\r\n+QUEUED\r\n");
                    let lines = c.lines(5);
                    assert_eq!(lines[2], lines[4]);
                }
            });
        });
        drop(c);
        running.finish();
    }
}

/// Random requests, most of them in and around MULTI, have the same replies as from Redis. WATCH is left out: a key
/// that came and went is unchanged to it here, but not in Redis.
#[test]
fn the_same_as_redis() {
    if !can_run() {
        return;
    }
    let Some(redis) = Redis::start() else { return };
    let requests = [
        "MULTI",
        "MULTI",
        "MULTI",
        "EXEC",
        "EXEC",
        "EXEC",
        "DISCARD",
        "GET a",
        "GET b",
        "GET c",
        "GET a",
        "SET a 1",
        "SET b 22",
        "SET a 333",
        "SET c 4",
        "DEL a",
        "DEL b",
        "PING",
        "PING",
        "STRLEN a",
        "INCR b",
        "APPEND c x",
        "GET",
        "SET a",
        "MGET a b c",
        "NOSUCH",
        "SET d 1 NX",
        "DEL a b",
    ];
    for running in servers() {
        let (mut ours, mut theirs) = (running.client(), Client::new(redis.addr()));
        for c in [&mut ours, &mut theirs] {
            c.send(&words("DEL a b c d"));
            c.lines(1);
        }
        let mut random = Random(4711);
        for round in 0..600 {
            let mut input = Vec::new();
            for _ in 0..1 + random.below(12) {
                input.extend(words(requests[random.below(requests.len())]));
            }
            let mark = format!("end{round}");
            // Its reply shows that all others have arrived. It is sent twice, because the first may only be queued.
            input.extend(words("DISCARD"));
            input.extend(words(&format!("ECHO {mark}")));
            let at = 1 + random.below(input.len());
            let mut replies = [&mut ours, &mut theirs].map(|c| {
                c.send(&input[..at.min(input.len())]);
                c.send(&input[at.min(input.len())..]);
                c.until(&format!("{mark}\r\n"))
            });
            let [a, b] = &mut replies;
            assert_eq!(a, b, "{:?}", String::from_utf8_lossy(&input));
        }
        drop(ours);
        running.finish();
    }
}
