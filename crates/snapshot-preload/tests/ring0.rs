//! The same under the engine of ring 0, in a virtual machine. The server runs in ring 0. Its children, which save, run on
//! processors whose page tables show a snapshot.

mod common;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use bedplate_vm::{File, Job, Kernel, Machine, Series};
use common::*;

/// Runs a test's body if this is a guest already. Otherwise runs this binary's test of that name in a guest of its own.
fn in_ring0(series: Series, name: &str, body: impl FnOnce()) {
    if in_guest() {
        return body();
    }
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::new(Kernel::get(series).unwrap())
        .limit(Duration::from_secs(300))
        .file(File { host: library(), guest: IN_GUEST.into() })
        .file(File { host: build_program(folder.path()), guest: PROGRAM_IN_GUEST.into() })
        .program("redis-server")
        .unwrap();
    let this = std::env::current_exe().unwrap().display().to_string();
    let jobs = [Job::new([this.as_str(), "--exact", name, "--nocapture"])];
    let ended = machine.capture_despite_losses(&jobs, |why| println!("{why}")).unwrap();
    print!("{}", ended.out);
    let report = &ended.report;
    assert!(
        report.succeeded() && ended.out.contains("1 passed"),
        "{:?} {:?}\n{}\n{}",
        report.statuses,
        report.complaints,
        ended.out,
        ended.err
    );
}

/// Checks the server's counts of its snapshots' children.
fn check(statistics: &Statistics) {
    println!("{statistics:?}");
    assert_eq!(statistics["children"], statistics["snapshots"], "{statistics:?}");
    assert!(statistics["child_pages"] > 0 && statistics["pages_copied"] > 0, "{statistics:?}");
}

#[test]
fn bgsave_under_load_is_an_exact_image() {
    in_ring0(Series::V6_1, "bgsave_under_load_is_an_exact_image", || {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start(folder.path(), Some("ring0"), &[]);
        check(&scenarios::saves_under_load_are_exact_images(server, folder.path(), 2));
    });
}

#[test]
fn the_log_is_rewritten_under_load() {
    in_ring0(Series::V6_1, "the_log_is_rewritten_under_load", || {
        let statistics = scenarios::a_log_rewritten_under_load_is_complete("ring0", Server::terminate);
        assert!(statistics["children"] >= 1 && statistics["active"] == 0, "{statistics:?}");
    });
}

#[test]
fn children_and_parents_may_be_killed() {
    in_ring0(Series::V6_12, "children_and_parents_may_be_killed", || {
        scenarios::children_and_parents_may_be_killed("ring0", &[0, 20, 300].map(Duration::from_millis));
    });
}

#[test]
fn memory_given_back_is_still_in_the_image() {
    in_ring0(Series::V6_12, "memory_given_back_is_still_in_the_image", || {
        check(&scenarios::memory_given_back_is_still_in_the_image("ring0", 400));
    });
}

/// A program that has cleared its environment maps memory in the same place as before.
#[test]
fn the_environment_is_read_once() {
    in_ring0(Series::V6_12, "the_environment_is_read_once", || {
        memory_is_as_it_was(Path::new(PROGRAM_IN_GUEST), "clearenv", "ring0");
    });
}

#[test]
fn without_ring0_it_says_so_once_and_works() {
    // SAFETY: only queries the user.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: only root can take /dev/kvm away from a program");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "LD_PRELOAD={} BEDPLATE_SNAPSHOT_ENGINE=ring0 exec \"$@\" 2>{}/said",
        library().display(),
        folder.path().display()
    );
    let port = free_port();
    let mut command = Command::new("unshare");
    // This runs without /dev/kvm.
    let hide = format!("mount -t tmpfs none /dev; mknod /dev/null c 1 3; mknod /dev/urandom c 1 9; {script}");
    command.args(["--mount", "sh", "-c", &hide, "sh", "redis-server", "--port", &port.to_string()]);
    command.args(["--save", "", "--loglevel", "warning", "--dir"]).arg(folder.path());
    let server = Server::around(command.spawn().unwrap(), port);
    let mut connection = server.connect();
    bgsave(&mut connection);
    assert_eq!(saved(&mut connection), "ok");
    let said = std::fs::read_to_string(folder.path().join("said")).unwrap();
    assert_eq!(said.matches("bedplate snapshot: running without snapshots: ").count(), 1, "{said}");
}
