//! Connections: slow readers, sudden ends, limits, transactions that are left open, reloads.

mod common;
mod server;

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bedplate_kerneldb_redis::server::ServerConfig;
use common::can_run;
use server::{Random, bulk, config, eventually, request, start, start_with, ways, words};

/// A client that asks for much more than all buffers hold and reads only afterwards.
#[test]
fn slow_reader() {
    if !can_run() {
        return;
    }
    let running = start(config());
    let mut c = running.client();
    let value = vec![b'v'; 20_000];
    c.send(&request(&[b"SET", b"k", &value]));
    c.expect(b"+OK\r\n");
    const N: usize = 3000;
    let mut writer = c.socket.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        for i in 0..N {
            writer.write_all(&words("GET k")).unwrap();
            if i % 16 == 0 {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    });
    // The server serves others meanwhile.
    let before = running.server.stats().unwrap();
    eventually("the buffers are full", || {
        let stats = running.server.stats().unwrap();
        stats.back_pressure + stats.no_buffer + stats.passed
            > before.back_pressure + before.no_buffer + before.passed
    });
    let mut other = running.client();
    other.ask("PING", "+PONG");
    for _ in 0..N {
        c.expect(&bulk(&value));
    }
    sender.join().unwrap();
    other.ask("PING", "+PONG");
    c.ask("DEL k", ":1");
    drop((c, other));
    running.finish();
}

/// A client that never reads delays nothing when it disconnects.
#[test]
fn never_reads() {
    if !can_run() {
        return;
    }
    let running = start(config());
    let mut c = running.client();
    c.send(&request(&[b"SET", b"k", &vec![b'v'; 30_000]]));
    c.expect(b"+OK\r\n");
    c.socket.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    for _ in 0..100_000 {
        if c.socket.write_all(&words("GET k")).is_err() {
            break;
        }
    }
    let mut other = running.client();
    other.ask("PING", "+PONG");
    drop((c, other));
    running.finish();
}

/// Each long reply keeps a buffer of a pool until TCP has taken it. More replies at once than buffers change nothing.
#[test]
fn more_long_replies_at_once_than_buffers() {
    if !can_run() {
        return;
    }
    // 32 per processor.
    let clients = 32 * std::thread::available_parallelism().unwrap().get() + 20;
    let database =
        bedplate_kerneldb::Config { memory_bytes: 64 << 20, max_sessions: 1024, ..Default::default() };
    let running = start_with(database, ServerConfig { max_clients: 1000, ..config() });
    let mut clients: Vec<_> = (0..clients.min(1000)).map(|_| running.client()).collect();
    let value = vec![b'v'; 30_000];
    clients[0].send(&request(&[b"SET", b"k", &value]));
    clients[0].expect(b"+OK\r\n");
    let reply = bulk(&value);
    for _ in 0..5 {
        // Each client sends two packets, so that the second reply of most connections waits for the first one.
        (0..2).for_each(|_| clients.iter_mut().for_each(|c| c.send(&words("GET k"))));
        clients.iter_mut().for_each(|c| c.expect(&reply.repeat(2)));
    }
    drop(clients);
    // Reports buffers that are still claimed.
    running.finish();
}

#[test]
fn a_thousand_connections_opened_and_dropped() {
    if !can_run() {
        return;
    }
    let running = start(config());
    let mut random = Random(42);
    let mut open = Vec::new();
    for i in 0..1000 {
        let mut c = running.client();
        match random.below(7) {
            0 => c.send(&words("GET a").repeat(1 + random.below(40))),
            1 => c.send(&words("SET a 0123456789")[..1 + random.below(30)]),
            2 => c.send(&words("ECHO x").repeat(100)),
            3 => c.send(&[words("BEGIN"), words(&format!("SET tx{} 1", i % 10))].concat()),
            4 => c.send(&(0..200).map(|_| random.next() as u8).collect::<Vec<_>>()),
            5 => c.send(&[words("BEGIN"), words("GET a"), words("INCR b"), words("GET")].concat()),
            _ => {}
        }
        match random.below(4) {
            0 => open.push(c),
            1 => c.socket.shutdown(Shutdown::Both).unwrap_or(()),
            2 => {
                let linger = libc::linger { l_onoff: 1, l_linger: 0 };
                // SAFETY: the option takes a linger, which lives across the call.
                unsafe {
                    libc::setsockopt(
                        std::os::fd::AsRawFd::as_raw_fd(&c.socket),
                        libc::SOL_SOCKET,
                        libc::SO_LINGER,
                        (&raw const linger).cast(),
                        size_of_val(&linger) as _,
                    )
                };
            }
            _ => {}
        }
        if open.len() > 80 {
            open.swap_remove(random.below(open.len()));
        }
    }
    drop(open);
    eventually("all are closed", || running.server.stats().unwrap().clients == 0);
    // Their transactions do not hold any lock.
    let mut c = running.client();
    for i in 0..10 {
        c.ask(&format!("SET tx{i} 2"), "+OK");
    }
    drop(c);
    running.finish();
}

#[test]
fn an_open_transaction_ends_with_its_connection() {
    if !can_run() {
        return;
    }
    for kernel_path in [true, false] {
        let running = start(server::config_with(kernel_path));
        let mut a = running.client();
        let mut b = running.client();
        b.ask("CONFIG SET lock-timeout 50", "+OK");
        a.ask("SET k old", "+OK");
        a.ask("BEGIN", "+OK");
        a.ask("SET k new", "+OK");
        b.ask("SET k other", "-CONFLICT conflict with another transaction");
        b.ask("GET k", "$3\r\nold");
        drop(a);
        eventually("it is rolled back", || running.server.stats().unwrap().clients == 1);
        b.ask("GET k", "$3\r\nold");
        b.ask("SET k other", "+OK");
        drop(b);
        running.finish();
    }
}

/// A failed transaction answers the same whether the kernel or user space met the conflict.
#[test]
fn conflicts_inside_transactions() {
    if !can_run() {
        return;
    }
    for kernel_path in [true, false] {
        let running = start(server::config_with(kernel_path));
        let mut holder = running.db.session().unwrap();
        holder.begin().unwrap();
        holder.set(b"k", b"mine", Default::default()).unwrap();
        let mut c = running.client();
        for (first, reply) in [
            ("SET k 1", "-CONFLICT conflict with another transaction"),
            ("GET k", "-CONFLICT conflict with another transaction"),
            ("DEL k", "-CONFLICT conflict with another transaction"),
        ] {
            c.ask("BEGIN", "+OK");
            c.ask("SET other 1", "+OK");
            c.ask(first, reply);
            c.ask("GET other", "-TXFAILED the transaction has failed and can only be rolled back");
            c.ask("SET other 2", "-TXFAILED the transaction has failed and can only be rolled back");
            c.ask("COMMIT", "-TXFAILED the transaction had failed and was rolled back");
            c.ask("GET other", "$-1");
        }
        holder.rollback().unwrap();
        c.ask("BEGIN", "+OK");
        c.ask("GET k", "$-1");
        c.ask("ROLLBACK", "+OK");
        drop(c);
        running.finish();
    }
}

#[test]
fn transactions_are_isolated() {
    if !can_run() {
        return;
    }
    let running = start(config());
    let (mut a, mut b) = (running.client(), running.client());
    a.ask("SET k 1", "+OK");
    b.ask("BEGIN READ ONLY", "+OK");
    b.ask("GET k", "$1\r\n1");
    a.ask("BEGIN", "+OK");
    a.ask("SET k 2", "+OK");
    a.ask("SET m 2", "+OK");
    b.ask("GET k", "$1\r\n1");
    a.ask("COMMIT", "+OK");
    b.ask("GET k", "$1\r\n1");
    b.ask("GET m", "$-1");
    b.ask("COMMIT", "+OK");
    b.ask("GET k", "$1\r\n2");
    drop((a, b));
    running.finish();
}

#[test]
fn maximum_of_clients() {
    if !can_run() {
        return;
    }
    let running = start(ServerConfig { max_clients: 3, ..config() });
    let mut clients: Vec<_> = (0..3).map(|_| running.client()).collect();
    clients.iter_mut().for_each(|c| c.ask("PING", "+PONG"));
    let mut refused = running.client();
    assert_eq!(refused.rest(), b"-ERR max number of clients reached\r\n");
    clients.pop();
    eventually("there is room", || running.server.stats().unwrap().clients == 2);
    running.client().ask("PING", "+PONG");
    assert_eq!(running.server.stats().unwrap().refused, 1);
    drop(clients);
    running.finish();
}

#[test]
fn password_and_protocol_version() {
    if !can_run() {
        return;
    }
    let running = start(ServerConfig { password: "secret".into(), ..config() });
    let mut c = running.client();
    c.ask("GET k", "-NOAUTH Authentication required.");
    c.ask("SET k v", "-NOAUTH Authentication required.");
    c.ask("AUTH wrong", "-WRONGPASS invalid username-password pair or user is disabled.");
    c.ask("GET k", "-NOAUTH Authentication required.");
    assert_eq!(running.server.stats().unwrap().kernel_commands, 0);
    c.ask("AUTH secret", "+OK");
    // The connection returns to the kernel right after the reply, or after one of the next ones.
    eventually("the kernel answers", || {
        c.ask("GET k", "$-1");
        running.server.stats().unwrap().kernel_commands > 0
    });
    // RESP3 has its own null.
    c.hello(3);
    let before = running.server.stats().unwrap().kernel_commands;
    eventually("the kernel answers in RESP3", || {
        c.ask("GET k", "_");
        running.server.stats().unwrap().kernel_commands > before
    });
    // RESET is back to RESP2, and to a client without password.
    c.ask("RESET", "+RESET");
    c.ask("AUTH secret", "+OK");
    for _ in 0..10 {
        c.ask("GET k", "$-1");
    }
    drop(c);
    running.finish();
}

#[test]
fn idle_and_killed_connections_are_closed() {
    if !can_run() {
        return;
    }
    // Long enough that no active client counts as idle on a busy machine.
    let limit = Duration::from_secs(4);
    let running = start(ServerConfig { idle_timeout: Some(limit), ..config() });
    let mut idle = running.client();
    let mut busy = running.client();
    let start = Instant::now();
    idle.ask("PING", "+PONG");
    idle.socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    // The kernel answers these, so user space knows of them only by the kernel's time stamp.
    loop {
        busy.ask("GET k", "$-1");
        match idle.socket.read(&mut [0]) {
            Ok(n) => break assert_eq!(n, 0),
            Err(e) => assert!(matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{e}"),
        }
        assert!(start.elapsed() < 5 * limit, "the idle connection is still open");
    }
    assert!(start.elapsed() > limit);
    let mut victim = running.client();
    victim.ask("CLIENT SETNAME victim", "+OK");
    victim.ask("CLIENT ID", ":3");
    busy.ask("CLIENT KILL ID 3", ":1");
    assert_eq!(victim.rest(), b"");
    busy.ask("PING", "+PONG");
    drop(busy);
    running.finish();
}

/// When CLIENT KILL is answered, no killed client can change anything any more, although the kernel answers it without the
/// event loop. An administrator relies on that, for instance after a new password.
#[test]
fn a_killed_client_executes_nothing_after_the_reply() {
    if !can_run() {
        return;
    }
    for config in ways() {
        let running = start(config);
        let mut killer = running.client();
        for round in 0..3 {
            let mut victims: Vec<_> = (0..100).map(|_| running.client()).collect();
            victims.iter_mut().for_each(|victim| victim.ask("GET n", "$-1"));
            killer.ask("CLIENT KILL TYPE normal", &format!(":{}", victims.len()));
            // The youngest are closed last.
            for victim in victims.iter_mut().rev() {
                // Sending fails if the end of the connection is known already.
                let _ = victim.socket.write_all(&words("INCR n"));
            }
            for victim in &mut victims {
                let mut replies = Vec::new();
                // The end is a reset if the server closed the connection before it read the request.
                if let Err(e) = victim.socket.read_to_end(&mut replies) {
                    assert_eq!(e.kind(), ErrorKind::ConnectionReset);
                }
                assert!(replies.is_empty(), "round {round}: {:?}", String::from_utf8_lossy(&replies));
            }
            killer.ask("GET n", "$-1");
        }
        // A client that kills itself gets its reply. The server does not execute the requests behind the command.
        killer.send(&["CLIENT KILL TYPE normal SKIPME no", "INCR n"].map(words).concat());
        assert_eq!(killer.rest(), b":1\r\n");
        running.client().ask("GET n", "$-1");
        running.finish();
    }
}

/// The programs are exchanged again and again under load; no reply is lost or changed.
#[test]
fn reload_under_load() {
    if !can_run() {
        return;
    }
    reload_while_busy(start(config()), 5);
    let database = || bedplate_kerneldb::Config {
        partitions: 3,
        memory_bytes: 96 << 20,
        max_sessions: 256,
        ..Default::default()
    };
    reload_while_busy(start_with(database(), config()), 2);
    if common::has_cgroup2() {
        let local = ServerConfig { local_fast_path: true, ..config() };
        reload_while_busy(start(local.clone()), 2);
        reload_while_busy(start_with(database(), local), 1);
    }
}

fn reload_while_busy(running: server::Running, times: usize) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for i in 0..3 {
            let (mut c, stop) = (running.client(), &stop);
            scope.spawn(move || {
                for n in 0u64.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    c.send(&[words(&format!("SET r{i} {n}")), words(&format!("GET r{i}"))].concat());
                    c.expect(&[b"+OK\r\n".to_vec(), bulk(n.to_string().as_bytes())].concat());
                    c.send(&[words("MULTI"), words(&format!("GET r{i}")), words("EXEC")].concat());
                    c.expect(b"+OK\r\n+QUEUED\r\n*1\r\n");
                    c.expect(&bulk(n.to_string().as_bytes()));
                }
            });
        }
        for _ in 0..times {
            running.server.reload().unwrap();
            std::thread::sleep(Duration::from_millis(50));
        }
        stop.store(true, Ordering::Relaxed);
    });
    let before = running.server.stats().unwrap();
    let mut c = running.client();
    c.ask("PING", "+PONG");
    assert_eq!(running.server.stats().unwrap().kernel_commands, before.kernel_commands + 1);
    drop(c);
    running.finish();
}

/// SHUTDOWN ends the server; connections are closed.
#[test]
fn shutdown_command() {
    if !can_run() {
        return;
    }
    let running = start(config());
    let mut c = running.client();
    c.send(&words("SHUTDOWN NOSAVE"));
    assert_eq!(c.rest(), b"");
    running.server.wait().unwrap();
}

/// The kernel answers commands on keys of all partitions, transactions over several partitions included.
#[test]
fn several_partitions() {
    if !can_run() {
        return;
    }
    let database = bedplate_kerneldb::Config {
        partitions: 3,
        memory_bytes: 96 << 20,
        max_sessions: 256,
        ..Default::default()
    };
    let running = start_with(database, config());
    let mut c = running.client();
    c.ask("PING", "+PONG");
    let before = running.server.stats().unwrap();
    for round in 0..3 {
        for i in 0..50 {
            c.ask(&format!("SET p{i} {round}"), "+OK");
        }
        c.ask("BEGIN", "+OK");
        for i in 0..50 {
            c.ask(&format!("GET p{i}"), &format!("$1\r\n{round}"));
            c.ask(&format!("SET p{i} x"), "+OK");
        }
        c.ask(if round == 1 { "ROLLBACK" } else { "COMMIT" }, "+OK");
        // The commands are in one packet, so the programs of the partitions take turns.
        let (mut input, mut output) = (Vec::new(), Vec::new());
        for i in 0..24 {
            input.extend(words(&format!("GET p{i}")));
            output.extend(bulk(if round == 1 { b"1" } else { b"x" }));
        }
        c.send(&input);
        c.expect(&output);
    }
    let after = running.server.stats().unwrap();
    assert_eq!(after.kernel_commands - before.kernel_commands, 3 * (50 + 1 + 100 + 1 + 24));
    assert_eq!(after.passed, before.passed, "the kernel answers for all partitions");
    // This takes more tail calls than the kernel allows for one packet, so the event loop does the rest.
    let (mut input, mut output) = (Vec::new(), Vec::new());
    for i in 0..500 {
        input.extend(words(&format!("SET p{} {i}", i % 50)));
        input.extend(words(&format!("GET p{}", i % 50)));
        output.extend(b"+OK\r\n");
        output.extend(bulk(i.to_string().as_bytes()));
    }
    c.send(&input);
    c.expect(&output);
    drop(c);
    running.finish();
}

/// The kernel also answers over IPv6, and over IPv4 to a socket for both.
#[test]
fn ipv6() {
    if !can_run() {
        return;
    }
    for (bind, connect) in [("[::1]:0", "::1"), ("[::]:0", "::1"), ("[::]:0", "127.0.0.1")] {
        if std::net::TcpListener::bind(bind).is_err() {
            println!("skipped: no IPv6");
            return;
        }
        let mut running = start(ServerConfig { bind: bind.parse().unwrap(), ..config() });
        running.addr.set_ip(connect.parse().unwrap());
        server::traffic::split_everywhere(&running, 3);
        server::traffic::mixed_pipelines(&running);
        let stats = running.server.stats().unwrap();
        assert!(stats.kernel_commands > 500 && stats.passed > 500, "both took part: {stats:?}");
        running.finish();
    }
}

/// Every other request in lockstep is for the event loop. The kernel answers all of the others: none of them
/// reaches user space because it came too early.
#[test]
fn back_to_the_kernel_with_the_reply() {
    if !can_run() {
        return;
    }
    let running = start(config());
    let mut c = running.client();
    c.ask("SET k v", "+OK");
    let before = running.server.stats().unwrap();
    for i in 0..500 {
        c.ask("INCR n", &format!(":{}", i + 1));
        c.ask("GET k", "$1\r\nv");
    }
    // This reply is too long to end the turn with it.
    let value = vec![b'x'; 40_000];
    for _ in 0..50 {
        c.send(&request(&[b"SET", b"long", &value]));
        c.expect(b"+OK\r\n");
        c.send(&words("GETRANGE long 0 -1"));
        c.expect(&bulk(&value));
        c.ask("GET k", "$1\r\nv");
    }
    let after = running.server.stats().unwrap();
    assert!(after.kernel_commands - before.kernel_commands >= 500, "{after:?}");
    drop(c);
    running.finish();
}

/// A COMMIT in several partitions near the limit on one packet's replies is answered once, by the kernel or by
/// the event loop.
#[test]
fn commit_at_the_limit_of_replies() {
    if !can_run() {
        return;
    }
    let database = bedplate_kerneldb::Config {
        partitions: 2,
        memory_bytes: 64 << 20,
        max_sessions: 256,
        ..Default::default()
    };
    let local = ServerConfig { local_fast_path: common::has_cgroup2(), ..config() };
    for server in [config(), local] {
        let running = start_with(database.clone(), server);
        let mut c = running.client();
        c.ask("PING", "+PONG");
        // The kernel answers up to 32 KiB to a packet.
        for len in (32 << 10) - 260..(32 << 10) + 10 {
            let value = vec![b'v'; len - 100];
            c.send(&request(&[b"SET", b"big", &value]));
            c.expect(b"+OK\r\n");
            let mut input = words("BEGIN");
            let mut output = b"+OK\r\n".repeat(7);
            for key in ["a", "b", "c", "d", "e", "f"] {
                input.extend(words(&format!("SET {key} {len}")));
            }
            input.extend(words("GET big"));
            output.extend(bulk(&value));
            input.extend([words("COMMIT"), words("PING")].concat());
            output.extend(b"+OK\r\n+PONG\r\n");
            c.send(&input);
            c.expect(&output);
        }
        drop(c);
        running.finish();
    }
}
