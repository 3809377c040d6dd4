//! Runs commands and test binaries on a stock distribution kernel in QEMU.
//!
//! Code that controls a processor's ring 0 must be tested on the kernels of users, with their KVM. Test machines
//! often have neither. A [`Machine`] therefore boots a kernel from Debian's archive in QEMU. Where hardware
//! virtualization can be nested, the guest uses it. Elsewhere QEMU emulates an x86-64 processor with AMD-V, so the
//! kernel's own KVM works in the guest. The guest boots without a disk: its programs are in its initial file
//! system, with the libraries they need.
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
//! `kernel` gets kernels, `initramfs` builds the guest's file system, `machine` runs QEMU and evaluates the output
//! of its serial ports, and `complaints` finds errors in a kernel's log.

mod complaints;
mod error;
mod initramfs;
mod kernel;
mod machine;

pub use error::{Error, Result};
pub use initramfs::File;
pub use kernel::{Kernel, Series};
pub use machine::{Acceleration, Captured, Job, Machine, Report};

/// The variable that is set to `1` in the environment of everything that runs in a [`Machine`].
pub const MARK: &str = "BEDPLATE_VM";
