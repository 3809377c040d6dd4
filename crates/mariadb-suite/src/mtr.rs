//! MariaDB's own test suite (`mariadb-test-run.pl`), which the package `mariadb-test` has.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The folder of the test suite. `None`: it is not installed.
pub fn folder() -> Option<PathBuf> {
    let places = ["/usr/share/mariadb/mariadb-test", "/usr/share/mysql/mysql-test"];
    places.into_iter().map(PathBuf::from).find(|folder| script(folder).is_file())
}

/// The program in it that runs tests.
pub fn script(folder: &Path) -> PathBuf {
    folder.join("mariadb-test-run.pl")
}

/// How a test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It passed.
    Passed,
    /// It failed, this time or any of several times.
    Failed,
    /// It needs what is not there, or it is disabled.
    Skipped,
}

/// The outcomes in what `mariadb-test-run.pl` prints, by the names of the tests with their combinations.
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
        // The worker's number comes behind the name where there are several.
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
    }
}
