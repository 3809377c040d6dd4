//! The connection's states: splits, limits, waiting, transactions, authentication.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::model::Model;
use super::{Client, encode, one};
use crate::command::{AdminTaskTicket, DatabaseOptions, Next, Services, Startup};
use bedplate_kerneldb::{Durability, Error};

#[test]
fn replies_do_not_depend_on_how_the_input_arrives() {
    let input = [
        encode(&["SET", "k", "v"]),
        b"GET k\r\nINCR n\r\n".to_vec(),
        encode(&["MULTI"]),
        encode(&["GET", "k"]),
        encode(&["EXEC"]),
        b"FOO\r\n".to_vec(),
        b"QUIT\r\nPING\r\n".to_vec(),
    ]
    .concat();
    let expected = "+OK\r\n$1\r\nv\r\n:1\r\n+OK\r\n+QUEUED\r\n*1\r\n$1\r\nv\r\n\
                    -ERR unknown command 'FOO', with args beginning with: \r\n+OK\r\n";
    for at in 0..input.len() {
        let mut c = one();
        c.feed(&input[..at]);
        assert_eq!(c.feed(&input[at..]), Next::Close);
        assert_eq!(c.take(), expected, "split at {at}");
    }
}

#[test]
fn a_locked_key_is_tried_again_without_blocking() {
    let model = Model::new(Startup::default());
    let (mut a, mut b) = (Client::new(&model), Client::new(&model));
    assert_eq!(a.send("BEGIN"), "+OK\r\n");
    assert_eq!(a.send("SET k 1"), "+OK\r\n");
    for command in ["INCR k", "SET k 2", "DEL k", "MSET k 1 l 2"] {
        let mut b = Client::new(&model);
        let next = b.feed(format!("{command}\r\nPING\r\n").as_bytes());
        assert!(matches!(next, Next::RetryAfter(pause) if pause <= Duration::from_millis(15)));
        assert_eq!(b.take(), "", "no reply, and none out of order");
    }
    // Neither plain reads nor snapshots wait, and neither sees uncommitted writes.
    b.send("SET l x");
    assert_eq!(b.send("STRLEN l"), ":1\r\n");
    b.feed(b"INCR k\r\nPING\r\n");
    assert_eq!(a.send("COMMIT"), "+OK\r\n");
    assert_eq!(b.finish(), Next::NeedInput);
    assert_eq!(b.take(), ":2\r\n+PONG\r\n");
    assert_eq!(model.locks(), 0);
}

#[test]
fn a_lock_that_stays_is_reported_after_the_timeout() {
    let model = Model::new(Startup::default());
    let (mut a, mut b) = (Client::new(&model), Client::new(&model));
    a.send("CONFIG SET lock-timeout 20");
    a.send("BEGIN");
    a.send("SET k 1");
    assert_eq!(b.send("INCR k"), "-CONFLICT conflict with another transaction\r\n");
    b.send("MULTI");
    b.send("SET x 1");
    b.send("INCR k");
    assert_eq!(b.send("EXEC"), "-EXECABORT Transaction rolled back: conflict with another transaction\r\n");
    assert_eq!(b.send("EXEC"), "-ERR EXEC without MULTI\r\n");
    a.send("ROLLBACK");
    assert_eq!(b.send("EXISTS x k"), ":0\r\n");
}

#[test]
fn transient_errors_pass_unseen_and_others_are_told() {
    let model = Model::new(Startup::default());
    let mut c = Client::new(&model);
    model.inject(vec![
        Error::Busy,
        Error::WalFull,
        Error::MemoryInLog,
        Error::NoVersion,
        Error::Conflict,
        Error::Busy,
        Error::Busy,
    ]);
    assert_eq!(c.send("INCR k"), ":1\r\n");
    for (error, reply) in [
        (Error::NoMemory, "-OOM command not allowed when used memory > 'maxmemory'.\r\n"),
        (Error::WalFailed, "-MISCONF the write-ahead log cannot be written: the database is read-only\r\n"),
    ] {
        let text = reply.strip_prefix('-').unwrap();
        model.inject(vec![error]);
        assert_eq!(c.send("INCR k"), reply);
        c.feed(b"MULTI\r\nINCR k\r\n");
        c.take();
        let fault = if text.starts_with("OOM") { Error::NoMemory } else { Error::WalFailed };
        model.inject(vec![fault]);
        assert_eq!(c.send("EXEC"), format!("-EXECABORT Transaction rolled back: {text}"));
    }
    assert_eq!(c.send("GET k"), "$1\r\n1\r\n");
}

/// A database at its limit may stay full although the log's writer frees memory. In the end the reply is OOM.
#[test]
fn memory_that_does_not_come_back() {
    let model = Model::new(Startup::default());
    let mut c = Client::new(&model);
    model.inject((0..20).map(|_| Error::MemoryInLog).chain([Error::NoMemory]).collect());
    assert_eq!(c.send("SET k 1"), "-OOM command not allowed when used memory > 'maxmemory'.\r\n");
}

/// A stalled disk makes writes wait longer than a lock does.
#[test]
fn a_log_that_is_behind_is_waited_for_without_a_time_limit() {
    let model = Model::new(Startup::default());
    let mut c = Client::new(&model);
    c.send("CONFIG SET lock-timeout 0");
    for error in [|| Error::WalFull, || Error::MemoryInLog] {
        model.inject((0..40).map(|_| error()).collect());
        assert_eq!(c.send("SET k 1"), "+OK\r\n");
    }
    model.inject((0..40).map(|_| Error::Conflict).collect());
    assert_eq!(c.send("SET k 1"), "-CONFLICT conflict with another transaction\r\n");
}

/// A client's transaction does not fail if memory is short only for some time, and EXEC does not start again.
#[test]
fn transactions_wait_for_memory_that_comes_back() {
    let model = Model::new(Startup::default());
    let mut c = Client::new(&model);
    let waits = || (0..40).map(|_| Error::MemoryInLog).collect();
    c.send("BEGIN");
    c.send("SET a 1");
    model.inject(waits());
    assert_eq!(c.send("INCR a"), ":2\r\n");
    assert_eq!(c.send("COMMIT"), "+OK\r\n");
    c.feed(b"MULTI\r\nINCR a\r\nAPPEND a 0\r\n");
    c.take();
    model.inject(waits());
    assert_eq!(c.send("EXEC"), "*2\r\n:3\r\n:2\r\n");
    c.send("BEGIN");
    model.inject(vec![Error::NoMemory]);
    assert_eq!(c.send("INCR a"), "-OOM command not allowed when used memory > 'maxmemory'.\r\n");
    assert!(c.send("COMMIT").starts_with("-TXFAILED"));
}

/// A client's transaction waits for a latch as long as its holder has it. Otherwise a client that does not check every
/// reply could commit a part of its writes. EXEC starts again, and commits nothing when the time is over.
#[test]
fn a_latch_that_is_held_fails_no_transaction() {
    let model = Model::new(Startup::default());
    let mut c = Client::new(&model);
    let held = || (0..40).map(|_| Error::Busy).collect();
    c.send("CONFIG SET lock-timeout 0");
    c.send("BEGIN");
    c.send("SET a 1");
    model.inject(held());
    assert_eq!(c.send("INCR a"), ":2\r\n");
    model.inject(held());
    assert_eq!(c.send("COMMIT"), "+OK\r\n");
    c.feed(b"MULTI\r\nINCR a\r\nAPPEND a 0\r\n");
    c.take();
    model.inject(held());
    assert_eq!(c.send("EXEC"), "-EXECABORT Transaction rolled back: busy, retry\r\n");
    model.inject(Vec::new());
    assert_eq!(c.send("GET a"), "$1\r\n2\r\n");
}

#[test]
fn exec_retries_as_a_whole() {
    let model = Model::new(Startup::default());
    let mut c = Client::new(&model);
    c.feed(b"MULTI\r\nINCR a\r\nINCR b\r\nHELLO 3\r\nGET nope\r\n");
    c.take();
    // The last error comes first: b's write fails after a's was made.
    let ok = || Error::Conflict;
    model.inject(vec![ok(), ok(), ok(), ok(), ok(), ok(), ok()]);
    let reply = c.send("EXEC");
    assert!(reply.starts_with("*4\r\n:1\r\n:1\r\n%7\r\n") && reply.ends_with("_\r\n"), "{reply}");
    assert_eq!(c.send("MGET a b"), "*2\r\n$1\r\n1\r\n$1\r\n1\r\n");
}

#[test]
fn interactive_transactions() {
    let model = Model::new(Startup::default());
    let (mut a, mut b) = (Client::new(&model), Client::new(&model));
    a.send("MSET x 1 y 1");
    // Write skew: each reads the key that the other writes.
    assert_eq!((a.send("BEGIN"), b.send("BEGIN")), ("+OK\r\n".into(), "+OK\r\n".into()));
    assert_eq!(a.send("GET x"), "$1\r\n1\r\n");
    assert_eq!(b.send("GET y"), "$1\r\n1\r\n");
    assert_eq!(a.send("SET y 0"), "-CONFLICT conflict with another transaction\r\n");
    let failed = "-TXFAILED the transaction has failed and can only be rolled back\r\n";
    assert_eq!(a.send("GET x"), failed);
    assert_eq!(a.send("FLUSHALL"), failed);
    assert_eq!(a.send("PING"), "+PONG\r\n");
    assert_eq!(a.send("BEGIN"), "-ERR BEGIN inside a transaction\r\n");
    assert_eq!(a.send("COMMIT"), "-TXFAILED the transaction had failed and was rolled back\r\n");
    assert_eq!(b.send("SET x 0"), "+OK\r\n");
    assert_eq!(b.send("MULTI"), "-ERR MULTI inside BEGIN is not allowed\r\n");
    assert_eq!(b.send("WATCH x"), "-ERR WATCH inside BEGIN is not allowed\r\n");
    // The client's own mistakes do not end the transaction.
    b.send("SET s str");
    assert_eq!(b.send("INCR s"), "-ERR value is not an integer or out of range\r\n");
    assert_eq!(b.send("SET k \"\" EX 0"), "-ERR invalid expire time in 'set' command\r\n");
    assert_eq!(b.send("MGET x s"), "*2\r\n$1\r\n0\r\n$3\r\nstr\r\n");
    assert_eq!(b.send("COMMIT"), "+OK\r\n");
    // A snapshot.
    assert_eq!(a.send("BEGIN READ ONLY"), "+OK\r\n");
    assert_eq!(a.send("GET x"), "$1\r\n0\r\n");
    assert_eq!(b.send("SET x 5"), "+OK\r\n");
    assert_eq!(a.send("GET x"), "$1\r\n0\r\n");
    assert!(a.send("SET x 6").starts_with("-ERR"));
    assert_eq!(a.send("ROLLBACK"), "+OK\r\n");
    assert_eq!(a.send("GET x"), "$1\r\n5\r\n");
    // FLUSHALL is part of the transaction.
    a.send("BEGIN");
    assert_eq!(a.send("FLUSHALL"), "+OK\r\n");
    assert_eq!(a.send("EXISTS x y"), ":0\r\n");
    a.send("ROLLBACK");
    assert_eq!(a.send("EXISTS x y"), ":2\r\n");
    assert_eq!(model.locks(), 0);
}

#[test]
fn watch_sees_every_change() {
    let model = Model::new(Startup::default());
    let (mut a, mut b) = (Client::new(&model), Client::new(&model));
    a.send("SET k v EX 100");
    for change in ["SET k v", "DEL k", "SET nope 1", "EXPIRE k 50", "RENAME k z", "FLUSHALL"] {
        a.send("SET k v EX 100");
        a.send("DEL nope");
        assert_eq!(a.send("WATCH k nope"), "+OK\r\n");
        b.send(change);
        a.send("MULTI");
        a.send("PING");
        assert_eq!(a.send("EXEC"), "*-1\r\n", "{change}");
        a.send("MULTI");
        assert_eq!(a.send("EXEC"), "*0\r\n", "EXEC forgets what was watched");
    }
    // Expiry is a change too.
    a.send("SET k v PX 1000");
    a.send("WATCH k");
    model.skew_ms.fetch_add(2000, Relaxed);
    a.send("MULTI");
    a.send("SET k 2");
    assert_eq!(a.send("EXEC"), "*-1\r\n");
    assert_eq!(a.send("GET k"), "$-1\r\n");
}

#[test]
fn synchronous_replies_wait_for_the_disk_in_order() {
    let model = Model::new(Startup {
        database: DatabaseOptions { durability: Durability::Sync, ..Default::default() },
        ..Default::default()
    });
    model.durable_ts.store(0, Relaxed);
    let mut c = Client::new(&model);
    assert_eq!(c.feed(b"PING\r\nSET a 1\r\nGET a\r\nSET b 2\r\nINCR a\r\nPING\r\n"), Next::WaitDurable(1));
    assert_eq!(c.take(), "+PONG\r\n");
    assert!(!c.connection.at_rest());
    assert_eq!(model.locks(), 0, "everything ran");
    model.durable_ts.store(1, Relaxed);
    assert_eq!(c.process(), Next::WaitDurable(2));
    assert_eq!(c.take(), "+OK\r\n$1\r\n1\r\n");
    // More requests may come meanwhile.
    assert_eq!(c.feed(b"ECHO x\r\n"), Next::WaitDurable(2));
    assert_eq!(c.take(), "");
    model.durable_ts.store(3, Relaxed);
    assert_eq!(c.process(), Next::NeedInput);
    assert_eq!(c.take(), "+OK\r\n:2\r\n+PONG\r\n$1\r\nx\r\n");
    assert!(c.connection.at_rest());
    // The session may ask for less durability. QUIT leaves after the held replies.
    assert_eq!(c.send("BEDPLATE DURABILITY async"), "+OK\r\n");
    assert_eq!(c.send("SET a 5"), "+OK\r\n");
    c.send("BEDPLATE DURABILITY sync");
    assert_eq!(c.feed(b"SET a 6\r\nQUIT\r\n"), Next::WaitDurable(5));
    model.durable_ts.store(5, Relaxed);
    assert_eq!(c.process(), Next::Close);
    assert_eq!(c.take(), "+OK\r\n+OK\r\n");
}

/// Bytes that are no reply to a request stay behind the replies that wait, and leave with them.
#[test]
fn errors_and_lines_of_monitors_leave_with_held_replies() {
    let model = Model::new(Startup {
        database: DatabaseOptions { durability: Durability::Sync, ..Default::default() },
        ..Default::default()
    });
    model.durable_ts.store(0, Relaxed);
    let mut broken = Client::new(&model);
    assert_eq!(broken.feed(b"SET a 1\r\n*x\r\n"), Next::WaitDurable(1));
    assert_eq!(broken.take(), "");
    model.durable_ts.store(1, Relaxed);
    assert_eq!(broken.process(), Next::Close);
    assert_eq!(broken.take(), "+OK\r\n-ERR Protocol error: invalid multibulk length\r\n");

    let (mut monitor, mut client) = (Client::new(&model), Client::new(&model));
    assert_eq!(monitor.feed(b"SET b 1\r\nMONITOR\r\n"), Next::WaitDurable(2));
    client.feed(b"PING\r\n");
    assert_eq!(monitor.process(), Next::WaitDurable(2));
    assert_eq!(monitor.take(), "");
    model.durable_ts.store(2, Relaxed);
    assert_eq!(monitor.process(), Next::NeedInput);
    let seen = monitor.take();
    assert!(seen.starts_with("+OK\r\n+OK\r\n+") && seen.ends_with("\"PING\"\r\n"), "{seen}");
    client.feed(b"ECHO x\r\n");
    monitor.process();
    assert!(monitor.take().ends_with("\"ECHO\" \"x\"\r\n"));
}

/// After the deadline, one more request runs at most, and the rest later.
#[test]
fn a_turn_ends_at_its_deadline() {
    let mut client = one();
    client.connection.feed(b"INCR n\r\nINCR n\r\nINCR n\r\n");
    for number in 1..=3 {
        let Client { connection, session, services, out } = &mut client;
        let next = connection.process(session, &*services, out, Some(std::time::Instant::now()));
        assert_eq!((next, client.take()), (Next::FlushOutput, format!(":{number}\r\n")));
    }
    assert_eq!(client.process(), Next::NeedInput);
}

#[test]
fn waitaof_waits() {
    let model = Model::new(Startup::default());
    model.durable_ts.store(0, Relaxed);
    let mut c = Client::new(&model);
    c.send("SET k v");
    assert_eq!(c.send("WAITAOF 1 0 10"), "*2\r\n:0\r\n:0\r\n");
    assert!(matches!(c.feed(b"WAITAOF 1 0 0\r\nPING\r\n"), Next::RetryAfter(_)));
    assert_eq!(c.take(), "");
    model.durable_ts.store(1, Relaxed);
    assert_eq!(c.process(), Next::NeedInput);
    assert_eq!(c.take(), "*2\r\n:1\r\n:0\r\n+PONG\r\n");
    model.logged.store(false, Relaxed);
    assert!(c.send("WAITAOF 1 0 0").starts_with("-ERR WAITAOF cannot be used"));
}

#[test]
fn admin_tasks_do_not_block() {
    let model = Model::new(Startup::default());
    let ticket = Arc::new(AdminTaskTicket::default());
    *model.task.lock().unwrap() = Arc::clone(&ticket);
    let mut c = Client::new(&model);
    assert!(matches!(c.feed(b"SAVE\r\nPING\r\n"), Next::RetryAfter(_)));
    assert!(matches!(c.process(), Next::RetryAfter(_)));
    ticket.finish(Err("ERR disk full".into()));
    assert_eq!(c.process(), Next::NeedInput);
    assert_eq!(c.take(), "-ERR disk full\r\n+PONG\r\n");
    assert_eq!(c.feed(b"SHUTDOWN NOSAVE\r\n"), Next::Shutdown);
}

/// A shutdown waits for its checkpoint; meanwhile reads are answered and writes wait.
#[test]
fn shutdown_waits_and_can_be_aborted() {
    const FAILED: &str = "-ERR Errors trying to SHUTDOWN. Check logs.\r\n";
    let model = Model::new(Startup::default());
    let waits = |c: &mut Client, line: &str| {
        assert!(matches!(c.feed(format!("{line}\r\n").as_bytes()), Next::RetryAfter(_)), "{line}");
        assert_eq!(c.take(), "");
    };
    let (mut a, mut b) = (Client::new(&model), Client::new(&model));
    let (mut reader, mut writer) = (Client::new(&model), Client::new(&model));
    assert_eq!(reader.send("SHUTDOWN ABORT"), "-ERR No shutdown in progress.\r\n");
    assert_eq!(reader.send("SHUTDOWN ABORT NOW"), "-ERR syntax error\r\n");
    assert_eq!(reader.send("SHUTDOWN SAVE NOSAVE"), "-ERR syntax error\r\n");
    for end in ["abort", "fail"] {
        let ticket = Arc::new(AdminTaskTicket::default());
        *model.task.lock().unwrap() = Arc::clone(&ticket);
        waits(&mut a, "SHUTDOWN");
        waits(&mut b, "SHUTDOWN SAVE");
        waits(&mut writer, "SET k v");
        assert_eq!(reader.send("GET k"), "$-1\r\n");
        assert_eq!(reader.send("CLIENT UNPAUSE"), "+OK\r\n");
        assert!(matches!(writer.process(), Next::RetryAfter(_)), "UNPAUSE is not for shutdowns");
        assert_eq!(model.server().shutdown.poll(), None);
        if end == "abort" {
            assert_eq!(reader.send("SHUTDOWN ABORT"), "+OK\r\n");
        } else {
            ticket.finish(Err("ERR disk full".into()));
            assert_eq!(model.server().shutdown.poll(), Some(Err("ERR disk full".into())));
            model.server().clients.resume_after_shutdown();
        }
        for client in [&mut a, &mut b] {
            assert_eq!(client.process(), Next::NeedInput);
            assert_eq!(client.take(), FAILED, "{end}");
        }
        writer.finish();
        assert_eq!(writer.take(), "+OK\r\n");
        assert_eq!(reader.send("DEL k"), ":1\r\n");
        assert_eq!(model.server().shutdown.poll(), None);
    }
    *model.task.lock().unwrap() = AdminTaskTicket::finished(Ok("saved".into()));
    waits(&mut a, "SHUTDOWN NOW");
    drop(a);
    assert_eq!(model.server().shutdown.poll(), Some(Ok(())), "also when the client has left");
}

#[test]
fn a_slow_reader_stops_its_own_requests_only() {
    let mut c = one();
    c.send("CONFIG SET client-output-buffer-limit 65536");
    let value = "v".repeat(1000);
    c.send(&format!("SET k {value}"));
    let next = c.feed(&b"GET k\r\n".repeat(1000));
    assert_eq!(next, Next::FlushOutput);
    assert!(c.out.len() < 70_000, "{}", c.out.len());
    let mut total = 0;
    while c.process() == Next::FlushOutput {
        total += c.take().len();
    }
    total += c.take().len();
    assert_eq!(total, 1000 * (1000 + "$1000\r\n\r\n".len()));
}

#[test]
fn too_much_input_closes_the_connection() {
    let mut c = one();
    c.send("CONFIG SET client-query-buffer-limit 1mb");
    let args: Vec<Vec<u8>> = (0..20).map(|_| vec![b'x'; 100_000]).collect();
    let request = encode(&args);
    let mut next = Next::NeedInput;
    for part in request.chunks(65536) {
        next = c.feed(part);
        if next == Next::Close {
            break;
        }
    }
    assert_eq!(next, Next::Close);
    let mut c = one();
    c.send("CONFIG SET client-query-buffer-limit 1mb");
    c.send("MULTI");
    let set = encode(&["SET", "k", &"x".repeat(60_000)]);
    let mut replies = String::new();
    for _ in 0..20 {
        c.feed(&set);
        replies += &c.take();
    }
    assert!(replies.contains("-ERR the queued commands exceed"), "{replies}");
    assert!(c.send("EXEC").starts_with("-EXECABORT"));
}

#[test]
fn passwords() {
    let model = Model::new(Startup { password: "secret".into(), ..Default::default() });
    let mut c = Client::new(&model);
    assert!(!c.connection.at_rest());
    assert_eq!(c.send("GET k"), "-NOAUTH Authentication required.\r\n");
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
    for attempt in
        ["AUTH x", "AUTH secre", "AUTH secrett", "AUTH \"\"", "AUTH nobody secret", "HELLO 3 AUTH default x"]
    {
        assert_eq!(c.send(attempt), wrong, "{attempt}");
    }
    assert!(c.send("HELLO 3").starts_with("-NOAUTH HELLO must be called"));
    assert_eq!(c.send("AUTH secret"), "+OK\r\n");
    assert_eq!(c.send("GET k"), "$-1\r\n");
    assert!(c.connection.at_rest());
    assert_eq!(c.send("RESET"), "+RESET\r\n");
    assert_eq!(c.send("GET k"), "-NOAUTH Authentication required.\r\n");
    assert!(c.send("HELLO 2 AUTH default secret SETNAME me").starts_with("*14\r\n"));
    c.send("CONFIG SET requirepass other");
    let mut d = Client::new(&model);
    assert_eq!(d.send("AUTH secret"), wrong);
    assert_eq!(d.send("AUTH default other"), "+OK\r\n");
    let mut e = Client::new(&model);
    assert_eq!(e.feed(b"*11\r\n"), Next::Close);
    assert_eq!(e.take(), "-ERR Protocol error: unauthenticated multibulk length\r\n");
}

#[test]
fn clients_can_be_killed_and_paused() {
    let model = Model::new(Startup::default());
    let (mut a, mut b) = (Client::new(&model), Client::new(&model));
    let id = b.connection.client().id;
    assert_eq!(a.send(&format!("CLIENT KILL ID {id}")), ":1\r\n");
    assert_eq!(b.feed(b"PING\r\n"), Next::Close);
    assert_eq!(a.send("CLIENT PAUSE 40 WRITE"), "+OK\r\n");
    assert_eq!(a.send("GET k"), "$-1\r\n");
    assert!(matches!(a.feed(b"SET k v\r\n"), Next::RetryAfter(_)));
    assert_eq!(a.finish(), Next::NeedInput);
    assert_eq!(a.take(), "+OK\r\n");
    assert_eq!(a.send("CLIENT KILL SKIPME no TYPE normal"), ":2\r\n");
    assert_eq!(a.process(), Next::Close);
}

#[test]
fn scan_returns_what_stays() {
    let mut c = one();
    for i in 0..200 {
        c.send(&format!("SET stay{i} v"));
    }
    let (mut cursor, mut seen, mut round) = ("0".to_owned(), std::collections::BTreeSet::new(), 0);
    loop {
        let reply = c.send(&format!("SCAN {cursor} COUNT 10"));
        let lines: Vec<&str> = reply.split("\r\n").collect();
        cursor = lines[2].to_owned();
        seen.extend(lines[5..].iter().step_by(2).filter(|k| !k.is_empty()).map(|k| k.to_string()));
        // The other keys come and go meanwhile.
        for i in 0..50 {
            c.send(&format!("{} go{}", if round % 2 == 0 { "INCR" } else { "DEL" }, round * 50 + i));
        }
        round += 1;
        if cursor == "0" {
            break;
        }
    }
    assert!(round > 1, "one call returned everything");
    assert_eq!(seen.iter().filter(|k| k.starts_with("stay")).count(), 200);
}

#[test]
fn expired_keys_are_invisible_and_flushed() {
    let model = Model::new(Startup::default());
    let mut c = Client::new(&model);
    for i in 0..100 {
        c.send(&format!("SET k{i} v {}", if i % 2 == 0 { "PX 50000" } else { "" }));
    }
    model.skew_ms.fetch_add(60_000, Relaxed);
    assert_eq!(c.send("DBSIZE"), ":100\r\n");
    assert_eq!(c.send("EXISTS k0 k1"), ":1\r\n");
    // The engine deletes expired keys; FLUSHALL does not leave them behind either.
    assert_eq!(c.send("FLUSHALL"), "+OK\r\n");
    assert_eq!(c.send("DBSIZE"), ":0\r\n");
    assert_eq!(c.send("CONFIG RESETSTAT"), "+OK\r\n");
}

#[test]
fn keys_that_expire_while_they_are_flushed_are_flushed() {
    let model = Model::new(Startup::default());
    let mut c = Client::new(&model);
    for i in 0..100 {
        c.send(&format!("SET k{i} v PX 50000"));
    }
    model.pause_after_scan_ms.store(60_000, Relaxed);
    assert_eq!(c.send("FLUSHALL"), "+OK\r\n");
    assert_eq!(c.send("DBSIZE"), ":0\r\n");
}

#[test]
fn state_from_the_kernel_goes_on_here() {
    let model = Model::new(Startup::default());
    let mut c = Client::new(&model);
    let queue = [encode(&["SET", "k", "v"]), b"INCR n\r\n".to_vec()].concat();
    c.connection.import_multi(&queue, false);
    assert!(!c.connection.at_rest());
    assert_eq!(c.send("EXEC"), "*2\r\n+OK\r\n:1\r\n");
    assert!(c.connection.at_rest());
    c.connection.import_multi(&encode(&["FOO"]), false);
    assert_eq!(c.send("EXEC"), "-EXECABORT Transaction discarded because of previous errors.\r\n");
    c.connection.import_multi(b"", true);
    assert_eq!(c.send("EXEC"), "-EXECABORT Transaction discarded because of previous errors.\r\n");
    // A reply of the kernel that waits for the disk, and one behind it.
    model.durable_ts.store(0, Relaxed);
    let Client { connection, out, .. } = &mut c;
    connection.import_reply(b"+OK\r\n", 7, &model, out);
    assert_eq!(c.feed(b"PING\r\n"), Next::WaitDurable(7));
    model.durable_ts.store(7, Relaxed);
    c.process();
    assert_eq!(c.take(), "+OK\r\n+PONG\r\n");
}
