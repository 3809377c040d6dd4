//! The userfaultfd system call and its ioctls for write protection and for holding up page faults.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use linux_raw_sys::general::{
    uffd_msg, uffdio_api, uffdio_range, uffdio_register, uffdio_writeprotect, uffdio_zeropage,
};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::mm::{UserfaultfdFlags, userfaultfd};

use super::above_standard::above_standard;
use super::filter;
use crate::{Error, Kind};

const GROUP: u8 = 0xaa;
const UFFD_API: u64 = 0xaa;
const API: Opcode = opcode::read_write::<uffdio_api>(GROUP, 0x3f);
const UNREGISTER: Opcode = opcode::read::<uffdio_range>(GROUP, 0x01);
const WAKE: Opcode = opcode::read::<uffdio_range>(GROUP, 0x02);
const REGISTER: Opcode = opcode::read_write::<uffdio_register>(GROUP, 0x00);
const ZEROPAGE: Opcode = opcode::read_write::<uffdio_zeropage>(GROUP, 0x04);
const WRITEPROTECT: Opcode = opcode::read_write::<uffdio_writeprotect>(GROUP, 0x06);
/// An ioctl of `/dev/userfaultfd`: creates a descriptor. Users who may open that file may call it.
const NEW: Opcode = opcode::none(GROUP, 0x00);

const REGISTER_MODE_MISSING: u64 = 1 << 0;
const REGISTER_MODE_WP: u64 = 1 << 1;
const REGISTER_MODE_MINOR: u64 = 1 << 2;
const WRITEPROTECT_MODE_WP: u64 = 1 << 0;
const EVENT_PAGEFAULT: u8 = 0x12;

/// The purpose of a descriptor. The feature for events at `fork` is never used, because the kernel would copy the
/// region's page tables at every fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Write protection. Faults are reported with their type, and shared memory can be protected (Linux 5.19).
    WriteProtection,
    /// Holding up threads that use pages without page-table entries, whether the file has these pages or not (Linux
    /// 5.14).
    HoldingUp,
}

impl Purpose {
    fn features(self) -> u64 {
        match self {
            Self::WriteProtection => (1 << 0) | (1 << 12),
            Self::HoldingUp => (1 << 5) | (1 << 10),
        }
    }
}

/// The name of the failed operation if no better one is known.
const WHAT: &str = "userfaultfd";

/// The reason why no descriptor could be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The user needs the device and cannot use it. The value is the error of opening it or of its ioctl.
    Device(Errno),
    /// The kernel is too old, or was built without the feature.
    Kernel(Purpose),
    /// Another operation failed.
    Other(&'static str, Errno),
}

impl Refusal {
    /// Makes an error of an engine that needs the descriptor.
    pub fn of(self, engine: Kind) -> Error {
        Error::Unavailable { engine, reason: self.to_string() }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Device(Errno::ACCESS) => f.write_str(
                "this user may not open /dev/userfaultfd: add the user to the file's group (`ls -l /dev/userfaultfd` \
                 names it; `bedplate` if its udev rule is installed), or run as root",
            ),
            Self::Device(Errno::PERM) => f.write_str(
                "this container or service may not use /dev/userfaultfd: for a container pass `--device \
                 /dev/userfaultfd`, for a systemd unit set `DeviceAllow=/dev/userfaultfd rw`",
            ),
            Self::Device(_) => f.write_str(
                "there is no /dev/userfaultfd here, and this user may not do without it: for a container pass \
                 `--device /dev/userfaultfd`, for a systemd unit set `BindPaths=/dev/userfaultfd`, before Linux 6.1 \
                 `sysctl vm.unprivileged_userfaultfd=1`",
            ),
            Self::Kernel(Purpose::HoldingUp) => f.write_str(
                "the kernel cannot hold up users of shared memory by userfaultfd: Linux 5.14 or later with \
                 CONFIG_USERFAULTFD is needed",
            ),
            Self::Kernel(Purpose::WriteProtection) => f.write_str(
                "the kernel cannot write-protect shared memory by userfaultfd: Linux 5.19 or later with \
                 CONFIG_USERFAULTFD and CONFIG_PTE_MARKER_UFFD_WP is needed",
            ),
            Self::Other(what, error) => write!(f, "{what}: {error}"),
        }
    }
}

/// An open userfaultfd.
#[derive(Debug)]
pub struct Descriptor(OwnedFd);

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Descriptor {
    /// Opens a descriptor that also reports faults of the kernel, because system calls write into a heap like its
    /// threads.
    pub fn open(purpose: Purpose) -> Result<Self, Refusal> {
        let descriptor =
            above_standard(open(purpose)?).map(Self).map_err(|error| Refusal::Other(WHAT, error))?;
        let mut api = uffdio_api { api: UFFD_API, features: purpose.features(), ioctls: 0 };
        // SAFETY: the structure that this ioctl reads and writes.
        match unsafe { descriptor.call::<API, _>(&mut api) } {
            Ok(()) => Ok(descriptor),
            Err(Errno::INVAL) => Err(Refusal::Kernel(purpose)),
            Err(error) => Err(Refusal::Other(WHAT, error)),
        }
    }

    /// # Safety
    /// `T` must be the type that the ioctl takes.
    unsafe fn call<const OPCODE: Opcode, T>(&self, value: &mut T) -> Result<(), Errno> {
        // SAFETY: by the caller's promise.
        unsafe { ioctl(&self.0, Updater::<OPCODE, T>::new(value)) }
    }

    /// Registers a range of this process for write protection.
    ///
    /// # Safety
    /// Faults of the range must be served from now on.
    pub unsafe fn register(&self, start: usize, len: usize) -> Result<(), Errno> {
        self.register_as(start, len, REGISTER_MODE_WP)
    }

    /// Makes every thread wait that uses a page of the range without a page-table entry. Waiting threads are not
    /// reported.
    ///
    /// # Safety
    /// The caller must soon wake the waiting threads, and must not wait for any of them before.
    pub unsafe fn hold_up(&self, start: usize, len: usize) -> Result<(), Errno> {
        self.register_as(start, len, REGISTER_MODE_MISSING | REGISTER_MODE_MINOR)
    }

    fn register_as(&self, start: usize, len: usize, mode: u64) -> Result<(), Errno> {
        let range = uffdio_range { start: start as u64, len: len as u64 };
        let mut register = uffdio_register { range, mode, ioctls: 0 };
        // SAFETY: the structure that this ioctl reads and writes.
        unsafe { self.call::<REGISTER, _>(&mut register) }
    }

    /// Maps the kernel's zero page for all pages of a registered range, and wakes the threads that wait for them.
    /// None of these pages may have a page-table entry.
    pub fn map_zeros(&self, start: usize, len: usize) -> Result<(), Errno> {
        let mut done = 0;
        while done < len {
            let range = uffdio_range { start: (start + done) as u64, len: (len - done) as u64 };
            let mut zeros = uffdio_zeropage { range, mode: 0, zeropage: 0 };
            // SAFETY: the structure that this ioctl reads and writes. The caller has registered the range.
            match unsafe { self.call::<ZEROPAGE, _>(&mut zeros) } {
                Ok(()) => return Ok(()),
                // The kernel returns the number of bytes it has mapped.
                Err(Errno::AGAIN) if zeros.zeropage > 0 => done += zeros.zeropage as usize,
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Unregisters a range, so that the kernel handles its faults again.
    pub fn unregister(&self, start: usize, len: usize) -> Result<(), Errno> {
        let mut range = uffdio_range { start: start as u64, len: len as u64 };
        // SAFETY: the structure that this ioctl reads. It changes no content, and wakes waiting threads.
        unsafe { self.call::<UNREGISTER, _>(&mut range) }
    }

    /// Wakes the threads that wait for pages of the range. They retry the access.
    pub fn wake(&self, start: usize, len: usize) -> Result<(), Errno> {
        let mut range = uffdio_range { start: start as u64, len: len as u64 };
        // SAFETY: the structure that this ioctl reads.
        unsafe { self.call::<WAKE, _>(&mut range) }
    }

    /// Write-protects pages. Pages that are protected already stay protected.
    pub fn protect(&self, start: usize, len: usize) -> Result<(), Errno> {
        self.write_protect(start, len, WRITEPROTECT_MODE_WP)
    }

    /// Removes the protection, and wakes the threads that wait for it.
    pub fn unprotect(&self, start: usize, len: usize) -> Result<(), Errno> {
        self.write_protect(start, len, 0)
    }

    fn write_protect(&self, start: usize, len: usize, mode: u64) -> Result<(), Errno> {
        let range = uffdio_range { start: start as u64, len: len as u64 };
        let mut protect = uffdio_writeprotect { range, mode };
        loop {
            // SAFETY: the structure that this ioctl reads. It changes no content, and faults are served.
            match unsafe { self.call::<WRITEPROTECT, _>(&mut protect) } {
                Err(Errno::AGAIN | Errno::INTR) => {}
                result => return result,
            }
        }
    }

    /// Takes the next fault, and returns its address. Returns `None` if there is none.
    pub fn read(&self) -> Option<usize> {
        // SAFETY: all zeros is a valid value.
        let mut message: uffd_msg = unsafe { std::mem::zeroed() };
        let bytes = {
            // SAFETY: a message as bytes, for which every value is valid.
            let buffer: &mut [u8] =
                unsafe { std::slice::from_raw_parts_mut((&raw mut message).cast(), size_of::<uffd_msg>()) };
            rustix::io::read(&self.0, buffer)
        };
        if bytes != Ok(size_of::<uffd_msg>()) || message.event != EVENT_PAGEFAULT {
            return None;
        }
        // SAFETY: the kernel has said that it is a page fault.
        let address = unsafe { message.arg.pagefault.address };
        Some(address as usize)
    }
}

/// Opens a userfaultfd that also reports faults of the kernel, as engines do.
///
/// # Errors
/// The reason of the failure, and how to fix it.
pub fn userfaultfd_of_engines() -> Result<OwnedFd, String> {
    open(Purpose::HoldingUp).map_err(|refusal| refusal.to_string())
}

/// Uses the device if possible, which needs only access to the device. Otherwise uses the system call, which not
/// all users may make, and which some seccomp filters do not know.
fn open(purpose: Purpose) -> Result<OwnedFd, Refusal> {
    let device = match by_device() {
        Ok(fd) => return Ok(fd),
        Err(error) => error,
    };
    let denied = match device {
        Errno::NOENT | Errno::NXIO | Errno::NODEV | Errno::ACCESS | Errno::PERM => Refusal::Device(device),
        other => Refusal::Other("/dev/userfaultfd", other),
    };
    if !filter::permits(&[libc::SYS_userfaultfd]) {
        return Err(denied);
    }
    // SAFETY: creates a descriptor, which only this module uses.
    match unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK) } {
        Ok(fd) => Ok(fd),
        Err(Errno::PERM | Errno::ACCESS) => Err(denied),
        // Some filters report every forbidden call as an unknown call.
        Err(Errno::NOSYS) if device != Errno::NOENT || filter::is_filtered() => Err(denied),
        Err(Errno::NOSYS) => Err(Refusal::Kernel(purpose)),
        Err(error) => Err(Refusal::Other(WHAT, error)),
    }
}

fn by_device() -> Result<OwnedFd, Errno> {
    let device = rustix::fs::open("/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    // SAFETY: this ioctl takes flags as a number and returns a descriptor.
    unsafe { ioctl(&device, NewDescriptor((libc::O_CLOEXEC | libc::O_NONBLOCK) as usize)) }
}

struct NewDescriptor(usize);

// SAFETY: the argument is a number; the output is a descriptor that no other code owns.
unsafe impl rustix::ioctl::Ioctl for NewDescriptor {
    type Output = OwnedFd;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        NEW
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        std::ptr::without_provenance_mut(self.0)
    }

    unsafe fn output_from_ptr(
        out: rustix::ioctl::IoctlOutput,
        _: *mut std::ffi::c_void,
    ) -> rustix::io::Result<Self::Output> {
        use std::os::fd::FromRawFd;
        // SAFETY: the result of this ioctl is a new descriptor.
        Ok(unsafe { OwnedFd::from_raw_fd(out) })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::region::filter::tests::{KILL, refuse, with_filter};

    const DEVICE: &str = "/dev/userfaultfd";

    /// Every refusal fits into the line in which the preloaded library prints it.
    #[test]
    fn refusals_are_short_and_say_what_to_do() {
        let device = [Errno::NOENT, Errno::ACCESS, Errno::PERM].map(Refusal::Device);
        for refusal in device {
            let text = refusal.of(Kind::Uffd).to_string();
            assert!(text.len() < 400 && !text.contains('\n'), "{text}");
            assert!(text.contains(DEVICE), "{text}");
        }
    }

    /// The device is still used if a filter ends the process for the system call.
    #[test]
    fn the_system_call_is_not_made_where_it_ends_the_process() {
        let opens = Descriptor::open(Purpose::HoldingUp).is_ok();
        let has_device = by_device().is_ok();
        let tried = || {
            let opened = Descriptor::open(Purpose::HoldingUp);
            if has_device { opened.is_ok() } else { matches!(opened, Err(Refusal::Device(_))) }
        };
        assert!(opens || !has_device);
        assert_eq!(with_filter(libc::SYS_userfaultfd, KILL, tried), 0);
    }

    /// A user who may neither open the device nor make the system call gets an error about the device.
    #[test]
    fn who_may_not_open_the_device_is_told_so() {
        const NOBODY: u32 = 65534;
        // SAFETY: only reads the user's number.
        if unsafe { libc::geteuid() } != 0 {
            println!("skipped: only root can become somebody else");
            return;
        }
        if std::fs::metadata(DEVICE).is_ok_and(|device| device.mode() & 0o6 == 0o6) {
            println!("skipped: everybody may open {DEVICE}");
            return;
        }
        let tried = || {
            // SAFETY: changes the user of the process that `with_filter` created.
            let somebody_else = unsafe {
                libc::setgroups(0, std::ptr::null()) == 0
                    && libc::setresgid(NOBODY, NOBODY, NOBODY) == 0
                    && libc::setresuid(NOBODY, NOBODY, NOBODY) == 0
            };
            somebody_else && matches!(Descriptor::open(Purpose::HoldingUp), Err(Refusal::Device(_)))
        };
        for action in [KILL, refuse(libc::EPERM), refuse(libc::ENOSYS)] {
            assert_eq!(with_filter(libc::SYS_userfaultfd, action, tried), 0);
        }
    }
}
