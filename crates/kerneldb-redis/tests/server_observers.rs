//! MONITOR and SLOWLOG see every command, also those that the kernel answers otherwise.

mod common;
mod server;

use std::io::Read;

use bedplate_kerneldb_redis::limits::MONITOR_BACKLOG_BYTES_MAX;
use common::can_run;
use server::{Client, Running, eventually, request, start, start_with_partitions, ways, words};

/// Waits until the kernel answers a client.
fn the_kernel_answers(running: &Running, c: &mut Client) {
    let answered = || running.server.stats().unwrap().kernel_commands;
    eventually("the kernel answers", || {
        let before = answered();
        c.ask("PING", "+PONG");
        answered() > before
    });
}

/// Servers of every way of answering, and one with three partitions.
fn servers() -> Vec<(bool, Running)> {
    let mut servers: Vec<_> = ways().into_iter().map(|way| (way.kernel_path, start(way))).collect();
    servers.push((true, start_with_partitions(server::config())));
    servers
}

/// Commands that the kernel answers, with their replies.
const COMMANDS: [(&str, &str); 9] = [
    ("SET a 1", "+OK"),
    ("GET a", "$1\r\n1"),
    ("INCR a", ":2"),
    ("MULTI", "+OK"),
    ("DEL a", "+QUEUED"),
    ("EXEC", "*1\r\n:1"),
    ("BEGIN", "+OK"),
    ("MSET b 1 c 2", "+OK"),
    ("COMMIT", "+OK"),
];

/// The same in the order in which a monitor sees them.
const SEEN: [&str; 9] = [
    r#""SET" "a" "1""#,
    r#""GET" "a""#,
    r#""INCR" "a""#,
    r#""MULTI""#,
    r#""DEL" "a""#,
    r#""EXEC""#,
    r#""BEGIN""#,
    r#""MSET" "b" "1" "c" "2""#,
    r#""COMMIT""#,
];

/// The checks share servers, because a server takes a second or more to load its programs.
#[test]
fn every_way_of_answering_is_observed() {
    if !can_run() {
        return;
    }
    for (i, (kernel_path, running)) in servers().into_iter().enumerate() {
        a_monitor_sees_every_command(&running, kernel_path);
        monitors_see_busy_clients_in_one_order(&running);
        the_slow_log_has_every_command_at_threshold_0(&running, kernel_path);
        if i == 0 {
            a_slow_monitor_is_closed(&running);
        }
        running.finish();
    }
}

fn a_monitor_sees_every_command(running: &Running, kernel_path: bool) {
    let mut clients = [running.client(), running.client()];
    if kernel_path {
        clients.iter_mut().for_each(|c| the_kernel_answers(running, c));
    }
    let mut monitor = running.client();
    monitor.ask("MONITOR", "+OK");
    let before = running.server.stats().unwrap().kernel_commands;
    for c in &mut clients {
        // One after the other, and all at once.
        for (line, reply) in COMMANDS {
            c.ask(line, reply);
        }
        c.send(&COMMANDS.iter().flat_map(|(line, _)| words(line)).collect::<Vec<_>>());
        c.expect(COMMANDS.map(|(_, reply)| format!("{reply}\r\n")).concat().as_bytes());
    }
    assert_eq!(running.server.stats().unwrap().kernel_commands, before);
    let addresses = clients.each_ref().map(|c| c.socket.local_addr().unwrap());
    for address in addresses {
        for line in monitor.lines(2 * SEEN.len()).iter().zip(SEEN.iter().cycle()) {
            let (seen, expected) = line;
            let (time, command) = seen.split_once(&format!(" [0 {address}] ")).expect(seen);
            assert!(time.starts_with('+'), "{seen}");
            assert_eq!(command, *expected);
        }
    }
    // One that ends by itself, and one that is gone.
    monitor.ask("RESET", "+RESET");
    if kernel_path {
        clients.iter_mut().for_each(|c| the_kernel_answers(running, c));
    }
    monitor.ask("MONITOR", "+OK");
    drop(monitor);
    if kernel_path {
        clients.iter_mut().for_each(|c| the_kernel_answers(running, c));
    }
    drop(clients);
}

/// Two monitors see the commands of busy clients in the same order, and miss none.
fn monitors_see_busy_clients_in_one_order(running: &Running) {
    const ROUNDS: usize = 200;
    let mut monitors = [running.client(), running.client()];
    monitors.iter_mut().for_each(|monitor| monitor.ask("MONITOR", "+OK"));
    std::thread::scope(|scope| {
        for i in 0..3 {
            let mut c = running.client();
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    c.send(&[words(&format!("SET k{i} {round}")), words("PING")].concat());
                    c.expect(b"+OK\r\n+PONG\r\n");
                }
            });
        }
    });
    let [first, second] = monitors.each_mut().map(|monitor| monitor.lines(3 * 2 * ROUNDS));
    assert_eq!(first, second);
    for i in 0..3 {
        let values = first.iter().filter_map(|line| line.split_once(&format!("\"SET\" \"k{i}\" \"")));
        let expected: Vec<String> = (0..ROUNDS).map(|round| format!("{round}\"")).collect();
        assert_eq!(values.map(|(_, value)| value).collect::<Vec<_>>(), expected);
    }
    drop(monitors);
}

/// A monitor that does not read is closed. Others go on.
fn a_slow_monitor_is_closed(running: &Running) {
    eventually("all connections are closed", || running.server.stats().unwrap().clients == 0);
    let (mut c, mut slow, mut other) = (running.client(), running.client(), running.client());
    c.ask("PING", "+PONG");
    slow.ask("MONITOR", "+OK");
    other.ask("MONITOR", "+OK");
    let text = vec![b'x'; 60_000];
    let echo = request(&[b"ECHO", &text]);
    let mut sent = 0;
    while running.server.stats().unwrap().clients == 3 {
        c.send(&echo);
        c.replies(1);
        other.replies(1);
        sent += text.len();
        // The sockets have buffers, too.
        assert!(sent < MONITOR_BACKLOG_BYTES_MAX + (64 << 20), "the slow monitor stays");
    }
    assert!(sent > MONITOR_BACKLOG_BYTES_MAX);
    let mut rest = Vec::new();
    let _ = slow.socket.read_to_end(&mut rest);
    assert!(rest.len() < sent);
    c.ask("PING", "+PONG");
    assert!(other.replies(1)[0].ends_with(b"\"PING\"\r\n"));
    drop((c, slow, other));
}

fn the_slow_log_has_every_command_at_threshold_0(running: &Running, kernel_path: bool) {
    let (mut admin, mut c) = (running.client(), running.client());
    if kernel_path {
        the_kernel_answers(running, &mut c);
    }
    admin.ask("CONFIG SET slowlog-log-slower-than 0", "+OK");
    admin.ask("SLOWLOG RESET", "+OK");
    let before = running.server.stats().unwrap().kernel_commands;
    for (line, reply) in COMMANDS {
        c.ask(line, reply);
    }
    assert_eq!(running.server.stats().unwrap().kernel_commands, before);
    // EXEC is not logged, and RESET is.
    admin.ask("SLOWLOG LEN", &format!(":{}", COMMANDS.len()));
    admin.ask("CONFIG SET slowlog-log-slower-than 10000", "+OK");
    if kernel_path {
        the_kernel_answers(running, &mut c);
    }
    drop((admin, c));
}
