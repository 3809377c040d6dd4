//! Prints doctor's report, for people and for programs.

use std::io::{self, Write};

use serde_json::json;

use super::{Check, Component, system};

/// Prints the report as text. A closed pipe is not an error.
pub fn text(report: &[Component]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", machine_line())?;
    for component in report {
        let verdict = match (component.verdict(), component.included) {
            (super::Answer::Yes, true) => "works here",
            (super::Answer::Yes, false) => "would work here",
            (super::Answer::Partly, true) => "works here, with limits",
            (super::Answer::Partly, false) => "would work here, with limits",
            (super::Answer::No, _) => "cannot work here",
            (super::Answer::Unknown, _) => "unknown: needs root to find out",
        };
        let planned = if component.included { "" } else { " [planned, not in this version]" };
        writeln!(out, "\n{}: {verdict}{planned}", component.name)?;
        writeln!(out, "  {}", component.purpose)?;
        for check in &component.checks {
            let required = if check.required { "" } else { " (optional)" };
            writeln!(out, "  {:<8}{}{required}: {}", check.answer.word(), check.subject, check.reason)?;
            if let Some(advice) = &check.advice {
                writeln!(out, "          -> {advice}")?;
            }
        }
    }
    Ok(())
}

/// Prints the report as one JSON object.
pub fn json(report: &[Component]) -> io::Result<()> {
    let check = |c: &Check| {
        json!({
            "id": c.id, "subject": c.subject, "answer": c.answer.word(), "required": c.required,
            "reason": c.reason, "advice": c.advice,
        })
    };
    let components: Vec<_> = report
        .iter()
        .map(|c| {
            json!({
                "name": c.name, "purpose": c.purpose, "included": c.included,
                "verdict": c.verdict().word(), "checks": c.checks.iter().map(check).collect::<Vec<_>>(),
            })
        })
        .collect();
    let uname = rustix::system::uname();
    let object = json!({
        "bedplate": env!("CARGO_PKG_VERSION"),
        "kernel": uname.release().to_string_lossy(),
        "machine": uname.machine().to_string_lossy(),
        "root": rustix::process::geteuid().is_root(),
        "capabilities": system::capabilities().names(),
        "components": components,
    });
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, &object)?;
    writeln!(out)
}

fn machine_line() -> String {
    let uname = rustix::system::uname();
    let user = match rustix::process::geteuid() {
        uid if uid.is_root() => "root".to_owned(),
        uid => format!("user {} (run as root for complete answers)", uid.as_raw()),
    };
    format!(
        "Bedplate {} on Linux {} {}, as {user}",
        env!("CARGO_PKG_VERSION"),
        uname.release().to_string_lossy(),
        uname.machine().to_string_lossy(),
    )
}
