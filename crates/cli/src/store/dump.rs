//! `bedplate store dump`: all trees as a stream.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use tempfile::NamedTempFile;

use super::follow;
use super::location::Location;
use crate::failure::hinted;
use crate::units::{count, size};

/// Arguments of `bedplate store dump`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    location: Location,
    /// The file to write; `-` for the standard output. It appears when it is complete, unless it is a pipe or a device.
    #[arg(default_value = "-")]
    file: PathBuf,
}

/// Dumps.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let is_stream = args.file == Path::new("-");
    if is_stream && io::stdout().is_terminal() {
        return Err(hinted("a dump is not for a terminal", "name a file, or pipe the output into a program"));
    }
    // A pipe or a device is written directly, because a file in its place would not reach its reader.
    let special = match args.file.metadata() {
        Ok(found) if !is_stream && found.is_dir() => bail!("{} is a directory", args.file.display()),
        Ok(found) if !is_stream && !found.is_file() => {
            let opened = File::options().write(true).open(&args.file);
            Some(opened.with_context(|| format!("opening {}", args.file.display()))?)
        }
        _ => None,
    };
    let store = args.location.open()?;
    let space = store.space();
    let (bar, mut update) = follow("dump", Some(space.bytes - space.free_bytes));
    if is_stream || special.is_some() {
        let output: Box<dyn Write> = match special {
            Some(file) => Box::new(file),
            None => Box::new(io::stdout().lock()),
        };
        let dump = store.dump(output, &mut update);
        bar.finish_and_clear();
        dump?;
        store.close()?;
        return Ok(ExitCode::SUCCESS);
    }
    // A symbolic link stays, and the file that it leads to is replaced.
    let target = args.file.canonicalize().unwrap_or_else(|_| args.file.clone());
    let directory = target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let file = NamedTempFile::new_in(directory)
        .with_context(|| format!("creating a file in {}", directory.display()))?;
    let dump = store.dump(&file, &mut update);
    bar.finish_and_clear();
    let dump = dump?;
    store.close()?;
    let saving = || format!("saving {}", args.file.display());
    file.as_file().sync_all().with_context(saving)?;
    file.persist(&target).with_context(saving)?;
    File::open(directory).and_then(|d| d.sync_all()).with_context(saving)?;
    let (trees, records) = (count(dump.trees), count(dump.records));
    writeln!(
        io::stdout(),
        "{trees} trees, {records} records ({}) in {}",
        size(dump.bytes),
        args.file.display()
    )?;
    Ok(ExitCode::SUCCESS)
}
