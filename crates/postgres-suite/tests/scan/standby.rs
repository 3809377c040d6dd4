//! A hot standby that replays while it is scanned.

use std::sync::atomic::{AtomicBool, Ordering};

use bedplate_postgres_suite::extension::{Build, is_stock};
use bedplate_postgres_suite::{Cluster, execute};

use crate::common::{PARALLEL, Pair, SERIAL, each_installation, rows, settings};

const QUERY: &str = "select count(*), sum(k), sum(id::bigint), sum(hashtid(ctid)::bigint) from t";
/// Comparisons for each installation.
const ROUNDS: usize = 8;

#[test]
fn scans_of_a_standby_are_equal_while_it_replays() {
    each_installation(|installation| {
        let settings = settings(installation, Build::Product).with("max_standby_streaming_delay", "-1");
        let primary = Cluster::create(installation, &settings.clone().with("wal_level", "replica")).unwrap();
        primary.run("create table t(id int primary key, k int, pad text) with (fillfactor = 80)").unwrap();
        primary.run("insert into t select g, 0, repeat('x', 100) from generate_series(1, 40000) g").unwrap();
        let standby = Cluster::standby(&primary, &settings).unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut client = primary.client().unwrap();
                let mut round = 0;
                while !is_over.load(Ordering::Relaxed) {
                    round += 1;
                    // The sum of k stays zero.
                    let first = round * 37 % 20000 + 1;
                    let change = format!(
                        "begin; update t set k = k + 1 where id between {first} and {first} + 500;
                         update t set k = k - 1 where id between {first} + 10000 and {first} + 10500; commit;
                         begin; update t set k = k + 5 where id % 100 = {round} % 100; rollback;
                         delete from t where id = 40000 + {round} - 20; insert into t values (40000 + {round}, 0, 'late')"
                    );
                    execute(&mut client, &change).unwrap();
                    if round % 20 == 0 {
                        execute(&mut client, "vacuum t").unwrap();
                        execute(&mut client, "checkpoint").unwrap();
                    }
                }
                round
            });
            // The writer ends also if a comparison fails.
            let result = std::panic::catch_unwind(|| {
                let mut pair = Pair::new(&standby);
                let mut direct = 0;
                for round in 0..ROUNDS {
                    let how = if round % 2 == 0 { SERIAL } else { PARALLEL };
                    execute(&mut pair.direct, how).unwrap();
                    pair.begin(None).unwrap();
                    let changing = rows(&mut pair.plain, "select sum(k) from t").unwrap();
                    assert_eq!(changing, ["0"], "a transaction shows by halves, without the extension");
                    pair.compare(QUERY).unwrap();
                    direct += pair.counters(QUERY).direct;
                    pair.end().unwrap();
                }
                direct
            });
            is_over.store(true, Ordering::Relaxed);
            let rounds = writer.join().unwrap();
            let direct = result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            println!("{ROUNDS} comparisons beside {rounds} rounds of the primary, {direct} blocks directly");
            assert!(is_stock() || direct > 0);
        });
    });
}
