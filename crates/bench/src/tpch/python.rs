//! A Python that has DuckDB.

use std::process::{Command, Stdio};
use std::sync::OnceLock;

use bedplate_postgres_suite::cache_folder;

use crate::Error;

/// The version that has the generator of TPC-H and its answers, and the one that is measured, as folders of packages.
const GENERATOR: &str = "duckdb";
const ENGINE: &str = "duckdb-2";

/// A command that runs Python, with the DuckDB that has the generator of TPC-H; or the reason why there is none.
pub fn with_generator() -> Result<Command, String> {
    static FOUND: OnceLock<Result<&'static str, String>> = OnceLock::new();
    let program = FOUND.get_or_init(|| find(GENERATOR)).clone()?;
    Ok(command(program, GENERATOR))
}

/// A command that runs Python, with the DuckDB that is measured; or the reason why there is none.
pub fn with_engine() -> Result<Command, String> {
    static FOUND: OnceLock<Result<&'static str, String>> = OnceLock::new();
    match FOUND.get_or_init(|| find(ENGINE)) {
        Ok(program) => Ok(command(program, ENGINE)),
        Err(_) => with_generator(),
    }
}

/// The error of an engine that needs Python with DuckDB, with the reason why there is none.
pub fn missing(reason: String) -> Error {
    Error::Missing { what: format!("there is no Python with DuckDB: {reason}"), hint: "run `make setup`" }
}

fn command(program: &str, packages: &str) -> Command {
    let mut command = Command::new(program);
    command.env("PYTHONPATH", cache_folder().join(packages));
    command
}

/// The Python that can use packages. The system's own is tried, too, because packages for it do not work in a Python of
/// another version.
fn find(packages: &str) -> Result<&'static str, String> {
    let mut reason = String::new();
    for program in ["python3", "/usr/bin/python3"] {
        let import = command(program, packages).args(["-c", "import duckdb"]).stdin(Stdio::null()).output();
        reason = match import {
            Ok(output) if output.status.success() => return Ok(program),
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                said.trim().lines().next_back().unwrap_or_default().to_owned()
            }
            Err(error) => error.to_string(),
        };
        reason = format!("{program}: {reason}");
    }
    Err(format!("{reason}; `make setup` fetches DuckDB"))
}
