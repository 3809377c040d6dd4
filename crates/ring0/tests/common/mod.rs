//! What the tests in ring 0 share: the process, and not running where there is no real ring 0.

#![allow(dead_code)]

use std::sync::OnceLock;

use bedplate_ring0::Process;

/// Set in the virtual machine that the tests run in, and by people whose own machine has real ring 0.
pub const ENABLED: &str = "BEDPLATE_VM";

/// Whether guest code may run here; says why if not. A software KVM would start it and then fail.
pub fn enabled() -> bool {
    let enabled = std::env::var_os(ENABLED).is_some();
    if !enabled {
        eprintln!(
            "skipped: needs ring 0 of a real processor, or of the test machine; set {ENABLED}=1 where there is one"
        );
    }
    enabled
}

/// This process, built once.
pub fn process() -> &'static Process {
    static BUILT: OnceLock<&Process> = OnceLock::new();
    BUILT.get_or_init(|| Process::builder().build().expect("ring 0 can be had"))
}

/// Leaves the test where there is no ring 0; otherwise the process.
#[macro_export]
macro_rules! ring0_or_skip {
    () => {
        if common::enabled() { common::process() } else { return }
    };
}
