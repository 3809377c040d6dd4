//! Servers and daemons that are killed.

use std::time::{Duration, Instant};

use bedplate_mariadb_suite::{Launch, Server, Statistics, processes};
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{forget, installation, is_stock, preload, start, statistics};

const TABLE: &str = "create table test.t(a int not null, b char(250) not null) engine=MyISAM charset latin1; \
    insert into test.t select seq, md5(seq) from seq_1_to_200000";
const QUESTION: &str = "select count(*), sum(a), sum(crc32(b)) from test.t";

/// A server that has a table, and the answer about it. It does not run.
fn filled() -> Option<(Server, Vec<bedplate_mariadb_suite::Row>)> {
    let mut server = start(&installation()?, |_| Launch::Plain);
    server.rows(TABLE).unwrap();
    let expected = server.rows(QUESTION).unwrap();
    server.stop().unwrap();
    Some((server, expected))
}

#[test]
fn a_server_that_is_killed_while_it_scans_leaves_no_daemon() {
    let Some((mut server, expected)) = filled() else { return };
    for _ in 0..3 {
        forget(&server.data());
        server.start(&preload(&server)).unwrap();
        let mut session = server.session().unwrap();
        session.send(QUESTION).unwrap();
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(processes::inside(&server.data()).len(), if is_stock() { 1 } else { 2 });
        // This waits until no process is left in the data directory.
        let begin = Instant::now();
        server.kill().unwrap();
        assert!(begin.elapsed() < Duration::from_secs(30), "the daemon took {:?}", begin.elapsed());
        assert!(session.receive(QUESTION).is_err() || begin.elapsed() > Duration::ZERO);
    }
    for launch in [preload(&server), Launch::Plain] {
        server.start(&launch).unwrap();
        assert_eq!(server.rows(QUESTION).unwrap(), expected);
        server.stop().unwrap();
    }
}

#[test]
fn a_server_whose_daemon_is_killed_goes_on_without_it() {
    let Some((mut server, expected)) = filled() else { return };
    forget(&server.data());
    server.start(&preload(&server)).unwrap();
    let mut session = server.session().unwrap();
    assert_eq!(session.rows(QUESTION).unwrap(), expected);
    session.send(QUESTION).unwrap();
    let own = server.pid().unwrap();
    for process in processes::inside(&server.data()) {
        if process != Pid::from_raw(own as i32).unwrap() {
            kill_process(process, Signal::KILL).unwrap();
        }
    }
    assert_eq!(session.receive(QUESTION).unwrap(), expected);
    forget(&server.data());
    assert_eq!(session.rows(QUESTION).unwrap(), expected);
    server.stop().unwrap();
    if !is_stock() {
        let lines = statistics(&server);
        assert!(Statistics::sum(&lines, "bytes_served") > 0, "{lines:?}");
    }
}

#[test]
fn a_query_that_is_killed_ends_and_the_next_one_is_answered() {
    let Some((mut server, expected)) = filled() else { return };
    forget(&server.data());
    server.start(&preload(&server)).unwrap();
    let mut victim = server.session().unwrap();
    let id = victim.id().unwrap();
    // The query is so slow that it is still running when it is killed.
    let slow = "select sum(a * sleep(0.001)) from test.t";
    victim.send(slow).unwrap();
    let mut session = server.session().unwrap();
    let waiting = format!(
        "select count(*) from information_schema.processlist where id = {id} and info like '%sleep%' and command = 'Query'"
    );
    while session.value(&waiting).unwrap() != "1" {
        std::thread::sleep(Duration::from_millis(5));
    }
    session.run(&format!("kill {id}")).unwrap();
    assert!(victim.receive(slow).is_err());
    assert_eq!(session.rows(QUESTION).unwrap(), expected);
    server.stop().unwrap();
}
