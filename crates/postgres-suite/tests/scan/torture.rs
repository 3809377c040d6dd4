//! Runs writers of every kind beside scans, for a time. Scans return the rows of a plain scan under the same snapshot.
//!
//! `BEDPLATE_TEST_SECONDS` is the total time (60 by default; 1800 for a long run), `BEDPLATE_TEST_SEED` repeats the writers'
//! choices.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bedplate_postgres_suite::extension::{Build, is_stock};
use bedplate_postgres_suite::plan::text_of;
use bedplate_postgres_suite::postgres::{Client, error::SqlState};
use bedplate_postgres_suite::{Cluster, Installation, execute};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::common::{PARALLEL, Pair, SERIAL, check, each_installation, rows, settings};

const ROWS: u32 = 30_000;
const QUERIES: [&str; 3] = [
    "select count(*), sum(balance), sum(hashint4(id # balance)::bigint), sum(hashtid(ctid)::bigint) from accounts",
    "select md5(string_agg(id || '/' || balance || '/' || length(pad), ',' order by id, balance)) from accounts",
    "select branch, count(*), sum(balance) from accounts group by branch order by branch",
];

/// A time in seconds or a seed, from the environment.
fn variable(name: &str, default: u64) -> u64 {
    let value = std::env::var(name).ok().filter(|value| !value.is_empty());
    value.map_or(default, |value| value.parse().unwrap_or_else(|_| panic!("{name} must be a number")))
}

/// The state that the threads of a run share.
struct Run<'a> {
    cluster: &'a Cluster,
    seed: u64,
    is_over: AtomicBool,
    failure: Mutex<Option<String>>,
    writes: AtomicU64,
}

impl Run<'_> {
    /// Runs a step until the time is over or something failed.
    fn repeat(&self, thread: u64, mut step: impl FnMut(&mut Client, &mut SmallRng) -> Result<(), String>) {
        let mut random = SmallRng::seed_from_u64(self.seed ^ thread << 32);
        let mut client = self.cluster.client().unwrap();
        while !self.is_over.load(Ordering::Relaxed) {
            if let Err(error) = step(&mut client, &mut random) {
                self.fail(error);
            }
        }
    }

    fn fail(&self, error: String) {
        self.is_over.store(true, Ordering::Relaxed);
        self.failure.lock().unwrap().get_or_insert(error);
    }
}

/// Runs statements. Some may fail because of other writers; then the transaction is rolled back.
fn try_execute(client: &mut Client, statements: &str) -> Result<(), String> {
    // Statements run one at a time, because the end of a prepared transaction must not be in a transaction with others.
    let result = statements.split(';').try_for_each(|statement| client.batch_execute(statement));
    let Err(error) = result else { return Ok(()) };
    let allowed = [
        SqlState::LOCK_NOT_AVAILABLE,
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::UNIQUE_VIOLATION,
        SqlState::QUERY_CANCELED,
    ];
    if error.code().is_some_and(|code| allowed.contains(code)) {
        return execute(client, "rollback");
    }
    Err(format!("{statements}: {}", text_of(&error)))
}

/// One transaction of a writer. The sum of all balances stays zero.
fn write(client: &mut Client, random: &mut SmallRng, thread: u64) -> Result<(), String> {
    let mut id = || random.random_range(1..=ROWS);
    let (a, b) = (id(), id());
    let (low, high) = (a.min(b), a.max(b));
    let transfer = format!(
        "update accounts set balance = balance + 7 where id = {low}; update accounts set balance = balance - 7 where id = {high};"
    );
    let name = format!("p{thread}");
    let statements = match random.random_range(0..14) {
        // Updates that stay on their page, mostly.
        0..=3 if low != high => format!("begin; {transfer} commit"),
        // An indexed column, so new places in the index.
        4 => format!("begin; update accounts set branch = branch + 1 where id = {a}; commit"),
        // Rows that become longer and move.
        5 => format!(
            "begin; update accounts set pad = repeat('{}', {}) where id between {a} and {a} + 20; commit",
            a % 10,
            40 + b % 300
        ),
        // Rows that no transfer touches.
        6 => format!(
            "begin; delete from accounts where id = {} ; insert into accounts values ({}, 1, 0, 'new'); commit",
            ROWS + 1 + a % 500,
            ROWS + 1 + b % 500
        ),
        7 => format!("begin; update accounts set balance = 99 where id between {a} and {a} + 50; rollback"),
        8 if low != high => format!(
            "begin; savepoint s; update accounts set balance = balance + 1000 where id = {a}; rollback to s; savepoint t; {transfer} release t; savepoint u; delete from accounts where id = {b}; rollback to u; commit"
        ),
        // Lockers and an updater: multixacts.
        9 => format!(
            "begin; select 1 from accounts where id between {a} and {a} + 5 for key share; update accounts set pad = 'locked' where id = {a}; commit"
        ),
        10 => format!("begin; select 1 from accounts where id between {a} and {a} + 30 for share; commit"),
        11 if low != high => {
            format!("begin; {transfer} prepare transaction '{name}'; commit prepared '{name}'")
        }
        12 => format!(
            "begin; update accounts set balance = balance + 5 where id = {a}; prepare transaction '{name}'; rollback prepared '{name}'"
        ),
        // The table grows by many pages, and shrinks when it is vacuumed.
        13 => {
            let first = 1_000_000 + thread as u32 * 100_000;
            format!(
                "begin; insert into accounts select g, 2, 0, repeat('g', 200) from generate_series({first}, {first} + 2000) g on conflict do nothing; commit; delete from accounts where id between {first} and {first} + 2000"
            )
        }
        _ => return Ok(()),
    };
    try_execute(client, &format!("set lock_timeout = '2s'; {statements}"))
}

/// One act of maintenance. Some need an exclusive lock on the table for a moment.
fn maintain(client: &mut Client, random: &mut SmallRng) -> Result<(), String> {
    execute(client, "set lock_timeout = '300ms'")?;
    match random.random_range(0..12) {
        0..=3 => execute(client, "vacuum accounts"),
        4..=6 => execute(client, "checkpoint"),
        7 => execute(client, "vacuum (freeze) accounts"),
        8 => try_execute(client, "vacuum full accounts"),
        9 => {
            // The whole table is removed and made again, in new files.
            let again =
                "insert into churn select g, g % 50, 0, repeat('c', 120) from generate_series(1, 8000) g";
            try_execute(client, "truncate churn")?;
            try_execute(client, again)
        }
        10 => execute(client, "analyze accounts"),
        _ => rows(client, "select count(*) from evictor where id >= 0").map(drop),
    }
}

/// One comparison.
fn scan(pair: &mut Pair, random: &mut SmallRng, build: Build) -> Result<(), String> {
    let how = if random.random_bool(0.5) { SERIAL } else { PARALLEL };
    let delays = match build {
        // Makes the race windows far wider than those of the code.
        Build::Faults if random.random_bool(0.5) => {
            "set bedplate_scan.fault_before_read = 3000; set bedplate_scan.fault_after_read = 3000"
        }
        Build::Faults => "set bedplate_scan.fault_before_read = 0; set bedplate_scan.fault_after_read = 0",
        Build::Product => "",
    };
    execute(&mut pair.direct, &format!("{how}; {delays}"))?;
    let table = if random.random_bool(0.8) { "accounts" } else { "churn" };
    pair.begin(Some(table))?;
    let result = if random.random_bool(0.3) {
        held_cursor(pair, table)
    } else {
        let query = QUERIES[random.random_range(0..QUERIES.len())].replace("accounts", table);
        pair.compare(&query)
    };
    if result.is_ok() && table == "accounts" {
        let query = "select sum(balance) from accounts";
        let [direct, plain] = [rows(&mut pair.direct, query)?, rows(&mut pair.plain, query)?];
        if direct != ["0"] {
            return Err(format!(
                "the sum of balances is {direct:?}, of a plain scan {plain:?}, and must be 0"
            ));
        }
    }
    result.and(pair.end())
}

/// A cursor whose rows are fetched with pauses.
fn held_cursor(pair: &mut Pair, table: &str) -> Result<(), String> {
    execute(
        &mut pair.direct,
        &format!("declare c no scroll cursor for select id, balance, length(pad) from {table}"),
    )?;
    let mut direct = rows(&mut pair.direct, "fetch 3000 from c")?;
    std::thread::sleep(Duration::from_millis(100));
    direct.extend(rows(&mut pair.direct, "fetch 3000 from c")?);
    std::thread::sleep(Duration::from_millis(100));
    direct.extend(rows(&mut pair.direct, "fetch all from c")?);
    execute(&mut pair.direct, "close c")?;
    let query = format!("select id, balance, length(pad) from {table}");
    let mut plain = rows(&mut pair.plain, &query)?;
    plain.sort_unstable();
    direct.sort_unstable();
    check(&query, &plain, &direct)
}

fn torture(installation: &Installation, checksums: bool, build: Build, time: Duration, seed: u64) {
    let settings = settings(installation, build)
        .checksums(checksums)
        .with("fsync", "on")
        .with("synchronous_commit", "off");
    let cluster = Cluster::create(installation, &settings).unwrap();
    for table in ["accounts", "churn"] {
        cluster.run(&format!("create table {table}(id int primary key, branch int, balance int, pad text) with (fillfactor = 85)")).unwrap();
        cluster.run(&format!("create index on {table}(branch)")).unwrap();
        cluster
            .run(&format!(
                "insert into {table} select g, g % 50, 0, repeat('x', 100) from generate_series(1, {ROWS}) g"
            ))
            .unwrap();
    }
    cluster
        .run("create table evictor as select g id, repeat('e', 1000) pad from generate_series(1, 3000) g")
        .unwrap();
    cluster.run("create index on evictor(id)").unwrap();
    cluster.run("vacuum (analyze)").unwrap();
    let run = Run {
        cluster: &cluster,
        seed,
        is_over: AtomicBool::new(false),
        failure: Mutex::new(None),
        writes: AtomicU64::new(0),
    };
    let compared = AtomicU64::new(0);
    let start = Instant::now();
    std::thread::scope(|scope| {
        let run = &run;
        for thread in 0..2 {
            scope.spawn(move || {
                run.repeat(thread, |client, random| {
                    run.writes.fetch_add(1, Ordering::Relaxed);
                    write(client, random, thread)
                });
            });
        }
        scope.spawn(move || {
            run.repeat(10, |client, random| {
                std::thread::sleep(Duration::from_millis(random.random_range(0..300)));
                maintain(client, random)
            });
        });
        for thread in 20..22 {
            let compared = &compared;
            scope.spawn(move || {
                let mut pair = Pair::new(run.cluster);
                run.repeat(thread, |_, random| {
                    compared.fetch_add(1, Ordering::Relaxed);
                    scan(&mut pair, random, build)
                });
            });
        }
        // The run does not end by time alone, because on a busy machine there may have been no comparison yet.
        while !run.is_over.load(Ordering::Relaxed)
            && (start.elapsed() < time || compared.load(Ordering::Relaxed) < 6)
        {
            std::thread::sleep(Duration::from_millis(50));
        }
        run.is_over.store(true, Ordering::Relaxed);
    });
    let (compared, writes) = (compared.into_inner(), run.writes.into_inner());
    if let Some(failure) = run.failure.into_inner().unwrap() {
        panic!(
            "seed {seed}, checksums {checksums}, {build:?}, after {compared} comparisons: {failure}\n{}",
            cluster.log_end()
        );
    }
    let mut pair = Pair::new(&cluster);
    let direct = pair.counters(QUERIES[0]).direct;
    println!(
        "checksums {checksums}, {build:?}: {compared} comparisons beside {writes} transactions in {:?}",
        start.elapsed()
    );
    assert!(is_stock() || direct > 0, "the last scan was not direct");
}

#[test]
fn scans_beside_writers_of_every_kind_are_equal() {
    let seed = variable("BEDPLATE_TEST_SEED", rand::random_range(0..1_000_000));
    println!("BEDPLATE_TEST_SEED={seed}");
    let kinds = [(false, Build::Product), (true, Build::Product), (false, Build::Faults)];
    let installations = bedplate_postgres_suite::Installation::all().len().max(1);
    let seconds = variable("BEDPLATE_TEST_SECONDS", 60);
    let time = Duration::from_secs(seconds) / (kinds.len() * installations) as u32;
    each_installation(|installation| {
        for (checksums, build) in kinds {
            torture(installation, checksums, build, time, seed);
        }
    });
}
