//! Compares the answers of a server under the library with those of a plain one.

use std::time::Duration;

use bedplate_mariadb_suite::{Installation, Launch, Row, Server, Statistics};

use crate::common::{
    FORMATS, SETTLING_TIME, data_file, forget, installation, is_stock, preload, preload_settled, start,
    statistics,
};

/// The questions about a table. All of them read it from its begin to its end; the last one also changes it.
const QUESTIONS: [&str; 3] = [
    "select count(*), sum(a), sum(length(b)), sum(crc32(b)), min(b), max(b) from test.T",
    "select a mod 7, count(*), sum(crc32(concat(a, b))) from test.T group by 1 order by 1",
    "update test.T set a = a + 1000000 where b like '%00ff%'; select row_count()",
];

/// Changes, after each of which the questions are asked.
const CHANGES: [&str; 9] = [
    "insert into test.T select seq, repeat(md5(seq), 4) from test.numbers where seq <= 3000",
    "update test.T set b = concat('x', substring(b, 2)) where a mod 11 = 3",
    "delete from test.T where a mod 5 = 1",
    "insert into test.T select seq, repeat(md5(seq), 2) from test.numbers where seq <= 20000",
    "optimize table test.T",
    "flush tables",
    "truncate table test.T; insert into test.T select seq, repeat(md5(seq + 1), 5) from test.numbers",
    "drop table test.T; CREATE; insert into test.T select seq, repeat(md5(seq + 2), 5) from test.numbers",
    "repair table test.T; check table test.T extended",
];

/// The answers of a server, in order.
fn answers(server: &Server) -> Vec<(String, Vec<Row>)> {
    let mut session = server.session().unwrap();
    // The numbers are rows of a table, because a sequence's own engine would scan a sequence.
    session
        .run("create table test.numbers(seq int not null) engine=MyISAM; insert into test.numbers select seq from seq_1_to_30000")
        .unwrap();
    let mut answers = Vec::new();
    for (table, format) in FORMATS {
        let create = format!("create table test.{table}(a int not null, b char(200) not null) {format}");
        let create = if format.contains("dynamic") || format.contains("page") {
            create.replace("char(200)", "varchar(200)")
        } else {
            create
        } + " charset latin1";
        let filled = format!(
            "{create}; insert into test.{table} select seq, repeat(md5(seq), 1 + seq mod 6) from test.numbers"
        );
        let mut ask = |statements: &str| {
            let statements =
                statements.replace("CREATE", &create).replace("test.T", &format!("test.{table}"));
            let rows = session.rows(&statements).unwrap();
            answers.push((statements, rows));
        };
        ask(&filled);
        for change in ["flush tables"].iter().chain(&CHANGES) {
            ask(change);
            for question in QUESTIONS {
                ask(question);
                ask(question);
            }
        }
    }
    answers
}

fn answers_of(
    installation: &Installation,
    launch: impl Fn(&Server) -> Launch,
) -> (Server, Vec<(String, Vec<Row>)>) {
    let mut server = start(installation, launch);
    let answers = answers(&server);
    server.stop().unwrap();
    (server, answers)
}

#[test]
fn scans_between_changes_give_the_answers_of_a_plain_server() {
    let Some(installation) = installation() else { return };
    let (_, expected) = answers_of(&installation, |_| Launch::Plain);
    let (server, found) = answers_of(&installation, preload);
    assert_eq!(expected.len(), found.len());
    for (expected, found) in expected.iter().zip(&found) {
        assert_eq!(expected, found);
    }
    if is_stock() {
        return;
    }
    let lines = statistics(&server);
    let tables =
        FORMATS.iter().map(|(table, _)| data_file(&server, table).metadata().unwrap().len()).sum::<u64>();
    // Each change is followed by six scans. Some of them are updates, which are served to their first change.
    let served = Statistics::sum(&lines, "bytes_served");
    assert!(served > tables * 5, "{served} of {tables}: {lines:?}");
}

#[test]
fn every_format_is_served_when_it_is_cold() {
    let Some(installation) = installation() else { return };
    for (table, format) in FORMATS {
        let mut server = start(&installation, |_| Launch::Plain);
        let columns = "a int not null, b char(250) not null, c varchar(300)";
        // A column of variable length does not fit a fixed format.
        let columns = if format.contains("fixed") { &columns[..columns.len() - 16] } else { columns };
        let values =
            if format.contains("fixed") { "seq, md5(seq)" } else { "seq, md5(seq), repeat(md5(seq), 9)" };
        let fill = format!(
            "create table test.{table}({columns}) {format} charset latin1; \
             insert into test.{table} select {values} from seq_1_to_60000"
        );
        server.rows(&fill).unwrap();
        let question = format!("select count(*), sum(a), sum(crc32(b)) from test.{table}");
        let expected = server.rows(&question).unwrap();
        server.stop().unwrap();
        std::thread::sleep(SETTLING_TIME + Duration::from_millis(100));
        forget(&server.data());
        server.start(&preload_settled(&server)).unwrap();
        assert_eq!(server.rows(&question).unwrap(), expected, "{table}");
        server.stop().unwrap();
        let bytes = data_file(&server, table).metadata().unwrap().len();
        let lines = statistics(&server);
        let served = Statistics::sum(&lines, "bytes_served");
        // The kernel reads the first part, and reads ahead of it, until the library sees that it is a scan.
        assert!(served * 10 > bytes * 9, "{table}: {served} of {bytes}: {lines:?}");
        assert_eq!(Statistics::sum(&lines, "files_changed"), 0, "{lines:?}");
    }
}

#[test]
fn sessions_that_scan_a_table_together_are_all_served() {
    let Some(installation) = installation() else { return };
    let mut server = start(&installation, |_| Launch::Plain);
    let table = "create table test.t(a int not null, b char(250) not null) engine=MyISAM charset latin1";
    server.rows(&format!("{table}; insert into test.t select seq, md5(seq) from seq_1_to_100000")).unwrap();
    let question = "select count(*), sum(a), sum(crc32(b)) from test.t";
    let expected = server.rows(question).unwrap();
    server.stop().unwrap();
    forget(&server.data());
    server.start(&preload(&server)).unwrap();
    let mut sessions: Vec<_> = (0..8).map(|_| server.session().unwrap()).collect();
    sessions.iter_mut().for_each(|session| session.send(question).unwrap());
    for mut session in sessions {
        assert_eq!(session.receive(question).unwrap(), expected);
    }
    server.stop().unwrap();
    let bytes = server.table_file("test", "t", "MYD").metadata().unwrap().len();
    let lines = statistics(&server);
    // Readers begin one after the other. A reader that waits too long to begin reads a part by itself.
    assert!(Statistics::sum(&lines, "bytes_served") > bytes * 4, "{lines:?}");
    assert!(Statistics::sum(&lines, "streams") >= 8, "{lines:?}");
}
