//! Properties of every server under every engine. Each scenario returns the statistics, for further checks of a test.

use std::path::Path;
use std::time::{Duration, Instant};

use redis::{Commands, Connection};

use super::server::set_save_delay;
use super::*;

/// The time within which every operation ends, unless it hangs. Guests are slow.
fn patience() -> Duration {
    Duration::from_secs(if in_guest() { 120 } else { 60 })
}

/// A server that saves during writes saves an exact image of one moment, every time.
pub fn saves_under_load_are_exact_images(server: Server, folder: &Path, rounds: u64) -> Statistics {
    fill(&server);
    for round in 0..rounds {
        under_load(&server, || {
            let mut connection = server.connect();
            bgsave(&mut connection);
            assert_eq!(saved(&mut connection), "ok");
        });
        let stock = server.stock(folder, &[]);
        println!("round {round}: up to {}", exact_prefix(&mut stock.connect()));
        // The next numbers continue those of the writer.
        let _: () = redis::cmd("FLUSHALL").query(&mut server.connect()).unwrap();
        fill(&server);
    }
    let statistics = server.stop(folder);
    assert_eq!((statistics["snapshots"], statistics["active"]), (rounds, 0), "{statistics:?}");
    assert!(statistics["pages_copied"] > 0, "{statistics:?}");
    statistics
}

/// A log that is rewritten during writes is complete. `end` ends the server.
pub fn a_log_rewritten_under_load_is_complete(
    engine: Engine,
    end: impl FnOnce(Server, &Path) -> Statistics,
) -> Statistics {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), Some(engine), &["--appendonly", "yes", "--appendfsync", "no"]);
    fill(&server);
    let ((), latest) = under_load(&server, || rewrite_log(&server));
    let statistics = end(server, folder.path());
    assert!(statistics["snapshots"] >= 1, "{statistics:?}");
    let stock = Server::start(folder.path(), None, &["--appendonly", "yes"]);
    assert_eq!(exact_prefix(&mut stock.connect()), latest);
    statistics
}

/// Memory that is returned to the kernel during a save is still in the image. A delay of some microseconds for each key slows the
/// save down. The delay grows each time that the save ends before all keys are deleted.
pub fn memory_given_back_is_still_in_the_image(engine: Engine, delay: u32) -> Statistics {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), Some(engine), &[]);
    let mut connection = server.connect();
    let (mut delay, mut snapshots) = (delay, 0);
    loop {
        fill(&server);
        set_save_delay(&mut connection, delay);
        snapshots += 1;
        if all_is_deleted_during_a_save(&mut connection) {
            break;
        }
        assert_eq!(saved(&mut connection), "ok");
        delay *= 2;
        assert!(delay <= 2000, "a save that takes more than a minute ends before {KEYS} keys are deleted");
    }
    fill(&server);
    assert_eq!(saved(&mut connection), "ok");
    let stock = server.stock(folder.path(), &[]);
    assert_eq!(exact_prefix(&mut stock.connect()), KEYS);
    assert_eq!(exact_prefix(&mut connection), KEYS);
    let statistics = server.stop(folder.path());
    assert_eq!((statistics["snapshots"], statistics["active"]), (snapshots, 0), "{statistics:?}");
    statistics
}

/// Begins a save, deletes all keys, and returns whether the save still runs then.
fn all_is_deleted_during_a_save(connection: &mut Connection) -> bool {
    bgsave(connection);
    for start in (0..KEYS).step_by(1000) {
        let keys: Vec<u64> = (start..start + 1000).collect();
        let _: u64 = connection.del(keys).unwrap();
    }
    let _: String = redis::cmd("MEMORY").arg("PURGE").query(connection).unwrap();
    info(connection, "persistence", "rdb_bgsave_in_progress") == "1"
}

/// Kills children at different ages. The server continues, and so does saving. Then the server is killed, and its child completes
/// its work.
pub fn children_and_parents_may_be_killed(engine: Engine, ages: &[Duration]) {
    let folder = tempfile::tempdir().unwrap();
    // Saving takes minutes, so that no child ends before it is killed.
    let mut server = Server::start(folder.path(), Some(engine), &["--rdb-key-save-delay", "10000"]);
    fill(&server);
    let mut connection = server.connect();
    let (_, latest) = under_load(&server, || {
        for age in ages {
            bgsave(&mut connection);
            let child = child_of(&server);
            std::thread::sleep(*age);
            kill(child);
            assert_eq!(saved(&mut connection), "err");
        }
    });
    assert_eq!(exact_prefix(&mut connection), latest);
    set_save_delay(&mut connection, 0);
    bgsave(&mut connection);
    assert_eq!(saved(&mut connection), "ok");
    // A child that outlives its parent completes its work, and nothing hangs.
    set_save_delay(&mut connection, 20);
    bgsave(&mut connection);
    let child = child_of(&server);
    server.process.kill().unwrap();
    server.process.wait().unwrap();
    let limit = Instant::now() + patience();
    while Path::new(&format!("/proc/{child}")).exists() {
        assert!(Instant::now() < limit, "the child {child} hangs");
        std::thread::sleep(Duration::from_millis(20));
    }
    let stock = server.stock(folder.path(), &[]);
    assert_eq!(exact_prefix(&mut stock.connect()), latest);
}
