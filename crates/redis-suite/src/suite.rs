//! The folder of the suite, its units, and the version of Redis that it belongs to.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The folder into which `make setup` unpacks the suite, or the one that `BEDPLATE_REDIS_SUITE` names. It may be missing.
pub fn folder() -> PathBuf {
    let path = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    path("BEDPLATE_REDIS_SUITE").unwrap_or_else(|| {
        let home = || path("HOME").unwrap_or_default().join(".cache");
        path("XDG_CACHE_HOME").unwrap_or_else(home).join("bedplate/redis-suite")
    })
}

/// The units that the suite runs by default, in its order.
pub fn units(suite: &Path) -> Result<Vec<String>, String> {
    let list =
        output(Command::new("tclsh").args(["tests/test_helper.tcl", "--list-tests"]).current_dir(suite))?;
    Ok(list.lines().map(str::to_owned).collect())
}

/// The version of Redis whose suite this is, for example `7.0.15`, from `src/version.h` beside the tests.
pub fn version(suite: &Path) -> Result<String, String> {
    let path = suite.join("src/version.h");
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let quoted = text.lines().find_map(|line| line.strip_prefix("#define REDIS_VERSION \""));
    let version = quoted.and_then(|rest| rest.split('"').next());
    version.map(str::to_owned).ok_or_else(|| format!("{} defines no REDIS_VERSION", path.display()))
}

/// The version of a `redis-server`.
pub fn server_version(server: &Path) -> Result<String, String> {
    let text = output(Command::new(server).arg("--version"))?;
    let version = text.split_whitespace().find_map(|word| word.strip_prefix("v="));
    version.map(str::to_owned).ok_or_else(|| format!("{} --version says {text:?}", server.display()))
}

/// The output of a command.
fn output(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|e| format!("{command:?}: {e}"))?;
    if !output.status.success() {
        return Err(format!(
            "{command:?}: {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        ));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
