//! The features that make scan fastest: io_uring, reads that bypass the page cache, and large pages for its memory. Without
//! them, threads read through the page cache into pages of 4 KiB.

use std::io;
use std::os::fd::OwnedFd;

use bedplate_scan::{Frames, Pages};
use io_uring::{IoUring, Probe, opcode};
use rustix::fs::{Mode, OFlags, open};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::system::{is_denied, setting};
use super::{Check, Component};
use crate::units::size;

const RING: (&str, &str) = ("io-uring", "io_uring");
const OPS: (&str, &str) = ("io-uring-ops", "io_uring operations");
const BUFFERS: (&str, &str) = ("registered-buffers", "registered buffers");
const DIRECT: (&str, &str) = ("o-direct", "O_DIRECT in the current directory");
const HUGE: (&str, &str) = ("huge-pages", "huge pages for scans");

/// Probes scan.
pub fn probe() -> Component {
    let mut checks = Vec::new();
    match IoUring::new(8) {
        Ok(ring) => {
            checks.push(Check::yes(RING.0, RING.1, "a ring could be set up"));
            checks.push(operations(&ring));
            checks.push(registered_buffers(&ring));
        }
        Err(error) => {
            checks.push(no_ring(&error));
            for (id, subject) in [OPS, BUFFERS] {
                checks.push(Check::unknown(id, subject, "there is no ring"));
            }
        }
    }
    checks.push(direct());
    checks.push(huge_pages());
    Component {
        name: "scan",
        purpose: "scans whose data is there when asked for, shared between workers",
        included: true,
        checks,
    }
}

fn no_ring(error: &io::Error) -> Check {
    let disabled = setting("/proc/sys/kernel/io_uring_disabled").filter(|value| value != "0");
    let check = match &disabled {
        Some(value) => Check::no(RING.0, RING.1, format!("{error} (kernel.io_uring_disabled={value})")),
        None => Check::no(RING.0, RING.1, error.to_string()),
    };
    check.advice(match (disabled, is_denied(error)) {
        (Some(_), _) => "sysctl kernel.io_uring_disabled=0",
        (None, true) => "allow io_uring_setup in the container's seccomp profile",
        (None, false) => "use Linux 5.11 or newer with CONFIG_IO_URING=y; without it threads read",
    })
}

fn operations(ring: &IoUring) -> Check {
    let wanted = [(opcode::Read::CODE, "READ"), (opcode::ReadFixed::CODE, "READ_FIXED")];
    let mut probe = Probe::new();
    if let Err(error) = ring.submitter().register_probe(&mut probe) {
        return Check::unknown(OPS.0, OPS.1, format!("the ring does not say: {error}"));
    }
    let missing: Vec<_> =
        wanted.iter().filter(|(code, _)| !probe.is_supported(*code)).map(|(_, name)| *name).collect();
    if missing.is_empty() {
        Check::yes(OPS.0, OPS.1, "reads, also into registered buffers")
    } else {
        Check::no(OPS.0, OPS.1, format!("missing: {}", missing.join(", ")))
            .advice("use Linux 5.6 or newer; without them threads read")
    }
}

/// Registers buffers. That pins memory, which RLIMIT_MEMLOCK limits for users without CAP_IPC_LOCK.
fn registered_buffers(ring: &IoUring) -> Check {
    const WANTED: usize = 64 << 20;
    let mut bytes = WANTED;
    let mut last = None;
    while bytes >= 1 << 16 {
        let mut buffer = vec![0u8; bytes];
        let vector = [libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: bytes }];
        // SAFETY: the buffer lives until it is unregistered below, and no operation uses it.
        match unsafe { ring.submitter().register_buffers(&vector) } {
            Ok(()) => {
                // The ring must release the buffer before it is freed.
                if let Err(error) = ring.submitter().unregister_buffers() {
                    std::mem::forget(buffer);
                    return Check::unknown(BUFFERS.0, BUFFERS.1, format!("unregistering: {error}"));
                }
                break;
            }
            Err(error) => last = Some(error),
        }
        bytes /= 4;
    }
    match last {
        None => Check::yes(BUFFERS.0, BUFFERS.1, format!("{} could be pinned", size(WANTED as u64))),
        Some(_) if bytes >= 1 << 16 => Check::partly(
            BUFFERS.0,
            BUFFERS.1,
            format!("no more than {} could be pinned", size(bytes as u64)),
        )
        .advice("raise `ulimit -l`, or run with CAP_IPC_LOCK"),
        Some(error) => Check::no(BUFFERS.0, BUFFERS.1, error.to_string())
            .advice("raise `ulimit -l`, or run with CAP_IPC_LOCK"),
    }
}

/// Writes a file without a name and reads it past the page cache. The file disappears when it is closed.
fn direct() -> Check {
    const BLOCK: usize = 4096;
    #[repr(align(4096))]
    struct Block([u8; BLOCK]);
    let attempt = || -> io::Result<bool> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::DIRECT;
        let file: OwnedFd = open(".", flags, Mode::RUSR | Mode::WUSR)?;
        let written = Block([0x5a; BLOCK]);
        let mut seen = Block([0; BLOCK]);
        rustix::io::pwrite(&file, &written.0, 0)?;
        let count = rustix::io::pread(&file, &mut seen.0, 0)?;
        Ok(count == BLOCK && seen.0 == written.0)
    };
    let advice = "put the data on ext4, xfs or btrfs; elsewhere scans go through the page cache";
    match attempt() {
        Ok(true) => Check::yes(DIRECT.0, DIRECT.1, "a block went past the page cache"),
        Ok(false) => {
            Check::no(DIRECT.0, DIRECT.1, "a block did not come back as it was written").advice(advice)
        }
        Err(error) if is_denied(&error) => {
            Check::unknown(DIRECT.0, DIRECT.1, "no file can be created here: run it where the data will be")
        }
        Err(error) => Check::no(DIRECT.0, DIRECT.1, error.to_string()).advice(advice),
    }
}

fn huge_pages() -> Check {
    const BYTES: usize = 2 << 20;
    let flags = MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB;
    // SAFETY: a new mapping at an address of the kernel's choice, unmapped again right here, untouched.
    let reserved = unsafe {
        mmap_anonymous(std::ptr::null_mut(), BYTES, ProtFlags::READ, flags)
            .is_ok_and(|address| munmap(address, BYTES).is_ok())
    };
    let made = Frames::new(1).map(|frames| frames.pages());
    match (made, reserved) {
        (Ok(Pages::Transparent), _) => Check::yes(HUGE.0, HUGE.1, "memory for scans is made of transparent ones"),
        (_, true) => Check::partly(HUGE.0, HUGE.1, "no transparent ones could be had; reserved ones are free")
            .advice("bedplate scan serve --reserved-pages, or Builder::reserved_pages, if they are for scans"),
        (Ok(pages), false) => Check::partly(HUGE.0, HUGE.1, format!("memory for scans is made of {pages}")).advice(
            "sysctl vm.nr_hugepages=64 (128 MiB), and let the service use them (bedplate scan serve --reserved-pages)",
        ),
        (Err(error), false) => Check::no(HUGE.0, HUGE.1, error.to_string()),
    }
}
