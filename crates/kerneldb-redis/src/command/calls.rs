//! Counts the calls of each command, for INFO commandstats.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::spec::Cmd;
use super::table::COMMANDS;

/// Calls of one command.
#[derive(Debug, Default)]
struct Call {
    calls: AtomicU64,
    failed: AtomicU64,
    us: AtomicU64,
}

/// Calls of every command in user space; subcommands count for their command.
#[derive(Debug)]
pub struct Calls(Vec<Call>);

impl Default for Calls {
    fn default() -> Self {
        Calls(COMMANDS.iter().map(|_| Call::default()).collect())
    }
}

impl Calls {
    /// Counts a call. `failed`: the reply is an error.
    pub(super) fn note(&self, cmd: Cmd, took: Duration, failed: bool) {
        if let Some(call) = self.0.get(cmd as usize) {
            call.calls.fetch_add(1, Relaxed);
            call.failed.fetch_add(failed.into(), Relaxed);
            call.us.fetch_add(took.as_micros() as u64, Relaxed);
        }
    }

    pub(super) fn reset(&self) {
        for call in &self.0 {
            [&call.calls, &call.failed, &call.us].into_iter().for_each(|counter| counter.store(0, Relaxed));
        }
    }

    /// The line of each command that was called. `kernel` are the calls that the kernel has answered. Their time is
    /// not measured. `refusals` are those of CALL among them that failed.
    pub(super) fn lines(&self, kernel: &[(&'static str, u64)], refusals: u64) -> Vec<(String, String)> {
        let mut lines = Vec::new();
        for spec in COMMANDS {
            let Some(call) = spec.cmd.and_then(|cmd| self.0.get(cmd as usize)) else { continue };
            let [calls, failed, us] =
                [&call.calls, &call.failed, &call.us].map(|counter| counter.load(Relaxed));
            let kernel = kernel.iter().find(|(name, _)| *name == spec.name).map_or(0, |(_, calls)| *calls);
            if calls + kernel > 0 {
                let failed = if spec.name == "call" { failed + refusals } else { failed };
                let per_call = if calls == 0 { 0.0 } else { us as f64 / calls as f64 };
                lines.push((
                    format!("cmdstat_{}", spec.name),
                    format!(
                        "calls={},usec={us},usec_per_call={per_call:.2},rejected_calls=0,failed_calls={failed}",
                        calls + kernel
                    ),
                ));
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_counter_of_its_own() {
        let calls = Calls::default();
        for spec in COMMANDS {
            calls.note(spec.cmd.unwrap(), Duration::from_micros(3), false);
        }
        assert!(calls.0.iter().all(|call| call.calls.load(Relaxed) == 1));
        calls.note(Cmd::Get, Duration::from_micros(5), true);
        let lines = calls.lines(&[("get", 2), ("ping", 1), ("call", 7)], 3);
        let line = |name: &str| lines.iter().find(|(n, _)| n == name).unwrap().1.clone();
        assert_eq!(line("cmdstat_get"), "calls=4,usec=8,usec_per_call=4.00,rejected_calls=0,failed_calls=1");
        assert_eq!(line("cmdstat_ping"), "calls=2,usec=3,usec_per_call=3.00,rejected_calls=0,failed_calls=0");
        assert_eq!(line("cmdstat_call"), "calls=8,usec=3,usec_per_call=3.00,rejected_calls=0,failed_calls=3");
        calls.reset();
        assert!(calls.lines(&[], 0).is_empty());
        assert_eq!(calls.lines(&[("get", 2)], 0).len(), 1, "the kernel's calls alone");
    }
}
