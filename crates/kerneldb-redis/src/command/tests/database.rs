//! Tests the commands on the real engine in the kernel: the differential properties, and behaviour that the model
//! lacks. The tests need the privilege to load programs.

use std::sync::Arc;

use super::redis::RedisClient;
use super::{Client, differential};
use crate::command::{AdminTask, AdminTaskTicket, Memory, ServerState, Services, Startup};
use crate::server::{self, ServerConfig};
use bedplate_kerneldb::{Config, Database, Result, Session, SnapshotItem};

/// A server around a database without a log.
#[derive(Clone)]
struct Server {
    database: Arc<Database>,
    server: Arc<ServerState>,
}

impl Services for Server {
    fn server(&self) -> &Arc<ServerState> {
        &self.server
    }

    fn len(&self) -> u64 {
        self.database.len()
    }

    fn positions(&self) -> u64 {
        self.database.snapshot().unwrap().positions()
    }

    fn draw_position(&self, random: u64) -> Result<u64> {
        Ok(self.database.snapshot()?.draw_position(random))
    }

    fn scan(&self, from: u64, to: u64, f: &mut dyn FnMut(SnapshotItem<'_>)) -> Result<u64> {
        self.database.snapshot()?.scan(from, to, f)
    }

    fn clock(&self) -> u64 {
        self.database.clock()
    }

    fn durable_ts(&self) -> u64 {
        self.database.durable_ts()
    }

    fn logged(&self) -> bool {
        false
    }

    fn log_failed(&self) -> bool {
        false
    }

    fn request_durable(&self, _ts: u64) {}

    fn start_admin_task(&self, _task: AdminTask) -> std::result::Result<Arc<AdminTaskTicket>, String> {
        Err("ERR no data directory".into())
    }

    fn save_in_background(&self) -> std::result::Result<bool, String> {
        Err("ERR no data directory".into())
    }

    fn saving(&self) -> bool {
        false
    }

    fn last_save(&self) -> (u64, bool) {
        (0, true)
    }

    fn memory(&self) -> Memory {
        Memory::default()
    }

    fn statistics(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

impl Server {
    fn start(versions: u32, partitions: u32) -> Server {
        let memory_bytes = (32 << 20) * u64::from(partitions);
        let config = Config { versions, partitions, memory_bytes, max_sessions: 64, ..Config::default() };
        Server {
            database: Arc::new(Database::create(config).unwrap()),
            server: ServerState::new(Startup::default()),
        }
    }

    fn client(&self) -> Client<Session, Server> {
        Client::with(self.database.session().unwrap(), self.clone())
    }
}

#[test]
fn replies_are_those_of_redis() {
    let server = Server::start(4, 1);
    differential::check_all(60, || server.client());
}

#[test]
fn replies_are_those_of_redis_over_partitions() {
    let server = Server::start(2, 3);
    differential::check_all(30, || server.client());
}

/// Sends the commands through sockets, once with answers of the kernel and once with the event loop alone.
#[test]
fn replies_of_the_server_are_those_of_redis() {
    for kernel_path in [true, false] {
        let config = Config { memory_bytes: 32 << 20, max_sessions: 64, ..Config::default() };
        let database = Arc::new(Database::create(config).unwrap());
        let bind = ([127, 0, 0, 1], 0).into();
        let config = ServerConfig { bind, max_clients: 16, kernel_path, ..ServerConfig::default() };
        let server = server::Server::start_in_memory(database, config).unwrap();
        differential::check_all(40, || RedisClient::connect(server.local_addr()));
        server.shutdown().unwrap();
    }
}

#[test]
fn conflicts_and_snapshots() {
    let server = Server::start(4, 1);
    let (mut a, mut b) = (server.client(), server.client());
    a.send("MSET x 1 y 1");
    a.send("BEGIN");
    b.send("BEGIN READ ONLY");
    assert_eq!(a.send("SET x 2"), "+OK\r\n");
    assert_eq!(b.send("MGET x y"), "*2\r\n$1\r\n1\r\n$1\r\n1\r\n");
    let mut c = server.client();
    c.send("CONFIG SET lock-timeout 20");
    assert_eq!(c.send("INCR x"), "-CONFLICT conflict with another transaction\r\n");
    assert_eq!(c.send("MGET x y"), "*2\r\n$1\r\n1\r\n$1\r\n1\r\n");
    c.send("BEGIN");
    assert_eq!(c.send("GET x"), "-CONFLICT conflict with another transaction\r\n");
    assert_eq!(c.send("GET y"), "-TXFAILED the transaction has failed and can only be rolled back\r\n");
    assert_eq!(c.send("COMMIT"), "-TXFAILED the transaction had failed and was rolled back\r\n");
    assert_eq!(a.send("COMMIT"), "+OK\r\n");
    assert_eq!(b.send("GET x"), "$1\r\n1\r\n");
    assert!(b.send("SET x 9").starts_with("-ERR"), "a snapshot cannot be written");
    assert_eq!(b.send("ROLLBACK"), "+OK\r\n");
    assert_eq!(b.send("GET x"), "$1\r\n2\r\n");
    c.send("WATCH x");
    b.send("INCR x");
    c.send("MULTI");
    c.send("SET x 0");
    assert_eq!(c.send("EXEC"), "*-1\r\n");
    assert_eq!(b.send("GET x"), "$1\r\n3\r\n");
}

#[test]
fn increments_of_many_threads_add_up() {
    let server = Server::start(4, 1);
    let work = |per_command: [&'static str; 4]| {
        let server = server.clone();
        move || {
            let mut client = server.client();
            for _ in 0..100 {
                for command in per_command {
                    let reply = client.send(command);
                    assert!(!reply.starts_with('-'), "{command}: {reply}");
                }
            }
        }
    };
    let commands = [["INCR n", "APPEND s x", "PING", "GET n"], ["MULTI", "INCR n", "APPEND s y", "EXEC"]];
    let threads: Vec<_> = (0..4).map(|i| std::thread::spawn(work(commands[i % 2]))).collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    let mut client = server.client();
    assert_eq!(client.send("GET n"), "$3\r\n400\r\n");
    assert_eq!(client.send("STRLEN s"), ":400\r\n");
}

#[test]
fn the_largest_transaction_and_one_more() {
    let server = Server::start(4, 1);
    let mut client = server.client();
    let mset = |keys: usize| -> String {
        format!("MSET {}", (0..keys).map(|i| format!("k{i} v")).collect::<Vec<_>>().join(" "))
    };
    assert_eq!(client.send(&mset(129)), "-ERR the transaction touches more than 128 keys\r\n");
    assert_eq!(client.send("DBSIZE"), ":0\r\n");
    assert_eq!(client.send(&mset(128)), "+OK\r\n");
    assert_eq!(client.send("DBSIZE"), ":128\r\n");
    assert_eq!(client.send("FLUSHALL"), "+OK\r\n");
    assert_eq!(client.send("DBSIZE"), ":0\r\n");
}

#[test]
fn expired_keys_leave_the_engine() {
    let server = Server::start(4, 1);
    let mut client = server.client();
    for i in 0..50 {
        client.send(&format!("SET k{i} v {}", if i % 2 == 0 { "PX 30" } else { "" }));
    }
    while client.send("DBSIZE") != ":25\r\n" {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(client.send("MGET k0 k1"), "*2\r\n$-1\r\n$1\r\nv\r\n");
    server.database.set_expire_effort(0).unwrap();
    client.send("SET gone v PXAT 1");
    assert_eq!(client.send("FLUSHALL"), "+OK\r\n");
    assert_eq!(client.send("DBSIZE"), ":0\r\n");
}

/// RANDOMKEY draws from the whole key space, not only from its beginning.
#[test]
fn random_keys_are_all_over() {
    let server = Server::start(4, 1);
    let mut client = server.client();
    const KEYS: usize = 20_000;
    for i in 0..KEYS {
        client.send(&format!("SET key{i} v"));
    }
    let mut tenths = [0; 10];
    for _ in 0..500 {
        let reply = client.send("RANDOMKEY");
        let number: usize = reply.trim().rsplit("key").next().unwrap().parse().unwrap();
        tenths[number * 10 / KEYS] += 1;
    }
    // 50 are expected in each.
    assert!(tenths.iter().all(|n| (10..150).contains(n)), "{tenths:?}");
}
