//! Servers with the extension, and the comparison that most tests make.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};
use std::{panic, thread};

use bedplate_postgres_suite::extension::{self, Build};
use bedplate_postgres_suite::plan::{Counters, counters};
use bedplate_postgres_suite::postgres::Client;
use bedplate_postgres_suite::{Cluster, Installation, Settings, execute};

/// Every scan of a table goes past the buffer manager from its first block, even if the table is small or its blocks are cached.
pub const FORCE: &str = "set bedplate_scan.enabled = on; set bedplate_scan.force = on";
/// Every scan is the extension's, and small tables are scanned as PostgreSQL does, by the same node.
pub const DECLINED: &str = "set bedplate_scan.enabled = on; set bedplate_scan.min_table_size = 0";
/// No scan is the extension's.
pub const PLAIN: &str = "set bedplate_scan.enabled = off";
/// Plans of all tables are parallel.
pub const PARALLEL: &str = "set parallel_setup_cost = 0; set parallel_tuple_cost = 0; set min_parallel_table_scan_size = 0; \
    set max_parallel_workers_per_gather = 2";
/// No plan is parallel.
pub const SERIAL: &str = "set max_parallel_workers_per_gather = 0";

/// Runs a test with every installation, with all of them at the same time, because the tests mostly wait.
pub fn each_installation(test: impl Fn(&Installation) + Sync) {
    let all = Installation::all();
    if all.is_empty() {
        eprintln!("skipped: no PostgreSQL with its headers is installed; `make setup` installs it");
    }
    thread::scope(|scope| {
        let run = |installation| {
            let test = &test;
            scope.spawn(move || test(installation))
        };
        let threads: Vec<_> = all.iter().map(|installation| (installation, run(installation))).collect();
        let failed = threads
            .into_iter()
            .filter_map(|(installation, thread)| Some((installation, thread.join().err()?)));
        // The first panic is the test's; the output has all of them.
        if let Some((installation, panic)) = failed.collect::<Vec<_>>().into_iter().next() {
            println!("the test has failed with PostgreSQL {}", installation.version);
            panic::resume_unwind(panic);
        }
    });
}

/// The extension for an installation; none if the tests run without it.
pub fn module(installation: &Installation, build: Build) -> Option<PathBuf> {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    static BUILDING: Mutex<()> = Mutex::new(());
    if extension::is_stock() {
        return None;
    }
    let _building = BUILDING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let library = LIBRARY.get_or_init(|| extension::build_library().unwrap());
    let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    Some(extension::build(installation, build, library, &target).unwrap())
}

/// Settings of a server with the extension, and with so few buffers that most blocks of tables are in none.
pub fn settings(installation: &Installation, build: Build) -> Settings {
    let settings = Settings::quiet().module(module(installation, build).as_deref());
    settings.with("shared_buffers", "1MB").with("max_prepared_transactions", "10")
}

/// Settings of a server whose serial scans share their reads.
pub fn shared(settings: Settings) -> Settings {
    if extension::is_stock() {
        return settings;
    }
    let program = Some(extension::build_program().unwrap());
    Settings { program, ..settings }.with("bedplate_scan.sharing", "auto")
}

/// A cluster with the extension as it is installed.
pub fn cluster(installation: &Installation) -> Cluster {
    Cluster::create(installation, &settings(installation, Build::Product)).unwrap()
}

/// The rows of a query, columns separated by bars.
pub fn rows(client: &mut Client, query: &str) -> Result<Vec<String>, String> {
    Ok(bedplate_postgres_suite::rows(client, query)?.into_iter().map(|row| row.join("|")).collect())
}

/// Takes the files below a folder out of the page cache. The server must not run.
pub fn forget(folder: &Path) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        if entry.file_type().unwrap().is_dir() {
            forget(&entry.path());
        } else if let Ok(file) = File::open(entry.path()) {
            file.sync_all().unwrap();
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        }
    }
}

/// Two sessions that see the same snapshot: one scans as PostgreSQL does, the other by the extension.
pub struct Pair {
    pub plain: Client,
    pub direct: Client,
}

impl Pair {
    /// Connects both.
    pub fn new(cluster: &Cluster) -> Self {
        let mut pair = Self { plain: cluster.client().unwrap(), direct: cluster.client().unwrap() };
        execute(&mut pair.plain, PLAIN).unwrap();
        execute(&mut pair.direct, FORCE).unwrap();
        pair
    }

    /// Changes settings of both.
    pub fn set(&mut self, settings: &str) -> Result<(), String> {
        execute(&mut self.direct, settings).and(execute(&mut self.plain, settings))
    }

    /// Begins a transaction in both, with the same snapshot. A table that is named cannot be replaced or truncated before the
    /// end of it.
    pub fn begin(&mut self, table: Option<&str>) -> Result<(), String> {
        let begin = "begin isolation level repeatable read";
        let lock = table.map_or(String::new(), |table| format!("lock table {table} in access share mode"));
        execute(&mut self.plain, &format!("{begin}; {lock}"))?;
        let snapshot = rows(&mut self.plain, "select pg_export_snapshot()")?.remove(0);
        execute(&mut self.direct, &format!("{begin}; set transaction snapshot '{snapshot}'; {lock}"))
    }

    /// Runs a query in both; it is an error if the rows differ.
    pub fn compare(&mut self, query: &str) -> Result<(), String> {
        let direct = rows(&mut self.direct, query)?;
        let plain = rows(&mut self.plain, query)?;
        check(query, &plain, &direct)
    }

    /// The counters of the extension's nodes for a query.
    pub fn counters(&mut self, query: &str) -> Counters {
        counters(&mut self.direct, query).unwrap()
    }

    /// Ends the transactions.
    pub fn end(&mut self) -> Result<(), String> {
        execute(&mut self.direct, "rollback").and(execute(&mut self.plain, "rollback"))
    }
}

/// An error if the rows of a scan are not those of a plain one.
pub fn check(query: &str, plain: &[String], direct: &[String]) -> Result<(), String> {
    if plain == direct {
        return Ok(());
    }
    let at = plain.iter().zip(direct).position(|(a, b)| a != b).unwrap_or(plain.len().min(direct.len()));
    let row = |rows: &[String]| rows.get(at).map_or("no row", String::as_str).to_owned();
    Err(format!(
        "{query}: {} rows, and by the extension {}; row {at} is\n  {}\nand by the extension\n  {}",
        plain.len(),
        direct.len(),
        row(plain),
        row(direct)
    ))
}
