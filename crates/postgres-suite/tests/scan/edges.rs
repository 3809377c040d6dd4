//! Tests the cases that a scan meets inside one session (`edges.sql`): the output is that of a session without the extension.

use std::fs;

use bedplate_postgres_suite::extension::is_stock;
use bedplate_postgres_suite::suite::first_difference;
use bedplate_postgres_suite::{Cluster, run};

use crate::common::{DECLINED, FORCE, PARALLEL, PLAIN, SERIAL, cluster, each_installation};

const SCRIPT: &str = include_str!("edges.sql");

/// The output of the script in a session with these settings.
fn output(cluster: &Cluster, setup: &str) -> String {
    let script = cluster.path().join("edges.sql");
    fs::write(&script, SCRIPT).unwrap();
    cluster.give(&script).unwrap();
    // Errors are compared, too, so they go to the standard output.
    let command = format!(
        "exec {} -X -a -q -d postgres -v setup=\"$SETUP\" -f edges.sql 2>&1",
        cluster.installation().program("psql").display()
    );
    let mut shell = cluster.program("/bin/sh");
    run(shell.args(["-c", &command]).env("SETUP", setup)).unwrap()
}

#[test]
fn a_session_sees_what_it_would_see_without_the_extension() {
    each_installation(|installation| {
        let cluster = cluster(installation);
        for how in if installation.version < 18 { [SERIAL, PARALLEL].as_slice() } else { &[SERIAL] } {
            let plain = output(&cluster, &format!("{PLAIN}; {how};"));
            // The settings are printed with the statements.
            let bare = |output: &str| {
                [PLAIN, FORCE, DECLINED].iter().fold(output.to_owned(), |text, how| text.replace(how, ""))
            };
            let plain = bare(&plain);
            assert!(plain.lines().count() > 300 && plain.contains("division by zero"), "{plain}");
            // An ordinary parallel scan returns rows in any order, on a busy machine.
            let others = if *how == SERIAL { [FORCE, DECLINED].as_slice() } else { &[FORCE] };
            for settings in others {
                let other = bare(&output(&cluster, &format!("{settings}; {how};")));
                assert!(plain == other, "{settings}: {}", first_difference(&plain, &other));
            }
        }
        let mut client = cluster.client().unwrap();
        bedplate_postgres_suite::execute(&mut client, FORCE).unwrap();
        let seen = bedplate_postgres_suite::plan::counters(&mut client, "select count(*) from w").unwrap();
        assert!(is_stock() || seen.direct > 0, "the scans were not the extension's: {seen:?}");
        let declined = format!("set bedplate_scan.force = off; {DECLINED}");
        bedplate_postgres_suite::execute(&mut client, &declined).unwrap();
        let seen = bedplate_postgres_suite::plan::counters(&mut client, "select count(*) from w").unwrap();
        assert!(is_stock() || seen.nodes > 0 && seen.direct == 0, "the nodes did not decline: {seen:?}");
    });
}
