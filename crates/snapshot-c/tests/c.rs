//! The C interface from C and C++: the header is the one in the repository, compiles as both, the examples work, and what a
//! program does wrong is an error and no access to memory.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use bedplate_vm::{Captured, File, Job, Kernel, Machine, Series};
use tempfile::TempDir;

const FOLDER: &str = env!("CARGO_MANIFEST_DIR");

/// What the examples return where the engine that they need does not work.
const UNAVAILABLE: i32 = 3;

/// Where the library is, built as this test was.
fn libraries() -> &'static Path {
    static LIBRARIES: OnceLock<PathBuf> = OnceLock::new();
    LIBRARIES.get_or_init(|| {
        let build = ["build", "--locked", "--quiet", "-p", "bedplate-snapshot-c"];
        assert!(Command::new(env!("CARGO")).args(build).status().unwrap().success());
        std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_owned()
    })
}

fn compile(compiler: &str, arguments: &[&str]) {
    let output =
        Command::new(compiler).args(["-Wall", "-Wextra", "-Werror"]).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Compiles a program of this crate into a folder: C as of 2011, or C++ as of 2017.
fn program(source: &str, folder: &Path, more: &[&str]) -> PathBuf {
    let path = Path::new(source);
    let program = folder.join(path.file_stem().unwrap());
    let (include, search) = (format!("-I{FOLDER}/include"), format!("-L{}", libraries().display()));
    let (source, output) = (format!("{FOLDER}/{source}"), program.to_str().unwrap());
    let (compiler, standard) =
        if path.extension().unwrap() == "cpp" { ("c++", "-std=c++17") } else { ("cc", "-std=gnu11") };
    let mut arguments = vec![standard, "-g", "-pthread", &include, &source, "-o", output];
    arguments.extend_from_slice(more);
    if more.is_empty() {
        arguments.extend_from_slice(&[&search, "-lbedplate_snapshot"]);
    }
    compile(compiler, &arguments);
    program
}

/// Runs a command with the library at hand.
fn run(command: &mut Command) -> Output {
    command.env("LD_LIBRARY_PATH", libraries()).output().unwrap()
}

fn text(output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{:?}\n{out}{err}", output.status)
}

/// Says why something is skipped: what a program has said.
fn skipped(output: &Output) {
    let said = [&output.stdout[..], &output.stderr].concat();
    println!("skipped: {}", String::from_utf8_lossy(&said).trim());
}

fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

#[test]
fn the_header_is_up_to_date() {
    let generated = std::fs::read_to_string(concat!(env!("OUT_DIR"), "/snapshot.h")).unwrap();
    let path = Path::new(FOLDER).join("include/bedplate/snapshot.h");
    if std::env::var_os("BEDPLATE_UPDATE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &generated).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == generated, "{} is old: run this test with BEDPLATE_UPDATE=1", path.display());
}

/// Everything that the header has is in the manual, and nothing else.
#[test]
fn the_manual_has_all_functions() {
    let header = std::fs::read_to_string(format!("{FOLDER}/include/bedplate/snapshot.h")).unwrap();
    let manual = std::fs::read_to_string(format!("{FOLDER}/../../docs/man/bedplate-snapshot.3")).unwrap();
    let functions = |text: &str| -> Vec<String> {
        let name = |at: usize| {
            let rest = &text[at..];
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            rest[end..].starts_with('(').then(|| rest[..end].to_owned())
        };
        let mut names: Vec<String> =
            text.match_indices("bp_snapshot_").filter_map(|(at, _)| name(at)).collect();
        names.sort();
        names.dedup();
        names
    };
    let (declared, synopsis) = (functions(&header), manual.split(".SH DESCRIPTION").next().unwrap());
    assert!(declared.len() >= 30, "{declared:?}");
    assert_eq!(functions(synopsis), declared);
    let constants = |text: &str, prefix: &str| -> Vec<String> {
        let word = |at: usize| text[at..].split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next();
        let mut constants: Vec<String> =
            text.match_indices(prefix).filter_map(|(at, _)| word(at).map(str::to_owned)).collect();
        constants.sort();
        constants.dedup();
        constants
    };
    assert_eq!(constants(&manual, "BP_SNAPSHOT_ERROR_"), constants(&header, "BP_SNAPSHOT_ERROR_"));
    let (described, defined) = (constants(&manual, "BP_SNAPSHOT_"), constants(&header, "BP_SNAPSHOT_"));
    let missing: Vec<_> = defined.iter().filter(|name| !described.contains(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn the_header_is_cpp_too() {
    let folder = folder();
    let cpp = folder.path().join("header.cpp");
    let source = "#include <bedplate/snapshot.h>\n\
                  int main() { bp_snapshot snapshot{}; bp_snapshot_memory memory{}; bp_snapshot_task task{};\n\
                  bp_snapshot_output output{};\n\
                  const size_t largest = BP_SNAPSHOT_LARGEST_ALIGNMENT; static_assert(largest == 2 << 20, \"\");\n\
                  auto work = [](void *, const bp_snapshot_view *, bp_snapshot_output) { return 0; };\n\
                  return bp_snapshot_create(nullptr, nullptr) != BP_SNAPSHOT_ERROR_NULL\n\
                      || bp_snapshot_take(memory, &snapshot) != BP_SNAPSHOT_ERROR_HANDLE\n\
                      || bp_snapshot_spawn(memory, work, nullptr, &task) != BP_SNAPSHOT_ERROR_HANDLE\n\
                      || bp_snapshot_write(output, nullptr, 0) != BP_SNAPSHOT_ERROR_HANDLE; }\n";
    std::fs::write(&cpp, source).unwrap();
    let (include, search) = (format!("-I{FOLDER}/include"), format!("-L{}", libraries().display()));
    let program = folder.path().join("header");
    let (cpp, output) = (cpp.to_str().unwrap(), program.to_str().unwrap());
    for standard in ["-std=c++11", "-std=c++17"] {
        let link = [standard, "-pedantic", &include, cpp, &search, "-lbedplate_snapshot", "-o", output];
        compile("c++", &link);
        let output = run(&mut Command::new(&program));
        assert!(output.status.success(), "{standard}: {}", text(&output));
    }
}

/// A program needs nothing of C but its standard of 1999.
#[test]
fn the_header_is_strict_c() {
    let folder = folder();
    let source = folder.path().join("header.c");
    std::fs::write(&source, "#include <bedplate/snapshot.h>\nint main(void) { return 0; }\n").unwrap();
    let (include, output) = (format!("-I{FOLDER}/include"), folder.path().join("header"));
    let (source, output) = (source.to_str().unwrap(), output.to_str().unwrap());
    compile("cc", &["-std=c99", "-pedantic-errors", &include, source, "-o", output]);
}

#[test]
fn a_table_is_saved_while_it_is_written() {
    let folder = folder();
    let save = program("examples/save.c", folder.path(), &[]);
    let output = run(Command::new(&save).arg(folder.path().join("accounts")));
    let said = text(&output);
    if said.contains("the fork engine does not work here") {
        skipped(&output);
        return;
    }
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(printed, "saved 1000000 accounts, the sum is right\n", "{said}");
    assert!(output.status.success(), "{said}");
    let saved = std::fs::read(folder.path().join("accounts")).unwrap();
    assert_eq!(saved.len(), 8_000_000usize.next_multiple_of(4096));
    let output = run(&mut Command::new(save));
    assert!(!output.status.success() && text(&output).contains("usage"), "{}", text(&output));
}

#[test]
fn a_checkpoint_is_brought_up_to_date() {
    let folder = folder();
    let checkpoint = program("examples/checkpoint.c", folder.path(), &[]);
    let output = run(Command::new(checkpoint).arg(folder.path().join("file")));
    if output.status.code() == Some(UNAVAILABLE) {
        skipped(&output);
        return;
    }
    let expected = "checkpoint 0: all\ncheckpoint 1: a part\ncheckpoint 2: a part\ncheckpoint 3: a part\n\
                    the file is what the memory is\n";
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{}", text(&output));
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn containers_of_cpp_are_read_in_a_child() {
    let folder = folder();
    let output = run(&mut Command::new(program("examples/heap.cpp", folder.path(), &[])));
    let expected = format!("a child saw {} characters\n", 1000 * (0..100).sum::<u32>());
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{}", text(&output));
    assert!(output.status.success(), "{}", text(&output));
}

/// `pkg-config` says how to link with either library, once they are installed.
#[test]
fn the_static_library_is_complete() {
    let folder = folder();
    let template = std::fs::read_to_string(format!("{FOLDER}/bedplate-snapshot.pc.in")).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    let filled = template.replace("@VERSION@", version).replace("@PREFIX@", "/nowhere");
    assert!(!filled.contains('@'), "{filled}");
    std::fs::write(folder.path().join("bedplate-snapshot.pc"), filled).unwrap();
    let ask = |question: &[&str]| {
        let mut command = Command::new("pkg-config");
        command.env("PKG_CONFIG_PATH", folder.path()).args(question).arg("bedplate-snapshot");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(ask(&["--modversion"]), version);
    assert_eq!(ask(&["--cflags", "--libs"]), "-I/nowhere/include -L/nowhere/lib -lbedplate_snapshot");
    let library = libraries().join("libbedplate_snapshot.a");
    let private = ask(&["--static", "--libs"]);
    let (_, private) = private.split_once("-lbedplate_snapshot").unwrap();
    let more: Vec<&str> = [library.to_str().unwrap()].into_iter().chain(private.split_whitespace()).collect();
    let heap = program("examples/heap.cpp", folder.path(), &more);
    let output = Command::new(heap).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
}

/// Runs a test in C with one engine.
fn test(name: &str, engine: &str, under: &[&str]) {
    let folder = folder();
    let program = program(&format!("tests/{name}.c"), folder.path(), &[]);
    let mut command = match under {
        [] => Command::new(program),
        [tool, arguments @ ..] => {
            let mut command = Command::new(tool);
            command.args(arguments).arg(program);
            command
        }
    };
    let output = run(command.arg(engine));
    if output.status.code() == Some(UNAVAILABLE) {
        skipped(&output);
        return;
    }
    assert!(output.status.success(), "{engine}: {}", text(&output));
}

const ENGINES: [&str; 4] = ["auto", "remap", "uffd", "fork"];

#[test]
fn misuse_is_an_error() {
    ENGINES.into_iter().for_each(|engine| test("misuse", engine, &[]));
}

#[test]
fn snapshots_are_read_by_threads_and_compared() {
    ENGINES.into_iter().for_each(|engine| test("snapshots", engine, &[]));
}

#[test]
fn tasks_return_what_they_found() {
    ENGINES.into_iter().for_each(|engine| test("tasks", engine, &[]));
}

#[test]
fn heaps_know_their_blocks() {
    ENGINES.into_iter().for_each(|engine| test("heap", engine, &[]));
}

#[test]
fn misuse_touches_no_memory_that_is_not_there() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: valgrind is not installed");
        return;
    }
    // The other engines need system calls that valgrind does not know.
    for name in ["misuse", "tasks", "heap"] {
        test(name, "fork", &["valgrind", "-q", "--error-exitcode=9"]);
    }
}

#[test]
fn an_exception_ends_the_child_only() {
    let folder = folder();
    let output = run(&mut Command::new(program("tests/exception.cpp", folder.path(), &[])));
    assert!(output.status.success(), "{}", text(&output));
}

/// The engine ring0, in a virtual machine that has what it needs.
#[test]
fn tasks_run_in_ring_0() {
    let folder = folder();
    let program = program("tests/ring0.c", folder.path(), &[]);
    let library = libraries().join("libbedplate_snapshot.so");
    let machine = Machine::new(Kernel::get(Series::V6_1).unwrap())
        .file(File { host: program, guest: "/ring0".into() })
        .file(File { host: library, guest: "/lib/libbedplate_snapshot.so".into() });
    let job = Job::new(["sh", "-c", "/ring0 ring0"]).env("LD_LIBRARY_PATH", "/lib");
    let Captured { report, out, err } =
        machine.capture_despite_losses(&[job], |why| println!("{why}")).unwrap();
    assert!(report.succeeded(), "{:?}\n{out}{err}", report.statuses);
}
