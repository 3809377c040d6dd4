//! `bedplate snapshot stats` beside real servers that run under the library.

mod exposition;
// The helpers of the library's own tests for servers and the library.
#[path = "../../snapshot-preload/tests/common/mod.rs"]
mod common;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{Engine, Server, bgsave, child_of, fill, kill, library, saved};
use exposition::Sample;
use serde_json::Value;

with_each_engine!(
    a_save_is_counted_with_its_pause,
    an_active_save_and_its_child_are_told_apart,
    a_daemon_has_statistics_of_its_own,
    prometheus_gets_files_until_the_server_ends,
);

/// The time limit on every wait, which also suffices in an emulated guest on a busy machine.
const PATIENCE: Duration = Duration::from_secs(600);

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bedplate"));
    command.args(["snapshot", "stats"]).args(arguments);
    command
}

fn stats(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The figures of a process.
fn figures(pid: u32) -> Value {
    let output = stats(&[&pid.to_string(), "--json"]);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Waits until the figures of a process satisfy `are_right`. They may be a second old.
fn wait_for(pid: u32, what: &str, are_right: impl Fn(&Value) -> bool) -> Value {
    let limit = Instant::now() + PATIENCE;
    loop {
        let figures = figures(pid);
        if are_right(&figures) {
            return figures;
        }
        assert!(Instant::now() < limit, "{what}: {figures:#}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The error line and the hint of a command that fails.
fn refused(output: &Output) -> (String, String) {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let said = text(&output.stderr);
    let mut lines = said.lines();
    let error = lines.next().and_then(|line| line.strip_prefix("error: ")).expect("an error line").to_owned();
    let hint = lines.next().map_or("", |line| line.strip_prefix("hint: ").expect("a hint")).to_owned();
    assert_eq!(lines.next(), None, "{said}");
    (error, hint)
}

fn pauses(figures: &Value) -> u64 {
    let counts = figures["pauses"]["counts"].as_array().unwrap();
    counts.iter().map(|bucket| bucket["count"].as_u64().unwrap()).sum()
}

fn a_save_is_counted_with_its_pause(engine: Engine) {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), Some(engine), &[]);
    let pid = server.process.id();
    fill(&server);
    // The figures exist before the first fork, too. 40,000 values of 512 bytes are in the memory.
    let before = wait_for(pid, "memory", |figures| figures["memory_bytes"].as_u64() > Some(20_000_000));
    assert_eq!((&before["engine"], &before["reason"]), (&engine.into(), &"it was asked for".into()));
    assert_eq!((&before["taken"], &before["active"], pauses(&before)), (&0.into(), &0.into(), 0));
    let mut connection = server.connect();
    bgsave(&mut connection);
    assert_eq!(saved(&mut connection), "ok");
    let mut after = wait_for(pid, "one snapshot", |figures| figures["taken"] == 1 && figures["active"] == 0);
    assert_eq!((pauses(&after), &after["failed"]), (1, &0.into()), "{after:#}");
    let pause = after["latest_pause_ns"].as_u64().unwrap();
    assert!(
        pause > 0 && after["longest_pause_ns"] == pause && after["pauses"]["total_ns"] == pause,
        "{after:#}"
    );
    let bucket = after["pauses"]["counts"].as_array().unwrap().iter().find(|bucket| bucket["count"] == 1);
    let bound = bucket.unwrap()["up_to_ns"].as_u64().unwrap_or(u64::MAX);
    assert!(pause <= bound && (bound == 8192 || pause > bound / 2), "{after:#}");
    if engine == "remap" {
        after = wait_for(pid, "a merge", |figures| figures["merges"] == 1);
        assert!(after["latest_merge_ns"].as_u64() > Some(0) && after["private_bytes"] == 0, "{after:#}");
        assert_eq!((&after["instantaneous"], &after["copied_as_usual"]), (&1.into(), &0.into()), "{after:#}");
    }
    // The table, and the list.
    let table = text(&stats(&[&pid.to_string()]).stdout);
    assert!(table.contains("redis-server") && table.contains("snapshots taken  "), "{table}");
    let list = stats(&[]);
    assert!(list.status.success(), "{list:?}");
    let line = text(&list.stdout)
        .lines()
        .find(|line| line.trim_start().starts_with(&format!("{pid} ")))
        .map(str::to_owned);
    let words: Vec<String> = line.unwrap().split_whitespace().map(str::to_owned).collect();
    assert_eq!(words[1..5], ["redis-server", engine, "1", "0"]);
    // All of them agree with the library's statistics at the end.
    let at_end = server.stop(folder.path());
    for (key, name) in [("taken", "snapshots"), ("longest_pause_ns", "longest_pause_ns")] {
        assert_eq!(after[key], at_end[name], "{key}");
    }
}

fn an_active_save_and_its_child_are_told_apart(engine: Engine) {
    let folder = tempfile::tempdir().unwrap();
    // Saving takes minutes.
    let server = Server::start(folder.path(), Some(engine), &["--rdb-key-save-delay", "10000"]);
    fill(&server);
    let pid = server.process.id();
    let mut connection = server.connect();
    bgsave(&mut connection);
    let active = wait_for(pid, "active", |figures| figures["active"] == 1);
    assert_eq!(active["taken"], 1);
    if engine == "remap" {
        assert!(active["private_bytes"].as_u64() > Some(20_000_000), "{active:#}");
        assert_eq!(active["merges"], 0);
    }
    let child = child_of(&server);
    let (error, hint) = refused(&stats(&[&child.to_string()]));
    assert_eq!(error, format!("process {child} is a snapshot of {pid}"));
    assert_eq!(hint, format!("bedplate snapshot stats {pid}"));
    // The list has the server, and not its child.
    let list: Value = serde_json::from_slice(&stats(&["--json"]).stdout).unwrap();
    let listed = |pid: u64| list["processes"].as_array().unwrap().iter().any(|one| one["pid"] == pid);
    assert!(listed(pid.into()) && !listed(child as u64), "{list:#}");
    kill(child);
    assert_eq!(saved(&mut connection), "err");
    wait_for(pid, "the end of the child", |figures| figures["active"] == 0);
}

fn a_daemon_has_statistics_of_its_own(engine: Engine) {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_daemon(folder.path(), engine);
    fill(&server);
    let pid: u32 = std::fs::read_to_string(folder.path().join("pid")).unwrap().trim().parse().unwrap();
    assert_ne!(pid, server.process.id());
    wait_for(pid, "memory", |figures| figures["memory_bytes"].as_u64() > Some(20_000_000));
    let mut connection = server.connect();
    bgsave(&mut connection);
    assert_eq!(saved(&mut connection), "ok");
    let figures = wait_for(pid, "one snapshot", |figures| figures["taken"] == 1 && figures["active"] == 0);
    assert_eq!((&figures["engine"], pauses(&figures)), (&engine.into(), 1));
}

/// A command that is killed with this object.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// Waits until it ends, and returns its standard error.
    fn said(mut self) -> String {
        let mut said = String::new();
        std::io::Read::read_to_string(&mut self.0.stderr.take().unwrap(), &mut said).unwrap();
        assert!(self.0.wait().unwrap().success(), "{said}");
        said
    }
}

/// The samples of the first file that satisfies `are_right`.
fn wait_for_file(file: &Path, are_right: impl Fn(&[Sample]) -> bool) -> Vec<Sample> {
    let limit = Instant::now() + PATIENCE;
    loop {
        // A file is complete at any time.
        let samples = std::fs::read_to_string(file).map(|text| exposition::check(&text)).unwrap_or_default();
        if are_right(&samples) {
            return samples;
        }
        assert!(Instant::now() < limit, "{samples:#?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn prometheus_gets_files_until_the_server_ends(engine: Engine) {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), Some(engine), &[]);
    fill(&server);
    let pid = server.process.id().to_string();
    let file = folder.path().join("snapshots.prom");
    let name = file.to_str().unwrap();
    let value = |samples: &[Sample], name: &str| {
        let mut found = samples.iter().filter(|sample| sample.name == format!("bedplate_snapshot_{name}"));
        let sample = found.next()?;
        assert_eq!((sample.labels["pid"].as_str(), sample.labels["engine"].as_str()), (pid.as_str(), engine));
        Some(sample.value)
    };
    // The command writes the file once.
    assert!(stats(&[&pid, "--prometheus", name]).status.success());
    let samples = exposition::check(&std::fs::read_to_string(&file).unwrap());
    assert_eq!(value(&samples, "taken_total"), Some(0.0));
    // The command writes the file repeatedly.
    let mut watch = command(&[&pid, "--prometheus", name, "--watch", "20ms"]);
    let watch = Running(watch.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
    let mut lines = command(&[&pid, "--json", "--watch", "20ms"]);
    let mut lines = Running(lines.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let mut json = BufReader::new(lines.0.stdout.take().unwrap()).lines();
    let mut connection = server.connect();
    bgsave(&mut connection);
    assert_eq!(saved(&mut connection), "ok");
    let samples = wait_for_file(&file, |samples| value(samples, "pause_seconds_count") == Some(1.0));
    assert_eq!(value(&samples, "taken_total"), Some(1.0));
    assert_eq!(value(&samples, "pause_seconds_sum"), value(&samples, "longest_pause_seconds"));
    let line = json.find(|line| line.as_ref().unwrap().contains("\"taken\":1")).unwrap().unwrap();
    assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["engine"], engine);
    drop(connection);
    // A thread reads the lines while the server ends.
    let reader = std::thread::spawn(move || json.count());
    server.stop(folder.path());
    let end = format!("process {pid} has ended\n");
    assert_eq!((watch.said(), lines.said()), (end.clone(), end));
    reader.join().unwrap();
    assert!(!file.exists(), "the values of a process that has ended are still there");
}

/// A program that sleeps, started by a shell after some commands.
fn sleeper(with_library: bool, before: &str) -> Running {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{before} exec sleep 1000")]).stderr(Stdio::null());
    if with_library {
        command.env("LD_PRELOAD", library());
    }
    let running = Running(command.spawn().unwrap());
    // The shell has become the program.
    let limit = Instant::now() + PATIENCE;
    let name = format!("/proc/{}/comm", running.0.id());
    while std::fs::read_to_string(&name).unwrap() != "sleep\n" {
        assert!(Instant::now() < limit);
        std::thread::sleep(Duration::from_millis(5));
    }
    running
}

#[test]
fn what_is_not_there_is_said_in_a_line() {
    let without = sleeper(false, "");
    let pid = without.0.id();
    let (error, hint) = refused(&stats(&[&pid.to_string()]));
    assert_eq!(error, format!("process {pid} does not run under bedplate snapshot run"));
    assert!(hint.contains("without a process ID"), "{hint}");
    drop(without);
    for options in [&[][..], &["--watch", "1"]] {
        let (error, _) = refused(&stats(&[&[pid.to_string().as_str()], options].concat()));
        assert_eq!(error, format!("there is no process {pid}, or it may not be seen"));
    }
    for (arguments, text) in [
        (&["0"][..], "0 is not in 1..=2147483647"),
        (&["2147483648"], "2147483648 is not in 1..=2147483647"),
        (&["--json", "--prometheus", "x"], "cannot be used with"),
        (&["--watch", "soon"], "write 30s, 5m or 100ms"),
    ] {
        let output = stats(arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(text), "{output:?}");
    }
}

/// A program under the library for which no engine works has the reason in its figures.
#[test]
fn a_program_without_snapshots_says_why() {
    let program = sleeper(true, "ulimit -f 1024;");
    let pid = program.0.id();
    let limit = Instant::now() + PATIENCE;
    // The library writes the reason when the program begins.
    let output = loop {
        let output = stats(&[&pid.to_string(), "--json"]);
        if output.status.success() {
            break output;
        }
        assert!(Instant::now() < limit, "{output:?}");
        std::thread::sleep(Duration::from_millis(5));
    };
    let figures: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(figures["engine"], Value::Null);
    assert!(figures["reason"].as_str().unwrap().contains("ulimit -f"), "{figures:#}");
    assert_eq!(figures["taken"], Value::Null);
    let table = text(&stats(&[&pid.to_string()]).stdout);
    assert!(table.contains("none (") && !table.contains("snapshots"), "{table}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("none.prom");
    assert!(stats(&[&pid.to_string(), "--prometheus", file.to_str().unwrap()]).status.success());
    let samples = exposition::check(&std::fs::read_to_string(&file).unwrap());
    assert!(samples.iter().all(|sample| sample.labels["engine"] == "none"), "{samples:#?}");
}

/// A program that may not create any file has no page of statistics, and runs.
#[test]
fn a_program_that_may_make_no_files_runs() {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 0; exec true"]).env("LD_PRELOAD", library());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn another_users_process_is_refused_with_a_hint() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can become another user");
        return;
    }
    let program = sleeper(true, "ulimit -f 1024;");
    let pid = program.0.id();
    // An unprivileged user may not be able to read the executable's folder, so it is copied to one that everybody can read.
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("bedplate");
    std::fs::copy(env!("CARGO_BIN_EXE_bedplate"), &copy).unwrap();
    for path in [folder.path(), &copy] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let as_nobody = |arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"]);
        command.arg(&copy).args(["snapshot", "stats"]).args(arguments).current_dir("/").output().unwrap()
    };
    let (error, hint) = refused(&as_nobody(&[&pid.to_string()]));
    assert_eq!(error, format!("process {pid} belongs to user 0"));
    assert_eq!(hint, "run as root or as the same user");
    let list = as_nobody(&[]);
    assert!(list.status.success(), "{list:?}");
    assert!(
        text(&list.stderr).contains("processes may not be looked at: run as root to see all"),
        "{list:?}"
    );
}
