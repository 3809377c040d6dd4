//! Helpers that the tests of the server share.
#![allow(dead_code, unused_imports, reason = "each test binary uses a part of it")]

pub mod client;
pub mod model;
pub mod traffic;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bedplate_kerneldb::checkpoint::CheckpointConfig;
use bedplate_kerneldb::testing::SimulatedDisk;
use bedplate_kerneldb::{Config, Database, Store, StoreConfig};
use bedplate_kerneldb_redis::server::{Batching, Server, ServerConfig, ServerHandle};
pub use client::{Client, agree, bulk, request, words};

use crate::common::has_cgroup2;

/// A server on a free port and the database behind it.
pub struct Running {
    pub db: Arc<Database>,
    pub server: ServerHandle,
    pub addr: SocketAddr,
}

pub fn config() -> ServerConfig {
    ServerConfig {
        bind: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        max_clients: 128,
        // The whole machine uses the workers, and most tests run beside others.
        batch_workers: Batching::Never,
        ..ServerConfig::default()
    }
}

/// A configuration with or without answers of the kernel.
pub fn config_with(kernel_path: bool) -> ServerConfig {
    ServerConfig { kernel_path, ..config() }
}

pub fn start_with(database: Config, config: ServerConfig) -> Running {
    let db = Arc::new(Database::create(database).unwrap());
    let server = Server::start_in_memory(db.clone(), config).unwrap();
    let addr = server.local_addr();
    Running { db, server, addr }
}

/// A server on a store whose files are on a simulated disk.
pub fn start_on(
    disk: &SimulatedDisk,
    store: StoreConfig,
    config: ServerConfig,
) -> (Arc<Store>, ServerHandle) {
    let (store, _) = disk.open(store).unwrap();
    let store = Arc::new(store);
    let server = Server::start(store.clone(), config).unwrap();
    (store, server)
}

/// Checkpoints are taken when a test asks for them.
pub fn no_checkpoints() -> CheckpointConfig {
    CheckpointConfig { interval: None, log_bytes: None, ..CheckpointConfig::default() }
}

/// The ways of answering: by the kernel, by the event loop, and inside of the client's send call.
pub fn ways() -> Vec<ServerConfig> {
    let mut ways = vec![config(), config_with(false)];
    if has_cgroup2() {
        ways.push(ServerConfig { local_fast_path: true, ..config() });
    }
    ways
}

/// A server with a database of three partitions.
pub fn start_with_partitions(config: ServerConfig) -> Running {
    start_with(
        Config { partitions: 3, memory_bytes: 96 << 20, max_sessions: 256, ..Config::default() },
        config,
    )
}

pub fn start(config: ServerConfig) -> Running {
    start_with(Config { memory_bytes: 64 << 20, max_sessions: 256, ..Config::default() }, config)
}

impl Running {
    pub fn client(&self) -> Client {
        Client::new(self.addr)
    }

    /// Waits until every connection is gone, then stops; nothing may be left in use.
    pub fn finish(self) {
        eventually("all connections are closed", || self.server.stats().unwrap().clients == 0);
        let stats = self.server.stats().unwrap();
        assert_eq!(stats.broken, 0, "{stats:?}");
        self.server.shutdown().unwrap();
        // The threads of the database claim one for a moment.
        eventually("no buffer is claimed", || self.db.claimed_io_buffers() == 0);
        // A transaction that was left open would still hold its snapshot or its locks.
        assert_eq!(self.db.stats().active_snapshots, 0);
        let mut session = self.db.session().unwrap();
        session.begin().unwrap();
        session.rollback().unwrap();
    }
}

/// Waits up to a minute, which is much longer than any condition needs.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Pseudo-random numbers, the same in every run.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// The next number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 16) as usize % n
    }
}
