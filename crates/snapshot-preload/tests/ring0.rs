//! The same under the engine of ring 0, in a virtual machine: the server runs in ring 0, and its children, which save, on
//! processors of their own whose page tables show a snapshot.
//!
//! Each test that begins on the host boots a guest for one that runs there, which is this binary, too.

mod common;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use bedplate_vm::{File, Job, Kernel, Machine, Series};
use common::*;

fn program(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap();
    let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|p| p.is_file());
    std::fs::canonicalize(found.unwrap_or_else(|| panic!("{name} is not installed: make setup"))).unwrap()
}

/// Runs one of the tests below in a guest.
fn run(series: Series, name: &str) {
    let machine = Machine::new(Kernel::get(series).unwrap())
        .limit(Duration::from_secs(300))
        .file(File { host: library(), guest: IN_GUEST.into() })
        .file(File { host: program("redis-server"), guest: Path::new("/usr/local/bin/redis-server").into() });
    let this = std::env::current_exe().unwrap().display().to_string();
    let jobs = [Job::new([this.as_str(), "--exact", name, "--ignored", "--nocapture"])];
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let attempt = |machine: &Machine| {
        out.clear();
        err.clear();
        machine.run(&jobs, &mut out, &mut err)
    };
    let report = machine.run_despite_losses(attempt, |why| println!("{why}")).unwrap();
    let (out, err) = (String::from_utf8_lossy(&out), String::from_utf8_lossy(&err));
    print!("{out}");
    assert!(
        report.succeeded() && out.contains("1 passed"),
        "{:?} {:?}\n{out}\n{err}",
        report.statuses,
        report.complaints
    );
}

#[test]
fn bgsave_under_load_is_an_exact_image() {
    run(Series::V6_1, "in_guest_bgsave");
}

#[test]
fn the_log_is_rewritten_under_load() {
    run(Series::V6_1, "in_guest_rewrite");
}

#[test]
fn children_and_parents_may_be_killed() {
    run(Series::V6_12, "in_guest_kill");
}

#[test]
fn memory_given_back_is_still_in_the_image() {
    run(Series::V6_12, "in_guest_discard");
}

#[test]
fn without_ring0_it_says_so_once_and_works() {
    // SAFETY: a question.
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
    // Without /dev/kvm.
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

/// What the server said about a snapshot's children and pages.
fn check(statistics: &HashMap<String, u64>, snapshots: u64) {
    println!("{statistics:?}");
    assert_eq!((statistics["snapshots"], statistics["active"]), (snapshots, 0), "{statistics:?}");
    assert_eq!(statistics["children"], snapshots, "{statistics:?}");
    assert!(statistics["child_pages"] > 0 && statistics["pages_copied"] > 0, "{statistics:?}");
}

#[test]
#[ignore = "in a virtual machine"]
fn in_guest_bgsave() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), true, &[]);
    fill(&server);
    for round in 0..2 {
        under_load(&server, || {
            let mut connection = server.connect();
            bgsave(&mut connection);
            assert_eq!(saved(&mut connection), "ok");
        });
        let stock = Server::start(folder.path(), false, &[]);
        println!("round {round}: up to {}", exact_prefix(&mut stock.connect()));
        let _: () = redis::cmd("FLUSHALL").query(&mut server.connect()).unwrap();
        fill(&server);
    }
    check(&server.stop(folder.path()), 2);
}

#[test]
#[ignore = "in a virtual machine"]
fn in_guest_rewrite() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), true, &["--appendonly", "yes", "--appendfsync", "no"]);
    fill(&server);
    let ((), latest) = under_load(&server, || {
        let mut connection = server.connect();
        wait_for(&mut connection, "persistence", "aof_rewrite_in_progress", "0");
        let _: String = redis::cmd("BGREWRITEAOF").query(&mut connection).unwrap();
        wait_for(&mut connection, "persistence", "aof_rewrite_scheduled", "0");
        wait_for(&mut connection, "persistence", "aof_rewrite_in_progress", "0");
        assert_eq!(info(&mut connection, "persistence", "aof_last_bgrewrite_status"), "ok");
    });
    let statistics = server.terminate(folder.path());
    assert!(statistics["children"] >= 1 && statistics["active"] == 0, "{statistics:?}");
    let stock = Server::start(folder.path(), false, &["--appendonly", "yes"]);
    assert_eq!(exact_prefix(&mut stock.connect()), latest);
}

#[test]
#[ignore = "in a virtual machine"]
fn in_guest_kill() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::start(folder.path(), true, &["--rdb-key-save-delay", "100"]);
    fill(&server);
    let mut connection = server.connect();
    let delay = |connection: &mut redis::Connection, micros: u32| {
        let _: String =
            redis::cmd("CONFIG").arg("SET").arg("rdb-key-save-delay").arg(micros).query(connection).unwrap();
    };
    let (_, latest) = under_load(&server, || {
        for wait in [0, 20, 300] {
            bgsave(&mut connection);
            let child = child_of(&server);
            std::thread::sleep(Duration::from_millis(wait));
            kill(child);
            assert_eq!(saved(&mut connection), "err");
        }
    });
    assert_eq!(exact_prefix(&mut connection), latest);
    delay(&mut connection, 0);
    bgsave(&mut connection);
    assert_eq!(saved(&mut connection), "ok");
    // A child that outlives its parent ends its work, and nothing hangs.
    delay(&mut connection, 20);
    bgsave(&mut connection);
    let child = child_of(&server);
    server.process.kill().unwrap();
    server.process.wait().unwrap();
    let limit = Instant::now() + Duration::from_secs(120);
    while Path::new(&format!("/proc/{child}")).exists() {
        assert!(Instant::now() < limit, "the child {child} hangs");
        std::thread::sleep(Duration::from_millis(20));
    }
    let stock = Server::start(folder.path(), false, &[]);
    assert_eq!(exact_prefix(&mut stock.connect()), latest);
}

#[test]
#[ignore = "in a virtual machine"]
fn in_guest_discard() {
    use redis::Commands;
    let folder = tempfile::tempdir().unwrap();
    // Saving is slowed down, so that all is deleted before it ends.
    let server = Server::start(folder.path(), true, &["--rdb-key-save-delay", "400"]);
    fill(&server);
    let mut connection = server.connect();
    bgsave(&mut connection);
    for start in (0..KEYS).step_by(1000) {
        let keys: Vec<u64> = (start..start + 1000).collect();
        let _: u64 = connection.del(keys).unwrap();
    }
    let _: String = redis::cmd("MEMORY").arg("PURGE").query(&mut connection).unwrap();
    assert_eq!(info(&mut connection, "persistence", "rdb_bgsave_in_progress"), "1", "saving was too fast");
    fill(&server);
    assert_eq!(saved(&mut connection), "ok");
    let stock = Server::start(folder.path(), false, &[]);
    assert_eq!(exact_prefix(&mut stock.connect()), KEYS);
    assert_eq!(exact_prefix(&mut connection), KEYS);
    check(&server.stop(folder.path()), 1);
}
