//! Ends a daemon that was started for a program when the program has ended, and every process that the program left
//! behind. Such a process has the daemon's socket in its environment.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use bedplate_scan::Stopper;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// The variable that names the daemon's socket.
pub const SOCKET_VARIABLE: &str = "BEDPLATE_SCAN_SOCKET";

/// Interval between two searches for such processes.
const STEP: Duration = Duration::from_millis(500);

/// Stops the daemon when a process has ended, no process is connected, and none has the socket in its environment.
pub fn accompany(process: i32, socket: PathBuf, stopper: Stopper) -> anyhow::Result<()> {
    let pid = Pid::from_raw(process).context("--accompany")?;
    let handle = pidfd_open(pid, PidfdFlags::empty());
    let wait = move || {
        // Without a handle, the process has ended already. A handle becomes readable when its process ends.
        if let Ok(handle) = handle {
            while poll(&mut [PollFd::new(&handle, PollFlags::IN)], None) == Err(Errno::INTR) {}
        }
        while stopper.connections() > 0 || is_in_an_environment(&socket) {
            std::thread::sleep(STEP);
        }
        stopper.stop();
    };
    std::thread::Builder::new().name("accompany".into()).spawn(wait).context("starting a thread")?;
    Ok(())
}

/// Whether any process has a socket in its environment. Processes of other users, whose environment is not readable, do not
/// count.
fn is_in_an_environment(socket: &Path) -> bool {
    let wanted = [SOCKET_VARIABLE.as_bytes(), b"=", socket.as_os_str().as_bytes()].concat();
    let Ok(processes) = fs::read_dir("/proc") else { return false };
    processes.flatten().any(|process| {
        let is_number = process.file_name().as_bytes().iter().all(u8::is_ascii_digit);
        is_number
            && fs::read(process.path().join("environ"))
                .is_ok_and(|environment| environment.split(|byte| *byte == 0).any(|entry| entry == wanted))
    })
}
