//! MariaDB with MyISAM tables, under `bedplate scan run`.
//!
//! Both sides are the same server with the same options. The server itself measures the data-access time. It is the time inside
//! the server's reads of MyISAM's data files, the performance schema's event `wait/io/file/myisam/dfile`. It is the same measure
//! on both sides, because the library serves these very calls. The instrument is on in all runs, because a file that is opened
//! without it is not measured.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use bedplate_mariadb_suite::{Installation, Launch, Preload, Server, Session, Settings};

use super::engine::{Access, Candidate, Engine, Run, Side, Together};
use super::measure::{Measured, answers, at_once, measure};
use super::queries::{INDEXES, Q6, TABLES, query};
use super::{Progress, cold, rows};
use crate::{Error, Fields, Options, Result};

/// The scale factor of quick mode is such that `lineitem` is larger than the smallest file that is served.
pub const CANDIDATE: Candidate = Candidate { name: "mariadb", database: "MariaDB", scales: [0.2, 1.0], load };

/// A query that takes longer is an error.
const QUERY_SECONDS: u32 = 600;
/// Memory for pages of indexes: the server's default.
const KEY_BUFFER_BYTES: u64 = 128 << 20;
/// In a control group, indexes and the daemon each have the memory divided by this.
const BUFFERS_OF_MEMORY: u64 = 4;
/// Memory that the daemon needs for one large table with several readers.
const DAEMON_BYTES_MIN: u64 = 96 << 20;

/// The event of the performance schema.
const READS: &str = "wait/io/file/myisam/dfile";
/// Picoseconds inside these reads, since the last `TRUNCATE`.
const READ_TIME: &str =
    "select sum_timer_read from performance_schema.file_summary_by_event_name where event_name = ";

struct MariaDb {
    server: Server,
    scale: f64,
    preload: Preload,
    /// The memory of the control group, if the server is in one.
    memory: Option<u64>,
    /// The side as which the server runs with warm files, if it does.
    warm: Option<Side>,
}

fn failed(problem: String) -> Error {
    Error::engine(problem)
}

fn load(options: &Options, scale: f64, progress: &mut Progress<'_>) -> Result<Box<dyn Engine>> {
    let installation =
        Installation::find().map_err(|reason| Error::Missing { what: reason, hint: "run `make setup`" })?;
    let program = options.bedplate.clone().ok_or(Error::Missing {
        what: "the command bedplate is not known".to_owned(),
        hint: "run the benchmark by `bedplate bench`",
    })?;
    let place = std::path::absolute(crate::scan::directory(options)?)
        .map_err(Error::io("the folder for the data directory"))?;
    let settings = Settings { options: base_options(), place: Some(place) };
    let mut server = Server::create(&installation, &settings).map_err(failed)?;
    server.start(&Launch::Plain).map_err(failed)?;
    let keys = keys();
    for (table, columns) in TABLES {
        progress.step(&format!("loading {table}"));
        let keys = keys.get(table).map_or(String::new(), |keys| format!(", {}", keys.join(", ")));
        let create = format!("create table {table}({columns}{keys}) engine=MyISAM charset latin1");
        server.rows(&create).map_err(failed)?;
        let mut loader = server.loader(table).map_err(failed)?;
        rows::each(table, scale, |row| {
            loader.row(row);
            Ok(())
        })?;
        loader.finish().map_err(failed)?;
        server.rows(&format!("analyze table {table}; flush tables")).map_err(failed)?;
    }
    server.stop().map_err(failed)?;
    // A file is served only if it has not been changed for this time.
    std::thread::sleep(bedplate_scan::SETTLING_TIME);
    let statistics = server.path().join("statistics");
    let preload = Preload { program, statistics: Some(statistics), ..Preload::default() };
    Ok(Box::new(MariaDb { server, scale, preload, memory: None, warm: None }))
}

/// Options of the server in all runs. Indexes are built in memory.
fn base_options() -> Vec<String> {
    [
        "performance-schema=ON",
        "performance-schema-instrument=%=OFF",
        "myisam-sort-buffer-size=512M",
        "bulk-insert-buffer-size=256M",
    ]
    .map(|option| format!("--{option}"))
    .into_iter()
    .chain([format!("--performance-schema-instrument={READS}=ON")])
    .collect()
}

/// The keys of [`INDEXES`] by their table, as `create table` has them: MyISAM builds them with the rows.
fn keys() -> BTreeMap<&'static str, Vec<String>> {
    let mut keys = BTreeMap::<_, Vec<_>>::new();
    for index in INDEXES {
        let primary = index.strip_prefix("alter table ").and_then(|rest| rest.split_once(" add "));
        let other = index.strip_prefix("create index on ").and_then(|rest| rest.split_once(' '));
        if let Some((table, key)) = primary {
            keys.entry(table).or_default().push(key.to_owned());
        } else if let Some((table, columns)) = other {
            keys.entry(table).or_default().push(format!("key {columns}"));
        }
    }
    keys
}

impl MariaDb {
    fn start(&mut self, side: Side, prepare: impl Fn(&Path) -> Result<()>) -> Result<()> {
        self.server.stop().map_err(failed)?;
        prepare(&self.server.data())?;
        let part = |bytes: u64| bytes / BUFFERS_OF_MEMORY;
        let mut options = base_options();
        let key_buffer = self.memory.map_or(KEY_BUFFER_BYTES, |bytes| part(bytes).min(KEY_BUFFER_BYTES));
        options.push(format!("--key-buffer-size={key_buffer}"));
        self.server.choose(options);
        let launch = match side {
            Side::Vanilla => Launch::Plain,
            _ => Launch::Scan(Preload {
                memory_bytes: self.memory.map(|bytes| part(bytes).max(DAEMON_BYTES_MIN)),
                ..self.preload.clone()
            }),
        };
        self.server.start(&launch).map_err(failed)
    }

    fn session(&self) -> Result<Session> {
        let mut session = self.server.session().map_err(failed)?;
        session.run(&format!("set max_statement_time = {QUERY_SECONDS}")).map_err(failed)?;
        Ok(session)
    }

    fn measure<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<(Measured, T)> {
        measure(self.server.path(), self.memory.is_some(), || Ok(self.server.cpu_ns()), work)
    }
}

impl Engine for MariaDb {
    fn about(&self) -> Fields {
        Fields::new()
            .with("mariadb", self.server.installation().version.as_str())
            .with("tables", "MyISAM, latin1, with the indexes that correlated subqueries need; analyzed")
            .with("bedplate", "scan run without options; its daemon reads for all sessions")
            .with("access", format!("performance_schema: time inside reads of {READS}"))
            .with("query_seconds_max", QUERY_SECONDS)
    }

    /// The daemon reads for all sessions of the server, so [`Side::Shared`] is the same as [`Side::Bedplate`].
    fn sides(&self) -> &'static [Side] {
        &[Side::Vanilla, Side::Bedplate, Side::Shared]
    }

    fn folder(&self) -> &Path {
        self.server.path()
    }

    fn scan_bytes(&mut self, _: usize) -> Result<u64> {
        let path = self.server.table_file("test", "lineitem", "MYD");
        Ok(path.metadata().map_err(Error::io("the file of lineitem"))?.len())
    }

    fn cold(&mut self, side: Side) -> Result<()> {
        self.warm = None;
        self.start(side, cold::forget)
    }

    /// Each side has a server of its own, because the library is preloaded or not. The first query fills the server's
    /// caches.
    fn warm(&mut self, side: Side) -> Result<()> {
        if self.warm != Some(side) {
            self.start(side, cold::warm)?;
            self.warm = Some(side);
        }
        Ok(())
    }

    fn query(&mut self, _: Side, index: usize) -> Result<Run> {
        let mut session = self.session()?;
        let (measured, rows) = self.measure(|| session.rows(&query(index, self.scale)).map_err(failed))?;
        Ok(measured.run(rows))
    }

    fn access(&mut self, _: Side, index: usize) -> Result<Option<Access>> {
        let mut session = self.session()?;
        session.run("truncate table performance_schema.file_summary_by_event_name").map_err(failed)?;
        let start = Instant::now();
        session.run(&query(index, self.scale)).map_err(failed)?;
        let wall_ns = start.elapsed().as_nanos() as f64;
        let picoseconds = session.value(&format!("{READ_TIME}'{READS}'")).map_err(failed)?;
        let picoseconds: f64 =
            picoseconds.parse().map_err(|_| failed(format!("{READS} has a time of {picoseconds}")))?;
        Ok(Some(Access { access_ns: picoseconds / 1000.0, wall_ns }))
    }

    fn clients(&mut self, _: Side, lists: &[Vec<usize>]) -> Result<Together> {
        let sessions = lists.iter().map(|_| self.session()).collect::<Result<Vec<_>>>()?;
        let (measured, all) = self.measure(|| {
            at_once(lists.iter().zip(sessions), |(list, mut session)| {
                let queries = list.iter().map(|index| (*index, query(*index, self.scale)));
                answers(queries, |text| session.rows(text).map_err(failed))
            })
        })?;
        Ok(measured.together(all.concat()))
    }

    fn serves(&mut self) -> Result<bool> {
        let path = self.preload.statistics.clone().unwrap_or_default();
        // Servers that ran before have appended their lines.
        let _ = std::fs::remove_file(&path);
        self.cold(Side::Bedplate)?;
        self.query(Side::Bedplate, Q6)?;
        self.server.stop().map_err(failed)?;
        let bytes = self.scan_bytes(Q6)?;
        let lines = bedplate_mariadb_suite::Statistics::read(&path).map_err(failed)?;
        let served = bedplate_mariadb_suite::Statistics::sum(&lines, "bytes_served");
        Ok(served > bytes / 2)
    }

    fn least_memory(&self) -> u64 {
        320 << 20
    }

    fn limit_memory(&mut self, bytes: Option<u64>) {
        self.memory = bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_is_a_key_of_a_table() {
        let keys = keys();
        assert_eq!(keys.values().flatten().count(), INDEXES.len());
        assert!(keys.keys().all(|table| TABLES.iter().any(|(name, _)| name == table)));
        assert_eq!(
            keys["lineitem"],
            ["primary key (l_orderkey, l_linenumber)", "key (l_partkey, l_suppkey)"]
        );
    }
}
