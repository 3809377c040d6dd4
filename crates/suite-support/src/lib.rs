//! Helpers that private database servers for tests and benchmarks share.
//!
//! [`User`] is the ordinary user as whom servers run. [`processes`] finds the processes of a server by their current folder, ends
//! them, and adds up their processor time. [`programs`] builds Bedplate's programs for a test. [`redis`] is a private redis-server.
//! [`run`] runs a command to its end.
//!
//! This crate is for tests and benchmarks only.

pub mod processes;
pub mod programs;
pub mod redis;
mod user;

use std::process::Command;

pub use user::User;

/// A result whose error is one line that names the failed operation.
pub type Result<T> = std::result::Result<T, String>;

/// Runs a command to its end; the error has its output.
pub fn run(command: &mut Command) -> Result<String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    if !output.status.success() {
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        return Err(format!("{:?}: {}\n{out}{err}", command.get_program(), output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
