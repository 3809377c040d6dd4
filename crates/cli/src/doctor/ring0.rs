//! The need of ring0: a /dev/kvm that runs guest ring 0 on the processor itself.

#[cfg(target_arch = "x86_64")]
#[path = "ring0_x86.rs"]
mod arch;

use super::{Check, Component};

/// Probes ring0.
pub fn probe() -> Component {
    #[cfg(target_arch = "x86_64")]
    let checks = arch::checks();
    #[cfg(not(target_arch = "x86_64"))]
    let checks = vec![
        Check::no("architecture", "processor", "ring0 exists for x86-64 only")
            .advice("use the engines of snapshot and bufpool that do not need it")
            .required(),
    ];
    Component {
        name: "ring0",
        purpose: "a process that owns its page tables, traps and IPIs and is still a Linux process",
        included: true,
        checks,
    }
}

/// The reason of every check that needs an open /dev/kvm.
#[cfg(target_arch = "x86_64")]
fn unopened(id: &'static str, subject: &'static str) -> Check {
    Check::unknown(id, subject, "/dev/kvm could not be opened")
}
