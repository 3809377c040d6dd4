//! The C interface of ring0, from which `include/bedplate/ring0.h` is generated.
//!
//! Functions that can fail return 0 or a negative errno. Functions that handlers do not call also store a
//! text for [`bp_ring0_error`], which allocates memory. The documentation of the other functions says that
//! handlers may call them.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(non_camel_case_types)]

mod cpus;
mod error;
mod frames;
mod handlers;
mod tables;

use std::ffi::{CStr, c_char, c_int, c_void};

use bedplate_ring0::{Cpu, Process, is_ring0};
use error::{answer, refuse};

pub use cpus::*;
pub use error::bp_ring0_error;
pub use frames::*;
pub use handlers::*;
pub use tables::*;

/// Options of the process. A value of 0 selects the default.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct bp_ring0_options {
    /// Limit of virtual processors, that is, of threads that own one. The default is 256, or fewer if KVM
    /// allows fewer.
    pub max_cpus: u32,
    /// Limit of windows of 1 GiB. The default is as many as possible.
    pub max_windows: u32,
}

/// Builds the process's ring 0. Returns -EEXIST if it has been built already.
///
/// # Safety
/// `options` must be NULL or point to such a structure. NULL selects the defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_ring0_build(options: *const bp_ring0_options) -> c_int {
    // SAFETY: as the caller promised.
    let options = unsafe { options.as_ref() }.copied().unwrap_or_default();
    let mut builder = Process::builder();
    if options.max_cpus != 0 {
        builder = builder.max_cpus(options.max_cpus);
    }
    if options.max_windows != 0 {
        builder = builder.max_windows(options.max_windows as usize);
    }
    answer(builder.build())
}

/// Makes this thread continue in ring 0. Does nothing if it is there already. Returns -ENXIO before
/// bp_ring0_build().
#[unsafe(no_mangle)]
pub extern "C" fn bp_ring0_enter() -> c_int {
    match Process::current() {
        Some(process) => answer(process.enter()),
        None => refuse(libc::ENXIO, "the process's ring 0 has not been built"),
    }
}

/// Makes this thread continue in ring 3. Does nothing if it is there already.
#[unsafe(no_mangle)]
pub extern "C" fn bp_ring0_leave() {
    if let Some(process) = Process::current() {
        process.leave();
    }
}

/// Runs `function(argument)` in ring 0. Afterwards the thread is in the same ring as before. Returns -ENXIO
/// before bp_ring0_build().
///
/// # Safety
/// The function may be called with the argument.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_ring0_run(
    function: Option<extern "C" fn(*mut c_void)>,
    argument: *mut c_void,
) -> c_int {
    let Some(function) = function else { return refuse(libc::EINVAL, "no function to run") };
    match Process::current() {
        Some(process) => answer(process.run(|_| function(argument))),
        None => refuse(libc::ENXIO, "the process's ring 0 has not been built"),
    }
}

/// Whether this thread is in ring 0.
#[unsafe(no_mangle)]
pub extern "C" fn bp_ring0_is_inside() -> bool {
    is_ring0()
}

/// The number of this thread's processor, from 0 on. Returns -EPERM in ring 3.
#[unsafe(no_mangle)]
pub extern "C" fn bp_ring0_cpu() -> c_int {
    match Cpu::current() {
        Some(cpu) => cpu.number() as c_int,
        None => refuse(libc::EPERM, "this thread is not in ring 0"),
    }
}

/// Drops the translation of the page at an address that this thread's processor has cached. Returns -EPERM in
/// ring 3.
#[unsafe(no_mangle)]
pub extern "C" fn bp_ring0_flush_page(address: u64) -> c_int {
    on_cpu(|cpu| cpu.flush_page(address))
}

/// Drops all translations that this thread's processor has cached. Returns -EPERM in ring 3.
#[unsafe(no_mangle)]
pub extern "C" fn bp_ring0_flush() -> c_int {
    on_cpu(|cpu| cpu.flush())
}

fn on_cpu(work: impl FnOnce(Cpu)) -> c_int {
    match Cpu::current() {
        Some(cpu) => {
            work(cpu);
            0
        }
        None => refuse(libc::EPERM, "this thread is not in ring 0"),
    }
}

/// The guest-physical address of an address of the process; 0 if it has no window.
#[unsafe(no_mangle)]
pub extern "C" fn bp_ring0_physical_address(address: u64) -> u64 {
    Process::current().and_then(|process| process.physical_address(address)).unwrap_or(0)
}

/// Reads a statistic by its name: "system_calls", "page_faults", "ipis_sent" and so on. Returns -ENOENT if
/// there is no statistic of that name.
///
/// # Safety
/// `name` must be a C string, and `value` must be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_ring0_statistic(name: *const c_char, value: *mut u64) -> c_int {
    if name.is_null() || value.is_null() {
        return refuse(libc::EINVAL, "no name, or no place for the value");
    }
    let Some(process) = Process::current() else {
        return refuse(libc::ENXIO, "the process's ring 0 has not been built");
    };
    // SAFETY: as the caller promised.
    let wanted = unsafe { CStr::from_ptr(name) }.to_bytes();
    match process.statistics().list().find(|(name, _)| name.as_bytes() == wanted) {
        Some((_, count)) => {
            // SAFETY: as the caller promised.
            unsafe { value.write(count) };
            0
        }
        None => refuse(libc::ENOENT, "no statistic has this name"),
    }
}
