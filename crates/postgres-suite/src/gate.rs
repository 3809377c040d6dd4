//! Gates: a test stops a scan at one of its steps, lets others change the table, and lets the scan continue.
//!
//! The extension has gates only if it was built for tests. Its setting `bedplate_scan.fault_gate` names a path. A scan that
//! comes to a step and finds the file `PATH.STEP` renames it to `PATH.STEP.reached` and waits until that is removed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::Result;

/// Longest time that a gate waits for a scan. A busy machine is slow, so this only ends a test that would hang.
const LIMIT: Duration = Duration::from_secs(120);

/// A step of a scan at which it can be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A chunk was claimed; the buffer table has not been looked at.
    BeforeLookUp,
    /// The buffer table was looked at; the read has not begun.
    BeforeRead,
    /// An image is there; whether it may be used has not been decided.
    AfterRead,
    /// It was decided which images may be used; their rows have not been looked at.
    BeforeUse,
}

impl Step {
    /// All steps, in their order.
    pub const ALL: [Self; 4] = [Self::BeforeLookUp, Self::BeforeRead, Self::AfterRead, Self::BeforeUse];

    /// The name in the extension.
    pub fn name(self) -> &'static str {
        match self {
            Self::BeforeLookUp => "before_look_up",
            Self::BeforeRead => "before_read",
            Self::AfterRead => "after_read",
            Self::BeforeUse => "before_use",
        }
    }
}

/// A closed gate. Dropping it opens it.
#[derive(Debug)]
pub struct Gate {
    closed: PathBuf,
    reached: PathBuf,
}

impl Gate {
    /// Closes the gate at a step for the next scan that comes there and whose setting is `path`. The server must be able to
    /// rename files in the folder.
    pub fn close(path: &Path, step: Step) -> Result<Self> {
        let with = |end: &str| PathBuf::from(format!("{}.{}{end}", path.display(), step.name()));
        let gate = Self { closed: with(""), reached: with(".reached") };
        fs::write(&gate.closed, "").map_err(|e| format!("{}: {e}", gate.closed.display()))?;
        Ok(gate)
    }

    /// Waits until a scan stands at the gate. Calls `check` meanwhile, and an error of it ends the wait.
    pub fn wait(&self, mut check: impl FnMut() -> Result<()>) -> Result<()> {
        let start = Instant::now();
        while !self.reached.exists() {
            check()?;
            if start.elapsed() > LIMIT {
                return Err(format!("no scan has come to {} in {LIMIT:?}", self.closed.display()));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Lets the scan continue.
    pub fn open(self) {}
}

impl Drop for Gate {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.closed);
        let _ = fs::remove_file(&self.reached);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_is_open_when_it_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gate");
        let gate = Gate::close(&path, Step::AfterRead).unwrap();
        assert_eq!(gate.wait(|| Err("ended".into())), Err("ended".into()));
        fs::rename(folder.path().join("gate.after_read"), folder.path().join("gate.after_read.reached"))
            .unwrap();
        gate.wait(|| Err("ended".into())).unwrap();
        gate.open();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
