//! What holds for Redis holds for Valkey, whose saving is not the same code any more.

mod common;

use common::{Server, exact_prefix, fill, replicate, rewrite_log, scenarios, under_load, wait_for_replica};

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
    assert_eq!(scenarios::saves_under_load_are_exact_images(server, folder.path(), 2)["torn"], 0);
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
        replicate(&server, &replica);
        rewrite_log(&server);
    });
    wait_for_replica(&server, &replica);
    assert_eq!(exact_prefix(&mut replica.connect()), latest);
    let statistics = server.stop(folder.path());
    assert!(statistics["snapshots"] >= 2 && statistics["torn"] == 0, "{statistics:?}");
    let stock = Server::start_of(VALKEY, folder.path(), false, &["--appendonly", "yes"]);
    assert_eq!(exact_prefix(&mut stock.connect()), latest);
}
