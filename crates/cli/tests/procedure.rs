//! `bedplate kv new-procedure` and `build-procedure`: a new project compiles, and its own test passes on a real server.

mod running;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use running::command;

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

fn new(directory: &Path, name: &str, language: &str) -> Output {
    command(&["kv", "new-procedure", name, "--language", language, "--directory"])
        .arg(directory)
        .output()
        .unwrap()
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
    project_passes_its_own_test("c", "quota.bpf.c", ("left - units", "left - units - 1"));
}

#[test]
fn a_new_project_in_the_procedure_language_passes_its_own_test() {
    project_passes_its_own_test("kdb", "quota.kdb", ("integer(value) - units", "integer(value) - units - 1"));
}

fn project_passes_its_own_test(language: &str, source: &str, (right, wrong): (&str, &str)) {
    // SAFETY: the function has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: loading eBPF programs needs root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let made = new(folder.path(), "quota", language);
    assert!(made.status.success(), "{}", text(&made));
    let project = folder.path().join("quota");
    let tested = make(&project, "test");
    assert!(tested.status.success(), "{}", text(&tested));
    assert!(text(&tested).contains("all calls have the expected replies"), "{}", text(&tested));
    assert!(!project.join("data").exists(), "the test leaves nothing behind");
    // The test notices a procedure that does not do what it should.
    let source = project.join(source);
    let before = std::fs::read_to_string(&source).unwrap();
    let after = before.replace(right, wrong);
    assert_ne!(before, after);
    std::fs::write(&source, after).unwrap();
    let tested = make(&project, "test");
    assert!(!tested.status.success(), "{}", text(&tested));
    assert!(text(&tested).contains("'6' instead of '7'"), "{}", text(&tested));
}

#[test]
fn mistakes_are_errors_of_one_line() {
    let folder = tempfile::tempdir().unwrap();
    assert!(new(folder.path(), "quota", "c").status.success());
    let again = new(folder.path(), "quota", "c");
    assert_eq!(again.status.code(), Some(1));
    assert!(text(&again).contains("exists already"), "{}", text(&again));
    let named = new(folder.path(), "Quota", "c");
    assert!(!named.status.success() && text(&named).contains("lower-case"), "{}", text(&named));
    let build = |source: &Path| command(&["kv", "build-procedure"]).arg(source).output().unwrap();
    let missing = build(&folder.path().join("missing.c"));
    assert!(!missing.status.success() && text(&missing).contains("there is no file"), "{}", text(&missing));
    let other = build(&folder.path().join("quota/Makefile"));
    assert!(
        !other.status.success() && text(&other).contains("is neither a C file nor a .kdb file"),
        "{}",
        text(&other)
    );
    let source = folder.path().join("wrong.c");
    std::fs::write(&source, "#include <bedplate/procedure.h>\nnonsense").unwrap();
    let wrong = build(&source);
    assert!(
        !wrong.status.success() && text(&wrong).contains("wrong.c: the compiler refuses"),
        "{}",
        text(&wrong)
    );
    assert!(!folder.path().join("wrong.o").exists());
}

/// A library that exists is replaced, and a pipe stays what it is.
#[test]
fn a_library_is_written_to_a_file_or_a_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("nothing.c");
    let text = "#include <bedplate/procedure.h>\nKDB_LICENSE(\"Dual MIT/GPL\");\nKDB_PROCEDURE(nothing) { return KDB_OK; }\n";
    std::fs::write(&source, text).unwrap();
    let file = folder.path().join("nothing.o");
    std::fs::write(&file, "older").unwrap();
    // The object names the folder of the headers for debuggers.
    let headers = tempfile::tempdir().unwrap();
    let build = || {
        let mut build = command(&["kv", "build-procedure", "--headers"]);
        build.arg(headers.path()).arg(&source);
        build
    };
    assert!(build().status().unwrap().success());
    let piped = build().args(["-o", "/dev/stdout"]).output().unwrap();
    assert!(piped.status.success(), "{}", String::from_utf8_lossy(&piped.stderr));
    let library = std::fs::read(&file).unwrap();
    assert!(library.starts_with(b"\x7fELF") && piped.stdout == library);
    let names = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.count(), 2, "nothing else is left");
    let nowhere = build().args(["-o", "/nowhere/nothing.o"]).output().unwrap();
    assert!(String::from_utf8_lossy(&nowhere.stderr).contains("cannot write /nowhere/nothing.o"));
}

/// Editors read the headers that the command writes, and it compiles without the project's folder.
#[test]
fn the_headers_suffice_for_a_compiler() {
    let folder = tempfile::tempdir().unwrap();
    assert!(new(folder.path(), "quota", "c").status.success());
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

#[test]
fn errors_in_the_procedure_language_name_their_places() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("bank.kdb");
    std::fs::write(&source, "readonly procedure a(n: integer) {\n    set [m] = 1;\n    reply ok;\n}\n")
        .unwrap();
    let build = |options: &[&str]| {
        command(&["kv", "build-procedure", "bank.kdb"])
            .args(options)
            .current_dir(folder.path())
            .output()
            .unwrap()
    };
    for options in [&[][..], &["--print-c"]] {
        let built = build(options);
        assert_eq!(built.status.code(), Some(1));
        let errors = text(&built);
        let lines: Vec<&str> = errors.lines().collect();
        assert_eq!(lines[0], "bank.kdb:2:5: the procedure is readonly and sets [read-only]");
        assert_eq!(lines[1], "bank.kdb:2:10: there is no m here [unknown-name]");
        assert!(lines.len() == 3 && lines[2].contains("bank.kdb has 2 errors"), "{lines:?}");
        assert!(!folder.path().join("bank.o").exists());
    }
    std::fs::write(&source, "procedure a(n: integer) {\n    reply n + 1;\n}\n").unwrap();
    let printed = build(&["--print-c"]);
    let c = text(&printed);
    assert!(
        printed.status.success() && c.contains("KDB_PROCEDURE(a)") && c.contains("#line 1 \"bank.kdb\""),
        "{c}"
    );
    assert!(!folder.path().join("bank.o").exists());
    assert!(build(&[]).status.success() && folder.path().join("bank.o").is_file());
    let c_source = folder.path().join("x.c");
    std::fs::write(&c_source, "").unwrap();
    let printed = command(&["kv", "build-procedure", "--print-c"]).arg(&c_source).output().unwrap();
    assert!(!printed.status.success() && text(&printed).contains("is C already"), "{}", text(&printed));
}

/// The manual describes the options that the command has, and no others.
#[test]
fn the_manual_has_the_options_of_the_command() {
    let manual = include_str!("../../../docs/man/bedplate-kv-procedure.1");
    let manual = manual.replace("\\-", "-").replace("\\fB", "");
    let options = |text: &str| -> BTreeSet<String> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
        words.filter(|word| word.starts_with("--") && word.len() > 2).map(str::to_owned).collect()
    };
    for command_name in ["new-procedure", "build-procedure"] {
        let help = command(&["kv", command_name, "--help"]).output().unwrap();
        let mut known = options(&text(&help));
        assert!(known.remove("--help"), "{}", text(&help));
        let section = manual.split(&format!(".SS {command_name}\n")).nth(1).unwrap();
        let section = section.split("\n.S").next().unwrap();
        assert_eq!(options(section), known, "{command_name}");
        let synopsis = manual.split(&format!(".B bedplate kv {command_name}\n")).nth(1).unwrap();
        let synopsis = synopsis.split("\n.br\n").next().unwrap().split("\n.SH").next().unwrap();
        assert_eq!(options(synopsis), known, "{command_name}");
    }
}
