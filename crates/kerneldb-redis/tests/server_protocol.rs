//! Tests the protocol over real sockets: answers of the kernel, of user space, and of both mixed.

mod common;
mod server;

use std::io::Write;
use std::net::Shutdown;
use std::time::Duration;

use common::can_run;
use redis::Commands;
use server::traffic::{mixed_pipelines, split_everywhere};
use server::{Random, bulk, config, eventually, request, start, words};

#[test]
fn redis_crate() {
    if !can_run() {
        return;
    }
    let running = start(config());
    for options in ["", "?protocol=resp3"] {
        let client = redis::Client::open(format!("redis://{}/{options}", running.addr)).unwrap();
        let mut con = client.get_connection().unwrap();
        let () = redis::cmd("FLUSHALL").query(&mut con).unwrap();
        let () = con.set("key", "value").unwrap();
        assert_eq!(con.get::<_, String>("key").unwrap(), "value");
        assert_eq!(con.get::<_, Option<String>>("none").unwrap(), None);
        assert_eq!(con.incr::<_, _, i64>("n", 5).unwrap(), 5);
        assert_eq!(con.del::<_, i64>(&["key", "n", "none"]).unwrap(), 2);
        let (a, b): (i64, String) =
            redis::pipe().atomic().incr("m", 1).set("s", "x").ignore().get("s").query(&mut con).unwrap();
        assert_eq!((a, b.as_str()), (1, "x"));
    }
    running.finish();
}

#[test]
fn the_kernel_answers() {
    if !can_run() {
        return;
    }
    for version in [2, 3] {
        the_kernel_answers_in(version);
    }
}

fn the_kernel_answers_in(version: u32) {
    let running = start(config());
    let mut c = running.client();
    c.hello(version);
    // The turn may end after one of the next replies.
    eventually("the kernel answers", || {
        let before = running.server.stats().unwrap().kernel_commands;
        c.ask("PING", "+PONG");
        running.server.stats().unwrap().kernel_commands > before
    });
    let before = running.server.stats().unwrap();
    for line in ["SET a 1", "set b 2", "SeT c 3"] {
        c.ask(line, "+OK");
    }
    c.ask("GET a", "$1\r\n1");
    c.ask("GET missing", if version == 3 { "_" } else { "$-1" });
    c.ask("DEL a", ":1");
    c.ask("DEL a", ":0");
    c.ask("BEGIN", "+OK");
    c.ask("SET b 5", "+OK");
    c.ask("GET b", "$1\r\n5");
    c.ask("ROLLBACK", "+OK");
    c.ask("GET b", "$1\r\n2");
    c.ask("BEGIN", "+OK");
    c.ask("SET b 6", "+OK");
    c.ask("COMMIT", "+OK");
    c.ask("MULTI", "+OK");
    c.ask("GET missing", "+QUEUED");
    c.ask("GET b", "+QUEUED");
    c.ask("EXEC", if version == 3 { "*2\r\n_\r\n$1\r\n6" } else { "*2\r\n$-1\r\n$1\r\n6" });
    c.send(b"PING\r\nGET b\r\nping\n");
    c.expect(b"+PONG\r\n$1\r\n6\r\n+PONG\r\n");
    let after = running.server.stats().unwrap();
    // Those of the queue are counted with EXEC.
    assert!(after.kernel_commands - before.kernel_commands >= 22, "{after:?}");
    assert_eq!(after.passed, before.passed, "all of it is the kernel's");
    drop(c);
    running.finish();
}

#[test]
fn split_at_every_byte() {
    if !can_run() {
        return;
    }
    for (kernel_path, version) in [(true, 2), (true, 3), (false, 2)] {
        let running = start(server::config_with(kernel_path));
        split_everywhere(&running, version);
        running.finish();
    }
}

/// Thousands of commands of both kinds, in chunks that end anywhere, sometimes waited for and sometimes
/// not, have every reply in its place.
#[test]
fn mixed_pipelines_stay_in_order() {
    if !can_run() {
        return;
    }
    let running = start(config());
    mixed_pipelines(&running);
    let stats = running.server.stats().unwrap();
    assert!(stats.kernel_commands > 1000 && stats.passed > 500, "both sides took part: {stats:?}");
    running.finish();
}

#[test]
fn large_values() {
    if !can_run() {
        return;
    }
    let running = start(config());
    let mut c = running.client();
    for length in [1000, 1024, 1025, 4096, 16_000, 32_000, 32_768, 40_000, 65_535, 65_536] {
        let value: Vec<u8> = (0..length).map(|i| (i * 31 % 251) as u8).collect();
        c.send(&request(&[b"SET", b"big", &value]));
        c.expect(b"+OK\r\n");
        for _ in 0..3 {
            c.send(&[words("GET big"), words("PING"), words("GET big")].concat());
            c.expect(&[bulk(&value), b"+PONG\r\n".to_vec(), bulk(&value)].concat());
        }
    }
    c.send(&request(&[b"SET", b"big", &vec![b'x'; 65_537]]));
    c.expect(b"-ERR value exceeds the limit of 65536 bytes\r\n");
    c.send(&request(&[b"GET", &[b'k'; 256]]));
    c.expect(b"-ERR key exceeds the limit of 255 bytes\r\n");
    c.send(&request(&[b"SET", b"", b"v"]));
    c.expect(b"-ERR empty keys are not supported\r\n");
    c.send(&request(&[b"SET", &[b'k'; 255], b"v"]));
    c.expect(b"+OK\r\n");
    c.send(&request(&[b"GET", &[b'k'; 255]]));
    c.expect(b"$1\r\nv\r\n");
    // A request far beyond every limit is consumed or refused, and the server continues.
    let mut huge = running.client();
    huge.socket.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
    let _ = huge.socket.write_all(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$8000000\r\n");
    let chunk = vec![b'z'; 100_000];
    for _ in 0..80 {
        if huge.socket.write_all(&chunk).is_err() {
            break;
        }
    }
    let _ = huge.socket.write_all(b"\r\n");
    huge.expect(b"-ERR value exceeds the limit of 65536 bytes\r\n");
    c.ask("PING", "+PONG");
    drop((c, huge));
    running.finish();
}

#[test]
fn garbage_closes_the_connection() {
    if !can_run() {
        return;
    }
    let running = start(config());
    let mut good = running.client();
    for garbage in
        [&b"*1\r\n:5\r\n"[..], b"*99999999999\r\n", b"*1\r\n$-5\r\n", b"*2\r\n$3\r\nGET\r\n$abc\r\n"]
    {
        let mut c = running.client();
        c.send(&[&words("PING"), garbage].concat());
        let all = c.rest();
        assert!(all.starts_with(b"+PONG\r\n-ERR Protocol error"), "{:?}", String::from_utf8_lossy(&all));
        good.ask("PING", "+PONG");
    }
    let mut random = Random(9);
    for _ in 0..50 {
        let mut c = running.client();
        let bytes: Vec<u8> = (0..300).map(|_| random.next() as u8).collect();
        c.send(&bytes);
        c.socket.shutdown(Shutdown::Write).unwrap();
        c.rest();
    }
    good.ask("SET after garbage", "+OK");
    drop(good);
    running.finish();
}

/// A client that sends everything and shuts its side down at once gets all replies, whether or not the server had
/// accepted it by then.
#[test]
fn half_closed_clients_are_answered() {
    if !can_run() {
        return;
    }
    let running = start(config());
    for _ in 0..200 {
        let mut c = running.client();
        c.send(&[words("SET h 1"), words("ECHO e"), words("GET h")].concat());
        c.socket.shutdown(Shutdown::Write).unwrap();
        assert_eq!(c.rest(), b"+OK\r\n$1\r\ne\r\n$1\r\n1\r\n");
    }
    running.finish();
}
