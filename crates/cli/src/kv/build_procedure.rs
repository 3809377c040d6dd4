//! `bedplate kv build-procedure`: compiles procedures with the headers of this build.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use bedplate_kerneldb::sdk;

/// Arguments of `bedplate kv build-procedure`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// C file that includes <bedplate/procedure.h>.
    #[arg(required_unless_present = "headers")]
    source: Option<PathBuf>,
    /// Object file to write. Default: the source's name with .o in the place of .c.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write the headers into this folder, for editors and other build systems, and leave them there.
    #[arg(long, value_name = "DIR")]
    headers: Option<PathBuf>,
}

/// Compiles.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let folder;
    let headers: &Path = match &args.headers {
        Some(headers) => headers,
        None => {
            folder = tempfile::tempdir().context("cannot make a folder for the headers")?;
            folder.path()
        }
    };
    sdk::write_headers(headers)?;
    let Some(source) = &args.source else { return Ok(ExitCode::SUCCESS) };
    ensure!(
        source.extension().is_some_and(|extension| extension == "c"),
        "{} is not a C file",
        source.display()
    );
    ensure!(source.is_file(), "there is no file {}", source.display());
    let object = args.output.clone().unwrap_or_else(|| source.with_extension("o"));
    let mut compiler = sdk::compiler(headers, source, &object)?;
    let status = compiler.status().with_context(|| format!("cannot run {:?}", compiler.get_program()))?;
    if !status.success() {
        bail!("{} does not compile", source.display());
    }
    Ok(ExitCode::SUCCESS)
}
