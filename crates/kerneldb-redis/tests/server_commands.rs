//! The commands that the kernel answers beside GET, SET and DEL: their replies and effects in every way of answering.

mod common;
mod server;

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use bedplate_kerneldb_redis::server::ServerConfig;
use bedplate_suite_support::redis::Redis;
use common::can_run;
use server::{
    Client, Running, agree, config, config_with, eventually, request, start, start_with_partitions, ways,
    words,
};

/// Commands of every kind that the kernel answers, with their replies in RESP2.
const ANSWERED: &[(&str, &str)] = &[
    ("SET k 1", "+OK"),
    ("SET k v NX", "$-1"),
    ("SET k 10 XX", "+OK"),
    ("SET k 11 GET", "$2\r\n10"),
    ("SET none v XX", "$-1"),
    ("SET none v KEEPTTL GET", "$-1"),
    ("GETDEL none", "$1\r\nv"),
    ("GETDEL none", "$-1"),
    ("INCR k", ":12"),
    ("DECR k", ":11"),
    ("INCRBY k 100", ":111"),
    ("DECRBY k 1000", ":-889"),
    ("INCR n", ":1"),
    ("GETSET n x", "$1\r\n1"),
    ("SETNX n y", ":0"),
    ("SETNX m 9223372036854775806", ":1"),
    ("INCR m", ":9223372036854775807"),
    ("DECRBY m 9223372036854775807", ":0"),
    ("STRLEN k", ":4"),
    ("STRLEN none", ":0"),
    ("EXISTS k", ":1"),
    ("EXISTS k n none k", ":3"),
    ("TOUCH k none", ":1"),
    ("TTL k", ":-1"),
    ("PTTL none", ":-2"),
    ("EXPIRE k 10000", ":1"),
    ("TTL k", ":10000"),
    ("PEXPIRE k 20000000", ":1"),
    ("TTL k", ":20000"),
    ("EXPIREAT none 4000000000", ":0"),
    ("GETEX k PERSIST", "$4\r\n-889"),
    ("TTL k", ":-1"),
    ("GETEX k EX 30000", "$4\r\n-889"),
    ("INCR k", ":-888"),
    ("TTL k", ":30000"),
    ("GETEX k", "$4\r\n-888"),
    ("SETEX s 40000 v", "+OK"),
    ("PSETEX t 50000000 w", "+OK"),
    ("SET s x KEEPTTL", "+OK"),
    ("TTL s", ":40000"),
    ("SET s x PX 60000000", "+OK"),
    ("TTL s", ":60000"),
    ("SET s x", "+OK"),
    ("TTL s", ":-1"),
    ("MSET a 1 b 22 c 333", "+OK"),
    ("MGET a none b c", "*4\r\n$1\r\n1\r\n$-1\r\n$2\r\n22\r\n$3\r\n333"),
    ("MGET a", "*1\r\n$1\r\n1"),
    ("DEL a b none", ":2"),
    ("UNLINK c", ":1"),
    ("DEL k m n s t", ":5"),
];

/// The same reply in a version of the protocol.
fn reply(text: &str, version: u32) -> String {
    if version == 3 { text.replace("$-1", "_") } else { text.into() }
}

/// Whether a reply is the expected one. A time to live is a little less on a slow machine.
fn expect(c: &mut Client, line: &str, expected: &str) {
    let got = c.replies(1).remove(0);
    let expected = format!("{expected}\r\n");
    assert!(
        agree(&line[..line.find(' ').unwrap_or(line.len())], &got, expected.as_bytes()),
        "{line}: {got:?}"
    );
}

#[test]
fn the_kernel_answers_every_listed_command() {
    if !can_run() {
        return;
    }
    for (way, version) in ways().into_iter().flat_map(|way| [(way.clone(), 2), (way, 3)]) {
        let kernel_path = way.kernel_path;
        let running = start(way);
        let mut c = running.client();
        c.hello(version);
        let answered = || running.server.stats().unwrap().kernel_commands;
        if kernel_path {
            // The turn may end after one of the next replies.
            eventually("the kernel answers", || {
                let before = answered();
                c.ask("PING", "+PONG");
                answered() > before
            });
        }
        let before = running.server.stats().unwrap();
        for (line, text) in ANSWERED {
            c.send(&words(line));
            expect(&mut c, line, &reply(text, version));
        }
        // All at once.
        c.send(&ANSWERED.iter().flat_map(|(line, _)| words(line)).collect::<Vec<_>>());
        for ((line, text), got) in ANSWERED.iter().zip(c.replies(ANSWERED.len())) {
            let expected = format!("{}\r\n", reply(text, version));
            assert!(agree(line.split(' ').next().unwrap(), &got, expected.as_bytes()), "{line}: {got:?}");
        }
        // In a client's transaction the event loop deletes several keys.
        let in_transaction =
            || ANSWERED.iter().filter(|(line, _)| !line.starts_with("DEL ") && !line.starts_with("UNL"));
        for (begin, end) in [("BEGIN", "COMMIT"), ("BEGIN", "ROLLBACK")] {
            c.ask(begin, "+OK");
            for (line, text) in in_transaction() {
                c.send(&words(line));
                expect(&mut c, line, &reply(text, version));
            }
            c.ask(end, "+OK");
            let left = if end == "COMMIT" { 9 } else { 0 };
            if left > 0 {
                c.ask("DEL k m n s t", ":5");
                c.ask("DEL a b c", ":3");
            }
            c.ask("EXISTS k m n s t a b c", ":0");
        }
        c.ask("MULTI", "+OK");
        for (line, _) in ANSWERED {
            c.ask(line, "+QUEUED");
        }
        c.send(&words("EXEC"));
        assert_eq!(c.lines(1), [format!("*{}", ANSWERED.len())]);
        for ((line, text), got) in ANSWERED.iter().zip(c.replies(ANSWERED.len())) {
            let expected = format!("{}\r\n", reply(text, version));
            assert!(agree(line.split(' ').next().unwrap(), &got, expected.as_bytes()), "{line}: {got:?}");
        }
        let after = running.server.stats().unwrap();
        if kernel_path {
            assert!(after.kernel_commands - before.kernel_commands >= 4 * ANSWERED.len() as u64, "{after:?}");
            assert_eq!(after.passed, before.passed, "all of it is the kernel's");
        }
        drop(c);
        running.finish();
    }
}

/// Four clients, each in its own thread.
fn four(running: &Running, run: impl Fn(usize, Client) + Sync) {
    std::thread::scope(|scope| {
        for i in 0..4 {
            let c = running.client();
            let run = &run;
            scope.spawn(move || run(i, c));
        }
    });
}

/// Servers of every way of answering, and one with three partitions. On a busy machine, their clients wait for locks for as long as it
/// takes.
fn contended() -> Vec<Running> {
    let mut servers: Vec<Running> = ways().into_iter().map(start).collect();
    servers.push(start_with_partitions(config()));
    for running in &servers {
        running.client().ask("CONFIG SET lock-timeout 60000", "+OK");
    }
    servers
}

#[test]
fn increments_are_not_lost() {
    if !can_run() {
        return;
    }
    for running in contended() {
        four(&running, |i, mut c| {
            for round in 0..150 {
                // The event loop executes INCRBYFLOAT, and what follows it.
                let lines = ["INCR n", "INCRBY n 2", "DECR n", "INCRBYFLOAT f 1", "DECRBY n -3"];
                let lines = &lines[..if round % 5 == i { 5 } else { 3 }];
                c.send(&lines.iter().flat_map(|line| words(line)).collect::<Vec<_>>());
                for reply in c.replies(lines.len()) {
                    assert!(b":$".contains(&reply[0]), "{:?}", String::from_utf8_lossy(&reply));
                }
                if lines.len() == 3 {
                    c.send(&words("INCRBY n 3"));
                    c.replies(1);
                }
            }
        });
        let mut c = running.client();
        c.ask("GET n", &format!("$4\r\n{}", 4 * 150 * 5));
        drop(c);
        running.finish();
    }
}

/// Clients put their own values into one key and take what was there. Nobody gets a value twice, and none is lost.
#[test]
fn exchanged_values_have_one_owner() {
    if !can_run() {
        return;
    }
    for running in contended() {
        let taken = std::sync::Mutex::new(Vec::new());
        four(&running, |i, mut c| {
            for round in 0..200 {
                let line = match round % 4 {
                    0 => format!("GETSET box {i}-{round}"),
                    1 => "GETDEL box".into(),
                    2 => format!("SET box {i}-{round} GET"),
                    _ => format!("SET box {i}-{round} EX 1000 GET"),
                };
                c.send(&words(&line));
                let reply = String::from_utf8(c.replies(1).remove(0)).unwrap();
                assert!(reply.starts_with('$'), "{line}: {reply:?}");
                if reply != "$-1\r\n" {
                    taken.lock().unwrap().push(reply.split("\r\n").nth(1).unwrap().to_owned());
                }
            }
        });
        let mut c = running.client();
        c.send(&words("GETDEL box"));
        let last = String::from_utf8(c.replies(1).remove(0)).unwrap();
        let mut taken = taken.into_inner().unwrap();
        taken.extend((last != "$-1\r\n").then(|| last.split("\r\n").nth(1).unwrap().to_owned()));
        let different: HashSet<_> = taken.iter().collect();
        assert_eq!((taken.len(), different.len()), (4 * 150, 4 * 150));
        drop(c);
        running.finish();
    }
}

/// A writer that is counted as long as it lives, also if it panics.
struct Writer<'a>(&'a AtomicUsize);

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Several keys are written at once, and are seen at once.
#[test]
fn several_keys_change_together() {
    if !can_run() {
        return;
    }
    for running in contended() {
        let writers = AtomicUsize::new(3);
        running.client().ask("MSET a 0 b 0 c 0", "+OK");
        four(&running, |i, mut c| {
            if i == 0 {
                while writers.load(Ordering::Relaxed) > 0 {
                    c.send(&words("MGET a b c"));
                    let reply = String::from_utf8(c.replies(1).remove(0)).unwrap();
                    let values: HashSet<_> = reply.split("\r\n").skip(2).step_by(2).collect();
                    assert_eq!(values.len(), 1, "{reply:?}");
                }
                return;
            }
            let _writer = Writer(&writers);
            for round in 0..300 {
                c.ask(&format!("MSET a {i}-{round} c {i}-{round} b {i}-{round}"), "+OK");
            }
        });
        running.finish();
    }
}

/// A command with an invalid key has no effect, also in a transaction.
#[test]
fn a_command_with_an_invalid_key_has_no_effect() {
    if !can_run() {
        return;
    }
    for running in ways().into_iter().map(start) {
        let mut c = running.client();
        for (wrong, error) in [
            (&b""[..], "-ERR empty keys are not supported"),
            (&[b'k'; 256], "-ERR key exceeds the limit of 255 bytes"),
        ] {
            for begin in [None, Some("BEGIN"), Some("MULTI")] {
                if let Some(begin) = begin {
                    c.ask(begin, "+OK");
                }
                for request in [
                    request(&[b"MSET", b"a", b"1", wrong, b"2"]),
                    request(&[b"EXISTS", b"a", wrong]),
                    request(&[b"MGET", b"a", b"a", wrong]),
                    request(&[b"DEL", b"a", wrong]),
                ] {
                    c.send(&request);
                    assert_eq!(c.lines(1), [error]);
                }
                match begin {
                    None => {}
                    Some("BEGIN") => c.ask("COMMIT", "+OK"),
                    _ => c.ask("EXEC", "-EXECABORT Transaction discarded because of previous errors."),
                }
                c.ask("GET a", "$-1");
            }
        }
        // A reader that was refused has locked nothing.
        let mut other = running.client();
        c.ask("BEGIN", "+OK");
        c.send(&request(&[b"EXISTS", b"a", b""]));
        c.lines(1);
        other.ask("SET a 1", "+OK");
        c.ask("COMMIT", "+OK");
        // Lengths have no zeros in front.
        c.send(b"*02\r\n$3\r\nGET\r\n$1\r\na\r\n");
        assert!(c.lines(1)[0].starts_with("-ERR Protocol error"));
        drop((c, other));
        running.finish();
    }
}

/// INFO counts hits, misses and calls in the same way for the kernel and for the event loop, and the first two as Redis does.
#[test]
fn the_kernel_and_the_event_loop_have_the_same_statistics() {
    if !can_run() {
        return;
    }
    let figures = |config: ServerConfig| {
        let running = start(config);
        let mut c = running.client();
        for (line, text) in ANSWERED {
            c.send(&words(line));
            expect(&mut c, line, text);
        }
        // An EXEC that the kernel gives up after some commands.
        for (line, text) in [
            ("SET a x", "+OK"),
            ("MULTI", "+OK"),
            ("GET a", "+QUEUED"),
            ("EXISTS a b", "+QUEUED"),
            ("INCR a", "+QUEUED"),
            ("EXEC", "*3\r\n$1\r\nx\r\n:1\r\n-ERR value is not an integer or out of range"),
        ] {
            c.ask(line, text);
        }
        // A GET that fails its transaction.
        let mut other = running.client();
        c.ask("BEGIN", "+OK");
        c.ask("SET a y", "+OK");
        other.ask("BEGIN", "+OK");
        other.ask("GET a", "-CONFLICT conflict with another transaction");
        other.ask("ROLLBACK", "+OK");
        c.ask("COMMIT", "+OK");
        drop(other);
        c.send(&words("INFO everything"));
        let info = String::from_utf8(c.replies(1).remove(0)).unwrap();
        let kept: Vec<_> = info
            .lines()
            .filter(|line| line.starts_with("keyspace_") || line.starts_with("cmdstat_"))
            .map(|line| line.split(',').next().unwrap().to_owned())
            .filter(|line| !line.starts_with("cmdstat_client"))
            .collect();
        drop(c);
        running.finish();
        kept
    };
    let (found, expected) = (figures(config()), figures(config_with(false)));
    assert_eq!(found, expected);
    assert!(expected.len() > 20, "{expected:?}");
    let Some(redis) = Redis::start() else { return };
    let mut c = Client::new(redis.addr());
    for (line, text) in ANSWERED {
        c.send(&words(line));
        expect(&mut c, line, text);
    }
    // The commands that our servers have executed in addition.
    for line in ["SET a x", "GET a", "EXISTS a b"] {
        c.send(&words(line));
        c.replies(1);
    }
    c.send(&words("INFO everything"));
    let info = String::from_utf8(c.replies(1).remove(0)).unwrap();
    for name in ["keyspace_hits", "keyspace_misses"] {
        let line = info.lines().find(|line| line.starts_with(name)).unwrap();
        assert!(expected.iter().any(|ours| ours == line), "{line}: {expected:?}");
    }
}
