//! `bedplate scan` as people run it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output, Stdio};

fn scan(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bedplate")).arg("scan").args(arguments).output().unwrap()
}

#[test]
fn files_are_counted_the_same_by_every_engine() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (big, empty) = (path("big"), path("empty"));
    let mut file = std::fs::File::create(&big).unwrap();
    let mut checksum = 0;
    for line in 0..300_000 {
        let line = format!("line {line} of a file that is larger than a frame\n");
        checksum = crc32c::crc32c_append(checksum, line.as_bytes());
        file.write_all(line.as_bytes()).unwrap();
    }
    std::fs::write(&empty, []).unwrap();
    let bytes = std::fs::metadata(&big).unwrap().len();
    for engine in ["auto", "threads"] {
        let output = scan(&["--engine", engine, "--page-size", "8k", &big, &empty]);
        let (out, err) =
            (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert!(output.status.success(), "{err}");
        let words: Vec<&str> = out.split_whitespace().collect();
        let (checksum, bytes) = (format!("{checksum:08x}"), bytes.to_string());
        assert_eq!(words, [&checksum, "300000", &bytes, &big, "00000000", "0", "0", &empty]);
        assert!(engine == "auto" || err.contains("threads that call pread"), "{err}");
    }
    let output = scan(&["--json", &big]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["files"][0]["bytes"], bytes);
    assert_eq!(json["files"][0]["crc32c"], format!("{checksum:08x}"));
    assert_eq!(json["bytes_read"].as_u64().unwrap(), bytes);
}

/// Shells give programs a low limit on open files, which they may raise.
#[test]
fn more_files_are_scanned_than_the_soft_limit_allows() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let files: Vec<_> = (0..100).map(|number| folder.path().join(number.to_string())).collect();
    files.iter().for_each(|file| std::fs::write(file, "a line\n").unwrap());
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -S -n 64 && exec \"$0\" scan \"$@\"", env!("CARGO_BIN_EXE_bedplate")]);
    let output = command.args(&files).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), files.len());
}

#[test]
fn what_cannot_be_scanned_is_said_in_a_line() {
    for (arguments, text) in [
        (&["/no/such/file"][..], "error: /no/such/file: No such file"),
        (&["--page-size", "5000", "/dev/null"][..], "error: pages of 5000 bytes: a power of two"),
        (&["--engine", "magic", "/dev/null"][..], "no engine is called magic"),
    ] {
        let output = scan(arguments);
        let err = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && err.contains(text), "{err}");
    }
}

/// A daemon that is stopped with this object.
struct Served {
    child: std::process::Child,
    socket: String,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Served {
    fn start(socket: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bedplate"));
        command.args(["scan", "serve", "--socket", socket, "--reserved-pages"]).stdout(Stdio::piped());
        let mut served = Self { child: command.spawn().unwrap(), socket: socket.to_owned() };
        let mut line = String::new();
        BufReader::new(served.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, format!("ready on {socket}\n"));
        served
    }

    fn stop(mut self, signal: i32) {
        // SAFETY: a signal to a child that has not been waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
        assert!(self.child.wait().unwrap().success());
        assert!(!std::path::Path::new(&self.socket).exists(), "its socket is still there");
    }
}

#[test]
fn a_daemon_reads_for_others_until_a_signal() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (file, socket) = (path("file"), path("socket"));
    std::fs::write(&file, "one\ntwo\n".repeat(700_000)).unwrap();
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let served = Served::start(&socket);
        let again = scan(&["serve", "--socket", &socket]);
        let err = String::from_utf8(again.stderr).unwrap();
        assert!(!again.status.success() && err.contains("somebody listens at"), "{err}");
        let by_daemon = scan(&["--socket", &socket, &file]);
        assert!(by_daemon.status.success(), "{}", String::from_utf8_lossy(&by_daemon.stderr));
        assert_eq!(by_daemon.stdout, scan(&[&file]).stdout);
        served.stop(signal);
    }
    let nobody = scan(&["--socket", &socket, &file]);
    let err = String::from_utf8(nobody.stderr).unwrap();
    assert!(!nobody.status.success() && err.contains("No such file") && err.contains("hint: "), "{err}");
}

#[test]
fn what_cannot_be_served_is_said_in_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("file"), "").unwrap();
    for (arguments, text) in [
        (vec!["serve", "--socket", "/no/such/folder/s"], "/no/such/folder/s: No such file"),
        (vec!["serve", "--group", "no such group", "--socket", "/tmp"], "there is no group no such group"),
        (vec!["--engine", "threads", "--socket", "/tmp/s", "/dev/null"], "cannot be used with"),
    ] {
        let output = scan(&arguments);
        let err = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && err.contains(text), "{err}");
    }
    let output = scan(&["serve", "--socket", &path("file")]);
    assert!(String::from_utf8(output.stderr).unwrap().contains("is there and is no socket"));
    assert!(std::path::Path::new(&path("file")).exists());
}
