//! The examples in `examples/kerneldb`, as their READMEs run them: each is built by its Makefile, and does its job on a real server that is
//! killed in between.
//!
//! `BEDPLATE_TEST_KILLS` is the number of kills of the orders (2), `BEDPLATE_TEST_SEED` repeats their clients' choices.

mod running;

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::{Connection, FromRedisValue, RedisResult, Value};
use running::{Server, command};
use rustix::process::Signal;

/// Options for a database with several partitions, which has more than 4 GiB unless it is for a test.
const PARTITIONED: [&str; 4] = ["--memory", "192M", "--partitions", "3"];

const PATIENCE: Duration = Duration::from_secs(60);

fn can_run() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("skipped: loading eBPF programs needs root");
    }
    is_root
}

/// Builds an example in a folder of its own, with nothing but the command under test; returns its object.
fn build(folder: &Path, example: &str, library: &str) -> PathBuf {
    let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/kerneldb")).join(example);
    let copied = Command::new("cp").arg("-r").arg(&source).arg(folder).status().unwrap();
    assert!(copied.success());
    let project = folder.join(example);
    let bedplate = format!("BEDPLATE={}", command(&[]).get_program().display());
    let made = Command::new("make").arg("-C").arg(&project).args(["-B", &bedplate]).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    project.join(library).with_extension("bpf.o")
}

fn start(data: &Path, object: &Path, more: &[&str]) -> Server {
    let procedure = ["--procedure", object.to_str().unwrap(), "--durability", "sync"];
    Server::start(data, &[&procedure, more].concat())
}

fn ask<T: FromRedisValue>(client: &mut Connection, words: &str) -> RedisResult<T> {
    let mut words = words.split(' ');
    let mut command = redis::cmd(words.next().unwrap());
    command.arg(words.collect::<Vec<_>>()).query(client)
}

fn number(client: &mut Connection, key: &str) -> i64 {
    ask::<Option<i64>>(client, &format!("GET {key}")).unwrap().unwrap_or(0)
}

/// The fields of PROC LIST about a handler.
fn listed(client: &mut Connection, handler: &str) -> BTreeMap<String, Value> {
    let all: Vec<BTreeMap<String, Value>> = ask(client, "PROC LIST").unwrap();
    let named = |fields: &BTreeMap<String, Value>| fields["name"] == Value::BulkString(handler.into());
    all.into_iter().find(named).unwrap()
}

fn field(fields: &BTreeMap<String, Value>, name: &str) -> u64 {
    redis::from_redis_value(fields[name].clone()).unwrap()
}

/// Waits for something that will happen.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A network namespace that is connected to this one by a pair of interfaces; both are removed at the end.
struct Network {
    name: String,
    interface: String,
    here: String,
    there: String,
}

impl Network {
    fn new() -> Network {
        let id = std::process::id();
        let name = format!("bedplate-{id}");
        let (interface, peer) = (format!("bp{id}"), format!("bp{id}p"));
        // Addresses for benchmarks of networks, which no machine has otherwise.
        let net = format!("198.18.{}", id % 256);
        let network = Network { name, interface, here: format!("{net}.1"), there: format!("{net}.2") };
        let Network { name, interface, here, there } = &network;
        for words in [
            format!("netns add {name}"),
            format!("link add {interface} type veth peer name {peer} netns {name}"),
            format!("addr add {here}/30 dev {interface}"),
            format!("link set {interface} up"),
            format!("-n {name} addr add {there}/30 dev {peer}"),
            format!("-n {name} link set {peer} up"),
        ] {
            let done = Command::new("ip").args(words.split(' ')).output().unwrap();
            assert!(done.status.success(), "ip {words}: {}", String::from_utf8_lossy(&done.stderr));
        }
        network
    }

    /// Sends packets from the other side to a port of this one.
    fn send(&self, packets: u32, port: u16) {
        let here = &self.here;
        let script = format!("for i in $(seq {packets}); do echo $i > /dev/udp/{here}/{port}; done");
        let sent =
            Command::new("ip").args(["netns", "exec", &self.name, "bash", "-c", &script]).output().unwrap();
        assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "del", &self.interface]).status();
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

/// Number of packets that have arrived at a socket since the last call. The caller has waited until the handler has seen all that
/// were sent.
fn arrived(socket: &UdpSocket) -> u32 {
    let mut packet = [0; 64];
    let mut packets = 0;
    while socket.recv(&mut packet).is_ok() {
        packets += 1;
    }
    packets
}

/// Waits until all of these packets have arrived at a socket.
fn all_pass(socket: &UdpSocket, packets: u32) {
    let mut passed = 0;
    until("packets pass", || {
        passed += arrived(socket);
        passed == packets
    });
}

#[test]
fn packets_above_the_quota_are_dropped_and_restarts_keep_the_counts() {
    if !can_run() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let object = build(folder.path(), "packet-quota", "packet_quota");
    let network = Network::new();
    let socket = UdpSocket::bind((network.here.as_str(), 0)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let port = socket.local_addr().unwrap().port();
    let event = format!("tc:{}/ingress", network.interface);
    let attach = format!("packet_quota={event}");
    let options = ["--attach", &attach, "--allow-procedure-loading"];
    let data = folder.path().join("data");
    let there = &network.there;
    let send = |client: &mut Connection, packets: u32| {
        let before = field(&listed(client, "packet_quota"), "runs");
        network.send(packets, port);
        // Packets of other protocols are events as well.
        until("all packets are seen", || {
            field(&listed(client, "packet_quota"), "runs") >= before + u64::from(packets)
        });
        arrived(&socket)
    };

    let server = start(&data, &object, &options);
    let mut client = server.connect();
    let attached = listed(&mut client, "packet_quota")["attached"].clone();
    assert_eq!(redis::from_redis_value::<Vec<String>>(attached).unwrap(), [event.as_str()]);
    // Without a quota, every packet passes and none is counted.
    assert_eq!(send(&mut client, 3), 3);
    assert_eq!(ask::<i64>(&mut client, "DBSIZE").unwrap(), 0);
    ask::<()>(&mut client, &format!("SET quota:{there} 5")).unwrap();
    assert_eq!(send(&mut client, 20), 5);
    let state = |client: &mut Connection| {
        (number(client, &format!("quota:{there}")), number(client, &format!("dropped:{there}")))
    };
    assert_eq!(state(&mut client), (0, 15));
    assert_eq!(field(&listed(&mut client, "packet_quota"), "failed"), 0);
    // Once this is on disk, so is everything that was committed before.
    ask::<()>(&mut client, "SET marker 1").unwrap();
    server.end(Signal::KILL);
    // Nothing limits packets while no server runs.
    network.send(2, port);
    all_pass(&socket, 2);

    let server = start(&data, &object, &[&options[..], &PARTITIONED].concat());
    let mut client = server.connect();
    assert_eq!(state(&mut client), (0, 15));
    assert_eq!(send(&mut client, 3), 0);
    assert_eq!(state(&mut client), (0, 18));
    // A client changes the quota as any other key. While a transaction holds a lock on it, the transactions of packets fail, so the
    // packets are dropped.
    ask::<()>(&mut client, &format!("INCRBY quota:{there} 100")).unwrap();
    assert_eq!(send(&mut client, 4), 4);
    assert_eq!(state(&mut client), (96, 18));
    let mut holder = server.connect();
    ask::<()>(&mut holder, "BEGIN").unwrap();
    ask::<()>(&mut holder, &format!("SET quota:{there} 50")).unwrap();
    assert_eq!(send(&mut client, 2), 0);
    ask::<()>(&mut holder, "COMMIT").unwrap();
    let fields = listed(&mut client, "packet_quota");
    assert_eq!(field(&fields, "failed"), 2, "{fields:?}");
    // A new version of the library is attached to the same event.
    ask::<()>(&mut client, &format!("PROC REPLACE {}", object.display())).unwrap();
    assert_eq!(send(&mut client, 5), 5);
    assert_eq!(state(&mut client), (45, 18));
    // At most one packet a second: 30 do not take half a minute.
    ask::<()>(&mut client, &format!("SET rate:{there} 1")).unwrap();
    let passed = send(&mut client, 30);
    let (left, dropped) = state(&mut client);
    assert!((1..30).contains(&passed), "{passed}");
    assert_eq!((left, dropped), (45 - i64::from(passed), 18 + 30 - i64::from(passed)));
    ask::<()>(&mut client, &format!("PROC DETACH packet_quota {event}")).unwrap();
    network.send(3, port);
    all_pass(&socket, 3);
    ask::<()>(&mut client, &format!("PROC ATTACH packet_quota {event}")).unwrap();
    let again = ask::<()>(&mut client, &format!("PROC ATTACH packet_quota {event}")).unwrap_err();
    assert!(again.to_string().contains("already"), "{again}");
    ask::<()>(&mut client, "PROC UNLOAD packet_quota").unwrap();
    network.send(2, port);
    all_pass(&socket, 2);
    let report = ask::<String>(&mut client, "BEDPLATE VERIFY").unwrap();
    println!("{report}");
    let (status, log) = server.end(Signal::TERM);
    assert_eq!(status, Some(0), "{log}");
}

#[test]
fn each_exec_of_a_user_is_logged_and_restarts_keep_the_log() {
    if !can_run() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let object = build(folder.path(), "exec-audit", "exec_audit");
    let data = folder.path().join("data");
    let options = ["--attach", "exec_audit=tracepoint:sched_process_exec"];
    // No other process of this machine has this user.
    let user = 1_000_000 + std::process::id();
    let run = |times: usize| {
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..times {
                        assert!(Command::new("/bin/true").uid(user).status().unwrap().success());
                    }
                });
            }
        });
    };
    let count = |client: &mut Connection| number(client, &format!("exec:{user}:count"));
    let failed = |client: &mut Connection| field(&listed(client, "exec_audit"), "failed");

    let server = start(&data, &object, &options);
    let mut client = server.connect();
    run(10);
    let first = count(&mut client);
    assert!(first == 30 || failed(&mut client) > 0, "{first}");
    let last: String = ask(&mut client, &format!("GET exec:{user}:{}", first % 16)).unwrap();
    let words: Vec<&str> = last.split(' ').collect();
    assert_eq!((words[0].parse(), words[3]), (Ok(first), "/bin/true"), "{last}");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    assert!(now - words[1].parse::<u64>().unwrap() < 60_000 && words[2].parse::<u32>().is_ok(), "{last}");
    ask::<()>(&mut client, "SET marker 1").unwrap();
    server.end(Signal::KILL);
    run(1);

    let server = start(&data, &object, &[&options[..], &PARTITIONED].concat());
    let mut client = server.connect();
    assert_eq!(count(&mut client), first);
    assert_eq!(ask::<String>(&mut client, &format!("GET exec:{user}:{}", first % 16)).unwrap(), last);
    run(10);
    let second = count(&mut client);
    assert!(second == first + 30 || failed(&mut client) > 0, "{second}");
    // The last 16 commands, each in its place.
    for at in second - 15..=second {
        let line: String = ask(&mut client, &format!("GET exec:{user}:{}", at % 16)).unwrap();
        assert!(line.starts_with(&format!("{at} ")), "{line}");
    }
    let (status, log) = server.end(Signal::TERM);
    assert_eq!(status, Some(0), "{log}");
}

/// Units of each item, over all warehouses, at the beginning.
const UNITS: i64 = 100;
const ITEMS: u64 = 3;
const WAREHOUSES: u64 = 3;

/// The state of an order according to the last reply that its client received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Reserved(i64),
    Sold(i64),
    Cancelled,
    /// The connection broke while one of these calls was under way.
    Unknown,
}

/// Places orders until the server dies, and notes the replies.
fn place_orders(
    server: &Server,
    mut random: u64,
    client_id: u64,
    round: u64,
    stop: &AtomicBool,
) -> Vec<(String, Known)> {
    let mut below = |n: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % n
    };
    let mut known = Vec::new();
    let Ok(mut client) = server.try_connect(None) else { return known };
    for order in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let (item, from, to) = (below(ITEMS), below(WAREHOUSES), below(WAREHOUSES));
        let units = 1 + below(40) as i64;
        let moved = ask::<i64>(&mut client, &format!("CALL stock_transfer item{item} w{from} w{to} {units}"));
        if moved.is_err_and(|error| error.is_io_error()) {
            break;
        }
        let line = format!("o{round}-{client_id}-{order}:item{item}:w{from}");
        let words = line.replace(':', " ");
        match ask::<i64>(&mut client, &format!("CALL order_reserve {words} {units}")) {
            Ok(_) => {}
            Err(error) if error.is_io_error() => {
                known.push((line, Known::Unknown));
                break;
            }
            // Too few units, or a conflict that lasted.
            Err(_) => continue,
        }
        let end = ["order_complete", "order_cancel", "order_cancel", "nothing"][below(4) as usize];
        let state = match end {
            "nothing" => Known::Reserved(units),
            end => match ask::<i64>(&mut client, &format!("CALL {end} {words}")) {
                Ok(_) if end == "order_complete" => Known::Sold(units),
                Ok(_) => Known::Cancelled,
                Err(error) if error.is_io_error() => Known::Unknown,
                Err(_) => Known::Reserved(units),
            },
        };
        known.push((line, state));
        if state == Known::Unknown {
            break;
        }
        std::thread::sleep(Duration::from_millis(below(3)));
    }
    known
}

/// Reads all keys, and checks that no unit was lost or invented.
fn check_units(client: &mut Connection) -> BTreeMap<String, i64> {
    let keys: Vec<String> = ask(client, "KEYS *").unwrap();
    let mut all = BTreeMap::new();
    let mut units: BTreeMap<String, i64> = BTreeMap::new();
    for key in keys {
        let n = number(client, &key);
        let parts: Vec<&str> = key.split(':').collect();
        let item = if parts[0] == "stock" { parts[1] } else { parts[2] };
        assert!(n >= 0, "{key} is {n}");
        *units.entry(item.into()).or_default() += n;
        all.insert(key, n);
    }
    for item in 0..ITEMS {
        assert_eq!(units[&format!("item{item}")], UNITS * WAREHOUSES as i64, "item{item}: {all:?}");
    }
    all
}

#[test]
fn orders_keep_every_unit_while_the_server_is_killed() {
    if !can_run() {
        return;
    }
    let variable = |name: &str| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    let kills = variable("BEDPLATE_TEST_KILLS").unwrap_or(2);
    let seed = variable("BEDPLATE_TEST_SEED")
        .unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64);
    println!("seed {seed}, {kills} kills");
    let folder = tempfile::tempdir().unwrap();
    let object = build(folder.path(), "orders", "orders");
    let data = folder.path().join("data");
    let mut server = start(&data, &object, &PARTITIONED);
    let mut client = server.connect();
    for (item, warehouse) in
        (0..ITEMS).flat_map(|item| (0..WAREHOUSES).map(move |warehouse| (item, warehouse)))
    {
        let added: i64 =
            ask(&mut client, &format!("CALL stock_add item{item} w{warehouse} {UNITS}")).unwrap();
        assert_eq!(added, UNITS);
    }
    // Wrong calls are refused.
    for (words, reason) in [
        ("stock_add item0 w0", "wrong number of arguments"),
        ("stock_add item0 w0 0", "units must be"),
        ("stock_add item:0 w0 1", "no colon"),
        ("stock_transfer item0 w0 w1 101", "too few units"),
        ("order_reserve o item0 w0 101", "too few units"),
        ("order_complete o item0 w0", "has not reserved"),
        ("order_cancel o item0 w0", "has not reserved"),
    ] {
        let error = ask::<i64>(&mut client, &format!("CALL {words}")).unwrap_err().to_string();
        assert!(error.contains(reason), "{words}: {error}");
    }
    check_units(&mut client);
    let mut orders = 0;
    for round in 0..kills {
        let known = Mutex::new(Vec::new());
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for client_id in 0..4 {
                let (server, known, stop) = (&server, &known, &stop);
                scope.spawn(move || {
                    let seed = seed ^ (round << 8 | client_id);
                    let mine = place_orders(server, seed, client_id, round, stop);
                    known.lock().unwrap().extend(mine);
                });
            }
            // Long enough for some orders, however slow the machine is.
            until("orders are placed", || {
                !ask::<Vec<String>>(&mut client, "KEYS sold:*").unwrap().is_empty()
            });
            std::thread::sleep(Duration::from_millis(100 + seed.rotate_left(round as u32) % 400));
            server.kill();
            stop.store(true, Ordering::Relaxed);
        });
        server.end(Signal::KILL);
        // The engines read each other's data, and run the same procedures.
        let options = if round % 2 == 0 { &["--engine", "hash-map"] } else { &PARTITIONED[..] };
        server = start(&data, &object, options);
        client = server.connect();
        let all = check_units(&mut client);
        for (line, known) in known.into_inner().unwrap() {
            let (reserved, sold) = (all.get(&format!("reserved:{line}")), all.get(&format!("sold:{line}")));
            let expected = match known {
                Known::Reserved(units) => (Some(units), None),
                Known::Sold(units) => (None, Some(units)),
                Known::Cancelled => (None, None),
                Known::Unknown => continue,
            };
            assert_eq!((reserved.copied(), sold.copied()), expected, "{line} {known:?}");
            orders += 1;
        }
        // Units come back, so that the next round has some to sell.
        for (key, _) in all.iter().filter(|(key, _)| key.starts_with("reserved:")) {
            let words = key.trim_start_matches("reserved:").replace(':', " ");
            ask::<i64>(&mut client, &format!("CALL order_cancel {words}")).unwrap();
        }
        for (key, units) in all.iter().filter(|(key, _)| key.starts_with("sold:")) {
            let parts: Vec<&str> = key.split(':').collect();
            ask::<()>(&mut client, &format!("DEL {key}")).unwrap();
            ask::<i64>(&mut client, &format!("CALL stock_add {} {} {units}", parts[2], parts[3])).unwrap();
        }
        check_units(&mut client);
    }
    println!("{orders} orders");
    assert!(orders > 0);
}
