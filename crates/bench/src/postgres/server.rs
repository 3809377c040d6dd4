//! A server of one version with TPC-H's tables, and the sides that take turns on it.

use std::path::{Path, PathBuf};
use std::time::Instant;

use bedplate_postgres_suite::plan::{Counters, counters, read_ns};
use bedplate_postgres_suite::postgres::Client;
use bedplate_postgres_suite::{Cluster, Installation, Settings, Stop, cpu_ns, execute, rows};

use super::{data, failed};
use crate::tpch::cold;
use crate::tpch::engine::{Access, Run, Side, Together};
use crate::tpch::measure::{Measured, answers, at_once, measure};
use crate::{Error, Options, Result};

/// A setting and its value.
type Setting = (&'static str, &'static str);

/// Settings that may make PostgreSQL 18 faster than its defaults.
const BASELINES: [(&str, &[Setting]); 3] = [
    ("as it is", &[]),
    ("large reads", &[("io_workers", "8"), ("io_combine_limit", "32"), ("effective_io_concurrency", "64")]),
    (
        "direct",
        &[
            ("io_workers", "8"),
            ("io_combine_limit", "32"),
            ("effective_io_concurrency", "64"),
            ("debug_io_direct", "data"),
        ],
    ),
];

/// A version's data directory, and its server while it runs.
pub struct Server {
    cluster: Cluster,
    /// Settings of the side without the extension.
    baseline: &'static [Setting],
    /// Shared buffers of the next start, if they are not the default's.
    buffers: Option<u64>,
}

impl Server {
    /// Creates and loads the data directory. Calls `begin` with each table's name.
    pub fn load(
        options: &Options,
        installation: &Installation,
        scale: f64,
        begin: impl FnMut(&str),
    ) -> Result<Self> {
        let place = crate::scan::directory(options)?;
        let place = std::path::absolute(place).map_err(Error::io("the folder for the data directory"))?;
        let settings = Settings {
            module: Some(module(options, installation)?),
            program: options.bedplate.clone(),
            place: Some(place),
            ..Settings::default()
        };
        // Loading writes no log, and only the queries run.
        let settings =
            settings.with("wal_level", "minimal").with("max_wal_senders", "0").with("autovacuum", "off");
        let settings = settings.with("checkpoint_timeout", "1d").with("jit", "off").with("fsync", "off");
        let mut cluster = Cluster::create(installation, &settings).map_err(failed)?;
        data::load(&cluster, scale, begin)?;
        cluster.stop(Stop::Fast).map_err(failed)?;
        Ok(Self { cluster, baseline: &[], buffers: None })
    }

    pub fn version(&self) -> u32 {
        self.cluster.installation().version
    }

    /// The folder that has the server's data.
    pub fn folder(&self) -> &Path {
        self.cluster.path()
    }

    /// The size of shared buffers from the next start on, in bytes. `None`: the default.
    pub fn choose_buffers(&mut self, bytes: Option<u64>) {
        self.buffers = bytes;
    }

    /// Starts the server as a side, with nothing in the page cache.
    pub fn start_cold(&mut self, side: Side) -> Result<()> {
        self.start(side, cold::forget)
    }

    /// Starts the server as a side, for writers: commits do not wait for the log, and files are synced.
    pub fn start_writing(&mut self, side: Side) -> Result<()> {
        self.start_with(side, &[("fsync", "on"), ("synchronous_commit", "off")], cold::forget)
    }

    /// Starts the server with the extension, and with its files in the page cache.
    pub fn start_warm(&mut self) -> Result<()> {
        self.start(Side::Bedplate, cold::warm)
    }

    fn start(&mut self, side: Side, prepare: impl Fn(&Path) -> Result<()>) -> Result<()> {
        self.start_with(side, &[], prepare)
    }

    fn start_with(
        &mut self,
        side: Side,
        settings: &[Setting],
        prepare: impl Fn(&Path) -> Result<()>,
    ) -> Result<()> {
        self.cluster.stop(Stop::Fast).map_err(failed)?;
        let module = self.cluster.module_path().display().to_string();
        let loaded = ("shared_preload_libraries", module.as_str());
        let past_the_cache = ("bedplate_scan.cache_share", "0");
        let mut chosen = match side {
            Side::Vanilla => [&[("shared_preload_libraries", "")], self.baseline].concat(),
            Side::Bedplate => vec![loaded, past_the_cache],
            Side::Shared => vec![loaded, past_the_cache, ("bedplate_scan.sharing", "auto")],
            Side::Default => vec![loaded],
        };
        chosen.extend(settings);
        let buffers = self.buffers.map(|bytes| format!("{}kB", bytes >> 10));
        chosen.extend(buffers.as_deref().map(|size| ("shared_buffers", size)));
        self.cluster.choose(&chosen);
        prepare(&self.cluster.data())?;
        self.cluster.start().map_err(failed)
    }

    /// Chooses the settings with which the side without the extension is fastest at a query, and returns their name.
    pub fn choose_baseline(&mut self, text: &str) -> Result<&'static str> {
        if self.version() < 18 {
            return Ok(BASELINES[0].0);
        }
        let mut best = (f64::INFINITY, BASELINES[0]);
        for candidate in BASELINES {
            self.baseline = candidate.1;
            let mut times = Vec::new();
            for _ in 0..3 {
                self.start_cold(Side::Vanilla)?;
                times.push(self.query(text, 2, None)?.wall_ns);
            }
            let time = times.into_iter().collect::<crate::sample::Samples>().median();
            if time < best.0 {
                best = (time, candidate);
            }
        }
        self.baseline = best.1.1;
        Ok(best.1.0)
    }

    /// Runs a query in a new session. Where a side is named, the extension is switched on or off for the session.
    pub fn query(&mut self, text: &str, workers: u32, side: Option<Side>) -> Result<Run> {
        let mut client = self.session(workers)?;
        match side {
            Some(Side::Vanilla) => execute(&mut client, "set bedplate_scan.enabled = off").map_err(failed)?,
            Some(_) => execute(&mut client, "set bedplate_scan.enabled = on").map_err(failed)?,
            None => {}
        }
        let (measured, rows) = self.measure(|| rows(&mut client, text).map_err(failed))?;
        Ok(measured.run(rows))
    }

    /// The time for which a serial query reads blocks, or waits for them.
    pub fn access(&mut self, text: &str) -> Result<Access> {
        let mut client = self.session(0)?;
        execute(&mut client, "set track_io_timing = on").map_err(failed)?;
        let start = Instant::now();
        let access_ns = read_ns(&mut client, text).map_err(failed)?;
        Ok(Access { access_ns, wall_ns: start.elapsed().as_nanos() as f64 })
    }

    /// Runs a query in several sessions at the same time. All of them must have the same rows.
    pub fn queries(&mut self, text: &str, clients: usize) -> Result<Run> {
        let Together { wall_ns, cpu_ns, device_bytes, answers } =
            self.together(&vec![vec![(0, text)]; clients])?;
        let mut all = answers.into_iter().map(|answer| answer.rows);
        let rows = all.next().unwrap_or_default();
        match all.all(|other| other == rows) {
            true => Ok(Run { wall_ns, cpu_ns, device_bytes, rows }),
            false => Err(failed("sessions that scan together have different rows".to_owned())),
        }
    }

    /// Runs lists of queries at the same time, each in a session without parallel workers. A query has an index and a text.
    pub fn together(&mut self, lists: &[Vec<(usize, &str)>]) -> Result<Together> {
        let mut sessions = lists.iter().map(|_| self.session(0)).collect::<Result<Vec<_>>>()?;
        let (measured, all) = self.measure(|| {
            at_once(lists.iter().zip(&mut sessions), |(list, client)| {
                answers(list.iter().copied(), |text| rows(client, text).map_err(failed))
            })
        })?;
        Ok(measured.together(all.concat()))
    }

    /// A session whose plans have at most `workers` workers.
    pub fn session(&self, workers: u32) -> Result<Client> {
        let mut client = self.cluster.client().map_err(failed)?;
        execute(&mut client, &format!("set max_parallel_workers_per_gather = {workers}")).map_err(failed)?;
        Ok(client)
    }

    fn measure<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<(Measured, T)> {
        let folder = self.cluster.path();
        measure(folder, self.buffers.is_some(), || Ok(cpu_ns(folder)), work)
    }

    /// Counts the reads of the extension in a cold query.
    pub fn counters(&mut self, text: &str, workers: u32) -> Result<Counters> {
        self.start_cold(Side::Bedplate)?;
        counters(&mut self.session(workers)?, text).map_err(failed)
    }

    /// An error if the extension does not scan past the page cache in this query, because a comparison would be
    /// meaningless.
    pub fn require_direct(&mut self, text: &str, workers: u32) -> Result<()> {
        let seen = self.counters(text, workers)?;
        match seen.direct > seen.buffered {
            true => Ok(()),
            false => Err(failed(format!("the extension does not scan the table directly: {seen:?}"))),
        }
    }

    /// The size of a table's file.
    pub fn table_bytes(&mut self, table: &str) -> Result<u64> {
        self.start_warm()?;
        let found =
            rows(&mut self.session(0)?, &format!("select pg_relation_size('{table}')")).map_err(failed)?;
        found[0][0].parse().map_err(|_| failed(format!("{table} has a size of {found:?}")))
    }
}

/// The extension for an installation: where `make postgres` builds it, or where it is installed.
fn module(options: &Options, installation: &Installation) -> Result<PathBuf> {
    let name = "bedplate_scan.so";
    let mut places = Vec::new();
    if let Some(folder) = options.bedplate.as_ref().and_then(|program| program.ancestors().nth(2)) {
        places.push(folder.join(format!("postgresql/{}/{name}", installation.version)));
    }
    places.push(PathBuf::from(installation.ask("--pkglibdir").map_err(failed)?).join(name));
    places.into_iter().find(|path| path.exists()).ok_or_else(|| Error::Missing {
        what: format!("the extension for PostgreSQL {} is not built", installation.version),
        hint: "run `make postgres-build`",
    })
}
