//! What holds for Redis holds for Valkey, whose saving is not the same code any more.

mod common;

use common::{Server, bgsave, exact_prefix, fill, info, saved, under_load, wait_for, wait_for_replica};

const VALKEY: &str = "valkey-server";

/// Whether it is installed; otherwise says that the test is skipped.
fn is_there() -> bool {
    let found = std::process::Command::new(VALKEY).arg("--version").output().is_ok();
    if !found {
        println!("skipped: there is no {VALKEY}, which not every distribution has");
    }
    found
}

#[test]
fn saving_under_load_is_an_exact_image() {
    if !is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_of(VALKEY, folder.path(), true, &[]);
    fill(&server);
    for _ in 0..2 {
        under_load(&server, || {
            let mut connection = server.connect();
            bgsave(&mut connection);
            assert_eq!(saved(&mut connection), "ok");
        });
        let stock = Server::start_of(VALKEY, folder.path(), false, &[]);
        exact_prefix(&mut stock.connect());
        let _: () = redis::cmd("FLUSHALL").query(&mut server.connect()).unwrap();
        fill(&server);
    }
    let statistics = server.stop(folder.path());
    assert_eq!((statistics["snapshots"], statistics["active"], statistics["torn"]), (2, 0, 0));
    assert!(statistics["pages_copied"] > 0, "{statistics:?}");
}

#[test]
fn the_log_and_a_replica_get_everything() {
    if !is_there() {
        return;
    }
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let options =
        "--appendonly yes --appendfsync no --auto-aof-rewrite-percentage 0 --repl-diskless-sync-delay 0";
    let options: Vec<_> = options.split(' ').collect();
    let server = Server::start_of(VALKEY, folder.path(), true, &options);
    fill(&server);
    let replica = Server::start_of(VALKEY, other.path(), false, &[]);
    let ((), latest) = under_load(&server, || {
        let mut connection = replica.connect();
        let _: String =
            redis::cmd("REPLICAOF").arg("127.0.0.1").arg(server.port).query(&mut connection).unwrap();
        wait_for(&mut connection, "replication", "master_link_status", "up");
        let mut connection = server.connect();
        wait_for(&mut connection, "persistence", "aof_rewrite_in_progress", "0");
        let _: String = redis::cmd("BGREWRITEAOF").query(&mut connection).unwrap();
        wait_for(&mut connection, "persistence", "aof_rewrite_scheduled", "0");
        wait_for(&mut connection, "persistence", "aof_rewrite_in_progress", "0");
        assert_eq!(info(&mut connection, "persistence", "aof_last_bgrewrite_status"), "ok");
    });
    wait_for_replica(&server, &replica);
    assert_eq!(exact_prefix(&mut replica.connect()), latest);
    let statistics = server.stop(folder.path());
    assert!(statistics["snapshots"] >= 2 && statistics["torn"] == 0, "{statistics:?}");
    let stock = Server::start_of(VALKEY, folder.path(), false, &["--appendonly", "yes"]);
    assert_eq!(exact_prefix(&mut stock.connect()), latest);
}
