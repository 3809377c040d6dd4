//! A folder in which the tests of one unit start servers of their own.
//!
//! The suite expects to run in a folder of Redis's sources: the programs are in `src`, and its servers' files are in
//! `tests/tmp`. A workspace has links to the suite and to the installed programs there.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// The programs that the suite runs, and the installed ones that stand for them.
const PROGRAMS: [(&str, &str); 6] = [
    ("redis-server", "redis-server"),
    // redis-sentinel is the server under another name. Debian has it in a separate package.
    ("redis-sentinel", "redis-server"),
    ("redis-cli", "redis-cli"),
    ("redis-benchmark", "redis-benchmark"),
    ("redis-check-aof", "redis-check-aof"),
    ("redis-check-rdb", "redis-check-rdb"),
];

/// Longest time for which dropping a workspace waits for the processes that it has killed.
const END_LIMIT: Duration = Duration::from_secs(10);

/// A folder for one run of one unit. Dropping it ends every process that works in it, and deletes it.
#[derive(Debug)]
pub struct Workspace {
    folder: TempDir,
    /// The variables that its servers get, as `NAME=VALUE`.
    pub(crate) environment: Vec<String>,
    /// The first port that its servers may use.
    pub(crate) first_port: u16,
}

impl Workspace {
    /// Number of ports that the servers of a workspace use, from the first one on, and again from 10,000 above it.
    pub const PORTS: u16 = 500;

    /// Makes a folder with links to a suite. The servers will use ports from `first_port` on.
    pub fn new(suite: &Path, first_port: u16) -> io::Result<Self> {
        let folder = TempDir::with_prefix("redis-suite-")?;
        let tests = folder.path().join("tests");
        // The folder is not a link, because the tests must not write files into the suite.
        fs::create_dir_all(tests.join("tmp"))?;
        for entry in fs::read_dir(suite.join("tests"))? {
            let entry = entry?;
            if entry.file_name() != "tmp" {
                symlink(fs::canonicalize(entry.path())?, tests.join(entry.file_name()))?;
            }
        }
        let programs = folder.path().join("src");
        fs::create_dir(&programs)?;
        for (name, installed) in PROGRAMS {
            symlink(program(installed)?, programs.join(name))?;
        }
        Ok(Self { folder, environment: Vec::new(), first_port })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Sets a variable for the servers, but not for their clients.
    pub fn server_variable(&mut self, name: &str, value: &str) {
        self.environment.push(format!("{name}={value}"));
    }

    /// Keeps the folder when the workspace is dropped, and returns it.
    pub fn keep(&mut self) -> PathBuf {
        self.folder.disable_cleanup(true);
        self.path().to_owned()
    }

    /// The processes whose current folder is in the workspace: servers, their children, and clients.
    fn processes(&self) -> Vec<Pid> {
        let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
        let inside = |path: PathBuf| fs::read_link(path).is_ok_and(|cwd| cwd.starts_with(self.path()));
        let entries = entries.flatten().filter(|entry| inside(entry.path().join("cwd")));
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        numbers.filter_map(Pid::from_raw).collect()
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        let limit = Instant::now() + END_LIMIT;
        loop {
            let processes = self.processes();
            if processes.is_empty() {
                break;
            }
            if Instant::now() > limit {
                eprintln!("processes {processes:?} in {} do not end", self.path().display());
                break;
            }
            for process in processes {
                let _ = kill_process(process, Signal::KILL);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The path of a program in `PATH`.
fn program(name: &str) -> io::Result<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file());
    let missing =
        || io::Error::new(io::ErrorKind::NotFound, format!("there is no {name}; `make setup` installs it"));
    found.ok_or_else(missing)
}
