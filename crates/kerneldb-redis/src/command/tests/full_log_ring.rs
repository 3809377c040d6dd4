//! Tests requests that meet a full log ring: they wait at any point, and then continue or start again.

use super::model::Model;
use super::{Client, one};
use crate::command::{Next, Startup};
use crate::limits::LONG_TRANSACTION_BYTES;
use bedplate_kerneldb::Error;

/// Replies to a script of all commands that write, in BEGIN, in MULTI and alone.
fn replies_to_writes(c: &mut Client) -> Vec<String> {
    let large = "x".repeat(10_000);
    let larger = "y".repeat(15_000);
    let writes = [
        format!("MSET a {large} b {large} c {larger} d {larger} e {large} f {large}"),
        "MSETNX a 1 p 1".into(),
        format!("MSETNX p {large} q {large} r {large}"),
        "DEL a nope b nope p".into(),
        "RENAME c a".into(),
        "RENAMENX d b".into(),
        "RENAMENX a b".into(),
        "COPY a c".into(),
        format!("SET e {larger} GET"),
        "INCR n".into(),
        "INCRBYFLOAT n 1.5".into(),
        "APPEND a tail".into(),
        "SETRANGE a 3 patch".into(),
        "GETSET q 1".into(),
        "GETDEL q".into(),
        "GETEX r PX 100000".into(),
        "PERSIST r".into(),
        "SETNX r 1".into(),
        "CAS n 2.5 7".into(),
        "INCR a".into(),
        "UNLINK r n nope".into(),
        "MGET a b c d e f n p q r".into(),
    ];
    let mut replies = Vec::new();
    for (begin, end) in [("BEGIN", "COMMIT"), ("MULTI", "EXEC"), ("BEGIN", "ROLLBACK"), ("PING", "PING")] {
        let lines = writes.iter().map(String::as_str);
        for line in [begin].into_iter().chain(lines).chain([end, "MGET a b c d e f n p q r"]) {
            replies.push(c.send(line));
        }
    }
    for line in ["BEGIN", "FLUSHALL", "DBSIZE", "COMMIT", "DBSIZE"] {
        replies.push(c.send(line));
    }
    replies
}

/// A full log ring makes the client wait at any point, and changes no reply and no value.
#[test]
fn a_full_log_ring_changes_no_reply() {
    let mut c = one();
    let expected = replies_to_writes(&mut c);
    let failed = expected.iter().find(|reply| reply.starts_with("-") && !reply.starts_with("-ERR value"));
    assert!(failed.is_none() && expected.last().unwrap() == ":0\r\n", "{expected:?}");
    for size in [8, 13] {
        for room in 0..size {
            let model = Model::new(Startup::default());
            let mut c = Client::new(&model);
            c.send("CONFIG SET lock-timeout 0");
            model.limit_ring(size, room);
            let replies = replies_to_writes(&mut c);
            for (i, (reply, expected)) in replies.iter().zip(&expected).enumerate() {
                let short = |text: &str| text.chars().take(300).collect::<String>();
                assert!(reply == expected, "{size}, {room}, {i}: {}, not {}", short(reply), short(expected));
            }
            assert_eq!(model.locks(), 0);
        }
    }
}

/// While a request waits for the log, a short transaction of its own holds no lock, and a long one keeps its
/// locks. A client that disconnects then leaves none of them.
#[test]
fn only_long_transactions_hold_locks_while_they_wait_for_the_log() {
    let value = "v".repeat(40_000);
    // The first two keys with their values.
    let of = |bytes: usize| {
        let (first, second) = ("v".repeat(30_000), "v".repeat(bytes - 30_000 - 2));
        format!("MSET a {first} b {second} c 3\r\n")
    };
    for (requests, holds) in [
        ("MSET a 1 b 2 c 3\r\n".to_owned(), false),
        (format!("MSET a {value} b {value} c 3\r\n"), true),
        (of(LONG_TRANSACTION_BYTES - 1), false),
        (of(LONG_TRANSACTION_BYTES), true),
        (format!("MULTI\r\nSET a 1\r\nSET b {value}\r\nSET c 3\r\nEXEC\r\n"), false),
        (format!("MULTI\r\nSET a {value}\r\nSET b {value}\r\nSET c 3\r\nEXEC\r\n"), true),
        ("BEGIN\r\nSET a 1\r\nMSET b 1 c 3\r\n".to_owned(), true),
    ] {
        let model = Model::new(Startup::default());
        let (mut c, mut other) = (Client::new(&model), Client::new(&model));
        model.limit_ring(3, 2);
        let progress = c.feed(requests.as_bytes());
        assert!(matches!(progress, Next::RetryAfter(_)), "{requests}: {progress:?}");
        assert!(!c.connection.at_rest());
        assert_eq!(model.locks() > 0, holds, "{}", &requests[..20]);
        assert_eq!(other.send("MGET a b c"), "*3\r\n$-1\r\n$-1\r\n$-1\r\n");
        drop(c);
        assert_eq!(model.locks(), 0);
    }
}

/// A log that cannot be written at all ends the transaction that has waited for it.
#[test]
fn a_transaction_that_waits_for_the_log_ends_when_the_log_fails() {
    let value = "v".repeat(40_000);
    let misconf = "MISCONF the write-ahead log cannot be written: the database is read-only\r\n";
    for (requests, reply, ends) in [
        (format!("MSET a {value} b {value} c 3\r\n"), format!("-{misconf}"), true),
        (
            format!("MULTI\r\nSET a {value}\r\nSET b {value}\r\nSET c 3\r\nEXEC\r\n"),
            format!("+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n-EXECABORT Transaction rolled back: {misconf}"),
            true,
        ),
        ("BEGIN\r\nSET a 1\r\nMSET b 1 c 3\r\n".into(), format!("+OK\r\n+OK\r\n-{misconf}"), false),
    ] {
        let model = Model::new(Startup::default());
        let mut c = Client::new(&model);
        model.limit_ring(3, 2);
        assert!(matches!(c.feed(requests.as_bytes()), Next::RetryAfter(_)));
        model.inject(vec![Error::WalFailed]);
        c.finish();
        assert_eq!(c.take(), reply);
        assert!(c.connection.at_rest());
        if !ends {
            assert_eq!(c.send("COMMIT"), "-TXFAILED the transaction had failed and was rolled back\r\n");
        }
        assert_eq!(model.locks(), 0);
        model.limit_ring(100, 100);
        assert_eq!(c.send("MSET a 1 b 2"), "+OK\r\n");
        assert_eq!(c.send("MGET a b c"), "*3\r\n$1\r\n1\r\n$1\r\n2\r\n$-1\r\n");
    }
}

/// The time limit on transactions ends one that waits for the log. If it is the request's own, the request starts again.
#[test]
fn a_request_that_waits_for_the_log_longer_than_a_transaction_may_last_begins_anew() {
    let value = "v".repeat(40_000);
    let timed_out = "-TXFAILED the transaction exceeded its time limit and was rolled back\r\n";
    let queued = "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n";
    for (requests, reply) in [
        (format!("MSET a {value} b {value} c 3\r\n"), "+OK\r\n".to_owned()),
        (
            format!(
                "MULTI\r\nECHO first\r\nHELLO 3\r\nMSET a {value} b {value}\r\nGET absent\r\nSET c 3\r\nEXEC\r\n"
            ),
            format!("{queued}*5\r\n$5\r\nfirst\r\n%7\r\n"),
        ),
        ("BEGIN\r\nSET a 1\r\nMSET b 1 c 3\r\n".into(), format!("+OK\r\n+OK\r\n{timed_out}")),
    ] {
        let model = Model::new(Startup::default());
        let mut c = Client::new(&model);
        model.limit_ring(3, 2);
        assert!(matches!(c.feed(requests.as_bytes()), Next::RetryAfter(_)));
        model.limit_ring(3, 3);
        model.inject(vec![Error::TimedOut]);
        c.finish();
        let replies = c.take();
        assert!(replies.starts_with(&reply), "{replies}");
        assert!(!reply.ends_with("%7\r\n") || replies.ends_with("+OK\r\n_\r\n+OK\r\n"), "{replies}");
    }
}
