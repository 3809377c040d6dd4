//! The local fast path gives the same replies in the same order, inside the clients' send calls.

mod common;
mod server;

use std::io::Write;
use std::net::Shutdown;
use std::time::Duration;

use bedplate_kerneldb_redis::server::ServerConfig;
use common::can_run;
use server::traffic::{mixed_pipelines, split_everywhere};
use server::{Random, Running, bulk, config, eventually, request, start, start_with, words};

/// Starts a server with the fast path; `None` (and a word about it) without cgroup2.
fn start_local(config: ServerConfig) -> Option<Running> {
    if !can_run() {
        return None;
    }
    if !common::has_cgroup2() {
        println!("skipped: cgroup2 is not mounted");
        return None;
    }
    Some(start(ServerConfig { local_fast_path: true, ..config }))
}

#[test]
fn answers_in_the_send_call() {
    let Some(running) = start_local(config()) else { return };
    let mut c = running.client();
    eventually("the path is open", || {
        c.ask("PING", "+PONG");
        running.server.stats().unwrap().local_commands > 0
    });
    let before = running.server.stats().unwrap();
    c.ask("SET k v", "+OK");
    c.ask("GET k", "$1\r\nv");
    c.ask("GET none", "$-1");
    c.ask("BEGIN", "+OK");
    c.ask("DEL k", ":1");
    c.ask("ROLLBACK", "+OK");
    c.ask("GET k", "$1\r\nv");
    c.send(&[words("SET a 1"), words("GET a"), words("PING")].concat());
    c.expect(b"+OK\r\n$1\r\n1\r\n+PONG\r\n");
    let value = vec![b'x'; 20_000];
    c.send(&request(&[b"SET", b"big", &value]));
    c.expect(b"+OK\r\n");
    c.send(&words("GET big"));
    c.expect(&bulk(&value));
    let after = running.server.stats().unwrap();
    assert_eq!(after.local_commands - before.local_commands, 12, "{after:?}");
    assert_eq!(after.packets, before.packets, "nothing went over TCP");
    // The turn goes back and forth.
    for i in 0..50 {
        c.ask("INCR n", &format!(":{}", i + 1));
        c.ask("GET k", "$1\r\nv");
    }
    drop(c);
    running.finish();
}

/// Over IPv6, and over IPv4 to a socket for both.
#[test]
fn ipv6() {
    for (bind, connect) in [("[::1]:0", "::1"), ("[::]:0", "::1"), ("[::]:0", "127.0.0.1")] {
        if std::net::TcpListener::bind(bind).is_err() {
            println!("skipped: no IPv6");
            return;
        }
        let bind = bind.parse().unwrap();
        let Some(mut running) = start_local(ServerConfig { bind, ..config() }) else { return };
        running.addr.set_ip(connect.parse().unwrap());
        let mut c = running.client();
        eventually("the path is open", || {
            c.ask("PING", "+PONG");
            running.server.stats().unwrap().local_commands > 0
        });
        let before = running.server.stats().unwrap();
        c.ask("SET k v", "+OK");
        c.ask("GET k", "$1\r\nv");
        let after = running.server.stats().unwrap();
        assert_eq!(after.local_commands - before.local_commands, 2, "{bind} {connect}");
        drop(c);
        split_everywhere(&running, 2);
        mixed_pipelines(&running);
        running.finish();
    }
}

/// Keys of several partitions, whose programs take turns.
#[test]
fn several_partitions() {
    if !can_run() || !common::has_cgroup2() {
        return;
    }
    let database = bedplate_kerneldb::Config {
        partitions: 3,
        memory_bytes: 96 << 20,
        max_sessions: 256,
        ..Default::default()
    };
    let running = start_with(database, ServerConfig { local_fast_path: true, ..config() });
    let mut c = running.client();
    eventually("the path is open", || {
        c.ask("PING", "+PONG");
        running.server.stats().unwrap().local_commands > 0
    });
    let before = running.server.stats().unwrap();
    c.ask("BEGIN", "+OK");
    for i in 0..30 {
        c.ask(&format!("SET p{i} {i}"), "+OK");
    }
    c.ask("COMMIT", "+OK");
    for i in 0..30 {
        c.ask(&format!("GET p{i}"), std::str::from_utf8(&bulk(i.to_string().as_bytes())).unwrap().trim_end());
    }
    let after = running.server.stats().unwrap();
    assert_eq!(after.local_commands - before.local_commands, 62);
    drop(c);
    split_everywhere(&running, 3);
    mixed_pipelines(&running);
    running.finish();
}

#[test]
fn replies_stay_in_order() {
    let Some(running) = start_local(config()) else { return };
    split_everywhere(&running, 2);
    mixed_pipelines(&running);
    let stats = running.server.stats().unwrap();
    assert!(stats.local_commands > 500 && stats.passed > 500, "both took part: {stats:?}");
    running.finish();
}

/// A client that pipelines without reading first gets everything, over TCP where that is needed.
#[test]
fn sends_ahead_of_reading() {
    let Some(running) = start_local(config()) else { return };
    let mut c = running.client();
    let value = vec![b'v'; 10_000];
    c.send(&request(&[b"SET", b"k", &value]));
    c.expect(b"+OK\r\n");
    let mut writer = c.socket.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        for i in 0..4000 {
            writer.write_all(&words("GET k")).unwrap();
            if i % 50 == 0 {
                std::thread::sleep(Duration::from_micros(500));
            }
        }
    });
    std::thread::sleep(Duration::from_millis(100));
    for _ in 0..4000 {
        c.expect(&bulk(&value));
    }
    sender.join().unwrap();
    drop(c);
    running.finish();
}

#[test]
fn connections_come_and_go() {
    let Some(running) = start_local(config()) else { return };
    let mut random = Random(7);
    let mut open = Vec::new();
    for i in 0..500 {
        let mut c = running.client();
        match random.below(5) {
            0 => c.send(&words("GET a").repeat(1 + random.below(40))),
            1 => c.ask("SET a 1", "+OK"),
            2 => {
                c.ask("BEGIN", "+OK");
                c.ask(&format!("SET tx{i} 1"), "+OK");
            }
            3 => c.send(&[words("PING"), words("ECHO x"), words("GET")].concat()),
            _ => {
                c.ask("PING", "+PONG");
                c.send(&words("GET a"));
                c.socket.shutdown(Shutdown::Write).unwrap();
                assert!(c.rest().starts_with(b"$"));
            }
        }
        if random.below(3) == 0 {
            open.push(c);
        }
        if open.len() > 50 {
            open.swap_remove(random.below(open.len()));
        }
    }
    let mut killed = running.client();
    killed.ask("CLIENT ID", ":501");
    killed.ask("GET none", "$-1");
    killed.ask("GET none", "$-1");
    let mut c = running.client();
    c.ask("CLIENT KILL ID 501", ":1");
    assert_eq!(killed.rest(), b"");
    drop((open, c));
    running.finish();
}

/// A client that has shut its sending side down waits for the rest in blocking reads.
#[test]
fn half_closed_clients_read_to_the_end() {
    let Some(running) = start_local(config()) else { return };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    let mut c = running.client();
                    c.ask("PING", "+PONG");
                    c.send(&[words("INCR n"), words("GET none")].concat());
                    c.socket.shutdown(Shutdown::Write).unwrap();
                    let rest = c.rest();
                    assert!(rest.starts_with(b":") && rest.ends_with(b"\r\n$-1\r\n"), "{rest:?}");
                }
            });
        }
    });
    running.finish();
}

/// If the server stops while clients are busy, they see the end of the connection and nothing else.
#[test]
fn server_stops_under_load() {
    let Some(running) = start_local(config()) else { return };
    let ready = std::sync::Barrier::new(4);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let (mut c, ready) = (running.client(), &ready);
            scope.spawn(move || {
                c.ask("SET k v", "+OK");
                ready.wait();
                loop {
                    if c.socket.write_all(&words("GET k")).is_err() {
                        break;
                    }
                    let mut reply = [0; 7];
                    if std::io::Read::read_exact(&mut c.socket, &mut reply).is_err() {
                        break;
                    }
                    assert_eq!(&reply, b"$1\r\nv\r\n");
                }
            });
        }
        ready.wait();
        std::thread::sleep(Duration::from_millis(300));
        running.server.stopper().stop();
    });
    running.server.wait().unwrap();
}

#[test]
fn password_is_needed() {
    let Some(running) = start_local(ServerConfig { password: "secret".into(), ..config() }) else { return };
    let mut c = running.client();
    for _ in 0..3 {
        c.ask("GET k", "-NOAUTH Authentication required.");
    }
    assert_eq!(running.server.stats().unwrap().local_commands, 0);
    c.ask("AUTH secret", "+OK");
    eventually("the path is open", || {
        c.ask("GET k", "$-1");
        running.server.stats().unwrap().local_commands > 0
    });
    drop(c);
    running.finish();
}
