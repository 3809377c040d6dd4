//! The MariaDB of this machine.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bedplate_suite_support::run;

use crate::Result;

/// The folders that are searched for programs. Ordinary users may not have the second folder in their `PATH`.
const FOLDERS: [&str; 4] = ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"];

/// A MariaDB that is installed.
#[derive(Clone, Debug)]
pub struct Installation {
    /// The server.
    pub server: PathBuf,
    /// The command-line client.
    pub client: PathBuf,
    /// The program that makes data directories.
    pub install: PathBuf,
    /// The server's version.
    pub version: String,
}

impl Installation {
    /// The installation. An error names the missing program.
    pub fn find() -> Result<Self> {
        let server = program("mariadbd")?;
        let text = run(Command::new(&server).args(["--no-defaults", "--version"]).stdin(Stdio::null()))?;
        let version = version(&text).ok_or_else(|| format!("{}: no MariaDB: {text}", server.display()))?;
        Ok(Self { server, client: program("mariadb")?, install: program("mariadb-install-db")?, version })
    }
}

fn program(name: &str) -> Result<PathBuf> {
    let places = FOLDERS.iter().map(|folder| Path::new(folder).join(name));
    places
        .into_iter()
        .find(|path| path.is_file())
        .ok_or_else(|| format!("no {name} is installed; `make setup` installs it"))
}

/// The version in the output of `mariadbd --version`.
fn version(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("Ver ")?;
    let (number, _) = rest.split_once("-MariaDB")?;
    Some(number.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        let text = "mariadbd  Ver 10.11.19-MariaDB-0+deb12u1 for debian-linux-gnu on x86_64 (Debian 12)";
        assert_eq!(version(text).as_deref(), Some("10.11.19"));
        assert_eq!(version("mysqld  Ver 8.0.36 for Linux on x86_64"), None);
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = program("no-such-program").unwrap_err();
        assert!(error.contains("no-such-program") && error.contains("make setup"), "{error}");
    }
}
