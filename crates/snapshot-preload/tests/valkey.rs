//! The properties of Redis also hold for Valkey, whose code for saving differs by now.

mod common;

use common::{
    Engine, Server, exact_prefix, fill, incomplete, replicate, rewrite_log, scenarios, under_load,
    wait_for_replica,
};

const VALKEY: &str = "valkey-server";

/// Whether it is installed. If not, prints that the test is skipped.
fn is_there() -> bool {
    let found = std::process::Command::new(VALKEY).arg("--version").output().is_ok();
    if !found {
        println!("skipped: there is no {VALKEY}, which not every distribution has");
    }
    found
}

with_each_engine!(saving_under_load_is_an_exact_image, the_log_and_a_replica_get_everything);

fn saving_under_load_is_an_exact_image(engine: Engine) {
    if !is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_of(VALKEY, folder.path(), Some(engine), &[]);
    assert_eq!(incomplete(&scenarios::saves_under_load_are_exact_images(server, folder.path(), 2)), 0);
}

fn the_log_and_a_replica_get_everything(engine: Engine) {
    if !is_there() {
        return;
    }
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let options =
        "--appendonly yes --appendfsync no --auto-aof-rewrite-percentage 0 --repl-diskless-sync-delay 0";
    let options: Vec<_> = options.split(' ').collect();
    let server = Server::start_of(VALKEY, folder.path(), Some(engine), &options);
    fill(&server);
    let replica = Server::start_of(VALKEY, other.path(), None, &[]);
    let ((), latest) = under_load(&server, || {
        replicate(&server, &replica);
        rewrite_log(&server);
    });
    wait_for_replica(&server, &replica);
    assert_eq!(exact_prefix(&mut replica.connect()), latest);
    let statistics = server.stop(folder.path());
    assert!(statistics["snapshots"] >= 2 && incomplete(&statistics) == 0, "{statistics:?}");
    let stock = Server::start_of(VALKEY, folder.path(), None, &["--appendonly", "yes"]);
    assert_eq!(exact_prefix(&mut stock.connect()), latest);
}
