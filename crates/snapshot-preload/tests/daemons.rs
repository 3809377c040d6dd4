//! Servers that make themselves daemons have snapshots as others have.

mod common;

use std::path::Path;
use std::process::Command;

use common::{Engine, KEYS, Server, library, scenarios, torn};

with_each_engine!(a_redis_that_is_a_daemon_saves_by_snapshots, what_daemons_inherited_is_theirs);

fn a_redis_that_is_a_daemon_saves_by_snapshots(engine: Engine) {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_daemon(folder.path(), engine);
    let statistics = scenarios::saves_under_load_are_exact_images(server, folder.path(), 2);
    assert_eq!(torn(&statistics), 0);
    // The data are in the daemon's own region, not in what it inherited.
    assert!(statistics["pages_copied"] > KEYS * 500 / 4096 / 4, "{statistics:?}");
}

/// What a daemon had before it became one is the same afterwards, in itself and in its children, while its parent lives
/// on and writes.
fn what_daemons_inherited_is_theirs(engine: Engine) {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) =
        (Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/daemon.c"), folder.path().join("daemon"));
    assert!(Command::new("cc").args(["-O1", "-o"]).arg(&program).arg(&source).status().unwrap().success());
    // With `daemon` the parent ends at once: sometimes before its child has said anything to it.
    for how in ["setsid"].into_iter().chain(["daemon"; 10]) {
        let mut command = Command::new(&program);
        command.arg(how).env("LD_PRELOAD", library()).env("BEDPLATE_SNAPSHOT_REQUIRED", "1");
        command.env("BEDPLATE_SNAPSHOT_ENGINE", engine);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{how}: {output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "as it was\n", "{how}: {output:?}");
    }
}
