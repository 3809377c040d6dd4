//! Limits of the event loop and of the programs' pools. The tests call [`EventLoop::run_once`] themselves, so they know
//! which data has arrived before each round. They need the privilege to load programs.

#[path = "../../../tests/server/client.rs"]
#[allow(dead_code, reason = "the tests need a part of it")]
mod client;

use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

use libbpf_rs::{MapCore, MapFlags};

use super::*;
use crate::limits::{
    INPUTS_PER_CPU, KEPT_OUTPUT_BYTES, OUTPUTS_PER_CPU, QUEUES, TURN_ACCEPTS, TURN_END_REPLY_BYTES,
};
use crate::server;
use crate::server::layout::{srv_output, srv_stats};
use bedplate_kerneldb::{Config, Database, SetOptions};
use client::{Client, bulk, request, words};

/// A server whose event loop runs only when a test asks for it.
struct Server {
    event_loop: EventLoop,
    database: Arc<Database>,
}

impl Server {
    fn start(kernel_path: bool) -> Server {
        let config = Config { memory_bytes: 64 << 20, max_sessions: 512, ..Config::default() };
        let database = Arc::new(Database::create(config).unwrap());
        let bind = ([127, 0, 0, 1], 0).into();
        let config = ServerConfig { bind, max_clients: 512, kernel_path, ..ServerConfig::default() };
        let event_loop = server::Server::prepare(config)
            .unwrap()
            .parts(database.clone(), None)
            .unwrap()
            .event_loop()
            .unwrap();
        Server { event_loop, database }
    }

    fn run_once(&mut self) {
        self.event_loop.run_once().unwrap();
    }

    fn accepted(&self) -> u64 {
        self.event_loop.counters.accepted.load(Ordering::Relaxed)
    }

    /// Commands that the event loop has answered.
    fn commands(&self) -> u64 {
        self.event_loop.backend.server().counters.commands.load(Ordering::Relaxed)
    }

    fn kernel_stats(&self) -> srv_stats {
        self.event_loop.kernel.maps.stats().unwrap()
    }

    /// Connects clients; the event loop's indexes of their connections are 0, 1 and so on.
    fn clients(&mut self, count: u32) -> Vec<Client> {
        let connect = |_| {
            let client = Client::new(self.event_loop.listener.addr());
            let before = self.accepted();
            until("it is accepted", || {
                self.run_once();
                self.accepted() > before
            });
            client
        };
        (0..count).map(connect).collect()
    }

    /// Waits until this many bytes of a connection were passed to the event loop.
    fn until_passed(&self, index: u32, bytes: u64) {
        until("the bytes are here", || self.event_loop.table.conn(index).turn().passed_bytes() == bytes);
    }

    /// Sends a request that the event loop has to answer.
    fn ask_event_loop(&mut self, client: &mut Client, line: &str, reply: &str) {
        client.send(&words(line));
        client.socket.set_nonblocking(true).unwrap();
        until("the reply is here", || {
            self.run_once();
            client.socket.peek(&mut [0]).is_ok()
        });
        client.socket.set_nonblocking(false).unwrap();
        client.expect(format!("{reply}\r\n").as_bytes());
    }

    /// Claims an element of a pool as a program does, or frees it.
    fn set_claimed(&self, pool: &str, index: u32, claimed: bool) {
        let (map, key) = (self.event_loop.kernel.maps.get(pool), index.to_ne_bytes());
        let mut element = map.lookup(&key, MapFlags::ANY).unwrap().unwrap();
        element[..4].copy_from_slice(&(if claimed { index + 1 } else { 0 }).to_ne_bytes());
        map.update(&key, &element, MapFlags::ANY).unwrap();
    }

    /// Closes the connections; nothing may be left in use.
    fn finish(mut self, clients: Vec<Client>) {
        drop(clients);
        until("all connections are closed", || {
            self.run_once();
            self.event_loop.counters.clients.load(Ordering::Relaxed) == 0
        });
        assert_eq!(self.event_loop.table.claimed_buffers(), 0);
    }
}

/// Waits up to a minute.
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "not within a minute: {what}");
    }
}

/// An inline INCR or GET of 16 bytes.
fn short(command: &str, key: &str) -> Vec<u8> {
    let line = format!("{:14}\r\n", format!("{command} {key}"));
    assert_eq!(line.len(), 16);
    line.into_bytes()
}

/// Number of short commands in one read of the event loop.
const PORTION: usize = TURN_READ_BYTES / 16;

fn numbers(until: usize) -> Vec<u8> {
    (1..=until).flat_map(|n| format!(":{n}\r\n").into_bytes()).collect()
}

/// Connections that are established and wait to be accepted.
fn pending_connections(listener: &Listener) -> u32 {
    // SAFETY: All of its fields are integers.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&info) as libc::socklen_t;
    // SAFETY: The kernel writes at most `length` bytes, the size of `info`.
    let result = unsafe {
        let info = (&raw mut info).cast();
        libc::getsockopt(listener.fd().as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, info, &mut length)
    };
    assert_eq!(result, 0);
    // The kernel stores the length of a listening socket's queue in this field.
    info.tcpi_unacked
}

#[test]
fn one_round_accepts_connections_up_to_the_limit() {
    let mut server = Server::start(false);
    let addr = server.event_loop.listener.addr();
    let clients: Vec<_> = (0..=TURN_ACCEPTS).map(|_| Client::new(addr)).collect();
    until("all are established", || {
        pending_connections(&server.event_loop.listener) as usize == TURN_ACCEPTS + 1
    });
    server.run_once();
    assert_eq!(server.accepted() as usize, TURN_ACCEPTS);
    server.run_once();
    assert_eq!(server.accepted() as usize, TURN_ACCEPTS + 1);
    server.finish(clients);
}

#[test]
fn one_round_takes_events_up_to_the_limit() {
    let mut server = Server::start(false);
    let mut clients = server.clients(TURN_EVENTS as u32 + 1);
    for (connections, expected) in [(TURN_EVENTS, [256, 256]), (TURN_EVENTS + 1, [256, 257])] {
        let before = server.commands();
        let ping = words("PING");
        let passed: Vec<u64> = (0..connections as u32)
            .map(|index| server.event_loop.table.conn(index).turn().passed_bytes() + ping.len() as u64)
            .collect();
        clients[..connections].iter_mut().for_each(|client| client.send(&ping));
        (0..).zip(passed).for_each(|(index, bytes)| server.until_passed(index, bytes));
        let answered = [(); 2].map(|()| {
            server.run_once();
            server.commands() - before
        });
        assert_eq!(answered, expected, "{connections} connections");
        clients[..connections].iter_mut().for_each(|client| client.expect(b"+PONG\r\n"));
    }
    server.finish(clients);
}

/// A client that sends more than one portion waits for its second one until the client beside it is served.
#[test]
fn a_connection_has_one_portion_of_requests_before_the_next_connection() {
    let mut server = Server::start(false);
    let mut clients = server.clients(2);
    let mut total = 0;
    for (round, commands) in (1..).zip([PORTION, PORTION + 1, 2 * PORTION + 1]) {
        clients[0].send(&short("INCR", "n").repeat(commands));
        server.until_passed(0, 16 * (total + commands) as u64);
        clients[1].send(&short("GET", "n"));
        server.until_passed(1, 16 * round);
        server.run_once();
        let executed_before: usize = clients[1].lines(2)[1].parse().unwrap();
        assert_eq!(executed_before - total, PORTION, "of {commands} commands");
        total += commands;
        until("all of them are executed", || {
            if server.commands() < total as u64 + round {
                server.run_once();
            }
            server.commands() == total as u64 + round
        });
    }
    clients[0].expect(&numbers(total));
    server.finish(clients);
}

/// Connections with more work take turns, and after some time the event loop looks for events again.
#[test]
fn connections_with_more_work_take_turns_for_a_limited_time() {
    const CLIENTS: u32 = 32;
    const PORTIONS: usize = 3;
    let mut server = Server::start(false);
    let mut clients = server.clients(CLIENTS);
    for (index, client) in (0..).zip(&mut clients) {
        client.send(&short("INCR", &format!("k{index}")).repeat(PORTIONS * PORTION));
        server.until_passed(index, (PORTIONS * TURN_READ_BYTES) as u64);
    }
    let mut session = server.database.session().unwrap();
    let mut rounds = 0;
    loop {
        server.run_once();
        rounds += 1;
        let mut portions = |index| {
            let value = session.get(format!("k{index}").as_bytes()).unwrap();
            let value = value.map_or(0, |v| String::from_utf8(v.data.to_vec()).unwrap().parse().unwrap());
            assert_eq!(value % PORTION, 0);
            value / PORTION
        };
        let portions: Vec<usize> = (0..CLIENTS).map(&mut portions).collect();
        let (least, most) = (*portions.iter().min().unwrap(), *portions.iter().max().unwrap());
        assert!(least + 1 >= most, "one connection is served more often than another: {portions:?}");
        if rounds == 1 {
            // No machine executes this many commands in 2 ms.
            assert_eq!(least, 1, "the event loop did not stop: {portions:?}");
        }
        if least == PORTIONS {
            break;
        }
    }
    clients.iter_mut().for_each(|client| client.expect(&numbers(PORTIONS * PORTION)));
    drop(session);
    server.finish(clients);
}

#[test]
fn a_connection_gives_the_memory_of_a_huge_reply_back() {
    let mut server = Server::start(false);
    let mut clients = server.clients(1);
    let value = vec![b'v'; 60_000];
    let names = b"abcdefghijklmnopqrst";
    let mut session = server.database.session().unwrap();
    for name in names {
        session.set(std::slice::from_ref(name), &value, SetOptions::default()).unwrap();
    }
    drop(session);
    for (keys, is_kept) in [(10, true), (20, false)] {
        let mget: Vec<&[u8]> =
            std::iter::once(&b"MGET"[..]).chain(names[..keys].iter().map(std::slice::from_ref)).collect();
        clients[0].send(&request(&mget));
        let reply = [format!("*{keys}\r\n").into_bytes(), bulk(&value).repeat(keys)].concat();
        let length = reply.len();
        let mut client = Client { socket: clients[0].socket.try_clone().unwrap() };
        let reader = std::thread::spawn(move || client.expect(&reply));
        until("the reply is here", || {
            server.run_once();
            reader.is_finished()
        });
        reader.join().unwrap();
        let capacity = server.event_loop.clients[0].as_ref().unwrap().output_capacity();
        assert_eq!(length <= KEPT_OUTPUT_BYTES, is_kept);
        assert!(
            if is_kept { (length..=KEPT_OUTPUT_BYTES).contains(&capacity) } else { capacity == 0 },
            "{capacity}"
        );
    }
    server.finish(clients);
}

#[test]
fn a_turn_ends_with_a_reply_up_to_the_limit() {
    let mut server = Server::start(true);
    let mut clients = server.clients(1);
    let value = vec![b'v'; 60_000];
    let mut session = server.database.session().unwrap();
    session.set(b"k", &value, SetOptions::default()).unwrap();
    drop(session);
    let given = |server: &Server| server.event_loop.table.conn(0).words().give.load(Ordering::Relaxed);
    for (reply_bytes, with_reply) in [(TURN_END_REPLY_BYTES, true), (TURN_END_REPLY_BYTES + 1, false)] {
        let before = given(&server);
        let length = reply_bytes - "$12345\r\n\r\n".len();
        let reply = String::from_utf8(bulk(&value[..length])).unwrap();
        assert_eq!(reply.len(), reply_bytes);
        server.ask_event_loop(&mut clients[0], &format!("GETRANGE k 0 {}", length - 1), reply.trim_end());
        assert_eq!(given(&server) != before, with_reply, "{reply_bytes} bytes");
        until("the kernel's turn begins", || !server.event_loop.table.conn(0).turn().is_event_loop());
    }
    server.finish(clients);
}

/// The kernel answers while one buffer of a pool is free. When none is, the event loop gives the same replies.
#[test]
fn without_a_free_buffer_the_event_loop_answers() {
    assert_eq!(offset_of!(srv_output, claimed), 0);
    let cpus = libbpf_rs::num_possible_cpus().unwrap() as u32;
    let value = vec![b'v'; 9000];
    let reply = String::from_utf8(bulk(&value)).unwrap();
    let reply = reply.trim_end();
    for (pool, count) in [("srv_inputs", cpus * INPUTS_PER_CPU), ("srv_outputs", cpus * OUTPUTS_PER_CPU)] {
        let mut server = Server::start(true);
        let mut clients = server.clients(1);
        let client = &mut clients[0];
        client.send(&request(&[b"SET", b"k", &value]));
        client.expect(b"+OK\r\n");
        until("all buffers are free", || server.event_loop.table.claimed_buffers() == 0);
        (1..count).for_each(|index| server.set_claimed(pool, index, true));
        for _ in 0..3 {
            client.ask("GET k", reply);
            until("the output is free", || {
                let outputs = if pool == "srv_outputs" { count - 1 } else { 0 };
                server.event_loop.table.claimed_buffers() == outputs
            });
        }
        let stats = server.kernel_stats();
        assert_eq!((stats.passed, stats.no_buffer), (0, 0), "{pool}: the last one is used");
        server.set_claimed(pool, 0, true);
        server.ask_event_loop(client, "GET k", reply);
        let stats = server.kernel_stats();
        assert_eq!((stats.passed, stats.no_buffer), (1, 1), "{pool}: there is none");
        (0..count).for_each(|index| server.set_claimed(pool, index, false));
        let commands = server.kernel_stats().commands;
        client.ask("GET k", reply);
        assert_eq!(server.kernel_stats().commands, commands + 1, "{pool}: the kernel answers again");
        server.finish(clients);
    }
}

/// EXEC needs a second request buffer.
#[test]
fn exec_without_a_second_buffer_is_the_event_loops() {
    let cpus = libbpf_rs::num_possible_cpus().unwrap() as u32;
    let mut server = Server::start(true);
    let mut clients = server.clients(1);
    for free in [2, 1] {
        (0..cpus * INPUTS_PER_CPU).for_each(|index| server.set_claimed("srv_inputs", index, index >= free));
        let before = server.kernel_stats().passed;
        let client = &mut clients[0];
        client.ask("MULTI", "+OK");
        client.ask("SET k v", "+QUEUED");
        client.ask("GET k", "+QUEUED");
        let reply = "*2\r\n+OK\r\n$1\r\nv";
        if free == 2 {
            client.ask("EXEC", reply);
        } else {
            server.ask_event_loop(client, "EXEC", reply);
        }
        assert_eq!(server.kernel_stats().passed - before, 2 - u64::from(free), "{free} buffers are free");
    }
    server.finish(clients);
}

/// The kernel has queues for this many connections within MULTI; the event loop serves the next one.
#[test]
fn one_multi_more_than_there_are_queues() {
    let cpus = libbpf_rs::num_possible_cpus().unwrap() as u32;
    let queues = QUEUES.max(cpus);
    let mut server = Server::start(true);
    let mut clients = server.clients(queues + 1);
    let (last, others) = clients.split_last_mut().unwrap();
    for client in others.iter_mut() {
        client.ask("MULTI", "+OK");
        client.ask("SET k v", "+QUEUED");
    }
    assert_eq!(server.event_loop.table.claimed_buffers(), queues);
    assert_eq!(server.kernel_stats().passed, 0, "the kernel has a queue for each of them");
    server.ask_event_loop(last, "MULTI", "+OK");
    assert_eq!(server.kernel_stats().passed, 1);
    server.ask_event_loop(last, "SET k v", "+QUEUED");
    server.ask_event_loop(last, "EXEC", "*1\r\n+OK");
    let passed = server.kernel_stats().passed;
    others.iter_mut().for_each(|client| client.ask("EXEC", "*1\r\n+OK"));
    last.ask("MULTI", "+OK");
    last.ask("DISCARD", "+OK");
    assert_eq!(server.kernel_stats().passed, passed, "after EXEC, its queue is free");
    server.finish(clients);
}

/// A monitor gets the commands of others without an event on its own connection. When the last one is gone, nothing is left to do, so the
/// event loop waits for events again.
#[test]
fn the_event_loop_rests_after_the_last_monitor() {
    let mut server = Server::start(true);
    let mut clients = server.clients(3);
    for closes in [false, true] {
        let mut monitor = clients.pop().unwrap();
        server.ask_event_loop(&mut monitor, "MONITOR", "+OK");
        assert!(server.event_loop.backend.server().reports_every_command());
        server.ask_event_loop(&mut clients[0], "SET a 1", "+OK");
        let line = monitor.lines(1).remove(0);
        assert!(line.ends_with("] \"SET\" \"a\" \"1\""), "{line}");
        if !closes {
            server.ask_event_loop(&mut monitor, "QUIT", "+OK");
        }
        drop(monitor);
        until("the monitor is gone and the event loop waits", || {
            server.run_once();
            let timeout = server.event_loop.timeout();
            server.event_loop.monitors.is_empty() && (timeout.tv_sec, timeout.tv_nsec) > (0, 0)
        });
        assert!(!server.event_loop.backend.server().reports_every_command());
    }
    server.finish(clients);
}
