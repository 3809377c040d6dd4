//! Programs in other languages that use client libraries of Redis. `scripts/clients.sh` fetches the libraries.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Once;

/// The time limit on a program and on its compilation, in seconds.
const LIMIT_SECONDS: &str = "120";

/// A language with a folder of programs.
#[derive(Clone, Copy)]
pub enum Language {
    Python,
    Node,
    Go,
    Java,
}

impl Language {
    fn name(self) -> &'static str {
        match self {
            Language::Python => "python",
            Language::Node => "node",
            Language::Go => "go",
            Language::Java => "java",
        }
    }

    /// The folder of its programs.
    fn programs(self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(self.name())
    }

    /// Whether this machine has the tools of the language. If not, prints why the test is skipped.
    pub fn is_there(self) -> bool {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/clients.sh");
        let output = run(Command::new(script).args(["missing", self.name()]));
        let missing = String::from_utf8_lossy(&output.stdout).trim().replace('\n', "; ");
        if !missing.is_empty() {
            eprintln!("skipped: {} cannot be used: {missing}", self.name());
        }
        missing.is_empty()
    }

    /// A command that runs a program with the libraries of `make setup`. Compiles the program if the language needs that.
    pub fn program(self, name: &str) -> Command {
        let libraries = cache().join(self.name());
        assert!(libraries.exists(), "{} is missing; `make setup` fetches it", libraries.display());
        let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients").join(self.name());
        let mut command = Command::new("timeout");
        command.arg(LIMIT_SECONDS);
        match self {
            Language::Python => {
                command.arg("/usr/bin/python3").arg(self.programs().join(name));
                command.env("PYTHONPATH", libraries.join("packages")).env("PYTHONDONTWRITEBYTECODE", "1");
            }
            Language::Node => {
                command.arg("node").arg(self.programs().join(name));
                command.env("NODE_PATH", libraries.join("node_modules"));
            }
            Language::Go => {
                let program = built.join(name);
                let mut build = Command::new("timeout");
                build.args([LIMIT_SECONDS, "go", "build", "-o"]).arg(&program).arg(".");
                build.current_dir(self.programs()).env("GOFLAGS", "-modcacherw -buildvcs=false");
                // Nothing is downloaded here.
                build.env("GOPROXY", "off").env("GOTOOLCHAIN", "local");
                build.env("GOMODCACHE", cache().join("go-modules")).env("GOCACHE", cache().join("go-build"));
                run(&mut build);
                command.arg(program);
            }
            Language::Java => {
                let jars = libraries.join("jars/*");
                let sources = std::fs::read_dir(self.programs()).unwrap().map(|entry| entry.unwrap().path());
                let mut build = Command::new("timeout");
                build
                    .args([LIMIT_SECONDS, "javac", "-J-XX:TieredStopAtLevel=1", "-cp"])
                    .arg(&jars)
                    .arg("-d")
                    .arg(&built);
                build.args(sources.filter(|source| source.extension().is_some_and(|kind| kind == "java")));
                // All programs are compiled together, once.
                static COMPILED: Once = Once::new();
                COMPILED.call_once(|| drop(run(&mut build)));
                // The programs are short, so the second compiler would cost more than it gives.
                command.args(["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]);
                // Lettuce reports each reconnection.
                command.args(["-Djava.util.logging.config.file=/dev/null", "-cp"]);
                command.arg(format!("{}:{}", built.display(), jars.display())).arg(name);
            }
        }
        command
    }
}

/// The folder of the libraries.
fn cache() -> PathBuf {
    let path = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || path("HOME").unwrap_or_default().join(".cache");
    path("XDG_CACHE_HOME").unwrap_or_else(home).join("bedplate/clients")
}

/// Runs a command that must succeed.
pub fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&text));
    output
}
