//! The distribution's redis-server, unmodified, saves its memory with snapshots. The saved file is an exact image of one moment,
//! and events in its children or its memory meanwhile do not change it.

mod common;

use std::process::{Command, Stdio};
use std::time::Duration;

use common::{
    Engine, KEYS, Server, bgsave, exact_prefix, fill, free_port, incomplete, library, number_of, replicate,
    saved, scenarios, under_load, value, wait_for_replica,
};
use redis::Commands;

with_each_engine!(
    bgsave_under_load_is_an_exact_image,
    the_log_is_rewritten_under_load,
    a_stock_replica_gets_everything,
    memory_given_back_is_still_in_the_image,
    children_and_parents_may_be_killed,
    a_full_disk_is_an_error_and_no_more,
    eviction_and_small_pages_do_no_harm,
);

fn bgsave_under_load_is_an_exact_image(engine: Engine) {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), Some(engine), &[]);
    assert_eq!(incomplete(&scenarios::saves_under_load_are_exact_images(server, folder.path(), 3)), 0);
}

fn the_log_is_rewritten_under_load(engine: Engine) {
    scenarios::a_log_rewritten_under_load_is_complete(engine, Server::stop);
}

fn a_stock_replica_gets_everything(engine: Engine) {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // Both ways of a full synchronization are tested: over a file and directly.
    for diskless in ["no", "yes"] {
        let server = Server::start(folder.path(), Some(engine), &["--repl-diskless-sync", diskless]);
        fill(&server);
        let replica = Server::start(other.path(), None, &["--repl-diskless-sync-delay", "0"]);
        let ((), latest) = under_load(&server, || replicate(&server, &replica));
        wait_for_replica(&server, &replica);
        assert_eq!(exact_prefix(&mut replica.connect()), latest, "diskless {diskless}");
        assert_eq!(incomplete(&server.stop(folder.path())), 0);
    }
}

fn memory_given_back_is_still_in_the_image(engine: Engine) {
    assert_eq!(incomplete(&scenarios::memory_given_back_is_still_in_the_image(engine, 50)), 0);
}

fn children_and_parents_may_be_killed(engine: Engine) {
    scenarios::children_and_parents_may_be_killed(engine, &[Duration::ZERO; 5]);
}

fn a_full_disk_is_an_error_and_no_more(engine: Engine) {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let mount =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=4m", "none"]).arg(&disk).output().unwrap();
    if !mount.status.success() {
        println!("skipped: mounting takes privilege: {}", String::from_utf8_lossy(&mount.stderr).trim());
        return;
    }
    let server = Server::start(
        &disk,
        Some(engine),
        &["--stop-writes-on-bgsave-error", "no", "--rdbcompression", "no"],
    );
    fill(&server);
    let ((), latest) = under_load(&server, || {
        let mut connection = server.connect();
        bgsave(&mut connection);
        assert_eq!(saved(&mut connection), "err");
    });
    assert_eq!(exact_prefix(&mut server.connect()), latest);
    drop(server);
    assert!(Command::new("umount").arg(&disk).status().unwrap().success());
}

/// Values are evicted, moved and freed all the time, and pages are small.
fn eviction_and_small_pages_do_no_harm(engine: Engine) {
    let folder = tempfile::tempdir().unwrap();
    // SAFETY: the variable is in this test's own process, and only the servers read it.
    unsafe { std::env::set_var("BEDPLATE_SNAPSHOT_HUGE_PAGES", "0") };
    let options =
        ["--maxmemory", "20mb", "--maxmemory-policy", "allkeys-lru", "--lazyfree-lazy-eviction", "yes"];
    let server = Server::start(folder.path(), Some(engine), &options);
    // SAFETY: as above.
    unsafe { std::env::remove_var("BEDPLATE_SNAPSHOT_HUGE_PAGES") };
    under_load(&server, || {
        let mut connection = server.connect();
        for _ in 0..5 {
            bgsave(&mut connection);
            let _: String = redis::cmd("MEMORY").arg("PURGE").query(&mut connection).unwrap();
            assert_eq!(saved(&mut connection), "ok");
        }
    });
    let stock = Server::start(folder.path(), None, &[]);
    let mut connection = stock.connect();
    let size: u64 = redis::cmd("DBSIZE").query(&mut connection).unwrap();
    assert!(size > 1000);
    let keys: Vec<u64> = (0..KEYS).collect();
    for keys in keys.chunks(1000) {
        let values: Vec<Option<String>> = connection.mget(keys).unwrap();
        assert!(values.iter().flatten().all(|text| *text == value(number_of(text))));
    }
    assert_eq!(incomplete(&server.stop(folder.path())), 0);
}

#[test]
fn without_userfaultfd_it_says_so_once_and_works() {
    // SAFETY: only queries the user.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: only root can take userfaultfd away from a program");
        return;
    }
    if std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").is_ok_and(|text| text.trim() == "1") {
        println!("skipped: vm.unprivileged_userfaultfd is 1: nobody is without userfaultfd");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // If the library is in root's home, other users cannot read it.
    let library = {
        let copy = folder.path().join("preload.so");
        std::fs::copy(library(), &copy).unwrap();
        copy
    };
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let port = free_port();
    let script = format!(
        "LD_PRELOAD={} exec redis-server --port {port} --save '' --loglevel warning --dir {}",
        library.display(),
        folder.path().display()
    );
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "sh", "-c", &script]);
    let process = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut server = Server::around(process, port);
    let mut connection = server.connect();
    let _: () = connection.set("a", 1).unwrap();
    bgsave(&mut connection);
    assert_eq!(saved(&mut connection), "ok");
    let _: Result<(), _> = redis::cmd("SHUTDOWN").arg("NOSAVE").query(&mut connection);
    let mut said = String::new();
    std::io::Read::read_to_string(&mut server.process.stderr.take().unwrap(), &mut said).unwrap();
    let lines: Vec<_> = said.lines().filter(|line| line.contains("bedplate")).collect();
    assert_eq!(lines.len(), 1, "{said}");
    let why = "running without snapshots: the uffd engine does not work here: ";
    assert!(lines[0].contains(why) && lines[0].contains("/dev/userfaultfd"), "{said}");
}
