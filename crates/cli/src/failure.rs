//! The failure of a command: one line about the error, one with advice, and a non-zero exit code.

use std::fmt;
use std::io;
use std::process::ExitCode;

/// An error of the command itself, with advice to the user.
#[derive(Debug)]
pub struct Hinted {
    message: String,
    hint: String,
}

impl fmt::Display for Hinted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Hinted {}

/// An error with a hint.
pub fn hinted(message: impl Into<String>, hint: impl Into<String>) -> anyhow::Error {
    Hinted { message: message.into(), hint: hint.into() }.into()
}

/// The advice about an error, if any of its causes has one.
fn hint(error: &anyhow::Error) -> Option<String> {
    error.chain().find_map(|cause| {
        if let Some(hinted) = cause.downcast_ref::<Hinted>() {
            return Some(hinted.hint.clone());
        }
        if let Some(error) = cause.downcast_ref::<bedplate_vm::Error>() {
            return error.hint();
        }
        cause.downcast_ref::<bedplate_kerneldb::Error>()?.hint().map(str::to_owned)
    })
}

/// Prints the error; the exit code is 1. A reader that went away (`bedplate … | head`) is no error.
pub fn report(error: &anyhow::Error) -> ExitCode {
    report_as(error, 1)
}

/// [`report`] with another exit code.
pub fn report_as(error: &anyhow::Error, status: u8) -> ExitCode {
    let closed = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
    };
    if error.chain().any(closed) {
        return ExitCode::SUCCESS;
    }
    eprintln!("error: {}", one_line(&text(error)));
    if let Some(hint) = hint(error) {
        eprintln!("hint: {hint}");
    }
    ExitCode::from(status)
}

/// The error and its causes. A cause that is part of an error's own text is not repeated.
fn text(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// The text in one line. Errors of the kernel's verifier have many lines; scripts and people want one.
fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn the_hint_is_found_under_added_context() {
        let error = Err::<(), _>(hinted("no server", "start one")).context("stats").unwrap_err();
        assert_eq!(hint(&error).as_deref(), Some("start one"));
        let kernel: anyhow::Error = bedplate_kerneldb::Error::NoMemory.into();
        assert!(hint(&kernel.context("loading")).is_some());
        assert_eq!(hint(&anyhow::anyhow!("plain")), None);
    }

    #[test]
    fn a_cause_is_said_once() {
        let cause = || io::Error::new(io::ErrorKind::ResourceBusy, "process 7 uses it");
        let error: anyhow::Error = bedplate_kerneldb::Error::io("locking", cause()).into();
        assert_eq!(text(&error), "locking: process 7 uses it");
        assert_eq!(text(&error.context("opening")), "opening: locking: process 7 uses it");
        let within = bedplate_btree::store::Error::NoSpace(cause());
        assert!(text(&within.into()).matches("process 7").count() == 1);
        let plain = anyhow::Error::from(cause()).context("locking");
        assert_eq!(text(&plain), "locking: process 7 uses it");
    }

    #[test]
    fn messages_become_one_line() {
        assert_eq!(one_line("a\n  b\n\n"), "a; b");
    }
}
