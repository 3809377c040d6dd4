//! Servers that make themselves daemons have snapshots as others have.

mod common;

use std::path::Path;
use std::process::Command;

use common::{KEYS, Server, library, scenarios};

#[test]
fn a_redis_that_is_a_daemon_saves_by_snapshots() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_daemon(folder.path());
    let statistics = scenarios::saves_under_load_are_exact_images(server, folder.path(), 2);
    assert_eq!(statistics["torn"], 0);
    // The data are in the daemon's own region, not in what it inherited.
    assert!(statistics["pages_copied"] > KEYS * 500 / 4096 / 4, "{statistics:?}");
}

/// What a daemon had before it became one is the same afterwards, in itself and in its children, while its parent lives
/// on and writes.
#[test]
fn what_daemons_inherited_is_theirs() {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) =
        (Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/daemon.c"), folder.path().join("daemon"));
    assert!(Command::new("cc").args(["-O1", "-o"]).arg(&program).arg(&source).status().unwrap().success());
    for how in ["setsid", "daemon"] {
        let mut command = Command::new(&program);
        command.arg(how).env("LD_PRELOAD", library()).env("BEDPLATE_SNAPSHOT_REQUIRED", "1");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{how}: {output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "as it was\n", "{how}: {output:?}");
    }
}
