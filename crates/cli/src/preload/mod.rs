//! Programs that run with Bedplate's libraries preloaded.

pub mod reach;

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::failure::hinted;

/// The arguments that `run` commands share.
#[derive(clap::Args)]
// The commands' own arguments are called Args, too, and two groups of a command must not have one name.
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
    /// The program's name, as the user gave it.
    pub fn name(&self) -> &OsStr {
        &self.command[0]
    }

    /// Becomes the program, with a library, with others that are preloaded after it, and with their variables in the
    /// environment; returns only if that fails.
    pub fn run(
        &self,
        library: &str,
        others: &[&str],
        environment: &[(&str, OsString)],
    ) -> anyhow::Result<ExitCode> {
        let this = std::env::current_exe()?;
        let library = match &self.library {
            Some(file) => std::path::absolute(file)?,
            None => beside(&this, library).ok_or_else(|| missing(library))?,
        };
        if !library.is_file() {
            return Err(hinted(format!("{}: no such library", library.display()), "make build"));
        }
        let mut preload = library.clone().into_os_string();
        for other in others {
            let other =
                beside(&library, other).or_else(|| beside(&this, other)).ok_or_else(|| missing(other))?;
            preload.push(":");
            preload.push(other);
        }
        // Libraries that the user preloads come last.
        if let Some(of_user) = std::env::var_os("LD_PRELOAD").filter(|libraries| !libraries.is_empty()) {
            preload.push(":");
            preload.push(of_user);
        }
        self.run_as_it_is(
            environment.iter().map(|(name, value)| (*name, value)).chain([("LD_PRELOAD", &preload)]),
        )
    }

    /// Becomes the program, with additional environment variables; returns only if that fails.
    pub fn run_as_it_is<'a>(
        &self,
        environment: impl IntoIterator<Item = (&'a str, &'a OsString)>,
    ) -> anyhow::Result<ExitCode> {
        let mut command = Command::new(self.name());
        command.args(&self.command[1..]).envs(environment);
        let error = command.exec();
        Err(anyhow::Error::from(error).context(format!("run {}", self.name().display())))
    }
}

fn missing(library: &str) -> anyhow::Error {
    hinted(format!("{library} is not beside this command"), "make build, or name it: --library FILE")
}

/// A library beside a program, or in the folder where it is installed.
fn beside(program: &Path, library: &str) -> Option<PathBuf> {
    let folder = program.parent()?;
    [folder.join(library), folder.join("../lib").join(library)].into_iter().find(|file| file.is_file())
}
