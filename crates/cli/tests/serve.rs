//! Tests `bedplate kv serve` as people run it: it starts, keeps its data over orderly and violent ends, and reports
//! an error in one line. Loading eBPF programs takes root; `make test` runs these tests as root.

mod running;

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use redis::{Commands, Connection};
use running::{Server, command};
use rustix::process::{Pid, Signal, kill_process};

fn set(connection: &mut Connection, key: &str, value: &str) {
    redis::cmd("SET").arg(key).arg(value).query::<()>(connection).unwrap();
}

fn get(connection: &mut Connection, key: &str) -> Option<String> {
    redis::cmd("GET").arg(key).query(connection).unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// Waits up to a minute.
fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process has a handler for a signal.
fn catches(process: &Child, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    u64::from_str_radix(caught.trim(), 16).unwrap() >> (signal.as_raw() - 1) & 1 == 1
}

#[test]
fn data_stays_over_an_orderly_end() {
    let data = tempfile::tempdir().unwrap();
    for durability in ["async", "sync"] {
        let server = Server::start(data.path(), &["--durability", durability]);
        set(&mut server.connect(), durability, "kept");
        let (code, said) = server.end(Signal::TERM);
        assert_eq!(code, Some(0), "{said}");
    }
    let server = Server::start(data.path(), &[]);
    let mut connection = server.connect();
    assert_eq!(get(&mut connection, "async").as_deref(), Some("kept"));
    assert_eq!(get(&mut connection, "sync").as_deref(), Some("kept"));
    let (code, said) = server.end(Signal::INT);
    assert_eq!(code, Some(0), "{said}");
}

/// A client that does not wait for the server to be ready may have its write acknowledged, and then stop the server.
#[test]
fn what_is_acknowledged_in_the_first_moment_stays() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for written in 0..8 {
        let port = port.to_string();
        let options = ["--port", &port, "--data-dir", data.to_str().unwrap(), "--memory", "64M"];
        let mut server =
            command(&[&["kv", "serve"], &options[..]].concat()).stdout(Stdio::null()).spawn().unwrap();
        let mut connection = None;
        wait_until("the server answers", || {
            connection = redis::Client::open(format!("redis://127.0.0.1:{port}"))
                .and_then(|client| client.get_connection())
                .ok();
            connection.is_some()
        });
        let now: u32 = connection.unwrap().incr("n", 1).unwrap();
        kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
        assert_eq!((now, server.wait().unwrap().code()), (written + 1, Some(0)));
    }
}

#[test]
fn a_server_whose_standard_error_is_closed_goes_on_and_stops_in_order() {
    let data = tempfile::tempdir().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    let server = Server::start_logging_to(data.path(), &[], writer.into());
    drop(reader);
    // The stop is logged, too.
    set(&mut server.connect(), "key", "kept");
    assert_eq!(server.end(Signal::TERM).0, Some(0));
    let server = Server::start(data.path(), &[]);
    assert_eq!(get(&mut server.connect(), "key").as_deref(), Some("kept"));
}

/// Recovery of a large database takes long. A user who stops the server meanwhile must not have to wait for it.
#[test]
fn a_signal_ends_a_server_that_still_recovers() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path(), &[]);
    set(&mut server.connect(), "key", "kept");
    assert_eq!(server.end(Signal::TERM).0, Some(0));
    // No process writes into the pipe, so opening it as the newest segment of the log takes for ever.
    let segment = data.path().join("wal").join(format!("{:020}-{:08}.log", 1_000_000, 1_000));
    assert!(Command::new("mkfifo").arg(&segment).status().unwrap().success());
    let mut starting = command(&["kv", "serve", "--port", "0", "--data-dir"])
        .arg(data.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("the server catches the signal", || catches(&starting, Signal::TERM));
    kill_process(Pid::from_child(&starting), Signal::TERM).unwrap();
    wait_until("the server has ended", || starting.try_wait().unwrap().is_some());
    let ended = starting.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(0), "{}", text(&ended));
    assert!(ended.stdout.is_empty(), "{}", text(&ended));
    assert!(text(&ended).contains("stopped while it started"), "{}", text(&ended));

    std::fs::remove_file(segment).unwrap();
    let server = Server::start(data.path(), &[]);
    assert_eq!(get(&mut server.connect(), "key").as_deref(), Some("kept"));
}

/// Recovery finds the damage when half of the checkpoint is loaded, while the server's programs are loaded for that database.
#[test]
fn a_checkpoint_that_is_damaged_in_the_middle_is_passed_over() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path(), &[]);
    let mut connection = server.connect();
    for round in 0..2 {
        for number in 0..200 {
            set(&mut connection, &format!("key {round} {number}"), &"v".repeat(30_000));
        }
        redis::cmd("SAVE").query::<()>(&mut connection).unwrap();
    }
    set(&mut connection, "last", "kept");
    assert_eq!(server.end(Signal::TERM).0, Some(0));
    let files = std::fs::read_dir(data.path().join("checkpoint")).unwrap();
    let newest = files.map(|file| file.unwrap().path()).max().unwrap();
    let mut bytes = std::fs::read(&newest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&newest, bytes).unwrap();
    let server = Server::start(data.path(), &[]);
    let mut connection = server.connect();
    for key in ["key 0 7", "key 1 199"] {
        assert_eq!(get(&mut connection, key).map(|value| value.len()), Some(30_000), "{key}");
    }
    assert_eq!(get(&mut connection, "last").as_deref(), Some("kept"));
    assert_eq!(redis::cmd("DBSIZE").query::<u64>(&mut connection).unwrap(), 401);
    set(&mut connection, "last", "changed");
    assert_eq!(get(&mut connection, "last").as_deref(), Some("changed"));
    let (code, said) = server.end(Signal::TERM);
    assert!(code == Some(0) && said.contains("a damaged checkpoint was skipped"), "{code:?} {said}");
}

#[test]
fn without_a_log_a_checkpoint_at_the_end_keeps_the_data() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path(), &["--durability", "off"]);
    set(&mut server.connect(), "key", "kept");
    assert_eq!(server.end(Signal::TERM).0, Some(0));
    let server = Server::start(data.path(), &["--durability", "off"]);
    assert_eq!(get(&mut server.connect(), "key").as_deref(), Some("kept"));
}

#[test]
fn what_sync_acknowledged_survives_a_kill() {
    let data = tempfile::tempdir().unwrap();
    for round in 0..3 {
        let server = Server::start(data.path(), &["--durability", "sync"]);
        let mut connection = server.connect();
        for before in 0..round {
            assert_eq!(get(&mut connection, &format!("key{before}")).as_deref(), Some("acknowledged"));
        }
        set(&mut connection, &format!("key{round}"), "acknowledged");
        assert_eq!(server.end(Signal::KILL).0, None);
    }
}

#[test]
fn a_data_directory_is_served_by_both_engines() {
    let data = tempfile::tempdir().unwrap();
    let rounds = [("hash-map", "first"), ("arena", "second"), ("hash-map", "third")];
    for (round, (engine, key)) in rounds.into_iter().enumerate() {
        let server = Server::start(data.path(), &["--engine", engine]);
        let mut connection = server.connect();
        set(&mut connection, key, engine);
        for (engine, key) in &rounds[..=round] {
            assert_eq!(get(&mut connection, key).as_deref(), Some(*engine), "{key}");
        }
        let report: String = redis::cmd("BEDPLATE").arg("VERIFY").query(&mut connection).unwrap();
        assert!(report.contains("reads back"), "{report}");
        let (code, said) = server.end(Signal::TERM);
        assert_eq!(code, Some(0), "{said}");
    }
    let data = data.path().to_str().unwrap();
    for (options, reason) in [
        (&["--partitions", "2"][..], "has one partition and at most 8 versions"),
        (&["--versions", "9"], "has one partition and at most 8 versions"),
        (&["--local-fast-path"], "the local fast path needs the arena engine"),
    ] {
        let serve = ["kv", "serve", "--engine", "hash-map", "--port", "0", "--data-dir", data];
        let output = command(&[&serve[..], options].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{options:?}");
        assert!(text(&output).contains(reason), "{}", text(&output));
    }
}

#[test]
fn a_password_is_asked_for() {
    let data = tempfile::tempdir().unwrap();
    let file = data.path().join("password");
    std::fs::write(&file, "secret\n").unwrap();
    let name = file.to_str().unwrap();
    let server = Server::start(&data.path().join("data"), &["--password-file", name]);
    let refused = redis::cmd("GET").arg("key").query::<Option<String>>(&mut server.connect()).unwrap_err();
    assert_eq!(refused.code(), Some("NOAUTH"));
    assert!(server.try_connect(Some("wrong")).is_err());
    set(&mut server.try_connect(Some("secret")).unwrap(), "key", "value");

    let without = server.run(&["kv", "stats", "--json"]);
    assert!(!without.status.success());
    assert!(text(&without).contains("hint: give the password"), "{}", text(&without));
    let with = server.run(&["kv", "stats", "--json", "--password-file", name]);
    assert!(with.status.success(), "{}", text(&with));
}

#[test]
fn a_checkpoint_can_be_verified_and_restored() {
    let data = tempfile::tempdir().unwrap();
    let (first, second) = (data.path().join("first"), data.path().join("second"));
    let server = Server::start(&first, &[]);
    let mut connection = server.connect();
    for number in 0..1_000 {
        set(&mut connection, &format!("key{number}"), "value");
    }
    let taken = server.run(&["kv", "checkpoint"]);
    assert!(taken.status.success(), "{}", text(&taken));
    set(&mut connection, "later", "is not in it");
    assert_eq!(server.end(Signal::TERM).0, Some(0));

    let verified = command(&["kv", "verify", first.to_str().unwrap()]).output().unwrap();
    assert!(text(&verified).contains("sound: 1,000 keys"), "{}", text(&verified));
    let mut files: Vec<_> =
        std::fs::read_dir(first.join("checkpoint")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let newest = files.last().unwrap().to_str().unwrap();
    let verified = command(&["kv", "verify", newest]).output().unwrap();
    assert!(text(&verified).contains("sound: 1,000 keys"), "{}", text(&verified));
    let restore = ["kv", "restore", newest, "--data-dir", second.to_str().unwrap()];
    let restored = command(&restore).output().unwrap();
    assert!(restored.status.success(), "{}", text(&restored));
    let again = command(&restore).output().unwrap();
    assert!(!again.status.success(), "a directory with a database must not be overwritten");

    let server = Server::start(&second, &[]);
    let mut connection = server.connect();
    assert_eq!(get(&mut connection, "key999").as_deref(), Some("value"));
    assert_eq!(get(&mut connection, "later"), None);
    let keys: u64 = redis::cmd("DBSIZE").query(&mut connection).unwrap();
    assert_eq!(keys, 1_000);
}

#[test]
fn a_running_server_verifies_itself_and_counts_what_the_kernel_answered() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path(), &[]);
    let mut connection = server.connect();
    for number in 0..500 {
        set(&mut connection, &format!("key{number}"), "value");
    }
    let verified = server.run(&["kv", "verify"]);
    assert!(verified.status.success(), "{}", text(&verified));
    assert!(text(&verified).contains("sound: 500 keys"), "{}", text(&verified));
    let stats = server.run(&["kv", "stats", "--json"]);
    let figures: serde_json::Value = serde_json::from_slice(&stats.stdout).unwrap();
    let answered: u64 = figures["kernel_commands"].as_str().unwrap().parse().unwrap();
    // The kernel leaves a command to user space if it would have to wait, so it does not answer all of them.
    assert!(answered >= 250, "only {answered} of 500 commands were answered in the kernel");
    assert_eq!(server.end(Signal::TERM).0, Some(0));
    let deep = command(&["kv", "verify", "--deep", data.path().to_str().unwrap()]).output().unwrap();
    assert!(deep.status.success(), "{}", text(&deep));
    assert!(text(&deep).contains("every invariant holds: 500 keys"), "{}", text(&deep));
}

#[test]
fn a_damaged_checkpoint_is_found() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path(), &[]);
    set(&mut server.connect(), "key", "value");
    assert!(server.run(&["kv", "checkpoint"]).status.success());
    assert_eq!(server.end(Signal::TERM).0, Some(0));
    let file = std::fs::read_dir(data.path().join("checkpoint")).unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let verified = command(&["kv", "verify", file.to_str().unwrap()]).output().unwrap();
    assert_eq!(verified.status.code(), Some(1), "{}", text(&verified));
    assert!(text(&verified).starts_with("error: "), "{}", text(&verified));
}

#[test]
fn options_of_a_file_give_way_to_the_command_line() {
    let data = tempfile::tempdir().unwrap();
    let file = data.path().join("bedplate.conf");
    std::fs::write(&file, "# test\nmax-clients 7\ndurability = sync\nport 1\n").unwrap();
    let server = Server::start(&data.path().join("data"), &["--config", file.to_str().unwrap()]);
    let mut connection = server.connect();
    let mut setting = |name: &str| {
        let reply: Vec<String> = redis::cmd("CONFIG").arg("GET").arg(name).query(&mut connection).unwrap();
        reply[1].clone()
    };
    assert_eq!(setting("appendfsync"), "always");
    assert_eq!(setting("maxclients"), "32", "Server::start says 32 on the command line");
}

#[test]
fn what_is_wrong_is_said_in_one_line() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path(), &[]);
    let port = server.port.to_string();
    let in_use =
        command(&["kv", "serve", "--in-memory", "--memory", "64M", "--port", &port]).output().unwrap();
    assert_eq!(in_use.status.code(), Some(1));
    assert!(text(&in_use).contains("in use") && text(&in_use).contains("hint: "), "{}", text(&in_use));
    let data = data.path().to_str().unwrap();
    let locked =
        command(&["kv", "serve", "--port", "0", "--memory", "64M", "--data-dir", data]).output().unwrap();
    assert_eq!(locked.status.code(), Some(1));
    assert!(text(&locked).contains("data directory"), "{}", text(&locked));
    assert_eq!(text(&locked).matches("uses it").count(), 1, "{}", text(&locked));
    let nonsense = command(&["kv", "serve", "--in-memory", "--versions", "99"]).output().unwrap();
    assert_eq!(nonsense.status.code(), Some(1));
    assert!(text(&nonsense).contains("versions"), "{}", text(&nonsense));
}

/// The command line of a shell that sets the limit on open files and runs a program: `option` is that of ulimit.
fn with_open_files(option: &str, most: u32) -> Vec<String> {
    let script = format!("ulimit {option} {most} && exec \"$0\" \"$@\"");
    vec!["sh".into(), "-c".into(), script]
}

/// The reply to PING of a new connection, which stays open.
fn ping(port: u16) -> (TcpStream, String) {
    let mut connection = TcpStream::connect(("127.0.0.1", port)).unwrap();
    connection.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    connection.write_all(b"PING\r\n").unwrap();
    let mut reply = String::new();
    BufReader::new(connection.try_clone().unwrap()).read_line(&mut reply).unwrap();
    (connection, reply)
}

#[test]
fn the_limit_on_open_files_is_raised_or_limits_the_connections() {
    let data = tempfile::tempdir().unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_bedplate"));
    // Shells give programs a low limit, which they may raise.
    let low = with_open_files("-S -n", 128);
    let server = Server::start_by(&low, program, data.path(), &["--max-clients", "200"]);
    let connections: Vec<_> = (0..200).map(|_| ping(server.port)).collect();
    assert!(connections.iter().all(|(_, reply)| reply == "+PONG\r\n"));
    assert!(ping(server.port).1.starts_with("-ERR max number of clients reached"));
    drop(connections);
    let (code, said) = server.end(Signal::TERM);
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("open files"), "{said}");

    let server =
        Server::start_by(&with_open_files("-n", 400), program, data.path(), &["--max-clients", "200"]);
    let connections: Vec<_> = (0..200).map(|_| ping(server.port)).collect();
    let served = connections.iter().filter(|(_, reply)| reply == "+PONG\r\n").count();
    let refused = connections.iter().filter(|(_, reply)| reply.starts_with("-ERR max number")).count();
    assert!(served > 20 && refused > 20 && served + refused == 200, "{served} served, {refused} refused");
    drop(connections);
    let (code, said) = server.end(Signal::TERM);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(&format!("at most {served} connections at once instead of 200")), "{said}");

    let few = with_open_files("-n", 256);
    let mut command = Command::new(&few[0]);
    command.args(&few[1..]).arg(program).args(["kv", "serve", "--port", "0", "--in-memory"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output);
    assert!(
        said.contains("this process may have 256 open files, which leaves none for connections"),
        "{said}"
    );
}

/// The command line of a program that runs another one as an unprivileged user with these capabilities and
/// no others; `None` if there is no such program.
fn with_capabilities(capabilities: &[&str]) -> Option<Vec<String>> {
    let exists = Command::new("setpriv").arg("--version").output().is_ok_and(|out| out.status.success());
    if !exists {
        println!("skipped: setpriv, a part of util-linux, is missing");
        return None;
    }
    let set: String = capabilities.iter().map(|name| format!(",+{name}")).collect();
    let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"];
    let sets = ["inh-caps", "ambient-caps", "bounding-set"].map(|kind| format!("--{kind}=-all{set}"));
    Some(user.into_iter().map(str::to_owned).chain(sets).collect())
}

/// A data directory and an executable that the unprivileged user can use.
fn for_unprivileged_user() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    std::fs::set_permissions(root.path(), Permissions::from_mode(0o755)).unwrap();
    let (data, program) = (root.path().join("data"), root.path().join("bedplate"));
    std::fs::create_dir(&data).unwrap();
    std::os::unix::fs::chown(&data, Some(65534), Some(65534)).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_bedplate"), &program).unwrap();
    (root, data, program)
}

/// The capabilities of SECURITY.md.
const DOCUMENTED: [&str; 3] = ["bpf", "net_admin", "perfmon"];

#[test]
fn the_documented_capabilities_are_enough() {
    let text = include_str!("../../../SECURITY.md");
    let listed = text.lines().filter_map(|line| line.strip_prefix("| `CAP_")?.split('`').next());
    assert_eq!(listed.map(str::to_lowercase).collect::<Vec<_>>(), DOCUMENTED);
    let Some(prefix) = with_capabilities(&DOCUMENTED) else { return };
    let (_root, data, program) = for_unprivileged_user();
    let server = Server::start_by(&prefix, &program, &data, &[]);
    let mut connection = server.connect();
    for i in 0..100 {
        set(&mut connection, &format!("key{i}"), "value");
        assert_eq!(get(&mut connection, &format!("key{i}")).as_deref(), Some("value"));
    }
    redis::cmd("SAVE").query::<()>(&mut connection).unwrap();
    let (code, said) = server.end(Signal::TERM);
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("WARN") && !said.contains("ERROR"), "{said}");
}

/// An option that needs a further capability is refused before anything else happens.
#[test]
fn batching_without_its_capability_is_refused() {
    let Some(prefix) = with_capabilities(&DOCUMENTED) else { return };
    let (_root, data, program) = for_unprivileged_user();
    for when in ["under-load", "always"] {
        let mut command = Command::new(&prefix[0]);
        command.args(&prefix[1..]).arg(&program).args([
            "kv",
            "serve",
            "--port",
            "0",
            "--batch-workers",
            when,
        ]);
        let output = command.arg("--data-dir").arg(&data).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let said = text(&output);
        assert!(said.contains("needs CAP_SYS_NICE") && said.lines().count() <= 2, "{said}");
        assert_eq!(std::fs::read_dir(&data).unwrap().count(), 0, "nothing was begun");
    }
}

/// Users come from a file. A bad line ends the start with one error that names the file and the line.
#[test]
fn users_come_from_a_file() {
    let data = tempfile::tempdir().unwrap();
    let file = data.path().join("users.acl");
    let path = file.to_str().unwrap();
    let arguments = ["kv", "serve", "--in-memory", "--port", "0", "--acl-file", path];
    for (contents, error) in [
        (None, format!("cannot read the ACL file {path}")),
        (Some("user a on\nuser b on +nosuch\n"), format!("{path}:2: Error in applying operation '+nosuch'")),
        (Some("user a on\nuser a on"), "Duplicate user 'a' found on line 2".to_owned()),
    ] {
        if let Some(contents) = contents {
            std::fs::write(&file, contents).unwrap();
        }
        let ended = command(&arguments).output().unwrap();
        assert!(!ended.status.success());
        let said = text(&ended);
        assert!(said.contains(&error) && said.contains("users.acl"), "{said}");
    }
    let both = command(&[&arguments[..], &["--password", "x"]].concat()).output().unwrap();
    assert!(!both.status.success() && text(&both).contains("--password"), "{}", text(&both));

    std::fs::write(&file, "user default on >secret ~* &* +@all\nuser reader on >r %R~* +get +acl\n").unwrap();
    let server = Server::start(data.path(), &["--acl-file", path]);
    let mut admin = server.try_connect(Some("secret")).unwrap();
    set(&mut admin, "a", "1");
    assert!(server.try_connect(Some("r")).is_err());
    let run = |connection: &mut Connection, line: &str| {
        let mut words = line.split(' ');
        redis::cmd(words.next().unwrap()).arg(words.collect::<Vec<_>>()).query::<redis::Value>(connection)
    };
    run(&mut admin, "ACL SETUSER writer on >w ~* +set").unwrap();
    run(&mut admin, "ACL SAVE").unwrap();
    drop(admin);
    let (code, said) = server.end(Signal::TERM);
    assert_eq!(code, Some(0), "{said}");
    let server = Server::start(data.path(), &["--acl-file", path]);
    let mut writer = server.try_connect(Some("secret")).unwrap();
    run(&mut writer, "AUTH writer w").unwrap();
    run(&mut writer, "SET a 2").unwrap();
    let refused = run(&mut writer, "GET a").unwrap_err();
    assert!(refused.to_string().contains("no permissions"), "{refused}");
    run(&mut writer, "AUTH reader r").unwrap();
    assert_eq!(get(&mut writer, "a").as_deref(), Some("2"));
}
