//! The checks that the tests of all C interfaces share: the header is the one in the repository, the manual has what the header
//! has, and programs in C and C++ are compiled, linked and run.

#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use bedplate_suite_support::programs;
use tempfile::TempDir;

/// The C interface of the crate whose tests these are.
#[derive(Clone, Copy, Debug)]
pub struct Interface {
    /// The part of its names that is its own: `scan`, of `bp_scan_join` and `libbedplate_scan.so`.
    pub name: &'static str,
    /// The standard of C that its programs are written in.
    pub c: &'static str,
    /// The folder of the crate.
    pub folder: &'static str,
    /// The header that the crate's build script has made.
    pub generated: &'static str,
    /// A folder for tests, on the disk that the build is on.
    pub scratch: &'static str,
    /// The crate's version.
    pub version: &'static str,
}

/// The [`Interface`] of the crate that uses this in a test: its name, and the standard of C that its programs are written in.
#[macro_export]
macro_rules! interface {
    ($name:literal, $c:literal) => {
        $crate::Interface {
            name: $name,
            c: concat!("-std=", $c),
            folder: env!("CARGO_MANIFEST_DIR"),
            generated: concat!(env!("OUT_DIR"), "/", $name, ".h"),
            scratch: env!("CARGO_TARGET_TMPDIR"),
            version: env!("CARGO_PKG_VERSION"),
        }
    };
}

/// The compiler's argument for `bedplate_check.h`.
const CHECKS: &str = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include");

/// Runs a compiler, which must not warn.
///
/// # Panics
/// It does.
pub fn compile(compiler: &str, arguments: &[&str]) {
    let output =
        Command::new(compiler).args(["-Wall", "-Wextra", "-Werror"]).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The output and the exit status of a program.
pub fn text(output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{:?}\n{out}{err}", output.status)
}

/// A command that runs a program, or a tool that runs it: the tool's name and its arguments.
pub fn under(tool: &[&str], program: PathBuf) -> Command {
    let [tool, arguments @ ..] = tool else { return Command::new(program) };
    let mut command = Command::new(tool);
    command.args(arguments).arg(program);
    command
}

/// The words of a text that begin with a prefix, once each.
fn words(text: &str, prefix: &str) -> Vec<String> {
    let word = |at: usize| text[at..].split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next();
    let mut words: Vec<String> =
        text.match_indices(prefix).filter_map(|(at, _)| word(at).map(str::to_owned)).collect();
    words.sort();
    words.dedup();
    words
}

impl Interface {
    /// Where the library is, built as this test was.
    pub fn libraries(&self) -> &'static Path {
        static LIBRARIES: OnceLock<PathBuf> = OnceLock::new();
        LIBRARIES.get_or_init(|| {
            programs::build(&[&format!("{}-c", self.name)]).unwrap();
            programs::folder().unwrap()
        })
    }

    /// The compiler's arguments for the header, and for linking with the library.
    fn arguments(&self) -> [String; 3] {
        let (include, search) = (format!("-I{}/include", self.folder), self.libraries().display());
        [include, format!("-L{search}"), format!("-lbedplate_{}", self.name)]
    }

    /// A folder that is deleted when this is dropped, on the disk that the build is on.
    pub fn folder(&self) -> TempDir {
        tempfile::tempdir_in(self.scratch).unwrap()
    }

    /// Compiles a program of the crate into a folder: C, or C++ as of 2017. It is linked with the library, or with `more`. It may
    /// include `bedplate_check.h`.
    pub fn program(&self, source: &str, folder: &Path, more: &[&str]) -> PathBuf {
        let path = Path::new(self.folder).join(source);
        let is_cpp = path.extension().is_some_and(|extension| extension == "cpp");
        let (compiler, standard) = if is_cpp { ("c++", "-std=c++17") } else { ("cc", self.c) };
        let program = folder.join(path.file_stem().unwrap());
        let [include, search, library] = self.arguments();
        let (source, output) = (path.to_str().unwrap(), program.to_str().unwrap());
        let link: &[&str] = if more.is_empty() { &[&search, &library] } else { more };
        let compiled = [standard, "-g", "-pthread", &include, CHECKS, source, "-o", output];
        compile(compiler, &[&compiled, link].concat());
        program
    }

    /// Runs a command with the library at hand.
    pub fn run(&self, command: &mut Command) -> Output {
        command.env("LD_LIBRARY_PATH", self.libraries()).output().unwrap()
    }

    fn header(&self) -> PathBuf {
        Path::new(self.folder).join(format!("include/bedplate/{}.h", self.name))
    }

    /// The header in the repository is the generated one. With `BEDPLATE_UPDATE=1` it becomes so.
    ///
    /// # Panics
    /// It is not.
    pub fn check_header(&self) {
        let (generated, path) = (std::fs::read_to_string(self.generated).unwrap(), self.header());
        if std::env::var_os("BEDPLATE_UPDATE").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &generated).unwrap();
        }
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(kept == generated, "{} is old: run this test with BEDPLATE_UPDATE=1", path.display());
    }

    /// The manual's synopsis has all functions of the header, which has so many at least, and no others; and so it is with
    /// errors. Gives the constants of the header that the manual does not have.
    ///
    /// # Panics
    /// It does not.
    pub fn check_manual(&self, least: usize) -> Vec<String> {
        let header = std::fs::read_to_string(self.header()).unwrap();
        let manual = format!("{}/../../docs/man/bedplate-{}.3", self.folder, self.name);
        let manual = std::fs::read_to_string(manual).unwrap();
        let (lower, upper) = (format!("bp_{}_", self.name), format!("BP_{}_", self.name.to_uppercase()));
        let functions = |text: &str| -> Vec<String> {
            words(text, &lower).into_iter().filter(|name| text.contains(&format!("{name}("))).collect()
        };
        let (declared, synopsis) = (functions(&header), manual.split(".SH DESCRIPTION").next().unwrap());
        assert!(declared.len() >= least, "{declared:?}");
        assert_eq!(functions(synopsis), declared);
        let errors = format!("{upper}ERROR_");
        assert_eq!(words(&manual, &errors), words(&header, &errors));
        let described = words(&manual, &upper);
        words(&header, &upper).into_iter().filter(|name| !described.contains(name)).collect()
    }

    /// A program in C++ compiles with each of these standards, without extensions, and runs.
    ///
    /// # Panics
    /// It does not.
    pub fn check_cpp(&self, source: &str, standards: &[&str]) {
        let folder = self.folder();
        let (cpp, program) = (folder.path().join("header.cpp"), folder.path().join("header"));
        std::fs::write(&cpp, source).unwrap();
        let ([include, search, library], output) = (self.arguments(), program.to_str().unwrap());
        for standard in standards {
            let standard = format!("-std={standard}");
            let cpp = cpp.to_str().unwrap();
            compile("c++", &[&standard, "-pedantic", &include, cpp, &search, &library, "-o", output]);
            let output = self.run(&mut Command::new(&program));
            assert!(output.status.success(), "{standard}: {}", text(&output));
        }
    }

    /// Compiles a program with the static library, as `pkg-config` says once the library is installed.
    ///
    /// # Panics
    /// `pkg-config` says something else than what is expected.
    pub fn static_program(&self, source: &str, folder: &Path) -> PathBuf {
        let package = format!("bedplate-{}", self.name);
        let template = std::fs::read_to_string(format!("{}/{package}.pc.in", self.folder)).unwrap();
        let filled = template.replace("@VERSION@", self.version).replace("@PREFIX@", "/nowhere");
        assert!(!filled.contains('@'), "{filled}");
        std::fs::write(folder.join(format!("{package}.pc")), filled).unwrap();
        let ask = |question: &[&str]| {
            let mut command = Command::new("pkg-config");
            let output =
                command.env("PKG_CONFIG_PATH", folder).args(question).arg(&package).output().unwrap();
            assert!(output.status.success(), "{}", text(&output));
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        };
        let linked = format!("-lbedplate_{}", self.name);
        assert_eq!(ask(&["--modversion"]), self.version);
        assert_eq!(ask(&["--cflags", "--libs"]), format!("-I/nowhere/include -L/nowhere/lib {linked}"));
        let library = self.libraries().join(format!("libbedplate_{}.a", self.name));
        let private = ask(&["--static", "--libs"]);
        let (_, private) = private.split_once(&linked).unwrap();
        let more: Vec<&str> =
            [library.to_str().unwrap()].into_iter().chain(private.split_whitespace()).collect();
        self.program(source, folder, &more)
    }
}
