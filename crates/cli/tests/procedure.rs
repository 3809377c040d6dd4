//! `bedplate kv new-procedure` and `build-procedure`: a new project compiles, and its own test passes on a real server.

mod running;

use std::path::Path;
use std::process::{Command, Output};

use running::command;

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

fn new(directory: &Path, name: &str) -> Output {
    command(&["kv", "new-procedure", name, "--directory"]).arg(directory).output().unwrap()
}

/// Runs `make` in the project, with the command under test.
fn make(project: &Path, target: &str) -> Output {
    let bedplate = format!("BEDPLATE={}", command(&[]).get_program().display());
    Command::new("make")
        .args(["-C".as_ref(), project.as_os_str()])
        .args([target, &bedplate])
        .output()
        .unwrap()
}

#[test]
fn a_new_project_passes_its_own_test() {
    // SAFETY: the function has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: loading eBPF programs needs root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let made = new(folder.path(), "quota");
    assert!(made.status.success(), "{}", text(&made));
    let project = folder.path().join("quota");
    let tested = make(&project, "test");
    assert!(tested.status.success(), "{}", text(&tested));
    assert!(text(&tested).contains("all calls have the expected replies"), "{}", text(&tested));
    assert!(!project.join("data").exists(), "the test leaves nothing behind");
    // The test notices a procedure that does not do what it should.
    let source = project.join("quota.bpf.c");
    let right = std::fs::read_to_string(&source).unwrap();
    let wrong = right.replace("left - units", "left - units - 1");
    assert_ne!(right, wrong);
    std::fs::write(&source, wrong).unwrap();
    let tested = make(&project, "test");
    assert!(!tested.status.success(), "{}", text(&tested));
    assert!(text(&tested).contains("'6' instead of '7'"), "{}", text(&tested));
}

#[test]
fn mistakes_are_errors_of_one_line() {
    let folder = tempfile::tempdir().unwrap();
    assert!(new(folder.path(), "quota").status.success());
    let again = new(folder.path(), "quota");
    assert_eq!(again.status.code(), Some(1));
    assert!(text(&again).contains("exists already"), "{}", text(&again));
    let named = new(folder.path(), "Quota");
    assert!(!named.status.success() && text(&named).contains("lower-case"), "{}", text(&named));
    let build = |source: &Path| command(&["kv", "build-procedure"]).arg(source).output().unwrap();
    let missing = build(&folder.path().join("missing.c"));
    assert!(!missing.status.success() && text(&missing).contains("there is no file"), "{}", text(&missing));
    let other = build(&folder.path().join("quota/Makefile"));
    assert!(!other.status.success() && text(&other).contains("is not a C file"), "{}", text(&other));
    let source = folder.path().join("wrong.c");
    std::fs::write(&source, "#include <bedplate/procedure.h>\nnonsense").unwrap();
    let wrong = build(&source);
    assert!(!wrong.status.success() && text(&wrong).contains("wrong.c does not compile"), "{}", text(&wrong));
    assert!(!folder.path().join("wrong.o").exists());
}

/// Other build systems compile with the headers that the command writes.
#[test]
fn the_headers_suffice_for_a_compiler() {
    let folder = tempfile::tempdir().unwrap();
    assert!(new(folder.path(), "quota").status.success());
    let headers = folder.path().join("headers");
    let written = command(&["kv", "build-procedure", "--headers"]).arg(&headers).output().unwrap();
    assert!(written.status.success(), "{}", text(&written));
    for header in ["include/bedplate/procedure.h", "engine/arena/tx.h", "libbpf/bpf/bpf_helpers.h"] {
        assert!(headers.join(header).is_file(), "{header}");
    }
    let object = folder.path().join("other.o");
    let source = folder.path().join("quota/quota.bpf.c");
    let built = command(&["kv", "build-procedure"]).arg(&source).arg("-o").arg(&object).output().unwrap();
    assert!(built.status.success() && object.is_file(), "{}", text(&built));
}
