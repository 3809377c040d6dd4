//! The mapping of a snapshot, and making a page of it the snapshot's own.
//!
//! The mapping is private, so the kernel's copy-on-write makes the copy. It takes only a write fault in the mapping
//! that changes no content. That must hold both when the page is still shared, and when the snapshot's task has
//! already changed its own copy.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};
use rustix::process::{Pid, Signal, kill_process};

use super::page_map::{self, Introduced};
use super::region::Region;
use crate::PAGE;
use crate::region::entries::{OF_A_FILE, PRESENT, SWAPPED};

/// Limit of pages in one step.
pub const MOST: usize = 64;

/// A page could not be copied, so the snapshot is abandoned.
#[derive(Debug)]
pub struct Incomplete;

/// The location of a snapshot.
pub enum Target {
    /// In this process.
    View(ViewTarget),
    /// In a forked child.
    Child(ChildTarget),
}

impl Target {
    /// Gives the snapshot its own copies of pages. An error is reported only once.
    pub fn copy_pages(&self, region: &Region, pages: Range<usize>) -> Result<(), Incomplete> {
        match self {
            Self::View(view) => view.copy_pages(pages),
            Self::Child(child) => child.copy_pages(region, pages),
        }
    }

    /// Whether every page that had to be copied was copied.
    pub fn is_whole(&self) -> bool {
        match self {
            Self::View(view) => !view.incomplete.load(Ordering::Acquire),
            Self::Child(_) => true,
        }
    }
}

/// A snapshot in this process: a second mapping.
pub struct ViewTarget {
    base: usize,
    incomplete: AtomicBool,
}

impl ViewTarget {
    pub fn new(base: usize) -> Self {
        Self { base, incomplete: AtomicBool::new(false) }
    }

    fn copy_pages(&self, pages: Range<usize>) -> Result<(), Incomplete> {
        let at = std::ptr::without_provenance_mut(self.base + pages.start * PAGE);
        loop {
            // SAFETY: the snapshot's mapping. This faults pages in as if they were written, which changes no
            // content.
            match unsafe { madvise(at, pages.len() * PAGE, Advice::LinuxPopulateWrite) } {
                Ok(()) => return Ok(()),
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(_) if self.incomplete.swap(true, Ordering::AcqRel) => return Ok(()),
                Err(_) => return Err(Incomplete),
            }
        }
    }
}

/// A snapshot in a child process. The child reports when it has mapped the memory.
pub struct ChildTarget {
    /// The child sends its data here when it is ready, and keeps the other end open as long as it lives.
    channel: OwnedFd,
    link: Mutex<Link>,
}

enum Link {
    Waiting,
    /// The page map shows the memory that the child had at the fork, even after the child has executed another
    /// program.
    Alive {
        pid: Pid,
        pagemap: OwnedFd,
    },
    Gone,
}

impl ChildTarget {
    pub fn new(channel: OwnedFd) -> Self {
        Self { channel, link: Mutex::new(Link::Waiting) }
    }

    fn copy_pages(&self, region: &Region, pages: Range<usize>) -> Result<(), Incomplete> {
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        if let Link::Waiting = *link {
            *link = establish(&self.channel);
        }
        for start in pages.clone().step_by(MOST) {
            let part = start..pages.end.min(start + MOST);
            let Link::Alive { pid, ref pagemap } = *link else { return Ok(()) };
            touch(region, pid, part.clone());
            match state(region, pagemap, part) {
                State::Own => {}
                State::Gone => *link = Link::Gone,
                State::Shared => {
                    // A killed child is better than a child with wrong data.
                    let _ = kill_process(pid, Signal::KILL);
                    *link = Link::Gone;
                    return Err(Incomplete);
                }
            }
        }
        Ok(())
    }

    /// Whether the child is alive. It may not be ready yet.
    pub fn is_there(&self, region: &Region) -> bool {
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        if let Link::Waiting = *link {
            let mut ready = [PollFd::new(&self.channel, PollFlags::IN)];
            let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
            if poll(&mut ready, Some(&now)) != Ok(1) {
                return true;
            }
            *link = establish(&self.channel);
        }
        match &*link {
            Link::Alive { pagemap, .. } => !matches!(state(region, pagemap, 0..1), State::Gone),
            _ => false,
        }
    }
}

/// Waits until the child reports that it is ready.
fn establish(channel: &OwnedFd) -> Link {
    match page_map::wait(channel) {
        Some(Introduced { pid, page_map: Some(pagemap) }) => Link::Alive { pid, pagemap },
        Some(Introduced { pid, page_map: None }) => {
            // Without its page map, it is not known whether pages of a child were copied.
            let _ = kill_process(pid, Signal::KILL);
            Link::Gone
        }
        None => Link::Gone,
    }
}

/// Makes the kernel break the sharing of pages in the child. The kernel makes them the child's own in order to
/// write to them, and then finds that the source cannot be read. The process ID may belong to another process only
/// if the child ended, was waited for, and all process IDs were used since the last check. Nothing would be changed
/// in that process either.
fn touch(region: &Region, pid: Pid, pages: Range<usize>) {
    let len = pages.len() * PAGE;
    let nothing = libc::iovec { iov_base: std::ptr::without_provenance_mut(region.nothing), iov_len: len };
    let there =
        libc::iovec { iov_base: std::ptr::without_provenance_mut(region.address(pages.start)), iov_len: len };
    // SAFETY: writes nothing, because the source cannot be read.
    unsafe {
        libc::process_vm_writev(pid.as_raw_nonzero().get(), &raw const nothing, 1, &raw const there, 1, 0)
    };
}

enum State {
    Own,
    Shared,
    Gone,
}

/// Whether pages are a process's own, according to its page map. The page map is empty once the process's memory is
/// gone.
fn state(region: &Region, pagemap: &OwnedFd, pages: Range<usize>) -> State {
    let mut buffer = [0; MOST * 8];
    let entries = &mut buffer[..pages.len() * 8];
    let offset = region.address(pages.start) / PAGE * 8;
    let read = loop {
        match rustix::io::pread(pagemap, &mut *entries, offset as u64) {
            Err(Errno::INTR) => {}
            other => break other,
        }
    };
    match read {
        Ok(0) | Err(Errno::SRCH) => State::Gone,
        Ok(n) if n == entries.len() => {
            let is_own = |entry: &[u8; 8]| {
                let entry = u64::from_ne_bytes(*entry);
                entry & (PRESENT | SWAPPED) != 0 && entry & OF_A_FILE == 0
            };
            if entries.as_chunks::<8>().0.iter().all(is_own) { State::Own } else { State::Shared }
        }
        _ => State::Shared,
    }
}
