//! Small programs in C that run under the library.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

use super::{Engine, library};

/// The program and the library in a folder that every user can read.
pub struct Program(TempDir);

impl Program {
    /// Builds it from a source file of this folder, with more arguments for the compiler.
    pub fn new(source: &str, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(source);
        let program = folder.path().join("program");
        let mut command = Command::new("cc");
        command.args(["-O1", "-pthread", "-o"]).arg(&program).arg(&source).args(arguments);
        assert!(command.status().unwrap().success());
        std::fs::copy(library(), folder.path().join("library.so")).unwrap();
        Self(folder)
    }

    pub fn folder(&self) -> &Path {
        self.0.path()
    }

    /// The program, started by a shell after some commands.
    pub fn command(&self, engine: Engine, before: &str, what: &str) -> Command {
        let mut command = Command::new("sh");
        let run = r#"LD_PRELOAD="$FOLDER/library.so" exec $AS "$FOLDER/program" "$WHAT""#;
        command.arg("-c").arg(format!("{before}\n{run}")).current_dir(self.0.path());
        command.env("FOLDER", self.0.path()).env("WHAT", what);
        command.env("BEDPLATE_SNAPSHOT_ENGINE", engine);
        command.env("BEDPLATE_SNAPSHOT_STATISTICS", self.0.path().join("statistics"));
        command
    }

    /// Whether the latest process took snapshots in which only page tables were moved.
    pub fn had_instant_snapshots(&self) -> bool {
        let text = std::fs::read_to_string(self.0.path().join("statistics")).unwrap_or_default();
        let latest = text.lines().last().unwrap_or_default();
        let figure = |name: &str| {
            let word = latest.split(' ').find_map(|word| word.strip_prefix(name)).unwrap_or("0");
            word.parse::<u64>().unwrap()
        };
        figure("instantaneous=") > 0
    }
}

/// Fails with the output of a program unless it succeeded.
#[track_caller]
pub fn succeeds(output: &Output) {
    assert!(output.status.success(), "{output:?}");
}
