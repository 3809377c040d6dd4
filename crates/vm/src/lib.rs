//! Runs commands and test binaries on a stock distribution kernel in QEMU.
//!
//! Code that owns a processor's ring 0 is to be tested on kernels as users have them, with KVM as they have
//! it, on machines that have neither: so a [`Machine`] boots a Debian kernel, taken from Debian's archive, in
//! QEMU; on an x86-64 processor in software that has AMD-V, so that the kernel's own KVM works in it, or
//! under the hardware's virtualization where that can be nested. The guest has no disk: what it runs is in
//! its initial file system, with the libraries it needs.
//!
//! ```no_run
//! use bedplate_vm::{Job, Kernel, Machine, Series};
//!
//! let kernel = Kernel::get(Series::V6_1)?;
//! let report = Machine::new(kernel).run(&[Job::new(["uname", "-r"])], &mut std::io::stdout(), &mut std::io::stderr())?;
//! assert!(report.succeeded());
//! # Ok::<(), bedplate_vm::Error>(())
//! ```
//!
//! # Modules
//!
//! `kernel` (where kernels come from), `initramfs` (what the guest finds), `machine` (QEMU, and what is said
//! over its serial ports), `complaints` (what a kernel's log must not contain).

mod complaints;
mod error;
mod initramfs;
mod kernel;
mod machine;

pub use error::{Error, Result};
pub use initramfs::File;
pub use kernel::{Kernel, Series};
pub use machine::{Acceleration, Captured, Job, Machine, Report};

/// Set to `1` in the environment of everything that runs in a [`Machine`].
pub const MARK: &str = "BEDPLATE_VM";
