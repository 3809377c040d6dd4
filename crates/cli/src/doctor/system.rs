//! Facts about the process and the machine that several probes need.

use std::fs;
use std::io;

/// The effective capabilities that matter to Bedplate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities(u64);

const NAMES: [(u32, &str); 6] = [
    (12, "CAP_NET_ADMIN"),
    (14, "CAP_IPC_LOCK"),
    (19, "CAP_SYS_PTRACE"),
    (21, "CAP_SYS_ADMIN"),
    (38, "CAP_PERFMON"),
    (39, "CAP_BPF"),
];

impl Capabilities {
    /// Whether the capability of this number is effective.
    pub fn has(self, number: u32) -> bool {
        self.0 >> number & 1 == 1
    }

    /// The names of the effective capabilities.
    pub fn names(self) -> Vec<&'static str> {
        NAMES.iter().filter(|(number, _)| self.has(*number)).map(|(_, name)| *name).collect()
    }

    /// The missing ones of CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON. To the kernel, CAP_SYS_ADMIN implies two of
    /// them.
    pub fn missing_for_bpf(self) -> Vec<&'static str> {
        let admin = self.has(21);
        let have = |number, implied| self.has(number) || (implied && admin);
        [(39, "CAP_BPF", true), (12, "CAP_NET_ADMIN", false), (38, "CAP_PERFMON", true)]
            .into_iter()
            .filter(|(number, _, implied)| !have(*number, *implied))
            .map(|(_, name, _)| name)
            .collect()
    }
}

/// Effective capabilities of this process; none if they cannot be read.
pub fn capabilities() -> Capabilities {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    Capabilities(line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0))
}

/// The value of a file in /proc or /sys, trimmed; `None` if it does not exist or cannot be read.
pub fn setting(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Whether an error means "you may not" rather than "there is none".
pub fn is_denied(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES))
}

/// The errno of a failed system call that returned -1.
pub fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_by_number_and_by_implication() {
        assert_eq!(Capabilities(0).missing_for_bpf(), ["CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON"]);
        assert_eq!(Capabilities(1 << 21).missing_for_bpf(), ["CAP_NET_ADMIN"]);
        assert_eq!(Capabilities(1 << 39 | 1 << 12 | 1 << 38).missing_for_bpf(), [""; 0]);
        assert_eq!(Capabilities(1 << 39).names(), ["CAP_BPF"]);
    }
}
