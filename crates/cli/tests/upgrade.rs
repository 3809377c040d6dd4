//! Upgrades a real server to another program file while clients work.

#[path = "soak/footprint.rs"]
#[allow(dead_code, reason = "this test uses a part of it")]
mod footprint;
mod running;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use footprint::{Footprint, exist, kernel_objects_where};
use redis::{Commands, Connection, RedisResult};
use running::{Server, command};
use rustix::process::{Pid, Signal, kill_process};

/// A folder with a copy of the program, which tests replace.
struct Installed {
    folder: tempfile::TempDir,
    /// The program without its debugging information, which is most of it.
    program: PathBuf,
}

impl Installed {
    fn new() -> Installed {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("stripped");
        let stripped =
            Command::new("strip").arg("-o").arg(&program).arg(env!("CARGO_BIN_EXE_bedplate")).status();
        assert!(stripped.unwrap().success());
        let installed = Installed { folder, program };
        installed.install();
        installed
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("bedplate")
    }

    /// Replaces the file as `make install` does. Returns the number of the new one.
    fn install(&self) -> u64 {
        let new = self.folder.path().join("new");
        fs::copy(&self.program, &new).unwrap();
        fs::rename(&new, self.file()).unwrap();
        fs::metadata(self.file()).unwrap().ino()
    }

    /// Replaces the file by a script.
    fn script(&self, text: &str) {
        let new = self.folder.path().join("new");
        fs::write(&new, text).unwrap();
        fs::set_permissions(&new, Permissions::from_mode(0o755)).unwrap();
        fs::rename(&new, self.file()).unwrap();
    }

    fn start(&self, data: &Path, options: &[&str]) -> Server {
        Server::start_by(&[], &self.file(), data, options)
    }
}

fn upgrade(connection: &mut Connection) -> RedisResult<()> {
    redis::cmd("BEDPLATE").arg("UPGRADE").query(connection)
}

/// The number of the file that a process runs.
fn running_file(process: u32) -> u64 {
    fs::metadata(format!("/proc/{process}/exe")).unwrap().ino()
}

/// Clients that count, until they are told to stop; each checks every reply.
fn count_with_clients(server: &Server, stop: &Arc<AtomicBool>) -> Vec<thread::JoinHandle<u64>> {
    let clients = (0..4).map(|number| {
        let (mut connection, stop) = (server.connect(), stop.clone());
        thread::spawn(move || {
            let mut counted = 0;
            while !stop.load(Ordering::Relaxed) {
                counted += 1;
                let key = format!("count{number}");
                let (now, read): (u64, u64) =
                    redis::pipe().cmd("INCR").arg(&key).cmd("GET").arg(&key).query(&mut connection).unwrap();
                assert_eq!((now, read), (counted, counted));
            }
            counted
        })
    });
    clients.collect()
}

/// The process stays, and runs the new file, with all connections and all data. Nothing of the old program is left in the kernel.
#[test]
fn a_server_goes_on_with_a_new_program() {
    for options in [
        &[][..],
        &["--in-memory"],
        &["--durability", "off", "--no-kernel-path"],
        &["--durability", "sync", "--partitions", "2"],
        &["--engine", "hash-map"],
        &["--local-fast-path"],
    ] {
        let (installed, data) = (Installed::new(), tempfile::tempdir().unwrap());
        let server = installed.start(data.path(), options);
        let mut connection = server.connect();
        let value = "v".repeat(10_000);
        let mut sets = redis::pipe();
        for i in 0..300 {
            sets.set(i, &value).ignore();
        }
        let () = sets.query(&mut connection).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let clients = count_with_clients(&server, &stop);
        let before = Footprint::of(server.process(), 0);
        let old = kernel_objects_where(server.process(), |_| true);
        for round in 0..3 {
            let file = installed.install();
            if round < 2 {
                let () = upgrade(&mut connection).unwrap();
            } else {
                kill_process(Pid::from_raw(server.process() as i32).unwrap(), Signal::USR2).unwrap();
            }
            let since = Instant::now();
            while running_file(server.process()) != file {
                assert!(round == 2 && since.elapsed() < Duration::from_secs(30), "{options:?}");
                thread::sleep(Duration::from_millis(5));
            }
            let kept: String = connection.get(299).unwrap();
            assert_eq!(kept, value);
            let mut newcomer = server.connect();
            let kept: String = newcomer.get(0).unwrap();
            assert_eq!(kept, value);
        }
        stop.store(true, Ordering::Relaxed);
        for (number, client) in clients.into_iter().enumerate() {
            let counted = client.join().unwrap();
            let kept: u64 = connection.get(format!("count{number}")).unwrap();
            assert!(counted > 1 && kept == counted, "{options:?}: {counted} {kept}");
        }
        // The socket of a local client has a program of the server that it has connected to.
        drop(connection);
        let since = Instant::now();
        until_gone(&old, &server, options);
        // The server closes the connections of the newcomers a little later than they do.
        let mut after = Footprint::of(server.process(), 0);
        while after.descriptors > before.descriptors || after.threads > before.threads {
            assert!(since.elapsed() < Duration::from_secs(60), "{options:?}: {before:?} {after:?}");
            thread::sleep(Duration::from_millis(20));
            after = Footprint::of(server.process(), 0);
        }
        let (code, said) = server.end(Signal::TERM);
        assert_eq!(code, Some(0), "{said}");
        assert!(!said.contains("ERROR"), "{said}");
    }
}

/// Waits until the kernel has none of these objects any more, except for those that the server has.
fn until_gone(old: &BTreeSet<String>, server: &Server, options: &[&str]) {
    let since = Instant::now();
    loop {
        let new = kernel_objects_where(server.process(), |_| true);
        let gone: Vec<&String> = old.difference(&new).collect();
        if !exist(&gone) {
            return;
        }
        assert!(since.elapsed() < Duration::from_secs(60), "{options:?}: of {gone:?} some are left");
        thread::sleep(Duration::from_millis(20));
    }
}

const HANDLERS: &str = r#"
#include <bedplate/handler.h>
KDB_LICENSE("Dual MIT/GPL");

static __always_inline int count(struct kdb_proc *p)
{
	__s64 number = 0;

	if (KDB_TRY(kdb_read_for_update(p)) == KDB_OK)
		KDB_TRY(kdb_value_integer(p, &number));
	return kdb_write_integer(p, number + 1);
}

KDB_TIMER_HANDLER(tick)
{
	KDB_TRY(kdb_key(p, "ticks"));
	return count(p);
}

KDB_TRACEPOINT_HANDLER(executed, sched_process_exec)
{
	KDB_TRY(kdb_key(p, "programs"));
	return count(p);
}

KDB_TC_HANDLER(packet, KDB_TC_PASS)
{
	KDB_TRY(kdb_key(p, "packets"));
	return count(p);
}
"#;

/// Handlers go on at the events that they were attached to, by an option or by a client, and so do their counts.
#[test]
fn handlers_stay_attached() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("events.c");
    fs::write(&source, HANDLERS).unwrap();
    let library = folder.path().join("events.bpf.o");
    let build = ["kv", "build-procedure", source.to_str().unwrap(), "-o", library.to_str().unwrap()];
    let built = command(&build).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    for place in ["--in-memory", "--durability=off"] {
        let (installed, data) = (Installed::new(), tempfile::tempdir().unwrap());
        let options = [
            place,
            "--allow-procedure-loading",
            "--procedure",
            library.to_str().unwrap(),
            "--attach",
            "tick=timer:5ms",
        ];
        let server = installed.start(data.path(), &options);
        let mut connection = server.connect();
        for (handler, event) in [("executed", "tracepoint:sched_process_exec"), ("packet", "tc:lo/ingress")] {
            let () = redis::cmd("PROC").arg("ATTACH").arg(handler).arg(event).query(&mut connection).unwrap();
        }
        let keys = ["ticks", "programs", "packets"];
        let wait_for_events = |connection: &mut Connection| {
            let read = |connection: &mut Connection| -> Vec<u64> {
                keys.iter().map(|key| connection.get::<_, Option<u64>>(key).unwrap().unwrap_or(0)).collect()
            };
            let (before, since) = (read(connection), Instant::now());
            while read(connection).iter().zip(&before).any(|(now, before)| now <= before) {
                assert!(since.elapsed() < Duration::from_secs(30), "{before:?}");
                assert!(Command::new("true").status().unwrap().success());
            }
        };
        // Another interval than the option's, which the next program cannot attach beside it.
        for (command, event) in [("DETACH", "timer:5ms"), ("ATTACH", "timer:6ms")] {
            let () = redis::cmd("PROC").arg(command).arg("tick").arg(event).query(&mut connection).unwrap();
        }
        wait_for_events(&mut connection);
        let old = kernel_objects_where(server.process(), |info| !info.contains("link_type:"));
        for _ in 0..2 {
            installed.install();
            let () = upgrade(&mut connection).unwrap();
            wait_for_events(&mut connection);
            let (_, versions): (String, u32) =
                redis::cmd("CONFIG").arg("GET").arg("versions").query(&mut connection).unwrap();
            let other = (versions % 8 + 1).to_string();
            let () =
                redis::cmd("CONFIG").arg("SET").arg("versions").arg(other).query(&mut connection).unwrap();
            wait_for_events(&mut connection);
        }
        // Every committed event of a packet is in the database, and the counts are those since the library was loaded first.
        let detach = |connection: &mut Connection, handler: &str, event: &str| {
            let () = redis::cmd("PROC").arg("DETACH").arg(handler).arg(event).query(connection).unwrap();
        };
        detach(&mut connection, "packet", "tc:lo/ingress");
        detach(&mut connection, "tick", "timer:6ms");
        let list: Vec<BTreeMap<String, redis::Value>> =
            redis::cmd("PROC").arg("LIST").query(&mut connection).unwrap();
        for (handler, key) in [("packet", "packets"), ("tick", "ticks")] {
            let name = redis::Value::BulkString(handler.into());
            let listed = list.iter().find(|listed| listed["name"] == name).unwrap();
            let kept: i64 = connection.get(key).unwrap();
            assert_eq!(listed["committed"], redis::Value::Int(kept), "{listed:?}");
        }
        drop(connection);
        until_gone(&old, &server, &options);
        let (code, said) = server.end(Signal::TERM);
        assert_eq!(code, Some(0), "{said}");
        assert_eq!(said.matches("a handler has one timer").count(), 2, "{said}");
    }
}

/// The file of options can name another storage engine: clients and data stay. If it has fewer versions, the log says so.
#[test]
fn the_storage_engine_changes() {
    for place in ["in-memory", "durability sync"] {
        let (installed, data) = (Installed::new(), tempfile::tempdir().unwrap());
        let file = installed.folder.path().join("options");
        let options = ["--config", file.to_str().unwrap()];
        let write = |engine: &str| fs::write(&file, format!("engine {engine}\n{place}\n")).unwrap();
        write("arena");
        let server = installed.start(data.path(), &options);
        let mut connection = server.connect();
        let () = redis::cmd("CONFIG").arg("SET").arg("versions").arg(16).query(&mut connection).unwrap();
        let () = redis::pipe().set("a", 1).set("b", "x".repeat(60_000)).query(&mut connection).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let clients = count_with_clients(&server, &stop);
        for (engine, versions) in [("hash-map", "8"), ("arena", "8"), ("hash-map", "8")] {
            thread::sleep(Duration::from_millis(200));
            write(engine);
            let () = upgrade(&mut connection).unwrap();
            let (_, now): (String, String) =
                redis::cmd("CONFIG").arg("GET").arg("versions").query(&mut connection).unwrap();
            assert_eq!(now, versions);
            let info: String = redis::cmd("INFO").arg("bedplate").query(&mut connection).unwrap();
            assert!(info.contains(&format!("storage_engine:{engine}\r\n")), "{info}");
            let (a, b): (u64, String) = redis::pipe().get("a").get("b").query(&mut connection).unwrap();
            assert_eq!((a, b.len()), (1, 60_000));
        }
        stop.store(true, Ordering::Relaxed);
        for (number, client) in clients.into_iter().enumerate() {
            let counted = client.join().unwrap();
            let kept: u64 = connection.get(format!("count{number}")).unwrap();
            assert!(counted > 1 && kept == counted, "{place}: {counted} {kept}");
        }
        drop(connection);
        let (code, said) = server.end(Signal::TERM);
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("hash maps do not have as many versions"), "{said}");
    }
}

/// A file that cannot go on is refused. If that turns out after the check, the old program goes on.
#[test]
fn a_program_that_cannot_go_on_is_refused() {
    for options in [&[][..], &["--in-memory"]] {
        let (installed, data) = (Installed::new(), tempfile::tempdir().unwrap());
        let server = installed.start(data.path(), options);
        let (mut connection, mut other) = (server.connect(), server.connect());
        let () = redis::cmd("CONFIG").arg("SET").arg("versions").arg("7").query(&mut connection).unwrap();
        let mut written = 0;
        for (script, reason) in [
            ("#!/bin/sh\nexit 3\n", "it does not know upgrades"),
            ("#!/bin/sh\necho 'error: the port is wrong' >&2\nexit 2\n", "error: the port is wrong"),
            ("#!/bin/sh\necho handover 77\n", "format of a handover"),
            // A program that has no users.
            ("#!/bin/sh\necho handover 1,2\n", "format of a handover"),
            ("#!/bin/sh\n", "format of a handover"),
            ("no program", "cannot be run"),
            // It says yes, and is gone when it is to go on.
            ("#!/bin/sh\nrm \"$0\"\necho handover 1,2,3\n", "No such file or directory"),
            // Its own child does not matter.
            ("#!/bin/sh\nsleep 1000 &\nexit 3\n", "it does not know upgrades"),
        ] {
            installed.script(script);
            let error = upgrade(&mut connection).unwrap_err().to_string();
            assert!(error.contains(reason), "{script:?}: {error}");
            written += 1;
            let now: u64 = redis::cmd("INCR").arg("n").query(&mut other).unwrap();
            assert_eq!(now, written);
            let (_, versions): (String, String) =
                redis::cmd("CONFIG").arg("GET").arg("versions").query(&mut connection).unwrap();
            assert_eq!(versions, "7");
        }
        // The server has the only share of the store, as before.
        for versions in ["6", "7"] {
            let () =
                redis::cmd("CONFIG").arg("SET").arg("versions").arg(versions).query(&mut connection).unwrap();
        }
        let file = installed.install();
        let () = upgrade(&mut connection).unwrap();
        assert_eq!(running_file(server.process()), file);
        let (_, versions): (String, String) =
            redis::cmd("CONFIG").arg("GET").arg("versions").query(&mut connection).unwrap();
        assert_eq!(versions, "7");
        let now: u64 = redis::cmd("INCR").arg("n").query(&mut other).unwrap();
        assert_eq!(now, written + 1);
        drop((connection, other));
        let (code, said) = server.end(Signal::TERM);
        assert_eq!(code, Some(0), "{said}");
        if options.is_empty() {
            let server = installed.start(data.path(), &[]);
            let kept: u64 = server.connect().get("n").unwrap();
            assert_eq!(kept, written + 1);
        }
    }
}

/// The new program reads the file of options again. One with errors, or with another place for the data, is refused.
#[test]
fn options_are_read_again() {
    let (installed, data) = (Installed::new(), tempfile::tempdir().unwrap());
    let file = installed.folder.path().join("options");
    let options = ["--config", file.to_str().unwrap()];
    fs::write(&file, "versions 5\n").unwrap();
    let server = installed.start(data.path(), &options);
    let mut connection = server.connect();
    let () = connection.set("a", 1).unwrap();
    for (text, reason) in [
        ("nonsense 1\n", "unexpected argument '--nonsense'"),
        ("in-memory\n", "the data is in"),
        ("procedure /nowhere/missing.o\n", "missing.o"),
        ("password-file /nowhere/missing\n", "missing"),
    ] {
        fs::write(&file, text).unwrap();
        let error = upgrade(&mut connection).unwrap_err().to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }
    fs::write(&file, "versions 9\n").unwrap();
    let () = upgrade(&mut connection).unwrap();
    let (_, versions): (String, String) =
        redis::cmd("CONFIG").arg("GET").arg("versions").query(&mut connection).unwrap();
    let kept: u64 = connection.get("a").unwrap();
    assert_eq!((&*versions, kept), ("9", 1));
}

/// A signal that ends the server does so at every moment of an upgrade, and loses nothing.
#[test]
fn a_signal_at_any_moment_loses_nothing() {
    let (installed, data) = (Installed::new(), tempfile::tempdir().unwrap());
    let ways = [("async", Signal::TERM), ("off", Signal::TERM), ("sync", Signal::KILL)];
    for round in 0..12 {
        let (durability, signal) = ways[round % 3];
        let server = installed.start(data.path(), &["--durability", durability]);
        let mut connection = server.connect();
        let now: usize = redis::cmd("INCR").arg("n").query(&mut connection).unwrap();
        assert_eq!(now, round + 1);
        kill_process(Pid::from_raw(server.process() as i32).unwrap(), Signal::USR2).unwrap();
        thread::sleep(Duration::from_millis(70 * round as u64));
        let since = Instant::now();
        let (code, said) = server.end(signal);
        // SIGTERM ends a program that is starting at once.
        assert!(matches!(code, Some(0) | None), "{code:?}: {said}");
        assert!(since.elapsed() < Duration::from_secs(20), "{said}");
    }
}

/// A program that says nothing is given up.
#[test]
fn a_check_has_a_limit_of_time() {
    let (installed, data) = (Installed::new(), tempfile::tempdir().unwrap());
    let server = installed.start(data.path(), &["--in-memory"]);
    let mut connection = server.connect();
    installed.script("#!/bin/sh\nexec sleep 1000\n");
    let error = upgrade(&mut connection).unwrap_err().to_string();
    assert!(error.contains("does not say whether it can go on"), "{error}");
    let () = connection.set("a", 1).unwrap();
}

/// The check tries the new program's eBPF programs, which the kernel refuses to a process that lost its capabilities.
#[test]
fn a_program_that_may_not_load_ebpf_is_refused() {
    let (installed, data) = (Installed::new(), tempfile::tempdir().unwrap());
    let server = installed.start(data.path(), &[]);
    let mut connection = server.connect();
    let program = env!("CARGO_BIN_EXE_bedplate");
    let drop_all = "setpriv --bounding-set=-all --inh-caps=-all --ambient-caps=-all";
    installed.script(&format!("#!/bin/sh\nexec {drop_all} {program} \"$@\"\n"));
    let error = upgrade(&mut connection).unwrap_err().to_string();
    assert!(error.contains("Operation not permitted"), "{error}");
    let () = connection.set("a", 1).unwrap();
    let (code, said) = server.end(Signal::TERM);
    assert_eq!(code, Some(0), "{said}");
}

/// The environment variable of upgrades is no way to start a server.
#[test]
fn descriptors_that_nobody_has_left_are_refused() {
    for (text, reason) in
        [("x", "unset it"), ("", "unset it"), ("900", "no descriptor 900"), ("0", "cannot be read")]
    {
        let serve = ["kv", "serve", "--in-memory", "--port", "0"];
        let failed = command(&serve).env("BEDPLATE_HANDOVER", text).output().unwrap();
        let said = String::from_utf8_lossy(&failed.stderr).into_owned();
        assert!(failed.status.code() == Some(1) && said.contains(reason), "{text:?}: {said}");
    }
}
