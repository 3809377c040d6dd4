//! The way in which a server is started.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;

/// The name of the library that `bedplate scan run` preloads. The command finds it beside itself.
const LIBRARY: &str = "libbedplate_scan_preload.so";

/// Plain, or with the library.
#[derive(Clone, Debug)]
pub enum Launch {
    /// The server alone.
    Plain,
    /// Under `bedplate scan run`.
    Scan(Preload),
}

/// The options of `bedplate scan run`.
#[derive(Clone, Debug, Default)]
pub struct Preload {
    /// The command `bedplate`, beside which the library is.
    pub program: PathBuf,
    /// The socket of a running daemon; without it, the command starts one.
    pub socket: Option<PathBuf>,
    /// The memory of the daemon that the command starts, in bytes.
    pub memory_bytes: Option<u64>,
    /// Time in milliseconds for which a served file must not have been changed; `None` = the daemon's default.
    pub settling_time_ms: Option<u64>,
    /// Smaller files are left to the page cache.
    pub minimum_bytes: Option<u64>,
    /// The file to which the library appends its statistics.
    pub statistics: Option<PathBuf>,
    /// More variables of the environment.
    pub environment: Vec<(String, String)>,
}

impl Preload {
    /// Copies the command and the library into a folder, and uses the copy from now on. Other users may not be able to read the
    /// folder of the build.
    pub fn copy_into(&mut self, folder: &Path) -> Result<()> {
        let library = self.program.with_file_name(LIBRARY);
        for from in [&self.program, &library] {
            let to = folder.join(from.file_name().unwrap_or_default());
            // A link takes neither time nor memory, but may be impossible.
            if to != *from && !to.exists() && fs::hard_link(from, &to).is_err() {
                fs::copy(from, &to).map_err(|e| format!("copying {}: {e}", from.display()))?;
            }
        }
        self.program = folder.join(self.program.file_name().unwrap_or_default());
        Ok(())
    }

    /// The command that runs another one with the library.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["scan", "run"]);
        if let Some(socket) = &self.socket {
            command.arg("--socket").arg(socket);
        }
        if let Some(bytes) = self.memory_bytes {
            command.arg("--memory").arg(bytes.to_string());
        }
        if let Some(time) = self.settling_time_ms {
            command.arg("--settling-time").arg(time.to_string());
        }
        if let Some(bytes) = self.minimum_bytes {
            command.arg("--minimum").arg(bytes.to_string());
        }
        if let Some(file) = &self.statistics {
            command.arg("--statistics").arg(file);
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.arg("--").arg(program);
        command
    }
}

impl Launch {
    /// The command that starts a program in this way.
    pub fn command(&self, program: &Path) -> Command {
        match self {
            Self::Plain => Command::new(program),
            Self::Scan(preload) => preload.command(program),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_has_what_was_chosen() {
        let preload = Preload {
            program: "/b/bedplate".into(),
            minimum_bytes: Some(65536),
            statistics: Some("/s".into()),
            ..Preload::default()
        };
        let command = Launch::Scan(preload).command(Path::new("/usr/sbin/mariadbd"));
        let arguments: Vec<_> = command.get_args().map(|argument| argument.to_str().unwrap()).collect();
        let expected = "scan run --minimum 65536 --statistics /s -- /usr/sbin/mariadbd";
        assert_eq!(arguments.join(" "), expected);
        assert_eq!(Launch::Plain.command(Path::new("/a")).get_args().count(), 0);
    }
}
