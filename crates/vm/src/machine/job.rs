//! The commands that a guest runs.

use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// A command to run in the guest.
#[derive(Clone, Debug)]
pub struct Job {
    args: Vec<String>,
    title: Option<String>,
    environment: Vec<(String, String)>,
}

impl Job {
    /// Creates a job of a command and its arguments. The command is a program of the host, either a path or a name
    /// to find in `$PATH`. If there is no program of that name, it is a command of busybox.
    ///
    /// # Panics
    /// If `args` is empty.
    pub fn new<S: Into<String>>(args: impl IntoIterator<Item = S>) -> Job {
        let args: Vec<String> = args.into_iter().map(Into::into).collect();
        assert!(!args.is_empty(), "a job is a command");
        Job { args, title: None, environment: Vec::new() }
    }

    /// Sets a line that is written to the output before the command's own output.
    #[must_use]
    pub fn title(mut self, title: impl Into<String>) -> Job {
        self.title = Some(title.into());
        self
    }

    /// Sets an environment variable of this command.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Job {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// The program of the host to run; `None` for a command of busybox.
    pub(crate) fn program(&self) -> Result<Option<PathBuf>> {
        let name = &self.args[0];
        if name.contains('/') {
            return match std::path::absolute(name) {
                Ok(path) if path.is_file() => Ok(Some(path)),
                _ => Err(Error::NotFound { path: name.into(), problem: "no such program".into() }),
            };
        }
        Ok(in_path(name).filter(|program| !program.ends_with("busybox")))
    }

    /// The shell script that runs the job.
    pub(crate) fn script(&self, program: &Option<PathBuf>, environment: &[(String, String)]) -> String {
        let mut script = String::new();
        if let Some(title) = &self.title {
            script += &format!("echo {}\n", quote(title));
        }
        for (name, value) in environment.iter().chain(&self.environment) {
            script += &format!("export {name}={}\n", quote(value));
        }
        let command = program.as_deref().map_or(self.args[0].clone(), |p: &Path| p.display().to_string());
        let words: Vec<String> =
            std::iter::once(&command).chain(&self.args[1..]).map(|word| quote(word)).collect();
        script + "exec " + &words.join(" ") + "\n"
    }
}

/// The path of a program of the host in `$PATH`, with symbolic links resolved.
pub(super) fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|p| p.is_file());
    found.and_then(|program| std::fs::canonicalize(program).ok())
}

/// Quotes any word for the shell.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_the_shell() {
        let odd = ["a b", "it's", "$HOME", "", "line\nline", "\"", "\\"];
        let job = Job::new(["printf".to_owned(), "%s|".into()].into_iter().chain(odd.map(String::from)))
            .env("X", "1 2'");
        let script = job.script(&None, &[]);
        let output = std::process::Command::new("sh").arg("-c").arg(&script).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), odd.map(|w| format!("{w}|")).concat());
    }

    #[test]
    fn programs_are_found() {
        assert!(Job::new(["sh"]).program().unwrap().is_some());
        assert_eq!(Job::new(["no-such-program"]).program().unwrap(), None);
        assert!(Job::new(["/no/such/program"]).program().is_err());
    }
}
