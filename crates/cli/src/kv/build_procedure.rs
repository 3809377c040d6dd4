//! `bedplate kv build-procedure`: compiles procedures with the headers of this build.
//!
//! A file of the procedure language is compiled to C first. The C text is in a temporary file, and its line directives name the
//! source.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail, ensure};
use bedplate_kerneldb::sdk;

/// Arguments of `bedplate kv build-procedure`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Source: a C file that includes <bedplate/procedure.h>, or a file NAME.kdb of the procedure language.
    #[arg(required_unless_present = "headers")]
    source: Option<PathBuf>,
    /// Library to write. Default: the source's name with .o in the place of .c or .kdb.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print the C text of a file of the procedure language, and do not compile it.
    #[arg(long, requires = "source", conflicts_with_all = ["output", "headers"])]
    print_c: bool,
    /// Write the headers into this folder, for editors, and leave them there.
    #[arg(long, value_name = "DIR")]
    headers: Option<PathBuf>,
}

/// Languages of sources.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Language {
    C,
    Procedures,
}

/// Compiles.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let language = args.source.as_deref().map(language).transpose()?;
    if args.print_c {
        let source = args.source.as_deref().context("--print-c needs a source")?;
        ensure!(language == Some(Language::Procedures), "{} is C already", source.display());
        print!("{}", to_c(source)?);
        return Ok(ExitCode::SUCCESS);
    }
    let folder = tempfile::tempdir().context("cannot make a folder for the headers")?;
    let headers = args.headers.as_deref().unwrap_or(folder.path());
    sdk::write_headers(headers)?;
    let (Some(source), Some(language)) = (&args.source, language) else { return Ok(ExitCode::SUCCESS) };
    let mut text = source.clone();
    if language == Language::Procedures {
        text = folder.path().join("procedures.c");
        fs::write(&text, to_c(source)?).with_context(|| format!("cannot write {}", text.display()))?;
    }
    let library =
        sdk::compile(headers, &text, &[]).with_context(|| format!("cannot compile {}", source.display()))?;
    let output = args.output.clone().unwrap_or_else(|| source.with_extension("o"));
    write(&output, &library).with_context(|| format!("cannot write {}", output.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a library. A file is replaced as a whole, because a server may read it at the same time. A device or a pipe is written to.
fn write(output: &Path, library: &[u8]) -> io::Result<()> {
    if fs::metadata(output).is_ok_and(|metadata| !metadata.is_file()) {
        return fs::write(output, library);
    }
    let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(".".as_ref());
    // The umask applies, as it does to any new file.
    let mut file = tempfile::Builder::new().permissions(Permissions::from_mode(0o666)).tempfile_in(folder)?;
    file.write_all(library)?;
    file.persist(output)?;
    Ok(())
}

/// The language of a source, by the end of its name.
fn language(source: &Path) -> anyhow::Result<Language> {
    let language = match source.extension().and_then(|extension| extension.to_str()) {
        Some("c") => Language::C,
        Some("kdb") => Language::Procedures,
        _ => bail!("{} is neither a C file nor a .kdb file", source.display()),
    };
    ensure!(source.is_file(), "there is no file {}", source.display());
    Ok(language)
}

/// Compiles a file of the procedure language to C. Its errors go to the standard error, one a line.
fn to_c(source: &Path) -> anyhow::Result<String> {
    let text =
        std::fs::read_to_string(source).with_context(|| format!("cannot read {}", source.display()))?;
    let name = source.display().to_string();
    bedplate_procedure_language::compile(&text, &name).map_err(|errors| {
        for error in &errors {
            eprintln!("{}", error.display(&name));
        }
        let count = errors.len();
        anyhow!("{name} has {count} {}", if count == 1 { "error" } else { "errors" })
    })
}
