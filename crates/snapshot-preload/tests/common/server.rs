//! Servers that take Redis's options, with the library or without, and requests to them.

use std::collections::HashMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use redis::Connection;

use super::{Engine, in_guest, library};

pub fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The counts of a server's library.
pub type Statistics = HashMap<String, u64>;

/// The numbers in a line of statistics, which is about one process.
pub fn statistics_of(line: &str) -> Statistics {
    let words = line.split_whitespace().filter_map(|word| word.split_once('='));
    let counts = words.filter(|(name, _)| !["engine", "malloc"].contains(name));
    counts.map(|(name, value)| (name.into(), value.parse().unwrap())).collect()
}

/// Number of images that were abandoned.
pub fn incomplete(statistics: &Statistics) -> u64 {
    statistics["incomplete"]
}

pub struct Server {
    pub process: Child,
    pub port: u16,
    program: String,
    /// The server's process ID, if it is not `process` but a process that it forked.
    daemon: Option<libc::pid_t>,
}

impl Server {
    /// Starts the distribution's Redis in a folder, with the library and this engine or without. Returns after it answers.
    pub fn start(folder: &Path, engine: Option<Engine>, options: &[&str]) -> Self {
        Self::start_of("redis-server", folder, engine, options)
    }

    /// The same for another program that takes Redis's options.
    pub fn start_of(program: &str, folder: &Path, engine: Option<Engine>, options: &[&str]) -> Self {
        Self::start_on(free_port(), program, folder, engine, options)
    }

    /// The same for such a program on this port.
    pub fn start_on(
        port: u16,
        program: &str,
        folder: &Path,
        engine: Option<Engine>,
        options: &[&str],
    ) -> Self {
        Self::start_configured(port, program, folder, options, |command| {
            if let Some(engine) = engine {
                command.env("LD_PRELOAD", library()).env("BEDPLATE_SNAPSHOT_REQUIRED", "1");
                command.env("BEDPLATE_SNAPSHOT_STATISTICS", folder.join("statistics"));
                command.env("BEDPLATE_SNAPSHOT_ENGINE", engine);
            }
        })
    }

    /// The same for such a program, with changes of the command that starts it.
    pub fn start_configured(
        port: u16,
        program: &str,
        folder: &Path,
        options: &[&str],
        configure: impl FnOnce(&mut Command),
    ) -> Self {
        let mut command = Command::new(program);
        command.args(["--port", &port.to_string(), "--save", "", "--loglevel", "warning"]);
        command.args(["--enable-debug-command", "yes", "--dir"]).arg(folder).args(options);
        // A guest's output is shown if its test fails.
        command.stdout(if in_guest() { Stdio::inherit() } else { Stdio::null() }).stderr(Stdio::inherit());
        configure(&mut command);
        let mut server = Self::around(command.spawn().unwrap(), port);
        server.program = program.into();
        server.connect();
        server
    }

    /// A process that is Redis, or will be.
    pub fn around(process: Child, port: u16) -> Self {
        Self { process, port, program: "redis-server".into(), daemon: None }
    }

    /// Starts another server of the same program, in a folder, without the library.
    pub fn stock(&self, folder: &Path, options: &[&str]) -> Self {
        Self::start_of(&self.program, folder, None, options)
    }

    /// Starts a server with the library that becomes a daemon: its parent forks and exits.
    pub fn start_daemon(folder: &Path, engine: Engine) -> Self {
        let pidfile = folder.join("pid");
        let options = ["--daemonize", "yes", "--pidfile", pidfile.to_str().unwrap()];
        let mut server = Self::start(folder, Some(engine), &options);
        // The daemon answers, and it has written the file before.
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

    /// Ends it in the usual way and returns its statistics.
    pub fn stop(self, folder: &Path) -> Statistics {
        let _: Result<(), _> = redis::cmd("SHUTDOWN").arg("NOSAVE").query(&mut self.connect());
        self.ended(folder)
    }

    /// Ends it with a signal, which it handles, and returns its statistics.
    pub fn terminate(self, folder: &Path) -> Statistics {
        // SAFETY: a process of this test.
        assert_eq!(unsafe { libc::kill(self.process.id() as i32, libc::SIGTERM) }, 0);
        self.ended(folder)
    }

    fn ended(mut self, folder: &Path) -> Statistics {
        self.process.wait().unwrap();
        let pid = self.daemon.unwrap_or(self.process.id() as libc::pid_t);
        let limit = Instant::now() + Duration::from_secs(10);
        loop {
            // The file has a line for each process.
            let text = std::fs::read_to_string(folder.join("statistics")).unwrap_or_default();
            if let Some(line) = text.lines().find(|line| line.starts_with(&format!("pid={pid} "))) {
                return statistics_of(line);
            }
            // The daemon is not a child of this process, so this process cannot wait for it.
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

/// Kills a process of the test, if it exists.
pub fn kill(pid: libc::pid_t) {
    // SAFETY: a process that a test started.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

pub fn info(connection: &mut Connection, section: &str, name: &str) -> String {
    let text: String = redis::cmd("INFO").arg(section).query(connection).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).trim().to_owned()
}

/// Maximum time of a save. In an emulated guest on a busy machine, one has taken more than two minutes.
const PATIENCE: Duration = Duration::from_secs(600);

fn wait_for(connection: &mut Connection, section: &str, name: &str, value: &str) {
    let limit = Instant::now() + PATIENCE;
    while info(connection, section, name) != value {
        assert!(Instant::now() < limit, "{name} is not {value}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until a replica has all writes of its server. No client may write meanwhile.
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

/// Rewrites a server's log, after a rewrite that it may have begun by itself.
pub fn rewrite_log(server: &Server) {
    let mut connection = server.connect();
    wait_for(&mut connection, "persistence", "aof_rewrite_in_progress", "0");
    let _: String = redis::cmd("BGREWRITEAOF").query(&mut connection).unwrap();
    wait_for(&mut connection, "persistence", "aof_rewrite_scheduled", "0");
    wait_for(&mut connection, "persistence", "aof_rewrite_in_progress", "0");
    assert_eq!(info(&mut connection, "persistence", "aof_last_bgrewrite_status"), "ok");
}

/// Makes a server the replica of another one, and waits until it has had a full synchronization.
pub fn replicate(server: &Server, replica: &Server) {
    let mut connection = replica.connect();
    let _: String = redis::cmd("REPLICAOF").arg("127.0.0.1").arg(server.port).query(&mut connection).unwrap();
    wait_for(&mut connection, "replication", "master_link_status", "up");
}

/// Sets the time that a save waits after each key, so that it takes a while.
pub fn set_save_delay(connection: &mut Connection, micros: u32) {
    let _: String =
        redis::cmd("CONFIG").arg("SET").arg("rdb-key-save-delay").arg(micros).query(connection).unwrap();
}
