//! The C interface from C and C++: the header is the one in the repository, compiles as both, the examples work, and a
//! mistake of a program is an error and no access to memory that is not there.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use bedplate_c_tests::{Interface, compile, text, under};
use tempfile::TempDir;

const C: Interface = bedplate_c_tests::interface!("store", "gnu99");

#[test]
fn the_header_is_up_to_date() {
    C.check_header();
}

/// A symbol of a crate below could take the place of the same symbol in another library of the process.
#[test]
fn the_library_exports_the_functions_of_the_header_and_no_others() {
    let library = C.libraries().join("libbedplate_store.so");
    let output = Command::new("nm").args(["--dynamic", "--defined-only"]).arg(library).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let listed = String::from_utf8(output.stdout).unwrap();
    let mut exported: Vec<&str> = listed.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    exported.sort_unstable();
    let header = include_str!("../include/bedplate/store.h");
    let declared = |line: &'static str| {
        let (before, _) = line.strip_prefix("int ").or(line.strip_prefix("const char *"))?.split_once('(')?;
        Some(before)
    };
    let mut declared: Vec<&str> = header.lines().filter_map(declared).collect();
    declared.sort_unstable();
    assert_eq!(exported, declared);
}

/// The pool's features are off in this library.
#[test]
fn the_library_has_no_code_of_the_engine_in_ring_0() {
    let library = C.libraries().join("libbedplate_store.so");
    let output = Command::new("nm").arg(library).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let symbols = String::from_utf8(output.stdout).unwrap();
    assert!(symbols.contains("bedplate_bufpool"), "the library has been stripped");
    for part in ["bedplate_ring0", "kvm_ioctls", "Ring0"] {
        let found = symbols.lines().find(|line| line.contains(part));
        assert_eq!(found, None, "{part}");
    }
}

/// Everything that the header has is in the manual, and nothing else.
#[test]
fn the_manual_has_all_functions() {
    assert_eq!(C.check_manual(25), [""; 0]);
}

/// A program that uses each kind of argument.
const CPP: &str = "#include <bedplate/store.h>\n\
    int main() { bp_store store{}; bp_store_transaction transaction{}; bp_store_tree tree{};\n\
    bp_store_cursor cursor{}; bp_store_range range{}; bp_store_bytes bytes{};\n\
    static_assert(BP_STORE_KEY_MAX == 512, \"\");\n\
    auto work = [](bp_store_transaction, void *) { return 0; };\n\
    return bp_store_open(nullptr, nullptr, nullptr) != BP_STORE_ERROR_NULL\n\
        || bp_store_begin(store, BP_STORE_READ_ONLY, &transaction) != BP_STORE_ERROR_HANDLE\n\
        || bp_store_open_cursor(transaction, tree, &range, &cursor) != BP_STORE_ERROR_HANDLE\n\
        || bp_store_next(cursor, &bytes, nullptr) != BP_STORE_ERROR_HANDLE\n\
        || bp_store_update(store, work, nullptr) != BP_STORE_ERROR_HANDLE; }\n";

#[test]
fn the_header_is_cpp_too() {
    C.check_cpp(CPP, &["c++11", "c++17", "c++20"]);
}

/// A program needs nothing of C but its standard of 1999.
#[test]
fn the_header_is_strict_c() {
    let folder = C.folder();
    let source = folder.path().join("header.c");
    std::fs::write(&source, "#include <bedplate/store.h>\nint main(void) { return 0; }\n").unwrap();
    let (include, output) = (format!("-I{}/include", C.folder), folder.path().join("header"));
    let (source, output) = (source.to_str().unwrap(), output.to_str().unwrap());
    for standard in ["c99", "c11", "c17"] {
        let standard = format!("-std={standard}");
        compile("cc", &[&standard, "-pedantic-errors", &include, source, "-o", output]);
    }
}

/// The library as it was built, installed below a folder.
struct Installed(TempDir);

impl Installed {
    fn new() -> Self {
        let folder = C.folder();
        let mut command = Command::new("make");
        command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).arg("install-libraries");
        command.arg("C_LIBRARIES=store").arg(format!("BUILT={}", C.libraries().display()));
        let output = command.arg(format!("PREFIX={}", folder.path().display())).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The arguments that `pkg-config` has for a compiler.
    fn arguments(&self) -> Vec<String> {
        let mut command = Command::new("pkg-config");
        command.env("PKG_CONFIG_PATH", self.path("lib/pkgconfig"));
        let output = command.args(["--cflags", "--libs", "bedplate-store"]).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        String::from_utf8(output.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
    }

    /// Compiles a program with this library and without extensions of the language, and gives where it is.
    fn compile(&self, compiler: &str, standard: &str, source: &Path) -> PathBuf {
        let program = self.path("program");
        let found = self.arguments();
        let arguments = [standard, "-pedantic", source.to_str().unwrap(), "-o", program.to_str().unwrap()];
        let found: Vec<&str> = found.iter().map(String::as_str).collect();
        compile(compiler, &[&arguments[..], &found].concat());
        program
    }

    /// Runs a program with this library and no other.
    fn run(&self, program: &Path, argument: &Path) -> Output {
        Command::new(program).arg(argument).env("LD_LIBRARY_PATH", self.path("lib")).output().unwrap()
    }
}

/// The tutorial's blocks of a language, one after the other.
fn blocks(language: &str) -> String {
    let page = include_str!("../../../docs/store-tutorial.md");
    let opening = format!("```{language}\n");
    let block = |part: &'static str| part.split("```").next().unwrap();
    page.split(&opening).skip(1).map(block).collect()
}

/// The program of the tutorial prints the lines of the page. It is linked with the installed library.
#[test]
fn the_program_of_the_tutorial_works_with_the_installed_library() {
    let installed = Installed::new();
    let source = installed.path("stock.c");
    std::fs::write(&source, blocks("c")).unwrap();
    for standard in ["-std=c99", "-std=c17"] {
        let program = installed.compile("cc", standard, &source);
        let store = installed.path(standard);
        let output = installed.run(&program, &store);
        assert!(output.status.success(), "{}", text(&output));
        assert_eq!(String::from_utf8_lossy(&output.stdout), blocks("text"));
        let again = text(&installed.run(&program, &store));
        assert!(again.contains("fruit/apple: 14\nfruit/pear: 10\n"), "{again}");
        // A directory that cannot be is an error in words.
        let output = installed.run(&program, &source);
        let said = text(&output);
        assert!(!output.status.success() && said.contains("stock.c cannot be opened"), "{said}");
    }
}

/// The example of the manual is a function that compiles.
#[test]
fn the_example_of_the_manual_compiles() {
    let folder = C.folder();
    let manual = include_str!("../../../docs/man/bedplate-store.3");
    let start = manual.find("\nint add(").unwrap();
    let example = manual[start..].split("\n.fi").next().unwrap();
    let source = folder.path().join("example.c");
    std::fs::write(&source, format!("#include <bedplate/store.h>\n#include <string.h>\n{example}\n"))
        .unwrap();
    let (include, output) = (format!("-I{}/include", C.folder), folder.path().join("example.o"));
    let (source, output) = (source.to_str().unwrap(), output.to_str().unwrap());
    compile("cc", &["-std=c99", "-pedantic", &include, "-c", source, "-o", output]);
}

/// `man` and a C++ compiler find the installed files.
#[test]
fn the_installed_header_is_cpp_and_the_manual_is_in_its_place() {
    let installed = Installed::new();
    let source = installed.path("header.cpp");
    std::fs::write(&source, CPP).unwrap();
    for standard in ["-std=c++11", "-std=c++20"] {
        let output = installed.run(&installed.compile("c++", standard, &source), Path::new(""));
        assert!(output.status.success(), "{}", text(&output));
    }
    let manual = std::fs::read_to_string(installed.path("share/man/man3/bedplate-store.3")).unwrap();
    assert!(manual.contains(".TH bedplate-store 3"));
}

#[test]
fn the_example_keeps_records() {
    let folder = C.folder();
    let kv = C.program("examples/kv.c", folder.path(), &[]);
    let store = folder.path().join("store");
    let run = |arguments: &[&str], input: &str| {
        let mut command = Command::new(&kv);
        command.env("LD_LIBRARY_PATH", C.libraries()).arg(&store).args(arguments);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    };
    let prints = |arguments: &[&str], input: &str, expected: &str| {
        let output = run(arguments, input);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output));
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{arguments:?}");
    };
    let fails = |arguments: &[&str], input: &str, reason: &str| {
        let output = run(arguments, input);
        let said = text(&output);
        assert!(!output.status.success() && said.contains(reason), "{arguments:?}: {said}");
    };
    prints(&["set", "b", "two"], "", "");
    prints(&["get", "b"], "", "two\n");
    fails(&["get", "a"], "", "there is no such key");
    prints(&["add", "n", "40"], "", "40\n");
    prints(&["add", "n", "2"], "", "42\n");
    fails(&["add", "b", "1"], "", "no number");
    fails(&["add", "n", "9223372036854775807"], "", "too large");
    prints(&["import"], "user:1\tone\nuser:2\ttwo\n", "2 lines\n");
    fails(&["import"], "user:3\tthree\nno tab\n", "no tab");
    prints(&["list", "user:"], "", "user:1\tone\nuser:2\ttwo\n");
    prints(&["last"], "", "user:2\ttwo\n");
    prints(&["delete", "user:1"], "", "");
    fails(&["delete", "user:1"], "", "there is no such key");
    prints(&["list"], "", "b\ttwo\nn\t42\nuser:2\ttwo\n");
    fails(&["get"], "", "no such command");
}

/// `pkg-config` says how to link with either library, once they are installed.
#[test]
fn the_static_library_is_complete() {
    let folder = C.folder();
    let kv = C.static_program("examples/kv.c", folder.path());
    let output = Command::new(kv).arg(folder.path().join("store")).args(["add", "n", "1"]).output().unwrap();
    assert!(output.status.success() && output.stdout == b"1\n", "{}", text(&output));
}

/// Runs a test in C, under a tool if one is named.
fn test(name: &str, tool: &[&str]) {
    let folder = C.folder();
    let program = C.program(&format!("tests/{name}.c"), folder.path(), &[]);
    // An ordinary user has to come to it, too, which the folder of the build does not allow everywhere.
    let data = tempfile::tempdir().unwrap();
    std::fs::set_permissions(data.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let output = C.run(under(tool, program).arg(data.path()));
    println!("{}", text(&output));
    assert!(output.status.success(), "{name}");
}

#[test]
fn a_store_lives() {
    test("life", &[]);
}

#[test]
fn transactions_conflict_and_begin_again() {
    test("conflicts", &[]);
}

#[test]
fn limits_are_errors() {
    test("limits", &[]);
}

#[test]
fn misuse_is_an_error() {
    test("misuse", &[]);
}

#[test]
fn a_kill_a_full_file_system_and_a_foreign_directory_lose_nothing() {
    test("failures", &[]);
}

#[test]
fn misuse_touches_no_memory_that_is_not_there() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: valgrind is not installed");
        return;
    }
    for name in ["life", "conflicts", "misuse"] {
        test(name, &["valgrind", "-q", "--leak-check=full", "--error-exitcode=9"]);
    }
}
