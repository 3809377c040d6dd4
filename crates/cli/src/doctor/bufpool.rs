//! The needs of bufpool's engines: address space, and, for the engine `stock`, evictions of many pages with one flush.

use std::io;
use std::os::fd::AsRawFd;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::param::page_size;
use rustix::process::{PidfdFlags, Resource, getpid, getrlimit, pidfd_open};

use super::system::{check, setting};
use super::{Check, Component};
use crate::units::size;

const ENGINE: (&str, &str) = ("engine", "the engine that a pool of 1 TiB chooses");
const BATCH: (&str, &str) =
    ("process-madvise", "batched eviction (process_madvise(MADV_DONTNEED) on oneself)");
const RESERVE: (&str, &str) = ("reserve", "reserving address space");
const LIMIT: (&str, &str) = ("rlimit-as", "limit on address space");
const MAPS: (&str, &str) = ("overcommit", "overcommit policy");

/// Probes bufpool.
pub fn probe() -> Component {
    Component {
        name: "bufpool",
        purpose: "a virtual-memory buffer pool without TLB shootdowns, and a B+tree on it",
        included: true,
        checks: vec![engine().required(), batched_eviction(), reserve(), limit(), overcommit()],
    }
}

/// The answer of the library itself.
fn engine() -> Check {
    match bedplate_bufpool::probe(1 << 40) {
        Ok((kind @ bedplate_bufpool::Kind::Hashtable, reason)) => {
            Check::partly(ENGINE.0, ENGINE.1, format!("{kind}: {reason}"))
        }
        Ok((kind, reason)) => Check::yes(ENGINE.0, ENGINE.1, format!("{kind}: {reason}")),
        Err(error) => Check::no(ENGINE.0, ENGINE.1, error.to_string()),
    }
}

/// Drops two pages that are not neighbours with one call.
fn batched_eviction() -> Check {
    let attempt = || -> io::Result<bool> {
        let page = page_size();
        let memory = Reservation::new(3 * page, ProtFlags::READ | ProtFlags::WRITE)?;
        let at = |index: usize| memory.address.cast::<u8>().wrapping_add(index * page);
        for index in 0..3 {
            // SAFETY: inside the mapping, which is writable.
            unsafe { at(index).write_volatile(1) };
        }
        let me = pidfd_open(getpid(), PidfdFlags::empty())?;
        let vector = [0, 2].map(|index| libc::iovec { iov_base: at(index).cast(), iov_len: page });
        // SAFETY: the vector describes two pages of the mapping, which nothing else uses; dropping the
        // content of anonymous memory makes it read as zeros.
        check(unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                me.as_raw_fd(),
                vector.as_ptr(),
                vector.len(),
                libc::MADV_DONTNEED,
                0,
            )
        } as i32)?;
        // SAFETY: inside the mapping, which is readable.
        let content = [0, 1, 2].map(|index| unsafe { at(index).read_volatile() });
        Ok(content == [0, 1, 0])
    };
    batching(attempt())
}

/// The result of an attempt to drop two pages with one call.
fn batching(attempt: io::Result<bool>) -> Check {
    let advice =
        "choose the engine array, which unmaps nothing; for batches of stock, use Linux 6.13 or newer";
    let no = |why: String| {
        let reason = format!("the engine stock does not batch: {why}");
        // Only the engine stock needs it, so the component works without it.
        Check::partly(BATCH.0, BATCH.1, reason).advice(advice)
    };
    match attempt {
        Ok(true) => Check::yes(BATCH.0, BATCH.1, "two pages were dropped with one call"),
        Ok(false) => no("the pages kept their content".to_owned()),
        Err(error) => no(format!("process_madvise is refused: {error}")),
    }
}

/// Checks the address space. Engines whose page numbers are addresses reserve as much as the data may ever take.
fn reserve() -> Check {
    const TIB: usize = 1 << 40;
    let sizes = [16 * TIB, TIB, TIB / 16];
    let largest = sizes.into_iter().find(|bytes| Reservation::new(*bytes, ProtFlags::empty()).is_ok());
    let advice = "raise `ulimit -v`, and set vm.overcommit_memory to 0 or 1";
    match largest {
        Some(bytes) if bytes >= TIB => {
            Check::yes(RESERVE.0, RESERVE.1, format!("{} in one piece", size(bytes as u64)))
        }
        Some(bytes) => {
            Check::partly(RESERVE.0, RESERVE.1, format!("no more than {}", size(bytes as u64))).advice(advice)
        }
        None => Check::partly(RESERVE.0, RESERVE.1, "not even 64 GiB").advice(advice),
    }
}

fn limit() -> Check {
    match getrlimit(Resource::As).current {
        None => Check::yes(LIMIT.0, LIMIT.1, "none"),
        Some(bytes) => Check::partly(LIMIT.0, LIMIT.1, size(bytes)).advice("ulimit -v unlimited"),
    }
}

fn overcommit() -> Check {
    match setting("/proc/sys/vm/overcommit_memory").as_deref() {
        Some("2") => {
            Check::partly(MAPS.0, MAPS.1, "strict (vm.overcommit_memory=2): reservations count as memory")
                .advice("sysctl vm.overcommit_memory=0; otherwise large pools look pages up in a hash table")
        }
        Some(value) => Check::yes(MAPS.0, MAPS.1, format!("vm.overcommit_memory={value}")),
        None => Check::unknown(MAPS.0, MAPS.1, "/proc/sys/vm/overcommit_memory cannot be read"),
    }
}

/// Anonymous private memory that is unmapped when dropped.
struct Reservation {
    address: *mut std::ffi::c_void,
    bytes: usize,
}

impl Reservation {
    fn new(bytes: usize, protection: ProtFlags) -> io::Result<Reservation> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let address = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags) }?;
        Ok(Reservation { address, bytes })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; nothing refers to it any more. A failure would leave address
        // space reserved until the process ends.
        let _ = unsafe { munmap(self.address, self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::super::Answer;
    use super::*;

    #[test]
    fn without_batches_another_engine_is_named() {
        assert_eq!(batching(Ok(true)).answer, Answer::Yes);
        for refused in [Ok(false), Err(io::Error::from_raw_os_error(libc::EPERM))] {
            let check = batching(refused);
            assert_eq!(check.answer, Answer::Partly);
            assert!(check.reason.contains("stock does not batch"), "{}", check.reason);
            assert!(check.advice.is_some_and(|advice| advice.contains("array")));
        }
    }
}
