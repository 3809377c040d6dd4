//! Programs that run with one of Bedplate's libraries preloaded.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::failure::hinted;

/// What `run` commands have in common.
#[derive(clap::Args)]
#[group(id = "program")]
pub struct Args {
    /// The library to preload, if it is not beside this command or in ../lib.
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Args {
    /// Becomes the program, with a library and what it reads in the environment; returns only if that fails.
    pub fn run(&self, library: &str, environment: &[(&str, OsString)]) -> anyhow::Result<ExitCode> {
        let library = match &self.library {
            Some(file) => std::path::absolute(file)?,
            None => beside(&std::env::current_exe()?, library).ok_or_else(|| {
                hinted(
                    format!("{library} is not beside this command"),
                    "make build, or name it: --library FILE",
                )
            })?,
        };
        if !library.is_file() {
            return Err(hinted(format!("{}: no such library", library.display()), "make build"));
        }
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]);
        // Others that are to be preloaded come after it.
        let mut preload = library.into_os_string();
        if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
            preload.push(":");
            preload.push(others);
        }
        command.env("LD_PRELOAD", preload);
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        let error = command.exec();
        Err(anyhow::Error::from(error).context(format!("run {}", self.command[0].display())))
    }
}

/// A library beside a program, or where it is installed.
fn beside(program: &Path, library: &str) -> Option<PathBuf> {
    let folder = program.parent()?;
    [folder.join(library), folder.join("../lib").join(library)].into_iter().find(|file| file.is_file())
}
