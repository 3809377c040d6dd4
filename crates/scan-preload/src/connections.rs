//! The connections to the daemon, which the program and its children see as descriptors that they did not open.
//!
//! A forked child closes its copies. When a program closes all descriptors above some number, the library skips the numbers of its
//! connections. The program may still close or replace a connection by other calls, so `bedplate_scan` checks a connection before it
//! uses it.

use std::ffi::c_uint;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use rustix::fs::fstat;

use crate::limits::MAX_READERS;

/// Room for one connection.
struct Slot {
    /// The descriptor plus one, so that 0 is none.
    number: AtomicI32,
    inode: AtomicU64,
}

static CONNECTIONS: [Slot; MAX_READERS] =
    [const { Slot { number: AtomicI32::new(0), inode: AtomicU64::new(0) } }; MAX_READERS];

/// A connection of this process.
#[derive(Debug)]
pub struct Connection(usize);

impl Connection {
    /// Registers a connection. `None`: there are [`MAX_READERS`].
    pub fn note(descriptor: BorrowedFd<'_>) -> Option<Self> {
        let inode = fstat(descriptor).ok()?.st_ino;
        let number = descriptor.as_raw_fd() + 1;
        let is_taken = |slot: &Slot| {
            slot.number.compare_exchange(0, number, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let at = CONNECTIONS.iter().position(is_taken)?;
        CONNECTIONS[at].inode.store(inode, Ordering::Release);
        Some(Self(at))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        CONNECTIONS[self.0].number.store(0, Ordering::Release);
    }
}

/// Whether a descriptor is still the connection that was noted, and not another file.
fn is_open(number: i32, inode: u64) -> bool {
    // SAFETY: the number is only used to ask the kernel for its file.
    let stat = fstat(unsafe { BorrowedFd::borrow_raw(number) });
    stat.is_ok_and(|stat| stat.st_ino == inode && stat.st_mode & libc::S_IFMT == libc::S_IFSOCK)
}

/// Whether a descriptor is a connection of this process.
pub fn has(descriptor: i32) -> bool {
    descriptor >= 0
        && CONNECTIONS.iter().any(|slot| {
            slot.number.load(Ordering::Acquire) == descriptor + 1
                && is_open(descriptor, slot.inode.load(Ordering::Acquire))
        })
}

/// The number of connections of this process.
pub fn count() -> usize {
    CONNECTIONS.iter().filter(|slot| slot.number.load(Ordering::Relaxed) != 0).count()
}

/// Closes a forked child's copies of its parent's connections.
pub fn close_in_child() {
    for Slot { number, inode } in &CONNECTIONS {
        let descriptor = number.swap(0, Ordering::Relaxed) - 1;
        if descriptor >= 0 && is_open(descriptor, inode.load(Ordering::Relaxed)) {
            // SAFETY: the child's copy of a connection, which nothing in the child uses. A bare system call, because `close` is this
            // library's.
            unsafe { libc::syscall(libc::SYS_close, descriptor) };
        }
    }
}

/// Calls a function with each part of a range of descriptors that has no connection, until it returns `false`.
pub fn around(first: c_uint, last: c_uint, mut each: impl FnMut(c_uint, c_uint) -> bool) -> bool {
    let mut start = first;
    loop {
        let next = CONNECTIONS
            .iter()
            .filter_map(|slot| c_uint::try_from(slot.number.load(Ordering::Acquire) - 1).ok())
            .filter(|number| (start..=last).contains(number) && has(*number as i32))
            .min();
        let Some(next) = next else { return each(start, last) };
        if next > start && !each(start, next - 1) {
            return false;
        }
        if next == last {
            return true;
        }
        start = next + 1;
    }
}
