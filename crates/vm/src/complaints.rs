//! Messages in a kernel's log that count as failures.

/// Beginnings of the kernel's error messages, as they follow the time stamp (and `---[ cut here ]---`).
const COMPLAINTS: [&str; 16] = [
    "BUG:",
    "BUG ",
    "kernel BUG",
    "WARNING:",
    "Oops:",
    "Oops ",
    "Kernel panic",
    "general protection fault",
    "stack segment",
    "INFO: task ",
    "INFO: rcu",
    "rcu: INFO:",
    "watchdog: BUG",
    "unchecked MSR access error",
    "UBSAN:",
    "Internal error:",
];

/// Messages that programs in the guest do not cause.
const HARMLESS: [&str; 1] = [
    // Debian's kernels print this when they boot without the mitigations, which the harness switches off.
    "WARNING: Spectre",
];

/// The lines of a kernel's log that report errors of the kernel.
pub(crate) fn complaints(log: &str) -> Vec<String> {
    let complains = |line: &&str| {
        let text = line.trim_start();
        // `[   12.345678] text` or `[   12.345678][  T12] text`
        let text = match text.strip_prefix('[').and_then(|rest| rest.split_once("] ")) {
            Some((_, text)) => text.trim_start(),
            None => text,
        };
        COMPLAINTS.iter().any(|c| text.starts_with(c)) && !HARMLESS.iter().any(|h| text.starts_with(h))
    };
    log.lines().filter(complains).map(|line| line.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::complaints;

    #[test]
    fn complaints_are_found() {
        let log = "\
[    0.000000] Linux version 6.1.0
[    0.100000] WARNING: Spectre v2 mitigation leaves CPU vulnerable
[    1.234567] ------------[ cut here ]------------
[    1.234567] WARNING: CPU: 0 PID: 1 at kernel/x.c:12 f+0x1/0x2
[    2.000000] BUG: unable to handle page fault for address: 0000
[    2.100000][   T12] Oops: 0000 [#1] SMP
[  130.000000] INFO: task x:12 blocked for more than 120 seconds.
[    3.000000] kvm: this is not a BUG
general protection fault, probably for non-canonical address";
        let found = complaints(log);
        assert_eq!(found.len(), 5, "{found:#?}");
        assert!(found[0].contains("kernel/x.c") && found[4].starts_with("general"));
        assert!(complaints("").is_empty());
    }
}
