//! A scheduler, executors and a client, all of them processes: TPC-H's queries have the same rows as without a cluster, and the
//! executors scan by the service.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bedplate_datafusion::Service;
use bedplate_scan::Daemon;
use datafusion::prelude::{SessionConfig, SessionContext};

#[path = "../../tests/suite/common.rs"]
mod common;

/// A process that ends with this object.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_bedplate-ballista"))
}

/// Two ports that follow each other, which nobody has at the moment.
fn ports() -> SocketAddr {
    loop {
        let one = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = one.local_addr().unwrap();
        let Some(next) = address.port().checked_add(1) else { continue };
        if TcpListener::bind(("127.0.0.1", next)).is_ok() {
            return address;
        }
    }
}

fn wait_for(address: SocketAddr) {
    let begin = Instant::now();
    while TcpStream::connect(address).is_err() {
        assert!(begin.elapsed() < Duration::from_secs(60), "nobody listens at {address}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A copy of the tables, with the times of the files, as each machine of a cluster would have it.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), &to).unwrap();
            let file = std::fs::File::options().write(true).open(&to).unwrap();
            file.set_modified(entry.metadata().unwrap().modified().unwrap()).unwrap();
            file.sync_all().unwrap();
        }
    }
}

struct Executor {
    _process: Process,
    served_bytes: Arc<Mutex<u64>>,
}

fn executor(data: &Path, scheduler: SocketAddr, socket: Option<&Path>) -> Executor {
    let listen = ports();
    let mut command = command();
    command.arg("executor").arg("--data").arg(data);
    command.args(["--scheduler", &scheduler.to_string(), "--listen", &listen.to_string()]);
    command.args(["--tasks", "2", "--min-file-bytes", "1", "--statistics"]);
    if let Some(socket) = socket {
        command.arg("--socket").arg(socket);
    }
    let mut process = Process(command.stdout(Stdio::piped()).spawn().unwrap());
    let lines = BufReader::new(process.0.stdout.take().unwrap());
    let served_bytes = Arc::new(Mutex::new(0));
    let served = served_bytes.clone();
    std::thread::spawn(move || {
        for line in lines.lines().map_while(Result::ok) {
            let statistics: serde_json::Value = serde_json::from_str(&line).unwrap();
            *served.lock().unwrap() = statistics["served_bytes"].as_u64().unwrap();
        }
    });
    wait_for(listen);
    Executor { _process: process, served_bytes }
}

fn query(data: &Path, scheduler: SocketAddr, file: &Path) -> common::Rows {
    let output = command()
        .args(["query", "--scheduler", &scheduler.to_string()])
        .arg("--data")
        .arg(data)
        .arg(file)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}: {}", file.display(), String::from_utf8_lossy(&output.stderr));
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    serde_json::from_value(answer["rows"].clone()).unwrap()
}

#[test]
fn a_cluster_has_the_rows_of_one_process_and_scans_by_the_service() {
    let data = common::tpch();
    if common::refusal(&common::service(), &data).is_some() {
        return;
    }
    let own = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let nodes: Vec<PathBuf> = (0..3).map(|node| own.path().join(node.to_string())).collect();
    nodes.iter().for_each(|node| copy(&data, node));
    // The executors have services as anybody has.
    std::thread::sleep(bedplate_scan::SETTLING_TIME + Duration::from_millis(100));
    nodes.iter().for_each(|node| common::drop_pages(node));

    let scheduler = ports();
    let _scheduler = Process(
        command()
            .args(["scheduler", "--listen", &scheduler.to_string()])
            .arg("--data")
            .arg(&data)
            .spawn()
            .unwrap(),
    );
    wait_for(scheduler);
    // One of the nodes has a daemon.
    let options = bedplate_scan::Options::default();
    let daemon = Daemon::bind(Service::start().unwrap(), own.path().join("socket"), &options).unwrap();
    let (socket, stopper) = (daemon.path(), daemon.stopper());
    let daemon = std::thread::spawn(move || daemon.run());
    let executors = [
        executor(&nodes[0], scheduler, None),
        executor(&nodes[1], scheduler, None),
        executor(&nodes[2], scheduler, Some(&socket)),
    ];

    let runtime = tokio::runtime::Runtime::new().unwrap();
    let plain = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(2));
    runtime.block_on(bedplate_datafusion::tables::register(&plain, &data)).unwrap();
    for (name, text) in common::queries() {
        let file = common::query_file(&name);
        let want = runtime.block_on(common::rows(&plain, &text));
        assert_eq!(query(&data, scheduler, &file), want, "{name}");
    }
    // An executor says what it did within a second.
    let begin = Instant::now();
    for (number, executor) in executors.iter().enumerate() {
        while *executor.served_bytes.lock().unwrap() == 0 {
            assert!(
                begin.elapsed() < Duration::from_secs(20),
                "executor {number} has scanned nothing by the service"
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    drop(executors);
    stopper.stop();
    daemon.join().unwrap().unwrap();
}

#[test]
fn errors_are_one_line() {
    let nothing = tempfile::tempdir().unwrap();
    let missing = nothing.path().join("missing");
    for arguments in [
        vec!["scheduler", "--data", missing.to_str().unwrap()],
        vec!["executor", "--data", missing.to_str().unwrap()],
        vec!["query", "--data", nothing.path().to_str().unwrap(), missing.to_str().unwrap()],
    ] {
        let output = command().args(&arguments).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && output.stdout.is_empty(), "{arguments:?}");
        assert!(
            text.starts_with("bedplate-ballista: ") && text.lines().count() == 1,
            "{arguments:?}: {text}"
        );
    }
}
