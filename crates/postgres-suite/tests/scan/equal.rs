//! Scans of tables without writers return every row once, serially and in parallel, for tables of every kind.

use bedplate_postgres_suite::extension::{Build, is_stock};
use bedplate_postgres_suite::plan::{Counters, ordinary_scans};
use bedplate_postgres_suite::{Cluster, Installation, Stop, execute};

use crate::common::{DECLINED, FORCE, PARALLEL, Pair, SERIAL, each_installation, forget, rows, settings};

/// Tables of kinds that a scan meets: rows that were never hinted, updated, deleted, frozen; long values; no logging; views.
const TABLES: &str = "
    create table fresh(id int, k int, pad text) with (autovacuum_enabled = off);
    insert into fresh select g, g % 100, repeat('x', 100 + g % 50) from generate_series(1, 30000) g;

    create table used(id int primary key, k int, pad text) with (fillfactor = 80);
    insert into used select g, g % 100, repeat('y', 100 + g % 50) from generate_series(1, 30000) g;
    update used set k = k + 1 where id % 3 = 0;
    delete from used where id % 7 = 0;
    begin; update used set k = -1 where id % 5 = 0; rollback;
    begin; savepoint a; delete from used where id % 11 = 0; rollback to a; insert into used values (100000, 1, 'kept'); commit;

    create table frozen(id int, k int, pad text);
    insert into frozen select g, g % 100, repeat('z', 100) from generate_series(1, 30000) g;
    vacuum (freeze) frozen;

    create table pruned(id int, k int, pad text);
    insert into pruned select g, g % 100, repeat('z', 100) from generate_series(1, 30000) g;
    delete from pruned where id % 2 = 0 or id > 25000;
    vacuum pruned;

    create table long(id int, k int, pad text);
    alter table long alter pad set storage external;
    insert into long select g, g % 100, repeat(md5(g::text), case when g % 20 = 0 then 200 else 3 end) from generate_series(1, 10000) g;

    create unlogged table unlogged(id int, k int, pad text);
    insert into unlogged select g, g % 100, repeat('u', 100) from generate_series(1, 30000) g;

    create materialized view matview as select * from fresh where id % 2 = 0;

    create table wide(id int, k int, pad text, c int[], d numeric, e timestamptz);
    insert into wide select g, null, null, array[g, g + 1], g / 7.0, '2020-01-01'::timestamptz + g * interval '1 hour'
        from generate_series(1, 20000) g;
    alter table wide add column added int default 42;
    alter table wide drop column e;

    create table parted(id int, k int, pad text) partition by range (id);
    create table parted1 partition of parted for values from (0) to (15000);
    create table parted2 partition of parted for values from (15000) to (200000);
    insert into parted select g, g % 100, repeat('p', 100) from generate_series(1, 30000) g;

    create table tiny(id int, k int, pad text);
    insert into tiny values (1, 1, 'one');
    create table empty(id int, k int, pad text);
    create table emptied(id int, k int, pad text);
    insert into emptied select g, 1, repeat('e', 100) from generate_series(1, 10000) g;
    delete from emptied;
    analyze;
";

/// The tables, and whether all of their blocks are of use to a scan.
const NAMES: [(&str, bool); 12] = [
    ("fresh", true),
    ("used", true),
    ("frozen", true),
    ("pruned", true),
    ("long", true),
    ("unlogged", true),
    ("matview", true),
    ("wide", true),
    ("parted", true),
    ("tiny", false),
    ("empty", false),
    ("emptied", false),
];

/// The queries whose results are compared: number of rows, sums, places of rows, all values in their order.
const QUERIES: [&str; 6] = [
    "select count(*), sum(id::bigint), sum(k), sum(length(pad)), sum(hashtid(ctid)::bigint), count(distinct ctid) from TABLE",
    "select md5(string_agg(t::text, ',' order by id)) from TABLE t",
    "select k, count(*), min(id), max(pad) from TABLE group by k order by k",
    "select count(*) from TABLE where k = 7 and pad like '%x%'",
    "select id from TABLE where id % 1000 = 1 order by id",
    "select count(*), sum(a.k) from TABLE a join TABLE b on a.id = b.id + 1",
];

/// Makes the tables. Their files are up to date, and almost none of their blocks are in buffers.
fn tables(cluster: &mut Cluster) {
    let mut client = cluster.client().unwrap();
    // Statements run one at a time, because VACUUM cannot be in a transaction with others. No text has a semicolon.
    for statement in TABLES.split_inclusive(';') {
        execute(&mut client, statement).unwrap();
    }
    drop(client);
    cluster.stop(Stop::Fast).unwrap();
    cluster.start().unwrap();
}

/// Compares all tables with the settings `how`, and returns the sums of the extension's counters.
fn compare(cluster: &Cluster, how: &str) -> Counters {
    let mut pair = Pair::new(cluster);
    pair.set(how).unwrap();
    let mut sum = Counters::default();
    for (name, has_blocks) in NAMES {
        pair.begin(None).unwrap();
        for query in QUERIES {
            pair.compare(&query.replace("TABLE", name)).unwrap();
        }
        let seen = pair.counters(&format!("select count(*), sum(k) from {name}"));
        pair.end().unwrap();
        if !is_stock() {
            assert!(!has_blocks || seen.direct > 0, "no block of {name} was read directly: {seen:?}");
        }
        sum.parallel_nodes += seen.parallel_nodes;
        sum.nodes += seen.nodes;
        sum.direct += seen.direct;
        sum.buffered += seen.buffered;
    }
    sum
}

#[test]
fn scans_of_tables_of_every_kind_are_equal() {
    each_installation(|installation| {
        // The defaults of clusters, which have checksums since 18.
        {
            let checksums = installation.version >= 18;
            let settings = settings(installation, Build::Product).checksums(checksums);
            let mut cluster = Cluster::create(installation, &settings).unwrap();
            tables(&mut cluster);
            let serial = compare(&cluster, SERIAL);
            let parallel = compare(&cluster, PARALLEL);
            println!("checksums {checksums}: serial {serial:?}, parallel {parallel:?}");
            if !is_stock() {
                assert!(serial.parallel_nodes == 0 && serial.direct > serial.buffered, "{serial:?}");
                assert!(parallel.parallel_nodes >= 8 && parallel.direct > parallel.buffered, "{parallel:?}");
            }
        }
    });
}

/// A table that the extension declines is scanned as PostgreSQL does, in the same node or without it.
#[test]
fn what_the_extension_declines_is_scanned_all_the_same() {
    each_installation(|installation| {
        let cluster = crate::common::cluster(installation);
        let mut pair = Pair::new(&cluster);
        let fill = "insert into TABLE select g, g % 10 from generate_series(1, 50000) g";
        execute(&mut pair.plain, "create table t(id int, k int)").unwrap();
        execute(&mut pair.plain, &fill.replace("TABLE", "t")).unwrap();
        let client = &mut pair.direct;
        execute(client, "create temp table temporary(id int, k int)").unwrap();
        execute(client, &fill.replace("TABLE", "temporary")).unwrap();
        let mut direct = |begin: &str, query: &str| {
            execute(client, begin).unwrap();
            let seen = bedplate_postgres_suite::plan::counters(client, query).unwrap();
            execute(client, "rollback").unwrap();
            seen.direct
        };
        let count = "select count(*) from t";
        assert_eq!(direct("begin", "select count(*) from temporary"), 0);
        assert_eq!(direct("begin", "select count(*) from pg_class"), 0);
        assert_eq!(direct("begin isolation level serializable", count), 0);
        assert_eq!(direct("begin", "select k from t where id = 5 for update"), 0);
        assert_eq!(direct("begin", "update t set k = k + 1 where id = 5"), 0);
        assert_eq!(direct("begin", "delete from t where id = 5"), 0);
        assert_eq!(direct("begin; set local bedplate_scan.enabled = off", count), 0);
        if !is_stock() {
            assert!(direct("begin", count) > 0);
        }
    });
}

/// A table of more than 1 GiB is in two files. Each of its rows fills a page.
#[test]
fn a_table_of_two_files_is_scanned_across_the_seam() {
    let Some(installation) = Installation::all().into_iter().next() else {
        eprintln!("skipped: no PostgreSQL with its headers is installed; `make setup` installs it");
        return;
    };
    let settings =
        settings(&installation, Build::Product).with("wal_level", "minimal").with("max_wal_senders", "0");
    let mut cluster = Cluster::create(&installation, &settings).unwrap();
    let seam = 131_072;
    let create = "create unlogged table large(id int, pad text) with (autovacuum_enabled = off)";
    cluster.run(create).unwrap();
    cluster.run("alter table large alter pad set storage plain").unwrap();
    let fill =
        format!("insert into large select g, repeat('x', 7000) from generate_series(1, {seam} + 2000) g");
    cluster.run(&fill).unwrap();
    cluster.stop(Stop::Fast).unwrap();
    cluster.start().unwrap();
    assert_eq!(
        rows(&mut cluster.client().unwrap(), "select pg_relation_size('large') > 1024 * 1024 * 1024")
            .unwrap(),
        ["t"]
    );
    let mut pair = Pair::new(&cluster);
    let query = "select count(*), sum(id::bigint), sum(hashtid(ctid)::bigint) from large";
    for how in [SERIAL, PARALLEL] {
        pair.set(how).unwrap();
        pair.begin(None).unwrap();
        pair.compare(query).unwrap();
        pair.end().unwrap();
    }
    let seen = pair.counters(query);
    assert!(is_stock() || seen.direct > 130_000, "{seen:?}");
    // Rows on both sides of the seam. Both scans must be serial: rows of a parallel one come in any order.
    pair.set(SERIAL).unwrap();
    pair.begin(None).unwrap();
    pair.compare(&format!("select id, ctid from large where id between {seam} - 300 and {seam} + 300"))
        .unwrap();
    pair.end().unwrap();
}

/// The extension cannot detect the writes under way of a server that writes tables past the page cache.
#[test]
fn a_server_that_writes_directly_is_declined() {
    each_installation(|installation| {
        if installation.version < 16 || is_stock() {
            return;
        }
        let settings = settings(installation, Build::Product).with("debug_io_direct", "data");
        let cluster = Cluster::create(installation, &settings).unwrap();
        let mut client = cluster.client().unwrap();
        execute(&mut client, "create table t as select g id from generate_series(1, 50000) g").unwrap();
        execute(&mut client, FORCE).unwrap();
        let why = ordinary_scans(&mut client, "select count(*) from t").unwrap();
        assert_eq!(why, ["debug_io_direct is set for data"]);
    });
}

/// The extension checks whether the page cache has room for a whole table, not for each of its partitions.
#[test]
fn partitions_are_one_table() {
    each_installation(|installation| {
        if is_stock() {
            return;
        }
        let cluster = crate::common::cluster(installation);
        let mut client = cluster.client().unwrap();
        let parts = 8;
        execute(&mut client, "create table t(id int, pad text) partition by list (id)").unwrap();
        for part in 0..parts {
            let create = format!("create table t{part} partition of t for values in ({part})");
            let fill =
                format!("insert into t select {part}, repeat('x', 1000) from generate_series(1, 7000)");
            execute(&mut client, &format!("{create}; {fill}")).unwrap();
        }
        // Each part has 8 MB; the limit is twice as much.
        let text = std::fs::read_to_string("/proc/meminfo").unwrap();
        let line = text.lines().find(|line| line.starts_with("MemAvailable:")).unwrap();
        let available: f64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        let share = 16.0 * 1024.0 / available;
        execute(&mut client, DECLINED).unwrap();
        execute(&mut client, &format!("{SERIAL}; set bedplate_scan.cache_share = {share}")).unwrap();
        let (fits, cached) =
            ("the page cache has room for the table", "most of the table is in the page cache");
        assert_eq!(ordinary_scans(&mut client, "select count(*) from t3").unwrap(), [fits]);
        // The partitions do not fit together. They are not read directly either, because they were written just now.
        assert_eq!(ordinary_scans(&mut client, "select count(*) from t").unwrap(), vec![cached; parts]);
    });
}

/// If sessions do not share, one of them reads a table directly, and those that begin meanwhile leave it to the page cache.
#[test]
fn a_table_that_another_session_reads_is_left_to_the_page_cache() {
    each_installation(|installation| {
        if is_stock() {
            return;
        }
        let mut cluster = crate::common::cluster(installation);
        let fill = "create table t as select g id, repeat('x', 500) pad from generate_series(1, 60000) g";
        cluster.run(fill).unwrap();
        let settings = "set bedplate_scan.cache_share = 0; set cursor_tuple_fraction = 1";
        let (count, reason) = ("select count(*) from t", "another session reads the table directly");
        for how in [SERIAL, PARALLEL] {
            cluster.stop(Stop::Fast).unwrap();
            forget(&cluster.data());
            cluster.start().unwrap();
            let [mut first, mut second] = [cluster.client().unwrap(), cluster.client().unwrap()];
            for client in [&mut first, &mut second] {
                execute(client, &format!("{DECLINED}; {settings}; {how}")).unwrap();
            }
            let data = cluster.data();
            let cold = || forget(&data);
            // The table has no hint bits. A scan that set them would write, and its own writes would make images look torn.
            cold();
            let seen = bedplate_postgres_suite::plan::counters(&mut first, count).unwrap();
            // Each participant begins with the buffer manager, and chunks that the kernel read ahead for it count as cached.
            assert!(seen.direct > 2000 && seen.buffered < 2000, "{seen:?}");
            // The first session's scan has ended.
            cold();
            assert_eq!(ordinary_scans(&mut second, count).unwrap(), [""; 0], "{how}");
            // A reader that pauses for long does not count, and on a busy machine the time between two statements may be long.
            let is_left = (0..50).any(|_| {
                cold();
                execute(&mut first, "begin; declare c no scroll cursor for select id from t").unwrap();
                rows(&mut first, "fetch 100 from c").unwrap();
                let reasons = ordinary_scans(&mut second, count).unwrap();
                execute(&mut first, "rollback").unwrap();
                reasons == [reason]
            });
            assert!(is_left);
            // The page cache has the table now.
            assert_ne!(ordinary_scans(&mut second, count).unwrap(), [reason]);
        }
    });
}

#[test]
fn settings_have_bounds() {
    each_installation(|installation| {
        if is_stock() {
            return;
        }
        let cluster = crate::common::cluster(installation);
        let mut client = cluster.client().unwrap();
        let bounds = [
            ("ring_size", "8MB", "7MB"),
            ("ring_size", "64MB", "65MB"),
            ("cache_share", "0", "-0.1"),
            ("cache_share", "1", "1.1"),
            ("min_table_size", "0", "-1"),
            ("sharing", "off", "on"),
            ("sharing", "/run/s", "run/s"),
        ];
        for (name, within, beyond) in bounds {
            execute(&mut client, &format!("set bedplate_scan.{name} = '{within}'")).unwrap();
            let error = execute(&mut client, &format!("set bedplate_scan.{name} = '{beyond}'")).unwrap_err();
            assert!(error.contains(name), "{error}");
        }
        // Only the build for tests has faults.
        let error = execute(&mut client, "set bedplate_scan.fault_tear = 1").unwrap_err();
        assert!(error.contains("fault_tear"), "{error}");
        // The smallest ring is enough.
        execute(&mut client, "set bedplate_scan.sharing = 'off'; create table t as select g id from generate_series(1, 300000) g").unwrap();
        execute(&mut client, &format!("{FORCE}; {SERIAL}; set bedplate_scan.ring_size = '8MB'")).unwrap();
        assert_eq!(
            rows(&mut client, "select count(*), sum(id::bigint) from t").unwrap(),
            ["300000|45000150000"]
        );
        // Only superusers may set `force`.
        execute(&mut client, "create role ordinary; set role ordinary").unwrap();
        assert!(execute(&mut client, "set bedplate_scan.force = off").is_err());
        execute(&mut client, "set bedplate_scan.enabled = off").unwrap();
    });
}
