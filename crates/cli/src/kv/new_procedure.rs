//! `bedplate kv new-procedure`: a project that builds, runs and is tested.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, ensure};

/// The source of a project in C: its name and its content. `NAME` stands for the procedure's name.
const C_SOURCE: (&str, &str) = ("NAME.bpf.c", include_str!("procedure/NAME.bpf.c"));

/// The same in the procedure language.
const LANGUAGE_SOURCE: (&str, &str) = ("NAME.kdb", include_str!("procedure/NAME.kdb"));

/// The other files of a project: names, contents, and whether they can be executed. `SOURCE` stands for the source's name.
const FILES: [(&str, &str, bool); 4] = [
    ("Makefile", include_str!("procedure/Makefile"), false),
    ("test.sh", include_str!("procedure/test.sh"), true),
    ("README.md", include_str!("procedure/README.md"), false),
    (".gitignore", "*.o\ndata/\n", false),
];

/// Bytes of the longest name. A library's name has at most 64.
const NAME_MAX: usize = 48;

/// Languages of procedures.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum Language {
    /// C on <bedplate/procedure.h>.
    C,
    /// The procedure language, which compiles to C.
    Kdb,
}

/// Arguments of `bedplate kv new-procedure`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Name of the procedure, and of the new folder: lower-case letters, digits and underscores.
    #[arg(value_parser = parse_name)]
    name: String,
    /// Folder to make the project's folder in.
    #[arg(long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
    /// Language of the source.
    #[arg(long, value_enum, default_value_t = Language::C)]
    language: Language,
}

fn parse_name(name: &str) -> Result<String, String> {
    let is_first = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
    let fits = (1..=NAME_MAX).contains(&name.len())
        && name.bytes().next().is_some_and(is_first)
        && name.bytes().all(|byte| is_first(byte) || byte.is_ascii_digit());
    if fits {
        Ok(name.to_owned())
    } else {
        Err(format!(
            "a name has 1 to {NAME_MAX} lower-case letters, digits and underscores, and no digit in front"
        ))
    }
}

/// Makes the project.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let folder = args.directory.join(&args.name);
    ensure!(!folder.exists(), "{} exists already", folder.display());
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let source = match args.language {
        Language::C => C_SOURCE,
        Language::Kdb => LANGUAGE_SOURCE,
    };
    for (name, text, is_executable) in FILES.into_iter().chain([(source.0, source.1, false)]) {
        let fill = |text: &str| text.replace("SOURCE", source.0).replace("NAME", &args.name);
        let path = folder.join(fill(name));
        fs::write(&path, fill(text)).with_context(|| format!("cannot write {}", path.display()))?;
        if is_executable {
            fs::set_permissions(&path, Permissions::from_mode(0o755))
                .with_context(|| format!("cannot make {} executable", path.display()))?;
        }
    }
    println!("{} is made. Next: cd {0}, then make test; README.md says more.", folder.display());
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_identifiers_of_c() {
        for name in ["a", "_", "transfer", "order_2", &"x".repeat(NAME_MAX)] {
            assert_eq!(parse_name(name).as_deref(), Ok(name));
        }
        for name in ["", "2", "Transfer", "a-b", "a/b", "../a", "a b", "ä", &"x".repeat(NAME_MAX + 1)] {
            assert!(parse_name(name).is_err(), "{name}");
        }
    }
}
