//! The C interface from C: the header is the one in the repository, compiles as C and C++, the examples work, and whatever
//! a program does wrong is an error and no access to memory.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use bedplate_scan::{Daemon, Options, Service};
use tempfile::TempDir;

const FOLDER: &str = env!("CARGO_MANIFEST_DIR");

/// Where the library is, built as this test was.
fn libraries() -> &'static Path {
    static LIBRARIES: OnceLock<PathBuf> = OnceLock::new();
    LIBRARIES.get_or_init(|| {
        let build = ["build", "--locked", "--quiet", "-p", "bedplate-scan-c"];
        assert!(Command::new(env!("CARGO")).args(build).status().unwrap().success());
        std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_owned()
    })
}

fn compile(compiler: &str, arguments: &[&str]) {
    let output =
        Command::new(compiler).args(["-Wall", "-Wextra", "-Werror"]).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Compiles a program of this crate into a folder.
fn program(source: &str, folder: &Path, more: &[&str]) -> PathBuf {
    let program = folder.join(Path::new(source).file_stem().unwrap());
    let (include, search) = (format!("-I{FOLDER}/include"), format!("-L{}", libraries().display()));
    let (source, output) = (format!("{FOLDER}/{source}"), program.to_str().unwrap());
    let mut arguments = vec!["-std=gnu99", "-g", "-pthread", &include, &source, "-o", output];
    arguments.extend_from_slice(more);
    if more.is_empty() {
        arguments.extend_from_slice(&[&search, "-lbedplate_scan"]);
    }
    compile("cc", &arguments);
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

/// A folder on a disk: the tests' own, so that the files are where the build is.
fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// A file of pages of 8 KiB whose bytes are their numbers.
fn pages(folder: &Path, name: &str, bytes: usize) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, (0..bytes).map(|at| (at / 8192) as u8).collect::<Vec<_>>()).unwrap();
    path
}

#[test]
fn the_header_is_up_to_date() {
    let generated = std::fs::read_to_string(concat!(env!("OUT_DIR"), "/scan.h")).unwrap();
    let path = Path::new(FOLDER).join("include/bedplate/scan.h");
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
    let header = std::fs::read_to_string(format!("{FOLDER}/include/bedplate/scan.h")).unwrap();
    let manual = std::fs::read_to_string(format!("{FOLDER}/../../docs/man/bedplate-scan.3")).unwrap();
    let functions = |text: &str| -> Vec<String> {
        let name = |at: usize| {
            let rest = &text[at..];
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            rest[end..].starts_with('(').then(|| rest[..end].to_owned())
        };
        let mut names: Vec<String> = text.match_indices("bp_scan_").filter_map(|(at, _)| name(at)).collect();
        names.sort();
        names.dedup();
        names
    };
    let (declared, synopsis) = (functions(&header), manual.split(".SH DESCRIPTION").next().unwrap());
    assert!(declared.len() >= 20, "{declared:?}");
    assert_eq!(functions(synopsis), declared);
    let codes = |text: &str| -> Vec<String> {
        let word = |at: usize| text[at..].split(|c: char| !c.is_ascii_uppercase() && c != '_').next();
        let mut codes: Vec<String> =
            text.match_indices("BP_SCAN_ERROR_").filter_map(|(at, _)| word(at).map(str::to_owned)).collect();
        codes.sort();
        codes.dedup();
        codes
    };
    assert_eq!(codes(&manual), codes(&header));
}

#[test]
fn the_header_is_cpp_too() {
    let folder = folder();
    let cpp = folder.path().join("header.cpp");
    let source = "#include <bedplate/scan.h>\n\
                  int main() { bp_scan_page page{}; bp_scan_channel c{};\n\
                  return bp_scan_join(BP_SCAN_DEFAULT, nullptr, 0, &c) != BP_SCAN_ERROR_NULL\n\
                      || bp_scan_get_page(c, &page) != BP_SCAN_ERROR_HANDLE; }\n";
    std::fs::write(&cpp, source).unwrap();
    let (include, search) = (format!("-I{FOLDER}/include"), format!("-L{}", libraries().display()));
    let program = folder.path().join("header");
    let (cpp, output) = (cpp.to_str().unwrap(), program.to_str().unwrap());
    compile("c++", &["-std=c++11", "-pedantic", &include, cpp, &search, "-lbedplate_scan", "-o", output]);
    let output = run(&mut Command::new(program));
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn the_examples_work() {
    let folder = folder();
    let lines = folder.path().join("lines");
    let content: String = (0..700_000).map(|line| format!("{line}\n")).collect();
    std::fs::write(&lines, &content).unwrap();
    let output = run(Command::new(program("examples/count.c", folder.path(), &[])).arg(&lines).arg(&lines));
    let expected = format!("{} bytes, 1400000 lines\n", 2 * content.len());
    assert_eq!((text(&output), output.status.success()), (text(&output), true));
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    let output = run(Command::new(program("examples/share.c", folder.path(), &[])).arg(&lines));
    let expected = format!("4 workers, {} bytes each, equal sums\n", content.len());
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{}", text(&output));
    let output = run(Command::new(program("examples/judge.c", folder.path(), &[])).arg(&lines));
    let expected = format!("{} pages: ", content.len().div_ceil(8192));
    assert!(output.status.success() && text(&output).contains(&expected), "{}", text(&output));
    let output = run(Command::new(folder.path().join("count")).arg(folder.path().join("none")));
    assert!(!output.status.success() && text(&output).contains("No such file"), "{}", text(&output));
}

/// `pkg-config` says how to link with either library, once they are installed.
#[test]
fn the_static_library_is_complete() {
    let folder = folder();
    let template = std::fs::read_to_string(format!("{FOLDER}/bedplate-scan.pc.in")).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    let filled = template.replace("@VERSION@", version).replace("@PREFIX@", "/nowhere");
    assert!(!filled.contains('@'), "{filled}");
    std::fs::write(folder.path().join("bedplate-scan.pc"), filled).unwrap();
    let ask = |question: &[&str]| {
        let mut command = Command::new("pkg-config");
        command.env("PKG_CONFIG_PATH", folder.path()).args(question).arg("bedplate-scan");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(ask(&["--modversion"]), version);
    assert_eq!(ask(&["--cflags", "--libs"]), "-I/nowhere/include -L/nowhere/lib -lbedplate_scan");
    let library = libraries().join("libbedplate_scan.a");
    let private = ask(&["--static", "--libs"]);
    let (_, private) = private.split_once("-lbedplate_scan").unwrap();
    let more: Vec<&str> = [library.to_str().unwrap()].into_iter().chain(private.split_whitespace()).collect();
    let count = program("examples/count.c", folder.path(), &more);
    let output = Command::new(count).arg(format!("{FOLDER}/bedplate-scan.pc.in")).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains(&format!("{} bytes", template.len())), "{}", text(&output));
}

fn misuse(engine: &str, under: &[&str]) {
    let folder = folder();
    let program = program("tests/misuse.c", folder.path(), &[]);
    let files = [pages(folder.path(), "a", 5 << 20), pages(folder.path(), "b", 16 << 20)];
    let mut command = match under {
        [] => Command::new(program),
        [tool, arguments @ ..] => {
            let mut command = Command::new(tool);
            command.args(arguments).arg(program);
            command
        }
    };
    // The path of a socket must be short.
    let place = tempfile::tempdir().unwrap();
    let socket = place.path().join("socket");
    let daemon = Daemon::bind(Service::start().unwrap(), &socket, &Options::default()).unwrap();
    let stopper = daemon.stopper();
    let daemon = std::thread::spawn(move || daemon.run());
    let output = run(command.args(files).arg(engine).arg(socket));
    stopper.stop();
    daemon.join().unwrap().unwrap();
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn misuse_is_an_error() {
    misuse("auto", &[]);
    misuse("threads", &[]);
}

#[test]
fn misuse_touches_no_memory_that_is_not_there() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("skipped: valgrind is not installed");
        return;
    }
    misuse("threads", &["valgrind", "-q", "--error-exitcode=9"]);
}
