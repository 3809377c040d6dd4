//! Redis's own test suite against `bedplate kv serve`.
//!
//! `docs/redis-compatibility.md` lists the tests that are expected not to pass, with the reasons. This test fails if a test
//! fails that is not on the list, if a test passes that is on the list, or if a test was not run.
//! `make setup` fetches the suite; without it this test says that it is skipped. `BEDPLATE_REDIS_SUITE=FOLDER` names
//! another copy, and `BEDPLATE_TEST_UNITS=unit/expire,unit/scan` runs these files only.

mod redis_suite {
    pub mod list;
}
mod running;

use std::sync::Mutex;
use std::time::Duration;

use bedplate_redis_suite::{Outcome, Servers, folder, run};
use redis_suite::list::List;
use running::Server;

/// The files that are run at the same time; each has a server of its own. Their tests spend most of the time waiting.
const CONCURRENT: usize = 4;

/// The time limit on a file.
const UNIT_LIMIT: Duration = Duration::from_secs(100);

#[test]
fn the_tests_of_redis_pass_except_those_on_the_list() {
    let suite = folder();
    if !suite.join("tests/test_helper.tcl").exists() {
        eprintln!("skipped: Redis's test suite is not in {}; `make setup` fetches it", suite.display());
        return;
    }
    let documentation = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/redis-compatibility.md");
    let list = List::parse(&std::fs::read_to_string(documentation).unwrap());
    let mut units = list.units();
    if let Ok(chosen) = std::env::var("BEDPLATE_TEST_UNITS") {
        units.retain(|unit| chosen.split(',').any(|name| name == unit));
    }
    assert!(!units.is_empty(), "no file of the suite is chosen");
    let waiting = Mutex::new(units);
    let wrong = Mutex::new(list.check());
    let passed = Mutex::new(0);
    std::thread::scope(|scope| {
        for _ in 0..CONCURRENT {
            scope.spawn(|| {
                loop {
                    let Some(unit) = waiting.lock().unwrap().pop() else { break };
                    let data = tempfile::tempdir().unwrap();
                    let server = Server::start(data.path(), &["--memory", "256M", "--max-clients", "128"]);
                    let differences = match run(&suite, &unit, Servers::Running(server.port), UNIT_LIMIT) {
                        Ok(outcomes) => {
                            let ok = outcomes.values().filter(|outcome| **outcome == Outcome::Passed).count();
                            println!("{unit}: {ok} of {} pass", outcomes.len());
                            *passed.lock().unwrap() += ok;
                            list.compare(&unit, &outcomes)
                        }
                        Err(error) => vec![error],
                    };
                    wrong.lock().unwrap().extend(differences);
                }
            });
        }
    });
    println!("{} tests pass, {} are on the list", passed.into_inner().unwrap(), list.len());
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
