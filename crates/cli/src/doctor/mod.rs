//! `bedplate doctor` reports what this kernel, these privileges and this hardware allow.
//!
//! Every answer comes from an attempt, never from a version number alone. The kernel undoes each attempt
//! when its file descriptors close, so an interrupted run leaves nothing behind either.
//! Without privileges the answers that need them are "unknown", not "no".

mod bpf;
mod bufpool;
mod kerneldb;
mod kerneldb_programs;
mod render;
mod ring0;
mod scan;
mod snapshot;
mod system;

use std::process::ExitCode;

/// Arguments of `bedplate doctor`.
#[derive(clap::Args)]
pub struct Args {
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
    /// Only this component: kerneldb, ring0, snapshot, bufpool or scan (may be repeated).
    #[arg(long, value_name = "NAME", value_parser = ["kerneldb", "ring0", "snapshot", "bufpool", "scan"])]
    component: Vec<String>,
}

/// An answer to one question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Yes,
    /// It works, with a limit that the reason names.
    Partly,
    No,
    /// It could not be probed, because a privilege or an earlier probed feature is missing.
    Unknown,
}

impl Answer {
    fn word(self) -> &'static str {
        match self {
            Answer::Yes => "yes",
            Answer::Partly => "partly",
            Answer::No => "no",
            Answer::Unknown => "unknown",
        }
    }
}

/// One question and its answer.
struct Check {
    /// Stable name for machines.
    id: &'static str,
    /// The question, for people.
    subject: &'static str,
    answer: Answer,
    reason: String,
    /// Advice to the user, if there is any.
    advice: Option<String>,
    /// Whether the component cannot work without it.
    required: bool,
}

impl Check {
    fn new(id: &'static str, subject: &'static str, answer: Answer, reason: impl Into<String>) -> Self {
        Check { id, subject, answer, reason: reason.into(), advice: None, required: false }
    }

    fn yes(id: &'static str, subject: &'static str, reason: impl Into<String>) -> Self {
        Check::new(id, subject, Answer::Yes, reason)
    }

    fn partly(id: &'static str, subject: &'static str, reason: impl Into<String>) -> Self {
        Check::new(id, subject, Answer::Partly, reason)
    }

    fn no(id: &'static str, subject: &'static str, reason: impl Into<String>) -> Self {
        Check::new(id, subject, Answer::No, reason)
    }

    fn unknown(id: &'static str, subject: &'static str, reason: impl Into<String>) -> Self {
        Check::new(id, subject, Answer::Unknown, reason)
    }

    fn advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    fn required(self) -> Self {
        self.required_if(true)
    }

    /// Marks it as required under a condition.
    fn required_if(mut self, required: bool) -> Self {
        self.required = required;
        self
    }
}

/// The answers for one component.
struct Component {
    name: &'static str,
    /// Its use.
    purpose: &'static str,
    /// Whether this version of Bedplate contains it; otherwise the answers are for planning.
    included: bool,
    checks: Vec<Check>,
}

impl Component {
    /// The component works if everything required does; limits and missing extras make it "partly".
    fn verdict(&self) -> Answer {
        let required = |answer| self.checks.iter().any(|c| c.required && c.answer == answer);
        if required(Answer::No) {
            Answer::No
        } else if required(Answer::Unknown) {
            Answer::Unknown
        } else if self.checks.iter().all(|c| c.answer == Answer::Yes) {
            Answer::Yes
        } else {
            Answer::Partly
        }
    }
}

type Probe = fn() -> Component;

/// Probes and prints. Succeeds if every included component that was asked for by name can work here. If none was,
/// one component is enough, because they do not need each other.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let components: [(&str, Probe); 5] = [
        ("kerneldb", kerneldb::probe),
        ("ring0", ring0::probe),
        ("snapshot", snapshot::probe),
        ("bufpool", bufpool::probe),
        ("scan", scan::probe),
    ];
    let report: Vec<Component> = components
        .iter()
        .filter(|(name, _)| args.component.is_empty() || args.component.iter().any(|c| c == name))
        .map(|(_, probe)| probe())
        .collect();
    if args.json {
        render::json(&report)?
    } else {
        render::text(&report)?
    }
    let works = |c: &Component| matches!(c.verdict(), Answer::Yes | Answer::Partly);
    let mut included = report.iter().filter(|c| c.included);
    let ok = if args.component.is_empty() { included.any(works) } else { included.all(works) };
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn component(checks: Vec<Check>) -> Component {
        Component { name: "x", purpose: "y", included: true, checks }
    }

    #[test]
    fn verdict_follows_the_required_checks_first() {
        let yes = || Check::yes("a", "a", "");
        assert_eq!(component(vec![yes(), yes().required()]).verdict(), Answer::Yes);
        assert_eq!(component(vec![yes().required(), Check::no("b", "b", "")]).verdict(), Answer::Partly);
        assert_eq!(component(vec![Check::no("b", "b", "").required(), yes()]).verdict(), Answer::No);
        let unknown = || Check::unknown("c", "c", "").required();
        assert_eq!(component(vec![unknown(), yes()]).verdict(), Answer::Unknown);
        assert_eq!(component(vec![unknown(), Check::no("b", "b", "").required()]).verdict(), Answer::No);
    }

    /// Every probe must end with a reason on any machine. Identifiers must be unique, because programs
    /// read them.
    #[test]
    fn every_component_reports_on_this_machine() {
        for probe in [kerneldb::probe, ring0::probe, snapshot::probe, bufpool::probe, scan::probe] {
            let component = probe();
            let mut ids: Vec<_> = component.checks.iter().map(|c| c.id).collect();
            assert!(!ids.is_empty(), "{}", component.name);
            ids.sort_unstable();
            ids.dedup();
            assert_eq!(ids.len(), component.checks.len(), "{}: duplicate ids", component.name);
            for check in &component.checks {
                assert!(!check.reason.is_empty(), "{} has no reason", check.id);
                let helped = check.advice.is_some() || matches!(check.answer, Answer::Yes | Answer::Unknown);
                assert!(helped, "{} ({}) has no advice", check.id, check.answer.word());
            }
        }
    }
}
