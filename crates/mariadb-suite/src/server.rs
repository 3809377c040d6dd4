//! A server with a data directory of its own, as an ordinary user, at a socket in its folder.
//!
//! The current folder of the server, and of a daemon that `bedplate scan run` starts, is the data directory. So both are
//! found there ([`processes::inside`]), and nothing of them outlives the server's object. Clients run in the folder above. Sockets
//! have relative names, because the length of a socket's name is limited and the folder's may be long.

use std::fs::{self, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use bedplate_suite_support::{User, processes, run};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use tempfile::TempDir;

use crate::session::{Row, Session};
use crate::{Installation, Launch, Loader, Result};

/// Longest time for a server to accept clients, recovery after a crash included, and to end.
const START_LIMIT: Duration = Duration::from_secs(180);
const STOP_LIMIT: Duration = Duration::from_secs(180);
/// The socket's name in the server's folder.
const SOCKET: &str = "socket";
/// The database of clients, which `mariadb-install-db` makes.
const DATABASE: &str = "test";

/// The settings of a new server.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Options of the server, such as `--key-buffer-size=1M`.
    pub options: Vec<String>,
    /// The folder in which the server's folder is made; by default the temporary folder. A benchmark or test that is to be served
    /// needs a file system that reads past the page cache.
    pub place: Option<PathBuf>,
}

/// A data directory and its server, which runs unless it was stopped.
#[derive(Debug)]
pub struct Server {
    folder: TempDir,
    installation: Installation,
    settings: Settings,
    user: Option<User>,
    server: Option<Child>,
}

impl Server {
    /// Makes a data directory. The server does not run yet.
    pub fn create(installation: &Installation, settings: &Settings) -> Result<Self> {
        let place = settings.place.clone().unwrap_or_else(std::env::temp_dir);
        // Processes are found by the canonical path.
        let place = fs::canonicalize(&place).map_err(|e| format!("{}: {e}", place.display()))?;
        let folder = tempfile::Builder::new().prefix("bedplate-maria-").tempdir_in(&place);
        let folder = folder.map_err(|e| format!("no folder in {}: {e}", place.display()))?;
        let server = Self {
            folder,
            installation: installation.clone(),
            settings: settings.clone(),
            user: User::ordinary("mysql")?,
            server: None,
        };
        for folder in [server.data(), server.temporary()] {
            fs::create_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        }
        for path in [server.path(), &server.data(), &server.temporary()] {
            server.give(path)?;
        }
        let mut install = Command::new(&installation.install);
        // InnoDB reads past the page cache by itself. Without it, the data directory is small.
        install.args(["--no-defaults", "--skip-innodb", "--default-storage-engine=MyISAM"]);
        install.args(["--auth-root-authentication-method=normal", "--skip-name-resolve"]);
        install.arg(format!("--datadir={}", server.data().display()));
        run(server.prepare(install).env("TMPDIR", server.temporary()))?;
        Ok(server)
    }

    /// Chooses the server's options from the next start on, instead of those of its settings.
    pub fn choose(&mut self, options: Vec<String>) {
        self.settings.options = options;
    }

    /// Starts the server, and waits until it accepts clients. The calling thread must live as long as the server.
    pub fn start(&mut self, launch: &Launch) -> Result<()> {
        let log = self.path().join("log");
        let file = OpenOptions::new().create(true).append(true).open(&log);
        let file = file.map_err(|e| format!("{}: {e}", log.display()))?;
        let errors = file.try_clone().map_err(|e| e.to_string())?;
        let mut launch = launch.clone();
        if let Launch::Scan(preload) = &mut launch {
            preload.copy_into(self.path())?;
        }
        let mut command = launch.command(&self.installation.server);
        command.args([
            "--no-defaults",
            "--skip-networking",
            "--skip-innodb",
            "--default-storage-engine=MyISAM",
        ]);
        command.args(["--local-infile=1", "--skip-log-bin", "--lc-messages=en_US"]);
        command.arg(format!("--datadir={}", self.data().display())).arg(format!("--socket=../{SOCKET}"));
        command.arg(format!("--pid-file={}", self.path().join("pid").display()));
        command.arg(format!("--tmpdir={}", self.temporary().display()));
        command.args(&self.settings.options);
        let mut command = self.prepare(command);
        command.stdout(file).stderr(errors);
        // SAFETY: the closure only makes a system call that is safe between fork and exec.
        unsafe {
            command.pre_exec(|| {
                // This comes after the change of the user, which resets it.
                set_parent_process_death_signal(Some(Signal::KILL))?;
                Ok(())
            });
        }
        let _ = fs::remove_file(self.path().join(SOCKET));
        let server = command.spawn().map_err(|e| format!("{:?}: {e}", command.get_program()))?;
        self.server = Some(server);
        let start = Instant::now();
        loop {
            // A client is started only if there is a socket.
            if self.path().join(SOCKET).exists() && self.session().is_ok() {
                return Ok(());
            }
            if let Some(status) = self.ended()? {
                self.server = None;
                return Err(format!("mariadbd ended at once: {status}\n{}", self.log_end()));
            }
            if start.elapsed() > START_LIMIT {
                return Err(format!("mariadbd accepts no client\n{}", self.log_end()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Lets a command run as the server's user, in the data directory, without this process's input and its user's folders.
    fn prepare(&self, mut command: Command) -> Command {
        command.current_dir(self.data()).stdin(Stdio::null()).env("LC_ALL", "C").env("HOME", self.path());
        // Another user cannot use the folder of this one.
        command.env_remove("XDG_RUNTIME_DIR").env_remove("TMPDIR");
        if let Some(user) = self.user {
            user.run(&mut command);
        }
        command
    }

    /// The server's exit status, if it has ended.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        let Some(server) = &mut self.server else { return Ok(None) };
        server.try_wait().map_err(|e| format!("waiting for mariadbd: {e}"))
    }

    /// Stops the server in an orderly way, and waits until it and the daemon that was started for it have ended.
    pub fn stop(&mut self) -> Result<()> {
        self.end(Signal::TERM)
    }

    /// Kills the server, and waits until the daemon that was started for it has ended by itself.
    pub fn kill(&mut self) -> Result<()> {
        self.end(Signal::KILL)
    }

    fn end(&mut self, signal: Signal) -> Result<()> {
        let Some(mut server) = self.server.take() else { return Ok(()) };
        if let Some(pid) = Pid::from_raw(server.id() as i32) {
            let _ = kill_process(pid, signal);
        }
        let start = Instant::now();
        while server.try_wait().map_err(|e| format!("waiting for mariadbd: {e}"))?.is_none() {
            if start.elapsed() > STOP_LIMIT {
                processes::kill_inside(self.path());
                let _ = server.wait();
                return Err(format!("mariadbd has not ended in {STOP_LIMIT:?}\n{}", self.log_end()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        while !processes::inside(&self.data()).is_empty() {
            if start.elapsed() > STOP_LIMIT {
                let left = processes::kill_inside(self.path());
                return Err(format!(
                    "processes outlived the server; still there: {left:?}\n{}",
                    self.log_end()
                ));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// A connection.
    pub fn session(&self) -> Result<Session> {
        Session::start(&mut self.client())
    }

    /// The command-line client, prepared for this server and the database `test`. It runs as this process's user.
    pub fn client(&self) -> Command {
        let mut command = Command::new(&self.installation.client);
        command.arg("--no-defaults").arg(format!("--socket={SOCKET}")).arg("--user=root");
        command.arg(format!("--database={DATABASE}"));
        command.current_dir(self.path()).env("LC_ALL", "C").env_remove("LD_PRELOAD");
        command
    }

    /// Runs statements in a session of their own, and returns the rows of all of them.
    pub fn rows(&self, statements: &str) -> Result<Vec<Row>> {
        self.session()?.rows(statements)
    }

    /// Begins to load rows into a table.
    pub fn loader(&self, table: &str) -> Result<Loader> {
        Loader::start(self.client(), table)
    }

    /// Processor time of the server and of the daemon that was started for it, in nanoseconds.
    pub fn cpu_ns(&self) -> u64 {
        processes::cpu_ns(&self.data())
    }

    /// The server's folder. The server can write there.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The data directory.
    pub fn data(&self) -> PathBuf {
        self.path().join("data")
    }

    /// The folder of the server's temporary tables. A server that starts removes those of others that it finds.
    fn temporary(&self) -> PathBuf {
        self.path().join("temporary")
    }

    /// A file of a table's, such as `MYD`.
    pub fn table_file(&self, database: &str, table: &str, extension: &str) -> PathBuf {
        self.data().join(database).join(table).with_extension(extension)
    }

    /// The installation that it runs.
    pub fn installation(&self) -> &Installation {
        &self.installation
    }

    /// The server's process.
    pub fn pid(&self) -> Option<u32> {
        self.server.as_ref().map(Child::id)
    }

    /// The server's log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.path().join("log")).unwrap_or_default()
    }

    /// Makes the server's user the owner of a file.
    pub fn give(&self, path: &Path) -> Result<()> {
        self.user.map_or(Ok(()), |user| user.own(path))
    }

    fn log_end(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
        // A daemon that ends by itself removes its socket.
        let begin = Instant::now();
        while !processes::inside(&self.data()).is_empty() && begin.elapsed() < Duration::from_secs(2) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let left = processes::kill_inside(self.path());
        if !left.is_empty() {
            eprintln!("processes {left:?} in {} do not end", self.path().display());
        }
        if std::thread::panicking() {
            eprintln!("the end of the log of MariaDB {}:\n{}", self.installation.version, self.log_end());
        }
    }
}
