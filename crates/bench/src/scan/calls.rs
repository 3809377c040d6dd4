//! Counts the system calls of the calling thread, by the kernel's tracepoint at their entry.
//!
//! While a counter exists, every system call on the machine is slower, so calls are counted in separate passes that are
//! not timed.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// `struct perf_event_attr` of linux/perf_event.h, in its first version.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint: u32,
    address: u64,
}

/// The file in tracefs with the tracepoint's number.
const ENTRY: &str = "events/raw_syscalls/sys_enter/id";

const TRACEPOINT: u32 = 2;
/// The counter begins only after `ENABLE`.
const DISABLED: u64 = 1;
/// `_IO('$', 0)` and `_IO('$', 1)`
const ENABLE: libc::c_ulong = 0x2400;
const DISABLE: libc::c_ulong = 0x2401;

/// Reads a file of tracefs if it is not mounted, by a detached mount that lasts as long as this call.
fn unmounted(path: &str) -> io::Result<String> {
    let system = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&system)?;
    let top = fsmount(&system, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_RDONLY)?;
    let file = openat(&top, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    io::read_to_string(File::from(file))
}

/// A counter of only the thread that made it.
pub struct Calls(File);

impl Calls {
    /// A counter that has not begun.
    pub fn new() -> io::Result<Self> {
        let id = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"]
            .iter()
            .find_map(|tracing| fs::read_to_string(format!("{tracing}/{ENTRY}")).ok())
            .or_else(|| unmounted(ENTRY).ok())
            .and_then(|id| id.trim().parse().ok())
            .ok_or_else(|| io::Error::other("the kernel's tracepoints cannot be seen"))?;
        let size = size_of::<Attributes>() as u32;
        const { assert!(size_of::<Attributes>() == 64) };
        let attributes =
            Attributes { kind: TRACEPOINT, size, config: id, flags: DISABLED, ..Attributes::default() };
        // SAFETY: the attributes are as linux/perf_event.h has them, and outlive the call.
        let file = unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attributes, 0, -1, -1, 8) };
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it was just opened, and nothing else owns it.
        Ok(Self(unsafe { File::from_raw_fd(file as i32) }))
    }

    fn tell(&self, what: libc::c_ulong) {
        // SAFETY: a call without pointers on an open descriptor; it cannot fail for a counter.
        unsafe { libc::ioctl(self.0.as_raw_fd(), what, 0) };
    }

    /// Begins to count.
    pub fn begin(&self) {
        self.tell(ENABLE);
    }

    /// Ends, and returns the number of calls in between.
    pub fn end(mut self) -> io::Result<u64> {
        self.tell(DISABLE);
        let mut count = [0; 8];
        self.0.read_exact(&mut count)?;
        // The call that ends the count is included.
        Ok(u64::from_ne_bytes(count).saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_and_nothing_else() {
        let Ok(calls) = Calls::new() else { return println!("skipped: no tracepoints here") };
        calls.begin();
        for _ in 0..1000 {
            let _ = rustix::process::getppid();
        }
        assert_eq!(calls.end().unwrap(), 1000);
        let none = Calls::new().unwrap();
        none.begin();
        assert_eq!(none.end().unwrap(), 0);
    }
}
