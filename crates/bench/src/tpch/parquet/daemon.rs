//! Daemons that read for processes, `bedplate scan serve`.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use tempfile::TempDir;

use crate::cpu::process_cpu_ns;
use crate::{Error, Options, Result};

/// The `bedplate` command.
pub fn program(options: &Options) -> Result<PathBuf> {
    match &options.bedplate {
        Some(path) => Ok(path.clone()),
        None => std::env::current_exe().map_err(Error::io("find this executable")),
    }
}

/// The daemons of an engine, and the folder that has their sockets. Dropping this ends the daemons.
pub struct Daemons {
    program: PathBuf,
    running: Vec<Daemon>,
    folder: TempDir,
}

impl Daemons {
    /// No daemon yet. `program`: the `bedplate` command.
    pub fn new(program: PathBuf) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("bedplate-tpch-").tempdir();
        let folder = folder.map_err(Error::io("create a folder for sockets"))?;
        Ok(Self { program, running: Vec::new(), folder })
    }

    /// The `bedplate` command.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The folder that has the sockets. The engine may have files there, too.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Starts daemons until `count` run. `memory`: the bytes of all their caches; `None`: the daemons' default.
    pub fn start(&mut self, count: usize, memory: Option<u64>) -> Result<()> {
        for number in self.running.len()..count {
            let memory = memory.map(|bytes| bytes / count as u64);
            self.running.push(Daemon::start(&self.program, self.folder.path(), number, memory)?);
        }
        Ok(())
    }

    /// Ends all daemons.
    pub fn stop(&mut self) {
        self.running.clear();
    }

    /// The socket of the daemon with a number, if it runs.
    pub fn socket(&self, number: usize) -> Option<&Path> {
        self.running.get(number).map(|daemon| daemon.socket.as_path())
    }

    /// The processor time of all daemons so far, in nanoseconds.
    pub fn cpu_ns(&self) -> Result<u64> {
        let each = self.running.iter().map(|daemon| process_cpu_ns(daemon.child.id()));
        each.sum::<std::io::Result<_>>().map_err(Error::io("the processor time of the daemons"))
    }
}

/// A daemon. Dropping this ends it.
struct Daemon {
    child: Child,
    socket: PathBuf,
}

impl Daemon {
    /// Starts the daemon with a socket in a folder. `memory`: the bytes of its caches; `None`: the daemon's default.
    fn start(program: &Path, folder: &Path, number: usize, memory: Option<u64>) -> Result<Self> {
        use std::os::unix::process::CommandExt;
        let socket = folder.join(format!("{number}.sock"));
        let mut command = Command::new(program);
        command.args(["scan", "serve", "--socket"]).arg(&socket);
        if let Some(bytes) = memory {
            command.args(["--memory", &bytes.to_string()]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // SAFETY: one system call, which may be made between `fork` and `exec`.
        unsafe { command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::TERM))?)) };
        let mut child = command.spawn().map_err(Error::io("start the daemon"))?;
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            BufReader::new(output).read_line(&mut line).map_err(Error::io("wait for the daemon"))?;
        }
        if !line.starts_with("ready") {
            let _ = child.kill();
            let said = child.wait_with_output().map_err(Error::io("wait for the daemon"))?;
            let said = String::from_utf8_lossy(&said.stderr).trim().to_owned();
            return Err(Error::Store {
                store: "bedplate scan serve",
                problem: format!("does not start: {said}"),
            });
        }
        Ok(Self { child, socket })
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = self.child.wait();
    }
}

/// The sum of a number in the lines that `scan run --statistics` writes.
pub fn statistic(lines: &str, name: &str) -> f64 {
    let fields = lines.split_whitespace().filter_map(|field| field.split_once('='));
    fields
        .filter(|(field, _)| *field == name)
        .filter_map(|(_, value)| value.parse::<f64>().ok())
        .fold(0.0, |sum, value| sum + value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_of_processes_are_added_up() {
        let lines = "pid=1 program=a reads_served=1 bytes_served=10\npid=2 program=b bytes_served=5\n";
        assert_eq!((statistic(lines, "bytes_served"), statistic(lines, "waits")), (15.0, 0.0));
    }
}
