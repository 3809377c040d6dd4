//! `bedplate scan` as people run it.

use std::io::Write;
use std::process::{Command, Output};

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
