//! MariaDB's own test suite (`mariadb-test-run.pl`), which the package `mariadb-test` has.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use bedplate_suite_support::{User, processes};

use crate::{Launch, Preload, Result};

/// The folder of the test suite. `None` if it is not installed.
pub fn folder() -> Option<PathBuf> {
    let places = ["/usr/share/mariadb/mariadb-test", "/usr/share/mysql/mysql-test"];
    places.into_iter().map(PathBuf::from).find(|folder| script(folder).is_file())
}

/// The program in it that runs tests.
pub fn script(folder: &Path) -> PathBuf {
    folder.join("mariadb-test-run.pl")
}

/// Runs tests, with all servers started by `launch`, and returns their outcomes. `arguments` choose the tests. Files are made
/// below `place`, and removed at the end.
pub fn run(
    folder: &Path,
    launch: &Launch,
    place: &Path,
    arguments: &[&str],
) -> Result<BTreeMap<String, Outcome>> {
    let made = tempfile::Builder::new().prefix("bedplate-mtr-").tempdir_in(place);
    let made = made.map_err(|e| format!("no folder in {}: {e}", place.display()))?;
    let home = fs::canonicalize(made.path()).map_err(|e| format!("{}: {e}", made.path().display()))?;
    let user = User::ordinary("mysql")?;
    if let Some(user) = user {
        user.own(&home)?;
    }
    let mut launch = launch.clone();
    if let Launch::Scan(preload) = &mut launch {
        preload.copy_into(&home)?;
    }
    let mut command = launch.command(&script(folder));
    command.arg(format!("--vardir={}", home.join("var").display())).args(OPTIONS).args(arguments);
    command.current_dir(folder).stdin(Stdio::null()).env("HOME", &home);
    command.env_remove("XDG_RUNTIME_DIR").env_remove("TMPDIR");
    if let Some(user) = user {
        user.run(&mut command);
    }
    let output = command.output().map_err(|e| format!("{}: {e}", script(folder).display()))?;
    processes::kill_inside(&home);
    let text = String::from_utf8_lossy(&output.stdout);
    let found = outcomes(&text);
    match found.is_empty() {
        // A failure status means that tests failed, which the outcomes have, too.
        false => Ok(found),
        true => Err(format!("no test ran\n{text}{}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// Options to continue after failures, and to retry no test.
const OPTIONS: [&str; 5] =
    ["--force", "--max-test-fail=0", "--retry=0", "--nowarnings", "--max-save-datadir=0"];

/// The tests that failed, without their combinations, as arguments of [`run`].
pub fn failed(outcomes: &BTreeMap<String, Outcome>) -> Vec<String> {
    let failed = outcomes.iter().filter(|(_, outcome)| **outcome == Outcome::Failed);
    let mut names: Vec<String> =
        failed.filter_map(|(name, _)| Some(name.split_whitespace().next()?.to_owned())).collect();
    names.dedup();
    names
}

/// Options of the library so that it serves as much as possible: files of any age, also those that the page cache has.
#[must_use]
pub fn everything(preload: Preload) -> Preload {
    let mut preload = preload;
    preload.minimum_bytes = Some(64 << 10);
    preload.settling_time_ms = Some(0);
    preload.environment.push(("BEDPLATE_SCAN_RESIDENT".into(), "serve".into()));
    preload
}

/// The outcome of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It passed.
    Passed,
    /// It failed, this time or any of several times.
    Failed,
    /// It needs something that is missing, or it is disabled.
    Skipped,
}

/// The outcomes in the output of `mariadb-test-run.pl`, by the names of the tests with their combinations.
pub fn outcomes(output: &str) -> BTreeMap<String, Outcome> {
    let mut found = BTreeMap::new();
    for line in output.lines() {
        let Some(at) = line.find("[ ") else { continue };
        let outcome = match line[at + 2..].split(' ').next() {
            Some("pass") => Outcome::Passed,
            Some("fail" | "retry-fail" | "exp-fail") => Outcome::Failed,
            Some("skipped" | "disabled") => Outcome::Skipped,
            _ => continue,
        };
        // If there are several workers, the worker's number follows the name.
        let words = line[..at].split_whitespace().filter(|word| !is_worker(word));
        let name = words.collect::<Vec<_>>().join(" ");
        if !name.is_empty() {
            found.insert(name, outcome);
        }
    }
    found
}

fn is_worker(word: &str) -> bool {
    word.strip_prefix('w')
        .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_read() {
        let output = "TEST                                  RESULT   TIME (ms) or COMMENT\n\
            main.myisam                              [ pass ]   2345\n\
            main.myisam_debug                        [ skipped ]  Requires debug build\n\
            main.a 'x,y'                      w12    [ fail ]\n\
            maria.maria [ disabled ]  MDEV-1\n\
            Only  2  of 3 completed.\n";
        let found = outcomes(output);
        let of = |name| found.get(name).copied();
        assert_eq!(of("main.myisam"), Some(Outcome::Passed));
        assert_eq!(of("main.myisam_debug"), Some(Outcome::Skipped));
        assert_eq!(of("main.a 'x,y'"), Some(Outcome::Failed));
        assert_eq!(of("maria.maria"), Some(Outcome::Skipped));
        assert_eq!(found.len(), 4);
        assert_eq!(failed(&found), ["main.a"]);
    }
}
