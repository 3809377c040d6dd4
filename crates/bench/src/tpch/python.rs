//! A Python that has DuckDB.

use std::process::{Command, Stdio};
use std::sync::OnceLock;

use bedplate_postgres_suite::cache_folder;

/// A command that runs Python, with the DuckDB that `make setup` fetches; or why there is none.
pub fn with_duckdb() -> Result<Command, String> {
    static FOUND: OnceLock<Result<&'static str, String>> = OnceLock::new();
    FOUND.get_or_init(find).clone().map(command)
}

fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("PYTHONPATH", cache_folder().join("duckdb"));
    command
}

/// The system's Python is asked, too, because a package for it does not work in another one of another version.
fn find() -> Result<&'static str, String> {
    let mut reason = String::new();
    for program in ["python3", "/usr/bin/python3"] {
        let import = command(program).args(["-c", "import duckdb"]).stdin(Stdio::null()).output();
        reason = match import {
            Ok(output) if output.status.success() => return Ok(program),
            Ok(output) => {
                String::from_utf8_lossy(&output.stderr).trim().lines().next_back().unwrap_or("").to_owned()
            }
            Err(error) => error.to_string(),
        };
        reason = format!("{program}: {reason}");
    }
    Err(format!("{reason}; `make setup` fetches DuckDB"))
}
