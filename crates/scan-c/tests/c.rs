//! Tests of the C interface from C. The header is the one in the repository, and compiles as C and C++. The examples work. Any
//! misuse by a program is an error, not an access to memory.

use std::path::{Path, PathBuf};
use std::process::Command;

use bedplate_c_tests::{Interface, text, under};
use bedplate_scan::{Daemon, Options, Service};

const C: Interface = bedplate_c_tests::interface!("scan", "gnu99");

/// Writes a file of pages of 8 KiB. Every byte of a page is the page's number.
fn pages(folder: &Path, name: &str, bytes: usize) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, (0..bytes).map(|at| (at / 8192) as u8).collect::<Vec<_>>()).unwrap();
    path
}

#[test]
fn the_header_is_up_to_date() {
    C.check_header();
}

/// The manual lists exactly the functions and the error codes of the header.
#[test]
fn the_manual_has_all_functions() {
    C.check_manual(20);
}

#[test]
fn the_header_is_cpp_too() {
    let source = "#include <bedplate/scan.h>\n\
                  int main() { bp_scan_page page{}; bp_scan_channel c{};\n\
                  return bp_scan_join(BP_SCAN_DEFAULT, nullptr, 0, &c) != BP_SCAN_ERROR_NULL\n\
                      || bp_scan_get_page(c, &page) != BP_SCAN_ERROR_HANDLE; }\n";
    C.check_cpp(source, &["c++11"]);
}

#[test]
fn the_examples_work() {
    let folder = C.folder();
    let lines = folder.path().join("lines");
    let content: String = (0..700_000).map(|line| format!("{line}\n")).collect();
    std::fs::write(&lines, &content).unwrap();
    let output =
        C.run(Command::new(C.program("examples/count.c", folder.path(), &[])).arg(&lines).arg(&lines));
    let expected = format!("{} bytes, 1400000 lines\n", 2 * content.len());
    assert_eq!((text(&output), output.status.success()), (text(&output), true));
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    let output = C.run(Command::new(C.program("examples/share.c", folder.path(), &[])).arg(&lines));
    let expected = format!("4 workers, {} bytes each, equal sums\n", content.len());
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{}", text(&output));
    let output = C.run(Command::new(C.program("examples/judge.c", folder.path(), &[])).arg(&lines));
    let expected = format!("{} pages: ", content.len().div_ceil(8192));
    assert!(output.status.success() && text(&output).contains(&expected), "{}", text(&output));
    let output = C.run(Command::new(folder.path().join("count")).arg(folder.path().join("none")));
    assert!(!output.status.success() && text(&output).contains("No such file"), "{}", text(&output));
}

/// After installation, `pkg-config` has the flags to link with either library.
#[test]
fn the_static_library_is_complete() {
    let folder = C.folder();
    let count = C.static_program("examples/count.c", folder.path());
    let file = format!("{}/bedplate-scan.pc.in", C.folder);
    let bytes = std::fs::metadata(&file).unwrap().len();
    let output = Command::new(count).arg(file).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains(&format!("{bytes} bytes")), "{}", text(&output));
}

/// Runs a program of `tests` with an engine, under a tool if one is named.
fn check(source: &str, engine: &str, tool: &[&str]) {
    let folder = C.folder();
    let program = C.program(source, folder.path(), &[]);
    let files = [pages(folder.path(), "a", 5 << 20), pages(folder.path(), "b", 16 << 20)];
    let mut command = under(tool, program);
    // The path of a socket must be short.
    let place = tempfile::tempdir().unwrap();
    let socket = place.path().join("socket");
    let daemon = Daemon::bind(Service::start().unwrap(), &socket, &Options::default()).unwrap();
    let stopper = daemon.stopper();
    let daemon = std::thread::spawn(move || daemon.run());
    let output = C.run(command.args(files).arg(engine).arg(socket));
    stopper.stop();
    daemon.join().unwrap().unwrap();
    assert!(output.status.success(), "{}", text(&output));
}

/// The programs that [`check`] runs.
const CHECKED: [&str; 2] = ["tests/misuse.c", "tests/for_engines.c"];

#[test]
fn misuse_is_an_error() {
    for source in CHECKED {
        check(source, "auto", &[]);
        check(source, "threads", &[]);
    }
}

#[test]
fn misuse_touches_no_memory_that_is_not_there() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("skipped: valgrind is not installed");
        return;
    }
    for source in CHECKED {
        check(source, "threads", &["valgrind", "-q", "--error-exitcode=9"]);
    }
}

/// A program waits for a daemon that does not answer only as long as the program chooses.
#[test]
fn patience_ends() {
    let folder = C.folder();
    let program = C.program("tests/patience.c", folder.path(), &[]);
    // The path of a socket must be short.
    let place = tempfile::tempdir().unwrap();
    let output = C.run(Command::new(program).arg(place.path().join("socket")));
    assert!(output.status.success(), "{}", text(&output));
}
