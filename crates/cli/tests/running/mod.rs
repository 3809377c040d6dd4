//! Runs `bedplate kv serve` as a separate process.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::JoinHandle;

use redis::{Connection, RedisResult};
use rustix::process::{Pid, Signal, kill_process};

/// A running server; it is killed when dropped.
pub struct Server {
    child: Child,
    pub port: u16,
    /// Reads the server's log, so that the server never has to wait for a full pipe.
    log: Option<JoinHandle<String>>,
}

/// The command with arguments.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bedplate"));
    command.args(args).env_remove("BEDPLATE_PASSWORD").env_remove("BEDPLATE_LOG");
    command
}

impl Server {
    pub fn start(data: &Path, args: &[&str]) -> Server {
        let program = Path::new(env!("CARGO_BIN_EXE_bedplate"));
        Self::start_with(&[], program, data, args, Stdio::piped())
    }

    /// Starts a server with this standard error.
    pub fn start_logging_to(data: &Path, args: &[&str], errors: Stdio) -> Server {
        Self::start_with(&[], Path::new(env!("CARGO_BIN_EXE_bedplate")), data, args, errors)
    }

    /// Starts a copy of the executable, by another program unless `prefix` is empty.
    pub fn start_by(prefix: &[String], program: &Path, data: &Path, args: &[&str]) -> Server {
        Self::start_with(prefix, program, data, args, Stdio::piped())
    }

    fn start_with(prefix: &[String], program: &Path, data: &Path, args: &[&str], errors: Stdio) -> Server {
        let words = prefix.iter().map(OsStr::new).chain([program.as_os_str()]).collect::<Vec<_>>();
        let mut child = Command::new(words[0])
            .args(&words[1..])
            .args(["kv", "serve", "--port", "0", "--memory", "64M", "--max-clients", "32"])
            .env_remove("BEDPLATE_PASSWORD")
            .env_remove("BEDPLATE_LOG")
            .arg("--data-dir")
            .arg(data)
            .args(args)
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .unwrap();
        let log = child.stderr.take().map(|mut errors| {
            std::thread::spawn(move || {
                let mut said = Vec::new();
                let _ = errors.read_to_end(&mut said);
                String::from_utf8_lossy(&said).into_owned()
            })
        });
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let Some(address) = line.trim().strip_prefix("ready on ") else {
            let _ = child.kill();
            let said = log.map(|log| log.join().unwrap());
            panic!("the server did not start; it printed {line:?} and logged {said:?}");
        };
        let port = address.parse::<std::net::SocketAddr>().unwrap().port();
        Server { child, port, log }
    }

    /// The number of the server's process.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    pub fn try_connect(&self, password: Option<&str>) -> RedisResult<Connection> {
        let password = password.map_or(String::new(), |p| format!(":{p}@"));
        redis::Client::open(format!("redis://{password}127.0.0.1:{}", self.port))?.get_connection()
    }

    pub fn connect(&self) -> Connection {
        self.try_connect(None).unwrap()
    }

    /// Kills the server, without waiting for its end.
    pub fn kill(&self) {
        kill_process(Pid::from_child(&self.child), Signal::KILL).unwrap();
    }

    /// Sends a signal and waits; returns the exit code (none if the signal ended the server) and the log.
    pub fn end(mut self, signal: Signal) -> (Option<i32>, String) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        let status = self.child.wait().unwrap();
        let said = self.log.take().map(|log| log.join().unwrap()).unwrap_or_default();
        (status.code(), said)
    }

    pub fn run(&self, args: &[&str]) -> Output {
        command(args).args(["--port", &self.port.to_string()]).output().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
