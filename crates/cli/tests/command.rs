//! Tests the command as people and scripts run it: exit codes, one line of error with a hint, output for programs.

use std::process::{Command, Output};

fn bedplate(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bedplate")).args(args).env_remove("BEDPLATE_PASSWORD").output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn version_and_help_succeed() {
    let version = bedplate(&["--version"]);
    assert!(version.status.success());
    assert_eq!(text(&version.stdout).trim(), concat!("bedplate ", env!("CARGO_PKG_VERSION")));
    for command in ["doctor", "kv", "bench"] {
        assert!(bedplate(&[command, "--help"]).status.success(), "{command}");
    }
}

#[test]
fn no_server_is_one_line_and_a_hint() {
    let free = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    for command in ["stats", "checkpoint", "verify"] {
        let output = bedplate(&["kv", command, "--port", &free.to_string()]);
        assert_eq!(output.status.code(), Some(1), "{command}");
        let lines: Vec<_> = text(&output.stderr).lines().collect();
        assert_eq!(lines.len(), 2, "{command}: {lines:?}");
        assert!(lines[0].starts_with("error: cannot talk to the server at 127.0.0.1:"), "{lines:?}");
        assert!(lines[1].starts_with("hint: "), "{lines:?}");
    }
}

#[test]
fn a_guest_that_cannot_be_had_or_does_not_end_has_exit_statuses_of_its_own() {
    let run = |args: &[&str]| bedplate(&[&["vm", "run"], args].concat());
    let output = run(&["--kernel", "/no/such/kernel", "--", "true"]);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(text(&output.stderr).contains("error: /no/such/kernel"), "{output:?}");
    let output = run(&["--timeout", "1s", "--", "sleep", "1000"]);
    assert_eq!(output.status.code(), Some(124), "{output:?}");
    assert_eq!(run(&["--", "false"]).status.code(), Some(1));
    let complaint = "echo 'BUG: not really' > /dev/kmsg";
    assert_eq!(run(&["--", "sh", "-c", complaint]).status.code(), Some(123));
}

#[test]
fn an_unknown_benchmark_lists_the_known() {
    let output = bedplate(&["bench", "no-such"]);
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("kv-net"));
    assert!(text(&bedplate(&["bench"]).stdout).contains("kv-net"));
}

#[test]
fn benchmarks_of_snapshots_are_listed_and_their_numbers_of_writers_are_bounded() {
    let output = bedplate(&["bench"]);
    let listed = text(&output.stdout);
    for name in ["snapshot-latency", "snapshot-fault", "snapshot-redis", "htap"] {
        assert!(listed.lines().any(|line| line.split_whitespace().next() == Some(name)), "{name}: {listed}");
        if matches!(name, "snapshot-fault" | "htap") {
            for wrong in ["0", "65"] {
                let output = bedplate(&["bench", name, "--writers", wrong]);
                assert_eq!(output.status.code(), Some(1), "{name} {wrong}: {output:?}");
                let expected = format!("error: {wrong} threads cannot write; choose 1 to 64");
                assert!(text(&output.stderr).contains(&expected), "{output:?}");
            }
        }
    }
}

#[test]
fn doctor_speaks_json() {
    let output = bedplate(&["doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let components = report["components"].as_array().unwrap();
    let names: Vec<_> = components.iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["kerneldb", "ring0", "snapshot", "bufpool", "scan"]);
    let works = matches!(components[0]["verdict"].as_str(), Some("yes" | "partly"));
    assert_eq!(output.status.success(), works, "the exit code says whether what is included works");
    let limited = Command::new(env!("CARGO_BIN_EXE_bedplate"))
        .args(["doctor", "--json", "--component", "scan"])
        .output()
        .unwrap();
    let report: serde_json::Value = serde_json::from_slice(&limited.stdout).unwrap();
    assert_eq!(report["components"].as_array().unwrap().len(), 1);
}

/// Without privileges doctor must answer all the same, and ask for root if it cannot find out.
#[test]
fn doctor_without_privileges() {
    if !rustix::process::geteuid().is_root() {
        // Without root, `doctor_speaks_json` tests the same.
        return;
    }
    // An unprivileged user may not be able to read the executable's folder, so it is copied to one that everybody can read.
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("bedplate");
    std::fs::copy(env!("CARGO_BIN_EXE_bedplate"), &copy).unwrap();
    let mode = |bits| std::os::unix::fs::PermissionsExt::from_mode(bits);
    std::fs::set_permissions(directory.path(), mode(0o755)).unwrap();
    std::fs::set_permissions(&copy, mode(0o755)).unwrap();
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&copy)
        .args(["doctor", "--json", "--component", "kerneldb"])
        .current_dir("/")
        .output()
        .unwrap();
    let report: serde_json::Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(&output.stderr)));
    assert_eq!(report["root"], false);
    let checks = report["components"][0]["checks"].as_array().unwrap();
    let answer = |id: &str| checks.iter().find(|c| c["id"] == id).unwrap()["answer"].as_str().unwrap();
    assert_eq!(answer("capabilities"), "no");
    // A machine may let everybody use bpf(2); then doctor can probe everything.
    if answer("bpf-syscall") == "no" {
        assert_eq!(answer("arena"), "unknown");
        assert_eq!(report["components"][0]["verdict"], "no");
    }
}
