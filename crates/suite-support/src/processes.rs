//! The processes of a server, and their processor time.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process};

/// The processes whose current folder is in a folder: a server with all its backends, and all processes that they started.
pub fn inside(folder: &Path) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let is_inside = |path: PathBuf| fs::read_link(path).is_ok_and(|current| current.starts_with(folder));
    let entries = entries.flatten().filter(|entry| is_inside(entry.path().join("cwd")));
    entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// Kills the processes in a folder, those that are started meanwhile included. Returns those that do not end.
pub fn kill_inside(folder: &Path) -> Vec<Pid> {
    for _ in 0..1000 {
        let left = inside(folder);
        if left.is_empty() {
            return left;
        }
        for process in left {
            let _ = kill_process(process, Signal::KILL);
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    inside(folder)
}

/// Processor time of a server in nanoseconds: of its processes in `folder`, and of their children that have ended.
///
/// A server's main process waits for all of its children, so its own figures have the time of those that ended. The figures of
/// ended processes are in ticks of 10 ms; those of running ones are exact.
pub fn cpu_ns(folder: &Path) -> u64 {
    inside(folder).into_iter().map(|process| of_process(process.as_raw_nonzero().get()).unwrap_or(0)).sum()
}

/// Time of a process's running threads and of its ended children. Neither includes threads that ended, so the process's own
/// ticks are used if they are more.
fn of_process(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (own, ended) = ticks(&stat)?;
    let mut exact = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        let text = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        exact += text.split_whitespace().next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0);
    }
    Some(exact.max(own * TICK_NS) + ended * TICK_NS)
}

/// `USER_HZ` is 100 on every architecture that Linux has now.
const TICK_NS: u64 = 10_000_000;

/// Ticks of a process and of its children that have ended, in a line of `/proc/PID/stat`.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    // After the name: state is the first field, utime the twelfth; stime, cutime and cstime follow.
    let rest = &stat[stat.rfind(')')? + 1..];
    let fields: Vec<&str> = rest.split_whitespace().skip(11).take(4).collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some((number(0)? + number(1)?, number(2)? + number(3)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_read_behind_any_name() {
        let stat = "7 (a) (b) S 1 7 7 0 -1 4194304 100 200 0 0 11 22 33 44 20 0 1 0 5 0 0";
        assert_eq!(ticks(stat), Some((33, 77)));
        assert_eq!(ticks("7"), None);
    }

    #[test]
    fn the_time_of_ended_children_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let script = "for i in 1 2 3; do (n=0; while [ $n -lt 60000 ]; do n=$((n+1)); done); done; echo ready; read line";
        let mut child = std::process::Command::new("sh")
            .args(["-c", script])
            .current_dir(folder.path())
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0; 6];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
        let time = cpu_ns(&fs::canonicalize(folder.path()).unwrap());
        // The loops ran in children, which have ended; the shell itself has done next to nothing.
        let ended = ticks(&fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap()).unwrap().1;
        assert!(ended > 0 && time >= ended * TICK_NS, "{time} {ended}");
        assert!(kill_inside(&fs::canonicalize(folder.path()).unwrap()).is_empty());
        child.wait().unwrap();
    }
}
