//! Bedplate's programs and libraries, built by cargo with the profile of the calling test.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{Result, run};

/// The folder into which cargo put the calling test's workspace: `target/debug` or `target/release`.
pub fn folder() -> Result<PathBuf> {
    let test = std::env::current_exe().map_err(|e| format!("the path of this test: {e}"))?;
    // target/debug/deps/test-0123
    Ok(test.ancestors().nth(2).unwrap_or(Path::new(".")).to_owned())
}

/// Set when the libraries for other programs have been built already, as `make unit` does. Packages by themselves have fewer features than in the whole
/// workspace, so cargo would build them and all that they depend on once more.
const BUILT: &str = "BEDPLATE_TEST_BUILT";

/// Builds packages (names without `bedplate-`) with the profile of the calling test, unless `BEDPLATE_TEST_BUILT` is set.
pub fn build(packages: &[&str]) -> Result<()> {
    if std::env::var_os(BUILT).is_some() {
        return Ok(());
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--locked", "--quiet"]);
    for package in packages {
        command.args(["-p", &format!("bedplate-{package}")]);
    }
    if folder()?.file_name().is_some_and(|name| name == "release") {
        command.arg("--release");
    }
    run(command.stdin(Stdio::null())).map(drop)
}

/// The command `bedplate`. It is built only if it is missing, because building it by itself would replace the one that was built
/// with the whole workspace.
pub fn bedplate() -> Result<PathBuf> {
    let program = folder()?.join("bedplate");
    if !program.exists() {
        build(&["cli"])?;
    }
    Ok(program)
}
