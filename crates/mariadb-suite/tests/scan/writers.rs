//! Scans beside sessions that write. Each row has a checksum of itself, which reveals a scan that mixes bytes of two moments.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bedplate_mariadb_suite::{Server, Statistics};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::common::{
    FORMATS, SETTLING_TIME, forget, installation, is_stock, preload, preload_by_default, start, statistics,
};

/// Rows that tables have at the begin.
const ROWS: u64 = 40_000;
/// The columns, of which the last one is made from the others. `id` is for finding a row.
const COLUMNS: &str =
    "id int not null, a int not null, b varchar(180) not null, c int unsigned not null, key(id)";
/// Numbers of rows, of wrong ones, and of rows that were there at the begin.
const SCAN: &str =
    "select count(*), sum(c <> crc32(concat(id, a, b))), sum(a < 0) from test.T ignore index(id)";

fn duration() -> Duration {
    let seconds = std::env::var("BEDPLATE_TEST_SECONDS").ok().and_then(|value| value.parse().ok());
    Duration::from_secs(seconds.unwrap_or(4))
}

fn seed() -> u64 {
    let given = std::env::var("BEDPLATE_TEST_SEED").ok().and_then(|value| value.parse().ok());
    let seed = given.unwrap_or_else(|| rand::rng().random());
    println!("BEDPLATE_TEST_SEED={seed}");
    seed
}

fn create(table: &str, format: &str) -> String {
    let columns =
        if format.contains("fixed") { COLUMNS.replace("varchar", "char") } else { COLUMNS.to_owned() };
    format!("create table test.{table}({columns}) {format} charset latin1")
}

/// Inserts rows with the numbers from `first` to `last`.
fn insert(table: &str, first: u64, last: u64, sign: i64) -> String {
    format!(
        "insert into test.{table} select seq, {sign} * cast(seq as signed), b, crc32(concat(seq, {sign} * cast(seq as signed), b)) \
         from (select seq, repeat(md5(seq * 7), 1 + seq mod 5) as b from seq_{first}_to_{last}) as new_rows"
    )
}

/// A writer's session: random changes, each of which is complete when the next one begins.
fn write(server: &Server, table: &str, format: &str, seed: u64, is_over: &AtomicBool) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut session = server.session().unwrap();
    while !is_over.load(Ordering::Relaxed) {
        let first = random.random_range(1..ROWS);
        let statements = match random.random_range(0..100) {
            0..50 => insert(table, ROWS + first, ROWS + first + random.random_range(0..200), 1),
            50..70 => format!(
                "update test.{table} set a = a + 1, c = crc32(concat(id, a, b)) where id = {first} and a > 0"
            ),
            70..80 => format!(
                "update test.{table} set b = repeat(md5(rand()), 1 + id mod 5), c = crc32(concat(id, a, b)) where id between {first} and {}",
                first + 20
            ),
            80..90 => {
                format!("delete from test.{table} where a > 0 and id between {first} and {}", first + 3000)
            }
            90..93 => format!("optimize table test.{table}"),
            93..95 => format!("truncate table test.{table}; {}", insert(table, 1, ROWS, -1)),
            95..97 => {
                format!("drop table test.{table}; {}; {}", create(table, format), insert(table, 1, ROWS, -1))
            }
            97..99 => "flush tables".to_owned(),
            _ => format!("alter table test.{table} force"),
        };
        session.run(&statements).unwrap();
    }
}

/// A reader's session. Returns the number of scans.
fn scan(server: &Server, table: &str, is_over: &AtomicBool) -> u64 {
    let query = SCAN.replace('T', table);
    let mut session = server.session().unwrap();
    let mut count = 0;
    while !is_over.load(Ordering::Relaxed) {
        let rows = match session.rows(&query) {
            Ok(rows) => rows,
            // The writer has dropped the table, and not made the next one yet.
            Err(error) if error.contains("doesn't exist") => {
                session = server.session().unwrap();
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        // A table that was just truncated has the sum NULL.
        assert!(["0", "NULL"].contains(&rows[0][1].as_str()), "{table}: rows that nobody wrote: {rows:?}");
        let kept: u64 = rows[0][2].parse().unwrap_or(0);
        assert!(kept <= ROWS, "{table}: more rows than were ever there at a time: {rows:?}");
        count += 1;
    }
    count
}

#[test]
fn scans_beside_writers_see_whole_rows() {
    let Some(installation) = installation() else { return };
    let mut server = start(&installation, preload);
    let seed = seed();
    for (number, (table, format)) in FORMATS.into_iter().enumerate() {
        let fill = format!("{}; {}", create(table, format), insert(table, 1, ROWS, -1));
        server.rows(&fill).unwrap();
        let is_over = AtomicBool::new(false);
        let scans: u64 = std::thread::scope(|scope| {
            let server = &server;
            let is_over = &is_over;
            let readers: Vec<_> = (0..2).map(|_| scope.spawn(move || scan(server, table, is_over))).collect();
            let writer = scope.spawn(move || write(server, table, format, seed + number as u64, is_over));
            let begin = Instant::now();
            while begin.elapsed() < duration() && !writer.is_finished() {
                std::thread::sleep(Duration::from_millis(20));
            }
            is_over.store(true, Ordering::Relaxed);
            writer.join().unwrap();
            readers.into_iter().map(|reader| reader.join().unwrap()).sum()
        });
        assert!(scans > 0);
        let question = format!("{}; check table test.{table} extended", SCAN.replace('T', table));
        let rows = server.rows(&question).unwrap();
        assert_eq!(rows.last().unwrap()[3], "OK", "{rows:?}");
    }
    server.stop().unwrap();
    if !is_stock() {
        let lines = statistics(&server);
        assert!(Statistics::sum(&lines, "reads_served") > 0, "{lines:?}");
    }
}

#[test]
fn a_session_sees_its_own_rows_and_those_that_others_have_finished() {
    let Some(installation) = installation() else { return };
    let mut server = start(&installation, preload);
    // Rows are appended while readers scan (concurrent inserts): each scan has all rows that were there when it began.
    let (table, format) = FORMATS[0];
    server.rows(&format!("{}; {}", create(table, format), insert(table, 1, ROWS, -1))).unwrap();
    let mut writer = server.session().unwrap();
    let mut reader = server.session().unwrap();
    let query = SCAN.replace('T', table);
    let mut rows = ROWS;
    for _ in 0..30 {
        reader.send(&query).unwrap();
        let begun = rows;
        for _ in 0..5 {
            writer.run(&insert(table, ROWS + 1, ROWS + 100, 1)).unwrap();
            rows += 100;
            let own = writer.rows(&query).unwrap();
            assert_eq!(own[0], [rows.to_string(), "0".into(), ROWS.to_string()]);
        }
        let others = reader.receive(&query).unwrap();
        let count: u64 = others[0][0].parse().unwrap();
        assert!((begun..=rows).contains(&count) && others[0][1] == "0", "{others:?}");
    }
    server.stop().unwrap();
}

/// The library reads a table once, even if another session appends to it all the time.
#[test]
fn appends_beside_a_scan_do_not_multiply_what_is_read() {
    let Some(installation) = installation() else { return };
    if is_stock() {
        return;
    }
    let mut server = start(&installation, |_| bedplate_mariadb_suite::Launch::Plain);
    let (table, format) = FORMATS[0];
    server.rows(&format!("{}; {}", create(table, format), insert(table, 1, 400_000, -1))).unwrap();
    server.stop().unwrap();
    let bytes = server.table_file("test", table, "MYD").metadata().unwrap().len();
    forget(&server.data());
    std::thread::sleep(SETTLING_TIME + Duration::from_millis(100));
    server.start(&preload_by_default(&server)).unwrap();
    let mut reader = server.session().unwrap();
    let mut writer = server.session().unwrap();
    let query = SCAN.replace('T', table);
    let is_over = AtomicBool::new(false);
    let appends = std::thread::scope(|scope| {
        let appending = scope.spawn(|| {
            let mut count = 0;
            while !is_over.load(Ordering::Relaxed) {
                writer.run(&insert(table, 400_001, 400_001, 1)).unwrap();
                count += 1;
            }
            count
        });
        let rows = reader.rows(&query).unwrap();
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(rows[0][1], "0");
        appending.join().unwrap()
    });
    server.stop().unwrap();
    let lines = statistics(&server);
    let attempts = Statistics::sum(&lines, "streams") + Statistics::sum(&lines, "files_refused");
    println!("{appends} appends, {bytes} bytes, {lines:?}");
    // There is one attempt at the begin, which a first append may end, and one after each 64 MiB.
    assert!(
        appends > 3 && attempts <= 2 + bytes / (64 << 20),
        "{attempts} attempts beside {appends} appends"
    );
}
