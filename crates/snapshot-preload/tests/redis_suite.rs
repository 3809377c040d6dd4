//! Redis's own test suite, of which every server runs under the library with the engine `remap`.
//!
//! By default, a part of the suite runs: the units that save, rewrite a log, or synchronize replicas ([`UNITS`]).
//! `BEDPLATE_TEST_UNITS=all` runs all of it, which takes many minutes, and `BEDPLATE_TEST_UNITS=integration/aof,unit/multi` runs
//! these units. `BEDPLATE_TEST_STOCK=1` runs them without the library, to find out which tests fail because of the machine
//! ([`TOLERATED`]). `BEDPLATE_REDIS_SUITE=FOLDER` names another copy of the suite. The one that `make setup` fetches belongs to
//! Debian's Redis 7.0.15.
//!
//! Many of Redis's tests wait for a fixed time, and sometimes fail on a busy machine. So a unit that fails runs once more. This
//! test fails if a unit fails twice, or hangs twice, or leaves a snapshot incomplete. The servers' statistics must show that they
//! took snapshots by moving page tables.

mod common;

use std::collections::{BTreeSet, VecDeque};
use std::fmt::Write;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bedplate_redis_suite::{
    Outcome, Outcomes, Servers, Workspace, folder, run, server_version, units, version,
};
use common::{Statistics, library, statistics_of};

/// The default units. Those that take longest come first. `integration/replication` and `integration/replication-psync` take
/// three minutes each and are left to longer runs.
const UNITS: [&str; 18] = [
    "integration/replication-4",
    "integration/psync2",
    "unit/aofrw",
    "integration/aof-multi-part",
    "integration/rdb",
    "integration/replication-buffer",
    "integration/block-repl",
    "integration/psync2-reg",
    "integration/aof",
    "integration/replication-2",
    "integration/replication-3",
    "unit/other",
    "integration/psync2-pingoff",
    "integration/psync2-master-restart",
    "integration/shutdown",
    "integration/dismiss-mem",
    "integration/failover",
    "unit/wait",
];

/// Tests that may fail, because they also fail without the library: the unit, the test, and the reason.
const TOLERATED: [(&str, &str, &str); 0] = [];

/// Units of which no test is run: the first has none, and the second takes servers that encrypt connections.
const WITHOUT_TESTS: [&str; 2] = ["unit/printver", "unit/tls"];

/// Number of units that run at the same time. Their tests spend most of the time waiting.
const CONCURRENT: u16 = 6;

/// The first port that the servers use.
const FIRST_PORT: u16 = 21111;

/// The time after which a unit is abandoned. The longest of [`UNITS`] takes a minute on an idle machine, and the longest of all
/// units three minutes.
const UNIT_LIMIT: Duration = Duration::from_secs(300);
const LONG_UNIT_LIMIT: Duration = Duration::from_secs(900);

#[test]
fn the_tests_of_redis_pass_under_the_library() {
    let suite = folder();
    if !suite.join("tests/test_helper.tcl").exists() || !suite.join("src/version.h").exists() {
        println!("skipped: Redis's test suite is not in {}; `make setup` fetches it", suite.display());
        return;
    }
    let (tests, server) = (version(&suite).unwrap(), server_version(Path::new("redis-server")).unwrap());
    if tests != server {
        println!(
            "skipped: redis-server is version {server}, and the test suite in {} belongs to {tests}; \
             BEDPLATE_REDIS_SUITE=FOLDER names another one",
            suite.display()
        );
        return;
    }
    let chosen = chosen(&suite);
    let stock = std::env::var_os("BEDPLATE_TEST_STOCK").is_some();
    let library = library();
    let waiting = Mutex::new(VecDeque::from(chosen.clone()));
    let wrong = Mutex::new(String::new());
    let totals = Mutex::new(Totals::default());
    std::thread::scope(|scope| {
        for worker in 0..CONCURRENT {
            let (suite, library, waiting, wrong, totals) = (&suite, &library, &waiting, &wrong, &totals);
            scope.spawn(move || {
                let first_port = FIRST_PORT + worker * Workspace::PORTS;
                loop {
                    let Some(unit) = waiting.lock().unwrap().pop_front() else { break };
                    let started = Instant::now();
                    let run = UnitRun::new(suite, &unit, (!stock).then_some(library.as_path()), first_port);
                    println!("{unit}: {} ({} s)", run.summary(), started.elapsed().as_secs());
                    totals.lock().unwrap().add(&run);
                    let depends_on_time = !stock && !run.violates_a_promise();
                    let errors = run.errors(|| UnitRun::new(suite, &unit, None, first_port));
                    if !errors.is_empty() && depends_on_time {
                        let second = UnitRun::new(suite, &unit, Some(library.as_path()), first_port);
                        totals.lock().unwrap().add(&second);
                        if second.errors(|| UnitRun::new(suite, &unit, None, first_port)).is_empty() {
                            println!("{unit}: passes in the second of two runs; the first one:\n{errors}");
                            continue;
                        }
                    }
                    wrong.lock().unwrap().push_str(&errors);
                }
            });
        }
    });
    let totals = totals.into_inner().unwrap();
    println!("{totals:?}");
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "Redis {server}:\n{wrong}");
    assert!(stock || totals.instantaneous > 0, "no server took a snapshot by moving page tables: {totals:?}");
}

/// The units to run.
fn chosen(suite: &Path) -> Vec<String> {
    let known = units(suite).unwrap();
    match std::env::var("BEDPLATE_TEST_UNITS").as_deref() {
        Ok("all") => known,
        Ok(names) => {
            let names: Vec<_> = names.split(',').map(str::to_owned).collect();
            for name in &names {
                assert!(
                    suite.join(format!("tests/{name}.tcl")).exists(),
                    "BEDPLATE_TEST_UNITS: the suite has no unit '{name}'"
                );
            }
            names
        }
        Err(_) => UNITS.map(str::to_owned).to_vec(),
    }
}

/// Sums over all units.
#[derive(Debug, Default)]
struct Totals {
    passed: usize,
    failed: usize,
    not_run: usize,
    servers: usize,
    snapshots: u64,
    instantaneous: u64,
}

impl Totals {
    fn add(&mut self, run: &UnitRun) {
        let [passed, failed, not_run] = run.counts();
        self.passed += passed;
        self.failed += failed;
        self.not_run += not_run;
        self.servers += run.servers.len();
        self.snapshots += run.sum("snapshots");
        self.instantaneous += run.sum("instantaneous");
    }
}

/// One run of a unit.
struct UnitRun {
    unit: String,
    is_stock: bool,
    outcomes: Result<Outcomes, String>,
    /// The statistics of the servers that ended in the usual way.
    servers: Vec<Statistics>,
    has_other_engines: bool,
    workspace: Workspace,
}

impl UnitRun {
    /// Runs a unit, with the library or without.
    fn new(suite: &Path, unit: &str, library: Option<&Path>, first_port: u16) -> Self {
        let mut workspace = Workspace::new(suite, first_port).unwrap();
        let statistics = workspace.path().join("statistics");
        if let Some(library) = library {
            workspace.server_variable("LD_PRELOAD", library.to_str().unwrap());
            workspace.server_variable("BEDPLATE_SNAPSHOT_ENGINE", "remap");
            workspace.server_variable("BEDPLATE_SNAPSHOT_REQUIRED", "1");
            workspace.server_variable("BEDPLATE_SNAPSHOT_STATISTICS", statistics.to_str().unwrap());
        }
        let limit = if UNITS.contains(&unit) { UNIT_LIMIT } else { LONG_UNIT_LIMIT };
        let outcomes = run(suite, unit, Servers::Started(&workspace), limit);
        let text = std::fs::read_to_string(statistics).unwrap_or_default();
        Self {
            unit: unit.into(),
            is_stock: library.is_none(),
            outcomes,
            // The file has a line for each server.
            servers: text.lines().map(statistics_of).collect(),
            has_other_engines: text.lines().any(|line| !line.contains(" engine=remap ")),
            workspace,
        }
    }

    /// Whether the library broke a promise that does not depend on timing.
    fn violates_a_promise(&self) -> bool {
        self.has_other_engines || self.sum("incomplete") > 0
    }

    /// Number of tests that passed, failed and were not run.
    fn counts(&self) -> [usize; 3] {
        let mut counts = [0; 3];
        for outcome in self.outcomes.iter().flat_map(Outcomes::values) {
            counts[match outcome {
                Outcome::Passed => 0,
                Outcome::Failed(_) => 1,
                Outcome::NotRun(_) => 2,
            }] += 1;
        }
        counts
    }

    fn sum(&self, name: &str) -> u64 {
        self.servers.iter().map(|server| server[name]).sum()
    }

    fn summary(&self) -> String {
        let [passed, failed, not_run] = self.counts();
        let (servers, snapshots, instantaneous) =
            (self.servers.len(), self.sum("snapshots"), self.sum("instantaneous"));
        format!(
            "{passed} tests pass, {failed} fail, {not_run} are not run; {servers} servers took {snapshots} snapshots, \
             {instantaneous} of them instantaneous"
        )
    }

    /// The errors of the run, with one or more lines for each. `again` runs the unit without the library, which shows whether the
    /// library causes a failure.
    fn errors(mut self, again: impl FnOnce() -> UnitRun) -> String {
        let unit = self.unit.clone();
        let mut text = String::new();
        match &self.outcomes {
            Err(error) => writeln!(text, "{unit}: {error}").unwrap(),
            Ok(outcomes) => {
                for (name, outcome) in outcomes {
                    let tolerated = TOLERATED.iter().find(|(of, test, _)| *of == unit && test == name);
                    match (outcome, tolerated) {
                        (Outcome::Failed(details), None) => {
                            writeln!(text, "{unit}: '{name}' fails:\n    {details}").unwrap();
                        }
                        (Outcome::Failed(_), Some((_, _, reason))) => {
                            println!("{unit}: '{name}' fails, which is tolerated: {reason}");
                        }
                        (Outcome::NotRun(why), _) => println!("{unit}: '{name}' is not run: {why}"),
                        (Outcome::Passed, _) => {}
                    }
                }
                for (_, test, _) in TOLERATED.iter().filter(|(of, ..)| *of == unit) {
                    if !outcomes.contains_key(*test) {
                        writeln!(
                            text,
                            "{unit}: there is no test '{test}', which the list of tolerated ones has"
                        )
                        .unwrap();
                    }
                }
                if self.counts()[0] == 0 && !WITHOUT_TESTS.contains(&unit.as_str()) {
                    writeln!(text, "{unit}: no test passed").unwrap();
                }
            }
        }
        if self.is_stock {
            return text;
        }
        if self.servers.is_empty() {
            writeln!(text, "{unit}: no server wrote statistics: none ran under the library").unwrap();
        }
        if self.has_other_engines {
            writeln!(text, "{unit}: a server ran with another engine than remap").unwrap();
        }
        if self.sum("incomplete") > 0 {
            writeln!(text, "{unit}: {} snapshots were given up", self.sum("incomplete")).unwrap();
        }
        if UNITS.contains(&unit.as_str()) && self.sum("instantaneous") == 0 {
            writeln!(text, "{unit}: no snapshot was taken by moving page tables").unwrap();
        }
        if !text.is_empty() {
            writeln!(text, "{unit}: the servers' files are in {}", self.workspace.keep().display()).unwrap();
            match again().outcomes {
                Err(error) => writeln!(text, "{unit}: without the library: {error}").unwrap(),
                Ok(outcomes) => {
                    let failed = |outcome: &&Outcome| matches!(outcome, Outcome::Failed(_));
                    let names = outcomes.iter().filter(|(_, outcome)| failed(outcome)).map(|(name, _)| name);
                    let names: BTreeSet<_> = names.collect();
                    writeln!(text, "{unit}: without the library these tests fail: {names:?}").unwrap();
                }
            }
        }
        text
    }
}
