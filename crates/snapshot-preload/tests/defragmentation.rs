//! Active defragmentation moves data in a server's memory. It needs a server that was built with Redis's own jemalloc.
//! `BEDPLATE_TEST_REDIS` names it, because distributions' servers are not.

mod common;

use std::time::{Duration, Instant};

use common::{Engine, KEYS, Server, bgsave, exact_prefix, fill, incomplete, info, saved, under_load, value};
use redis::Commands;

with_each_engine!(images_are_exact_while_memory_is_defragmented);

fn images_are_exact_while_memory_is_defragmented(engine: Engine) {
    let program = std::env::var("BEDPLATE_TEST_REDIS").unwrap_or_else(|_| "redis-server".into());
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_of(&program, folder.path(), Some(engine), &[]);
    let mut connection = server.connect();
    let mut set = |name: &str, value: u32| -> redis::RedisResult<String> {
        redis::cmd("CONFIG").arg("SET").arg(name).arg(value).query(&mut connection)
    };
    for (name, value) in [
        ("active-defrag-ignore-bytes", 1),
        ("active-defrag-threshold-lower", 0),
        ("active-defrag-cycle-max", 50),
        ("active-defrag-cycle-min", 40),
    ] {
        set(name, value).unwrap();
    }
    let enabled: redis::RedisResult<String> =
        redis::cmd("CONFIG").arg("SET").arg("activedefrag").arg("yes").query(&mut server.connect());
    if let Err(error) = enabled {
        println!("skipped: {program} cannot defragment: {error}; BEDPLATE_TEST_REDIS may name one that can");
        return;
    }
    let moved = || info(&mut server.connect(), "stats", "active_defrag_hits").parse::<u64>().unwrap();
    let mut before = moved();
    for round in 0..4 {
        // Every second value is deleted, which leaves holes everywhere.
        let mut connection = server.connect();
        for start in (0..KEYS).step_by(1000) {
            let mut pipeline = redis::pipe();
            (start..start + 1000).for_each(|key| {
                pipeline.set(format!("hole {key}"), value(key)).ignore();
                pipeline.set(key, value(key)).ignore();
            });
            let _: () = pipeline.query(&mut connection).unwrap();
        }
        fill(&server);
        for start in (0..KEYS).step_by(1000) {
            let keys: Vec<_> = (start..start + 1000).map(|key| format!("hole {key}")).collect();
            let _: u64 = connection.del(keys).unwrap();
        }
        // Redis moves nothing while a child exists. But it moves data until just before and directly after.
        under_load(&server, || {
            for _ in 0..3 {
                let limit = Instant::now() + Duration::from_secs(30);
                while moved() == before {
                    assert!(Instant::now() < limit, "nothing is moved in round {round}");
                    std::thread::sleep(Duration::from_millis(20));
                }
                bgsave(&mut connection);
                assert_eq!(saved(&mut connection), "ok");
                before = moved();
            }
        });
        let stock = Server::start(folder.path(), None, &[]);
        exact_prefix(&mut stock.connect());
        let _: () = redis::cmd("FLUSHALL").query(&mut connection).unwrap();
    }
    let statistics = server.stop(folder.path());
    assert_eq!((statistics["snapshots"], incomplete(&statistics)), (12, 0));
}
