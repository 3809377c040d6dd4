//! Servers, and a sequence of numbers that is written to them: an image of one moment has all of them up to one.
#![allow(dead_code)]

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redis::{Commands, Connection};

/// Where the guest has the library.
pub const IN_GUEST: &str = "/lib/bedplate/preload.so";

/// Whether this runs in a virtual machine, where the engine is the one of ring 0.
pub fn in_guest() -> bool {
    std::env::var_os("BEDPLATE_VM").is_some()
}

/// The library, built as this test was.
pub fn library() -> PathBuf {
    if in_guest() {
        return IN_GUEST.into();
    }
    let mut command = Command::new(env!("CARGO"));
    command.args(["build", "--locked", "--quiet", "-p", "bedplate-snapshot-preload"]);
    assert!(command.status().unwrap().success());
    // This test is target/PROFILE/deps/NAME.
    let folder = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_owned();
    folder.join("libbedplate_snapshot_preload.so")
}

pub fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

pub struct Server {
    pub process: Child,
    pub port: u16,
    /// When it is not that process, but one that it forked.
    daemon: Option<libc::pid_t>,
}

impl Server {
    /// The distribution's Redis in a folder, with the library or without, after it answers.
    pub fn start(folder: &Path, with_library: bool, options: &[&str]) -> Self {
        Self::start_of("redis-server", folder, with_library, options)
    }

    /// A program that takes Redis's options, likewise.
    pub fn start_of(program: &str, folder: &Path, with_library: bool, options: &[&str]) -> Self {
        let port = free_port();
        let mut command = Command::new(program);
        command.args(["--port", &port.to_string(), "--save", "", "--loglevel", "warning"]);
        command.args(["--enable-debug-command", "yes", "--dir"]).arg(folder).args(options);
        command.stdout(Stdio::null()).stderr(Stdio::inherit());
        if with_library {
            command.env("LD_PRELOAD", library()).env("BEDPLATE_SNAPSHOT_REQUIRED", "1");
            command.env("BEDPLATE_SNAPSHOT_STATISTICS", folder.join("statistics"));
            if in_guest() {
                command.env("BEDPLATE_SNAPSHOT_ENGINE", "ring0");
            }
        }
        let server = Self::around(command.spawn().unwrap(), port);
        server.connect();
        server
    }

    pub fn around(process: Child, port: u16) -> Self {
        Self { process, port, daemon: None }
    }

    /// One with the library that makes itself a daemon: its parent forks and ends.
    pub fn start_daemon(folder: &Path) -> Self {
        let pidfile = folder.join("pid");
        let options = ["--daemonize", "yes", "--pidfile", pidfile.to_str().unwrap()];
        let mut server = Self::start(folder, true, &options);
        // What answers is the daemon, which wrote the file before.
        server.daemon = Some(std::fs::read_to_string(&pidfile).unwrap().trim().parse().unwrap());
        assert!(server.process.wait().unwrap().success());
        server
    }

    pub fn connect(&self) -> Connection {
        let client = redis::Client::open(("127.0.0.1", self.port)).unwrap();
        let limit = Instant::now() + Duration::from_secs(60);
        loop {
            let answer = client.get_connection().and_then(|mut connection| {
                let pong: String = redis::cmd("PING").query(&mut connection)?;
                assert_eq!(pong, "PONG");
                Ok(connection)
            });
            match answer {
                Ok(connection) => return connection,
                Err(error) if Instant::now() > limit => panic!("{error}"),
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// Ends it in the usual way and gives its statistics.
    pub fn stop(self, folder: &Path) -> HashMap<String, u64> {
        let _: Result<(), _> = redis::cmd("SHUTDOWN").arg("NOSAVE").query(&mut self.connect());
        self.ended(folder)
    }

    /// Ends it by a signal, which it handles, and gives its statistics.
    pub fn terminate(self, folder: &Path) -> HashMap<String, u64> {
        // SAFETY: a process of this test's.
        assert_eq!(unsafe { libc::kill(self.process.id() as i32, libc::SIGTERM) }, 0);
        self.ended(folder)
    }

    fn ended(mut self, folder: &Path) -> HashMap<String, u64> {
        self.process.wait().unwrap();
        let pid = self.daemon.unwrap_or(self.process.id() as libc::pid_t);
        let limit = Instant::now() + Duration::from_secs(10);
        loop {
            // A line per process.
            let text = std::fs::read_to_string(folder.join("statistics")).unwrap_or_default();
            if let Some(line) = text.lines().find(|line| line.starts_with(&format!("pid={pid} "))) {
                let words = line.split_whitespace().filter_map(|word| word.split_once('='));
                return words.map(|(name, value)| (name.into(), value.parse().unwrap())).collect();
            }
            // Whose child a daemon is, nobody here can wait for it.
            assert!(self.daemon.is_some() && Instant::now() < limit, "no statistics of {pid}: {text}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if let Some(daemon) = self.daemon {
            kill(daemon);
        }
    }
}

/// The process ID of a server's child.
pub fn child_of(server: &Server) -> i32 {
    let pid = server.process.id();
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    text.split_whitespace().next().unwrap_or_else(|| panic!("no child")).parse().unwrap()
}

/// Kills a process of the test's, if it is there.
pub fn kill(pid: libc::pid_t) {
    // SAFETY: a process that a test started.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

pub fn info(connection: &mut Connection, section: &str, name: &str) -> String {
    let text: String = redis::cmd("INFO").arg(section).query(connection).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).trim().to_owned()
}

pub fn wait_for(connection: &mut Connection, section: &str, name: &str, value: &str) {
    let limit = Instant::now() + Duration::from_secs(120);
    while info(connection, section, name) != value {
        assert!(Instant::now() < limit, "{name} is not {value}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until a replica has all that its server wrote. Nobody writes any more.
pub fn wait_for_replica(server: &Server, replica: &Server) {
    let limit = Instant::now() + Duration::from_secs(60);
    let (mut server, mut replica) = (server.connect(), replica.connect());
    loop {
        let written = info(&mut server, "replication", "master_repl_offset");
        if info(&mut replica, "replication", "slave_repl_offset") == written {
            return;
        }
        assert!(Instant::now() < limit, "the replica does not follow");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn bgsave(connection: &mut Connection) {
    let _: String = redis::cmd("BGSAVE").query(connection).unwrap();
}

pub fn saved(connection: &mut Connection) -> String {
    wait_for(connection, "persistence", "rdb_bgsave_in_progress", "0");
    info(connection, "persistence", "rdb_last_bgsave_status")
}

pub const KEYS: u64 = 40_000;

pub fn value(number: u64) -> String {
    format!("{number:012}{}", "x".repeat(500))
}

pub fn number_of(value: &str) -> u64 {
    value[..12].parse().unwrap()
}

/// Writes numbers to keys in turn, in pipelines, until told to stop; gives the latest number.
fn write(server: &Server, from: u64, over: &AtomicBool) -> u64 {
    let mut connection = server.connect();
    let mut number = from;
    while !over.load(Ordering::Relaxed) {
        let mut pipeline = redis::pipe();
        for _ in 0..50 {
            number += 1;
            // Jumps about in memory.
            pipeline.set(number.wrapping_mul(7919) % KEYS, value(number)).ignore();
        }
        let _: () = pipeline.query(&mut connection).unwrap();
    }
    number
}

pub fn fill(server: &Server) {
    let mut connection = server.connect();
    for start in (1..=KEYS).step_by(500) {
        let mut pipeline = redis::pipe();
        for number in start..(start + 500).min(KEYS + 1) {
            pipeline.set(number.wrapping_mul(7919) % KEYS, value(number)).ignore();
        }
        let _: () = pipeline.query(&mut connection).unwrap();
    }
}

/// Checks that a server has all numbers up to one and none beyond, and gives that one.
pub fn exact_prefix(connection: &mut Connection) -> u64 {
    let size: u64 = redis::cmd("DBSIZE").query(connection).unwrap();
    assert_eq!(size, KEYS);
    let mut numbers = HashMap::new();
    for start in (0..KEYS).step_by(1000) {
        let keys: Vec<u64> = (start..start + 1000).collect();
        let values: Vec<String> = connection.mget(&keys).unwrap();
        numbers.extend(keys.into_iter().zip(values.iter().map(|value| number_of(value))));
    }
    let latest = *numbers.values().max().unwrap();
    for number in latest + 1 - KEYS..=latest {
        let key = number.wrapping_mul(7919) % KEYS;
        assert_eq!(numbers[&key], number, "key {key}, of a prefix up to {latest}");
    }
    latest
}

/// While somebody writes.
pub fn under_load<T>(server: &Server, f: impl FnOnce() -> T) -> (T, u64) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write(server, KEYS, &over));
        std::thread::sleep(Duration::from_millis(200));
        // The writer ends also when this panics.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
        over.store(true, Ordering::Relaxed);
        let latest = writer.join().unwrap();
        (result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)), latest)
    })
}
