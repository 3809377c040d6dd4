//! The needs of those snapshot engines that use userfaultfd: write protection of shared memory, seen by the process
//! itself, and page tables that can be moved. (The ring0 engine has the needs of the component ring0.)

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use bedplate_snapshot::region::userfaultfd_of_engines;
use bedplate_snapshot::{Choice, Kind, Memory};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::system::check;
use super::{Check, Component};

const UFFD: (&str, &str) = ("userfaultfd", "userfaultfd");
const FEATURES: (&str, &str) = ("uffd-wp-shmem", "write protection of shared memory (WP_HUGETLBFS_SHMEM)");
const ARM: (&str, &str) = ("uffd-arm", "arming a memfd mapping");
const COPY: (&str, &str) = ("process-vm-writev", "writing into the snapshot process (process_vm_writev)");

const REMAP: (&str, &str) = ("remap", "setting page tables aside (mremap of shared memory)");

// Constants of linux/userfaultfd.h and linux/fs.h.
const UFFD_API: u64 = 0xaa;
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const UFFDIO_WRITEPROTECT: libc::c_ulong = 0xc018_aa06;
const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;
const FEATURE_WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
const FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
const REGISTER_MODE_WP: u64 = 2;
const WRITEPROTECT_MODE_WP: u64 = 1;

const PAGE: usize = 4096;

/// Probes snapshot.
pub fn probe() -> Component {
    let mut checks = Vec::new();
    let opened = open(&mut checks);
    match opened {
        Some(uffd) => armed(&mut checks, &uffd),
        None => {
            checks.extend([FEATURES, ARM].map(|(id, subject)| {
                Check::unknown(id, subject, "userfaultfd could not be opened").required()
            }))
        }
    }
    checks.push(copy());
    checks.push(remap());
    Component {
        name: "snapshot",
        purpose: "instant memory snapshots; Redis BGSAVE without the pause",
        included: true,
        checks,
    }
}

/// Opens a userfaultfd as the engines do: it reports faults of programs, and of the kernel itself (a read(2) into an armed
/// page).
fn open(checks: &mut Vec<Check>) -> Option<OwnedFd> {
    match userfaultfd_of_engines() {
        Ok(fd) => {
            checks
                .push(Check::yes(UFFD.0, UFFD.1, "handles faults of programs and of the kernel").required());
            Some(fd)
        }
        Err(reason) => {
            let advice = "docs/snapshot.md has the commands for a user, a service and a container";
            checks.push(Check::no(UFFD.0, UFFD.1, reason).advice(advice).required());
            None
        }
    }
}

/// An ioctl of userfaultfd whose argument is an array of 64-bit words, as all of its structures are.
fn request<const N: usize>(fd: impl AsFd, request: libc::c_ulong, words: &mut [u64; N]) -> io::Result<i32> {
    debug_assert_eq!((request >> 16 & 0x3fff) as usize, N * 8, "the size is part of the request");
    // SAFETY: the kernel reads and writes as many bytes as the request number says, which is the array.
    check(unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), request, words.as_mut_ptr()) })
}

/// Negotiates the features and arms one page of a memfd.
fn armed(checks: &mut Vec<Check>, uffd: &OwnedFd) {
    // A descriptor negotiates only once, so another one is asked for the offered features.
    let offered = userfaultfd_of_engines().and_then(|fd| {
        let mut api = [UFFD_API, 0, 0];
        request(&fd, UFFDIO_API, &mut api).map_err(|error| error.to_string())?;
        Ok(api[1])
    });
    let offered = match offered {
        Ok(features) => features,
        Err(error) => {
            checks.push(Check::unknown(FEATURES.0, FEATURES.1, error).required());
            return;
        }
    };
    let needed = FEATURE_PAGEFAULT_FLAG_WP | FEATURE_WP_HUGETLBFS_SHMEM;
    let has = offered & needed == needed;
    checks.push(if has {
        let extra = if offered & FEATURE_WP_UNPOPULATED != 0 { ", also of pages not there yet" } else { "" };
        Check::yes(FEATURES.0, FEATURES.1, format!("offered{extra}")).required()
    } else {
        Check::no(FEATURES.0, FEATURES.1, format!("not offered (features {offered:#x})"))
            .advice("use Linux 5.19 or newer on x86-64")
            .required()
    });
    checks.push(match arm(uffd, offered & (needed | FEATURE_WP_UNPOPULATED)) {
        Ok(()) => Check::yes(ARM.0, ARM.1, "a page was write-protected").required(),
        Err(why) => Check::no(ARM.0, ARM.1, why).advice("use Linux 5.19 or newer on x86-64").required(),
    });
}

fn arm(uffd: &OwnedFd, features: u64) -> Result<(), String> {
    let text = |what: &'static str| move |e: io::Error| format!("{what}: {e}");
    request(uffd, UFFDIO_API, &mut [UFFD_API, features, 0]).map_err(text("negotiating features"))?;
    with_memfd_page(|address| {
        let mut register = [address as u64, PAGE as u64, REGISTER_MODE_WP, 0];
        request(uffd, UFFDIO_REGISTER, &mut register).map_err(text("registering a page"))?;
        let mut protect = [address as u64, PAGE as u64, WRITEPROTECT_MODE_WP];
        request(uffd, UFFDIO_WRITEPROTECT, &mut protect).map_err(text("protecting a page"))?;
        Ok(())
    })
}

/// Calls `f` with a page of shared memory that has been written to. `f` must not write to it.
fn with_memfd_page<T>(f: impl FnOnce(usize) -> Result<T, String>) -> Result<T, String> {
    let memory = memfd_create("bedplate-doctor", MemfdFlags::CLOEXEC).map_err(|e| format!("memfd: {e}"))?;
    ftruncate(&memory, PAGE as u64).map_err(|e| format!("memfd: {e}"))?;
    // SAFETY: a new shared mapping at an address of the kernel's choice, written once before `f`.
    let address = unsafe {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let address = mmap(std::ptr::null_mut(), PAGE, prot, MapFlags::SHARED, &memory, 0)
            .map_err(|e| format!("mapping a memfd: {e}"))?;
        address.cast::<u8>().write_volatile(1);
        address
    };
    let result = f(address as usize);
    // SAFETY: the mapping made above; nothing refers to it any more.
    unsafe { munmap(address, PAGE) }.map_err(|e| format!("unmapping a memfd: {e}"))?;
    result
}

/// Lets the engine that detaches page tables try it.
fn remap() -> Check {
    let memory = Memory::builder(PAGE).engine(Choice::Only(Kind::Remap)).build();
    match memory {
        Ok(_) => Check::yes(REMAP.0, REMAP.1, "a page's tables were moved"),
        Err(error) => Check::no(REMAP.0, REMAP.1, error.to_string())
            .advice("docs/snapshot.md has what it needs; without it snapshots take longer, or do not work"),
    }
}

/// Lets this process write into itself, which works unless a filter forbids the call altogether.
fn copy() -> Check {
    let (source, mut target) = ([7u8; 1], [0u8; 1]);
    let from = libc::iovec { iov_base: source.as_ptr() as *mut _, iov_len: 1 };
    let to = libc::iovec { iov_base: target.as_mut_ptr().cast(), iov_len: 1 };
    // SAFETY: both vectors describe one live byte each; the source is only read.
    let wrote = unsafe { libc::process_vm_writev(libc::getpid(), &from, 1, &to, 1, 0) };
    match check(wrote as i32) {
        Ok(_) if target == source => Check::yes(COPY.0, COPY.1, "wrote one byte"),
        Ok(_) => Check::no(COPY.0, COPY.1, "a write had no effect").advice("use a stock Linux kernel"),
        Err(error) => Check::no(COPY.0, COPY.1, error.to_string())
            .advice("allow process_vm_writev in the container's seccomp profile"),
    }
}
