//! Restarting guests that QEMU's emulation loses. The programs in the guest do not cause these losses (docs/vm.md).

use super::{Acceleration, Job, Machine, Report};
use crate::error::Result;

/// Most restarts of a lost guest.
const RESTARTS: u32 = 2;

/// The output of jobs, and their report.
#[derive(Clone, Debug)]
pub struct Captured {
    /// The report on the jobs.
    pub report: Report,
    /// The standard output of the jobs.
    pub out: String,
    /// The standard error output of the jobs.
    pub err: String,
}

impl Machine {
    /// [Runs](Machine::run) jobs, [restarts lost guests](Machine::run_despite_losses), and returns the output of
    /// the last attempt. Bytes that are not UTF-8 are replaced.
    ///
    /// # Errors
    /// The errors of the last attempt.
    pub fn capture_despite_losses(&self, jobs: &[Job], tell: impl FnMut(&str)) -> Result<Captured> {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let attempt = |machine: &Machine| {
            out.clear();
            err.clear();
            machine.run(jobs, &mut out, &mut err)
        };
        let report = self.run_despite_losses(attempt, tell)?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(Captured { report, out: text(out), err: text(err) })
    }

    /// Calls `attempt`, which should [`run`](Machine::run) jobs. Repeats this at most twice if QEMU's emulation has
    /// lost the guest, that is, if the guest died or hung. The failure of a job does not cause another attempt.
    /// Before each repetition, `tell` gets a text with the reason.
    ///
    /// # Errors
    /// The errors of the last attempt.
    pub fn run_despite_losses(
        &self,
        mut attempt: impl FnMut(&Machine) -> Result<Report>,
        mut tell: impl FnMut(&str),
    ) -> Result<Report> {
        for _ in 0..RESTARTS {
            match attempt(self) {
                Err(error) if self.acceleration == Acceleration::Software && error.console().is_some() => {
                    let console = error.console().unwrap_or_default();
                    tell(&format!(
                        "{console}\n----\n{error}: all of it runs again in a new guest (docs/vm.md)"
                    ));
                }
                ended => return ended,
            }
        }
        attempt(self)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::{Error, Kernel};

    fn report(status: i32) -> Report {
        let none = Duration::ZERO;
        Report { statuses: vec![0, status], log: String::new(), complaints: vec![], boot: none, whole: none }
    }

    /// Runs a job that always ends this way. Returns the number of attempts and the final result.
    fn attempts(how: Acceleration, end: impl Fn() -> Result<Report>) -> (u32, Result<Report>) {
        let kernel = Kernel::from_image(Path::new("/proc/version")).unwrap();
        let machine = Machine { acceleration: how, ..Machine::new(kernel) };
        let (mut attempts, mut told) = (0, 0);
        let ended = machine.run_despite_losses(
            |_| {
                attempts += 1;
                end()
            },
            |_| told += 1,
        );
        assert_eq!(told + 1, attempts);
        (attempts, ended)
    }

    #[test]
    fn a_guest_lost_in_software_is_restarted_twice() {
        let died = || Err(Error::TimedOut { limit: Duration::ZERO, console: String::new() });
        assert!(matches!(attempts(Acceleration::Software, died), (3, Err(Error::TimedOut { .. }))));
        assert!(matches!(attempts(Acceleration::Hardware, died), (1, Err(_))));
    }

    #[test]
    fn a_failed_job_is_not_restarted() {
        assert_eq!(attempts(Acceleration::Software, || Ok(report(101))).0, 1);
        assert_eq!(attempts(Acceleration::Software, || Ok(report(139))).0, 1);
        assert_eq!(attempts(Acceleration::Software, || Err(Error::Qemu("no".into()))).0, 1);
    }
}
