//! `bedplate ring0 run`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::failure::hinted;

const LIBRARY: &str = "libbedplate_ring0_preload.so";

#[derive(clap::Args)]
pub struct Args {
    /// Append what happened in ring 0 to a file, a line for every process that ends.
    #[arg(long, value_name = "FILE")]
    statistics: Option<PathBuf>,
    /// Do not run the program where there is no ring 0; by default it runs natively, after a word about it.
    #[arg(long)]
    required: bool,
    /// The library to preload, if it is not beside this command or in ../lib.
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Becomes the program; returns only if that fails.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let library = match &args.library {
        Some(file) => std::path::absolute(file)?,
        None => beside(&std::env::current_exe()?).ok_or_else(|| {
            hinted(format!("{LIBRARY} is not beside this command"), "make build, or name it: --library FILE")
        })?,
    };
    if !library.is_file() {
        return Err(hinted(format!("{}: no such library", library.display()), "make build"));
    }
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]);
    // Others that are to be preloaded come after it.
    let mut preload = library.into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    command.env("LD_PRELOAD", preload);
    if let Some(file) = &args.statistics {
        command.env("BEDPLATE_RING0_STATISTICS", std::path::absolute(file)?);
    }
    if args.required {
        command.env("BEDPLATE_RING0_REQUIRED", "1");
    }
    let error = command.exec();
    Err(anyhow::Error::from(error).context(format!("run {}", args.command[0].display())))
}

/// The library beside a program, or where it is installed.
fn beside(program: &Path) -> Option<PathBuf> {
    let folder = program.parent()?;
    [folder.join(LIBRARY), folder.join("../lib").join(LIBRARY)].into_iter().find(|file| file.is_file())
}
