//! Servers that become daemons have snapshots like others.

mod common;

use common::{Engine, KEYS, Server, build_program, incomplete, memory_is_as_it_was, scenarios};

with_each_engine!(
    a_redis_that_is_a_daemon_saves_by_snapshots,
    what_daemons_inherited_is_theirs,
    the_environment_is_read_once,
);

fn a_redis_that_is_a_daemon_saves_by_snapshots(engine: Engine) {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_daemon(folder.path(), engine);
    let statistics = scenarios::saves_under_load_are_exact_images(server, folder.path(), 2);
    assert_eq!(incomplete(&statistics), 0);
    // The data are in the daemon's own region, not in the inherited one, which has few pages. The number of pages that the load
    // writes during a save depends on the machine.
    assert!(statistics["pages_copied"] > KEYS * 500 / 4096 / 20, "{statistics:?}");
}

/// The memory that a daemon had before it became one stays unchanged, in itself and in its children, while its parent continues
/// and writes.
fn what_daemons_inherited_is_theirs(engine: Engine) {
    let folder = tempfile::tempdir().unwrap();
    let program = build_program(folder.path());
    // With `daemon` the parent exits at once, sometimes before its child has sent anything to it.
    for how in ["setsid"].into_iter().chain(["daemon"; 10]) {
        memory_is_as_it_was(&program, how, engine);
    }
}

/// A program that has cleared its environment keeps its engine.
fn the_environment_is_read_once(engine: Engine) {
    let folder = tempfile::tempdir().unwrap();
    memory_is_as_it_was(&build_program(folder.path()), "clearenv", engine);
}
