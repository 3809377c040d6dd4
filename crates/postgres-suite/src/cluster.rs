//! A server with a data directory of its own, as an ordinary user, at a socket in its folder.
//!
//! Nothing of a cluster outlives it. The server gets a signal when the thread that started it ends. Dropping a cluster
//! ends every process whose current folder is in the cluster's, which is the case for all processes of PostgreSQL's.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use postgres::{Client, Config, NoTls, SimpleQueryMessage};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use tempfile::TempDir;

use bedplate_suite_support::{User, processes, run};

use crate::Result;
use crate::installation::Installation;
use crate::plan::text_of;

/// Longest time for a server to accept clients, recovery after a crash included, and to end.
const START_LIMIT: Duration = Duration::from_secs(180);
const STOP_LIMIT: Duration = Duration::from_secs(120);
/// A server listens at no port; this is a part of its socket's name.
const PORT: u16 = 5432;
/// The user of the database.
const DATABASE_USER: &str = "postgres";

/// The settings of a new cluster.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Whether pages have checksums.
    pub checksums: bool,
    /// Lines of `postgresql.conf`: names and values.
    pub values: Vec<(String, String)>,
    /// A shared library that the server is started with.
    pub module: Option<PathBuf>,
    /// The command `bedplate`, whose daemon reads for backends that share.
    pub program: Option<PathBuf>,
    /// The folder in which the cluster's folder is made; by default the temporary folder. The path must be short.
    pub place: Option<PathBuf>,
}

impl Settings {
    /// Settings for tests: a server that keeps its disk quiet and has no processes that change tables by themselves. Its ordinary
    /// scans begin at the first block, even beside another scan of the table.
    pub fn quiet() -> Self {
        let settings = Self::default().with("autovacuum", "off").with("bgwriter_lru_maxpages", "0");
        let settings = settings.with("synchronize_seqscans", "off");
        settings.with("checkpoint_timeout", "1d").with("max_wal_size", "4GB").with("fsync", "off")
    }

    /// Adds a value for a setting. A later value overrides an earlier one.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.values.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Selects whether pages have checksums.
    #[must_use]
    pub fn checksums(mut self, checksums: bool) -> Self {
        self.checksums = checksums;
        self
    }

    /// Adds a shared library that is loaded when the server starts.
    #[must_use]
    pub fn module(mut self, module: Option<&Path>) -> Self {
        self.module = module.map(Path::to_owned);
        self
    }
}

/// The way in which a server is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Clients are disconnected, and all is written.
    Fast,
    /// All processes end at once, and the next start recovers.
    Immediate,
}

/// A cluster and its server, which runs unless it was stopped.
#[derive(Debug)]
pub struct Cluster {
    folder: TempDir,
    installation: Installation,
    user: Option<User>,
    server: Option<Child>,
    /// Settings of the next start that are not in the configuration.
    options: Vec<(String, String)>,
}

impl Cluster {
    /// Makes a cluster and starts its server.
    pub fn create(installation: &Installation, settings: &Settings) -> Result<Self> {
        let mut cluster = Self::folder(installation, settings)?;
        let mut initdb = cluster.program("initdb");
        initdb.args([
            "--no-sync",
            "--no-locale",
            "--encoding=UTF8",
            "--auth=trust",
            "--username",
            DATABASE_USER,
        ]);
        match settings.checksums {
            true => _ = initdb.arg("--data-checksums"),
            // Since 18, checksums are the default.
            false if installation.version >= 18 => _ = initdb.arg("--no-data-checksums"),
            false => {}
        }
        run(initdb.arg("--pgdata").arg(cluster.data()))?;
        cluster.configure(settings)?;
        cluster.start()?;
        Ok(cluster)
    }

    /// Makes a hot standby of a running cluster, and starts it.
    pub fn standby(primary: &Self, settings: &Settings) -> Result<Self> {
        let mut cluster = Self::folder(&primary.installation, settings)?;
        let mut backup = cluster.program("pg_basebackup");
        backup.args([
            "--checkpoint=fast",
            "--wal-method=stream",
            "--write-recovery-conf",
            "--no-sync",
            "--host",
        ]);
        backup.arg(primary.path()).args([
            "--port",
            &PORT.to_string(),
            "--username",
            DATABASE_USER,
            "--pgdata",
        ]);
        run(backup.arg(cluster.data()))?;
        cluster.configure(settings)?;
        cluster.start()?;
        Ok(cluster)
    }

    /// Makes the folder, with the files that the server loads.
    fn folder(installation: &Installation, settings: &Settings) -> Result<Self> {
        let place = settings.place.clone().unwrap_or_else(std::env::temp_dir);
        // Processes are found by the canonical path.
        let place = fs::canonicalize(&place).map_err(|e| format!("{}: {e}", place.display()))?;
        let folder = tempfile::Builder::new().prefix("bedplate-pg-").tempdir_in(&place);
        let folder = folder.map_err(|e| format!("no folder in {}: {e}", place.display()))?;
        let cluster = Self {
            folder,
            installation: installation.clone(),
            user: User::ordinary("postgres")?,
            server: None,
            options: Vec::new(),
        };
        // Other users may not be able to read the folder of the build.
        let copies = [(&settings.module, cluster.module_path()), (&settings.program, cluster.program_path())];
        for (original, copy) in copies.iter().filter_map(|(original, copy)| Some((original.as_ref()?, copy)))
        {
            fs::copy(original, copy).map_err(|e| format!("copying {}: {e}", original.display()))?;
        }
        cluster.give(cluster.folder.path())?;
        Ok(cluster)
    }

    /// The file from which the server loads the extension.
    pub fn module_path(&self) -> PathBuf {
        self.path().join("bedplate_scan.so")
    }

    /// The path at which the server finds the command `bedplate`.
    fn program_path(&self) -> PathBuf {
        self.path().join("bedplate")
    }

    /// Adds settings to the configuration. They count after the next start.
    pub fn configure(&self, settings: &Settings) -> Result<()> {
        let mut lines = format!(
            "listen_addresses = ''\nport = {PORT}\nunix_socket_directories = '{}'\n",
            self.path().display()
        );
        if settings.module.is_some() {
            lines += &format!("shared_preload_libraries = '{}'\n", self.module_path().display());
        }
        if settings.program.is_some() {
            lines += &format!("bedplate_scan.program = '{}'\n", self.program_path().display());
        }
        for (name, value) in &settings.values {
            lines += &format!("{name} = '{}'\n", value.replace('\'', "''"));
        }
        let path = self.data().join("postgresql.conf");
        let file = OpenOptions::new().append(true).open(&path);
        file.and_then(|mut file| file.write_all(lines.as_bytes()))
            .map_err(|e| format!("{}: {e}", path.display()))
    }

    /// The cluster's folder. The server can write there.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The data directory.
    pub fn data(&self) -> PathBuf {
        self.path().join("data")
    }

    /// The installation that it runs.
    pub fn installation(&self) -> &Installation {
        &self.installation
    }

    /// Makes the server's user the owner of a file.
    pub fn give(&self, path: &Path) -> Result<()> {
        self.user.map_or(Ok(()), |user| user.own(path))
    }

    /// A program of the installation that finds this server by itself. It runs as the server's user.
    pub fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.installation.program(name));
        for (variable, _) in std::env::vars_os() {
            if variable.to_string_lossy().starts_with("PG") {
                command.env_remove(variable);
            }
        }
        command.env("PGHOST", self.path()).env("PGPORT", PORT.to_string()).env("PGUSER", DATABASE_USER);
        command.env("LC_ALL", "C").env("HOME", self.path()).current_dir(self.path()).stdin(Stdio::null());
        if let Some(user) = self.user {
            user.run(&mut command);
        }
        command
    }

    /// Chooses settings that count from the next start on, instead of those that were chosen before.
    pub fn choose(&mut self, options: &[(&str, &str)]) {
        self.options = options.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    }

    /// Starts the server, and waits until it accepts clients. The calling thread must live as long as the server.
    pub fn start(&mut self) -> Result<()> {
        let log = self.path().join("log");
        let file = OpenOptions::new().create(true).append(true).open(&log);
        let file = file.map_err(|e| format!("{}: {e}", log.display()))?;
        let errors = file.try_clone().map_err(|e| e.to_string())?;
        let mut command = self.program("postgres");
        command.arg("-D").arg(self.data()).stdout(file).stderr(errors);
        for (name, value) in &self.options {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        // SAFETY: the closure only makes a system call that is safe between fork and exec.
        unsafe {
            command.pre_exec(|| {
                // On SIGQUIT, the server ends its children at once. This comes after the change of the user, which resets it.
                set_parent_process_death_signal(Some(Signal::QUIT))?;
                Ok(())
            });
        }
        let server = command.spawn().map_err(|e| format!("{:?}: {e}", command.get_program()))?;
        self.server = Some(server);
        let start = Instant::now();
        loop {
            let error = match self.connect("postgres") {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            if let Some(status) = self.ended()? {
                self.server = None;
                return Err(format!("postgres ended at once: {status}\n{}", self.log_end()));
            }
            if start.elapsed() > START_LIMIT {
                return Err(format!("postgres accepts no client: {error}\n{}", self.log_end()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The main process's exit status, if it has ended.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        let Some(server) = &mut self.server else { return Ok(None) };
        server.try_wait().map_err(|e| format!("waiting for postgres: {e}"))
    }

    /// Stops the server, and waits until all of its processes have ended.
    pub fn stop(&mut self, how: Stop) -> Result<()> {
        let Some(mut server) = self.server.take() else { return Ok(()) };
        let signal = match how {
            Stop::Fast => Signal::INT,
            Stop::Immediate => Signal::QUIT,
        };
        if let Some(pid) = Pid::from_raw(server.id() as i32) {
            let _ = kill_process(pid, signal);
        }
        let start = Instant::now();
        while server.try_wait().map_err(|e| format!("waiting for postgres: {e}"))?.is_none() {
            if start.elapsed() > STOP_LIMIT {
                processes::kill_inside(self.path());
                let _ = server.wait();
                return Err(format!("postgres has not ended in {STOP_LIMIT:?}\n{}", self.log_end()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        // Children may take a moment longer.
        while !processes::inside(self.path()).is_empty() {
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

    /// The main process.
    pub fn pid(&self) -> Option<u32> {
        self.server.as_ref().map(Child::id)
    }

    /// All processes of the server, and those that they started.
    pub fn processes(&self) -> Vec<i32> {
        processes::inside(self.path()).into_iter().map(|pid| pid.as_raw_nonzero().get()).collect()
    }

    /// The connection settings by which a client finds a database.
    pub fn config(&self, database: &str) -> Config {
        let mut config = Config::new();
        config.host_path(self.path()).port(PORT).user(DATABASE_USER).dbname(database);
        config
    }

    /// A client of the database `postgres`.
    pub fn client(&self) -> Result<Client> {
        self.connect("postgres")
    }

    /// A client of a database.
    pub fn connect(&self, database: &str) -> Result<Client> {
        self.config(database).connect(NoTls).map_err(|e| format!("connecting to {database}: {}", text_of(&e)))
    }

    /// Runs statements, one after the other.
    pub fn run(&self, statements: &str) -> Result<()> {
        execute(&mut self.client()?, statements)
    }

    /// Number of times that the server has begun to accept clients: once for each start, and once for each recovery from the
    /// crash of a backend.
    pub fn begins(&self) -> usize {
        self.log().matches("database system is ready to accept connections").count()
    }

    /// Waits until the server has begun to accept clients more than `begins` times.
    pub fn wait_for_recovery(&mut self, begins: usize) -> Result<()> {
        let start = Instant::now();
        while self.begins() <= begins {
            if self.ended()?.is_some() || start.elapsed() > START_LIMIT {
                return Err(format!("the server does not recover\n{}", self.log_end()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// The server's log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.path().join("log")).unwrap_or_default()
    }

    /// The end of the log, for errors.
    pub fn log_end(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    /// Makes a folder in the cluster's that the server's user can write.
    pub fn make_folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.path().join(name);
        fs::create_dir_all(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        self.give(&path)?;
        Ok(path)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            if let Some(pid) = Pid::from_raw(server.id() as i32) {
                let _ = kill_process(pid, Signal::QUIT);
            }
            let start = Instant::now();
            while matches!(server.try_wait(), Ok(None)) && start.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_millis(5));
            }
            let _ = server.kill();
            let _ = server.wait();
        }
        let left = processes::kill_inside(self.path());
        if !left.is_empty() {
            eprintln!("processes {left:?} in {} do not end", self.path().display());
        }
        if std::thread::panicking() {
            eprintln!("the end of the log of PostgreSQL {}:\n{}", self.installation.version, self.log_end());
        }
    }
}

/// Runs statements in a client; an error names them.
pub fn execute(client: &mut Client, statements: &str) -> Result<()> {
    client.batch_execute(statements).map_err(|e| format!("{statements}: {}", text_of(&e)))
}

/// The rows of a query as text, in which a null is `NULL`. An error names the query.
pub fn rows(client: &mut Client, query: &str) -> Result<Vec<Vec<String>>> {
    let messages = client.simple_query(query).map_err(|e| format!("{query}: {}", text_of(&e)))?;
    let row = |message| match message {
        SimpleQueryMessage::Row(row) => {
            Some((0..row.len()).map(|column| row.get(column).unwrap_or("NULL").to_owned()).collect())
        }
        _ => None,
    };
    Ok(messages.into_iter().filter_map(row).collect())
}
