//! Servers under test, as child processes: started on a free port, ended when dropped.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use tempfile::TempDir;

use crate::{Error, Options, Result};

const START_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(15);

/// A running server.
#[derive(Debug)]
pub struct Server {
    child: Child,
    address: SocketAddr,
    directory: TempDir,
    started_in: Duration,
}

impl Server {
    /// Redis with no persistence at all.
    pub fn redis(options: &Options) -> Result<Server> {
        Self::redis_with(options, &[], &[])
    }

    /// Redis, with variables in its environment.
    pub fn redis_with(options: &Options, environment: &[(&str, &OsStr)], further: &[&str]) -> Result<Server> {
        Self::redis_as(&options.redis, environment, further, "install redis-server, or name one")
    }

    /// Valkey with no persistence at all, with variables in its environment.
    pub fn valkey_with(
        options: &Options,
        environment: &[(&str, &OsStr)],
        further: &[&str],
    ) -> Result<Server> {
        Self::redis_as(&options.valkey, environment, further, "install valkey-server 8, or name one")
    }

    /// Redis, or a server with the same options.
    fn redis_as(
        program: &Path,
        environment: &[(&str, &OsStr)],
        further: &[&str],
        hint: &'static str,
    ) -> Result<Server> {
        let directory = directory()?;
        let port = free_port()?;
        let mut command = Command::new(program);
        command.args([
            "--bind",
            "127.0.0.1",
            "--port",
            &port.to_string(),
            "--save",
            "",
            "--appendonly",
            "no",
        ]);
        command.args([OsStr::new("--dir"), directory.path().as_os_str()]);
        command.args(further);
        command.envs(environment.iter().copied());
        Self::start(command, port, directory, hint)
    }

    /// The least that a server can do ([`super::floor`]).
    pub fn floor(options: &Options) -> Result<Server> {
        let port = free_port()?;
        let mut command = Command::new(bedplate(options)?);
        command.args(["bench", "--floor", &port.to_string()]);
        Self::start(command, port, directory()?, "this executable has no `bench --floor`")
    }

    /// Bedplate without persistence, with further options of `kv serve`.
    pub fn bedplate(options: &Options, memory_bytes: u64, further: &[&str]) -> Result<Server> {
        let directory = directory()?;
        let port = free_port()?;
        let mut command = Command::new(bedplate(options)?);
        command.args(["kv", "serve", "--bind", "127.0.0.1", "--port", &port.to_string(), "--in-memory"]);
        command.args(["--memory", &memory_bytes.to_string()]).args(further);
        Self::start(command, port, directory, "run `bedplate doctor` to see what this kernel lacks")
    }

    /// Bedplate on a data directory, with further options of `kv serve`.
    pub fn bedplate_on(
        options: &Options,
        memory_bytes: u64,
        data: &Path,
        further: &[&str],
    ) -> Result<Server> {
        let port = free_port()?;
        let mut command = Command::new(bedplate(options)?);
        command.args(["kv", "serve", "--bind", "127.0.0.1", "--port", &port.to_string()]);
        command.args(["--memory", &memory_bytes.to_string()]).args(further);
        command.args([OsStr::new("--data"), data.as_os_str()]);
        Self::start(command, port, directory()?, "run `bedplate doctor` to see what this kernel lacks")
    }

    /// Redis on a data directory: it loads the RDB file there, and writes one only on a command.
    pub fn redis_on(options: &Options, data: &Path) -> Result<Server> {
        let port = free_port()?;
        let mut command = Command::new(&options.redis);
        command.args([
            "--bind",
            "127.0.0.1",
            "--port",
            &port.to_string(),
            "--save",
            "",
            "--appendonly",
            "no",
        ]);
        command.args([OsStr::new("--dir"), data.as_os_str()]);
        Self::start(command, port, directory()?, "install redis-server, or name one")
    }

    fn start(mut command: Command, port: u16, directory: TempDir, hint: &'static str) -> Result<Server> {
        let name = command.get_program().to_string_lossy().into_owned();
        let errors = directory.path().join("errors");
        let stderr = File::create(&errors).map_err(Error::io("create a file for the server's errors"))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        // SAFETY: the closure only makes a system call that is safe between fork and exec.
        unsafe {
            command.pre_exec(|| {
                set_parent_process_death_signal(Some(Signal::TERM))?;
                Ok(())
            });
        }
        let start = Instant::now();
        let child = command
            .spawn()
            .map_err(|e| Error::Missing { what: format!("{name} does not start: {e}"), hint })?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut server = Server { child, address, directory, started_in: Duration::ZERO };
        while !answers_ping(address) {
            let ended = server.child.try_wait().map_err(Error::io("wait for the server"))?;
            if let Some(status) = ended {
                let text = std::fs::read_to_string(&errors).unwrap_or_default();
                let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
                return Err(Error::Missing { what: format!("{name} ended at once: {status} {last}"), hint });
            }
            if start.elapsed() > START_LIMIT {
                return Err(Error::Missing { what: format!("{name} does not answer"), hint });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        server.started_in = start.elapsed();
        Ok(server)
    }

    /// The address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The directory of its files, which exists as long as this.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Time from its start to its first reply to PING.
    pub fn started_in(&self) -> Duration {
        self.started_in
    }

    /// Kills it at once, so that it cannot save anything.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill().map_err(Error::io("kill the server"))?;
        self.child.wait().map_err(Error::io("wait for the server"))?;
        Ok(())
    }

    /// Sends one command in its inline form. Returns the contents of a bulk string, or the line of any other reply.
    /// An error reply is an error.
    pub fn command(&self, line: &str) -> Result<String> {
        let exchange = || -> std::io::Result<String> {
            let mut socket = TcpStream::connect(self.address)?;
            socket.set_read_timeout(Some(START_LIMIT))?;
            socket.write_all(format!("{line}\r\n").as_bytes())?;
            let mut reader = BufReader::new(socket);
            let mut reply = String::new();
            reader.read_line(&mut reply)?;
            let length = reply.strip_prefix('$').and_then(|length| length.trim().parse::<usize>().ok());
            let Some(length) = length else { return Ok(reply.trim_end().to_owned()) };
            let mut bytes = vec![0; length];
            reader.read_exact(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        let reply = exchange().map_err(Error::io(format!("{line} on the server")))?;
        match reply.strip_prefix('-') {
            Some(problem) => Err(Error::Protocol {
                server: self.address.to_string(),
                problem: format!("{line}: {problem}"),
            }),
            None => Ok(reply),
        }
    }

    /// The identifier of its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    /// Asks it to end, and kills it after a time limit.
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            kill_process(pid, Signal::TERM).ok();
        }
        let start = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if start.elapsed() > STOP_LIMIT {
                tracing::warn!(pid = self.child.id(), "the server does not end by itself: killing it");
                self.child.kill().ok();
                self.child.wait().ok();
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The `bedplate` executable.
fn bedplate(options: &Options) -> Result<PathBuf> {
    match &options.bedplate {
        Some(path) => Ok(path.clone()),
        None => std::env::current_exe().map_err(Error::io("path of the running executable")),
    }
}

fn directory() -> Result<TempDir> {
    tempfile::Builder::new().prefix("bedplate-bench-").tempdir().map_err(Error::io("temporary directory"))
}

/// A port that was free a moment ago.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(Error::io("bind"))?;
    Ok(listener.local_addr().map_err(Error::io("local address"))?.port())
}

fn answers_ping(address: SocketAddr) -> bool {
    let ping = || -> std::io::Result<[u8; 7]> {
        let mut socket = TcpStream::connect_timeout(&address, Duration::from_millis(200))?;
        socket.set_read_timeout(Some(Duration::from_millis(500)))?;
        socket.write_all(b"PING\r\n")?;
        let mut reply = [0; 7];
        socket.read_exact(&mut reply)?;
        Ok(reply)
    };
    ping().is_ok_and(|reply| &reply == b"+PONG\r\n")
}

/// A figure of INFO's reply.
pub fn figure(text: &str, name: &str) -> Result<u64> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(found, _)| *found == name)
        .and_then(|(_, value)| value.trim().parse().ok())
        .ok_or_else(|| Error::engine(format!("INFO has no number {name:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_found_by_its_whole_name() {
        let text = "# Memory\r\nused_memory_human:1.5M\r\nused_memory:1572864\r\nratio:0.5\r\n";
        assert_eq!(figure(text, "used_memory").unwrap(), 1_572_864);
        assert!(figure(text, "memory").is_err());
        assert!(figure(text, "used_memory_human").is_err());
        assert!(figure(text, "ratio").unwrap_err().to_string().contains("ratio"));
    }
}
