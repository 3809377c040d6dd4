//! Unmapping of pages, so that the kernel gets their memory back: each page with its own call, or a batch with one TLB
//! flush.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::mm::{Advice, madvise};
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use crate::page::PAGE;
use crate::page_size::PageSize;
use crate::region::Region;

/// The maximum number of pages in one call. The kernel's limit, `UIO_MAXIOV`, is 1024.
pub(crate) const MOST: usize = 512;

/// A way to unmap pages.
#[derive(Debug)]
pub(crate) enum Release {
    /// One system call, with a TLB flush, for each page.
    Single,
    /// One vectored `process_madvise` for a whole batch. The descriptor refers to this process.
    Batched(OwnedFd),
}

impl Release {
    /// Returns the batched way if this kernel has it. The test drops two of three pages with one call.
    pub fn probe() -> Result<Self, String> {
        let me = pidfd_open(getpid(), PidfdFlags::empty())
            .map_err(|error| format!("pidfd_open is refused: {error}"))?;
        let region = Region::new(3 * PAGE).map_err(|error| error.to_string())?;
        let at = |page: usize| region.base().wrapping_add(page * PAGE);
        for page in 0..3 {
            // SAFETY: inside the region, which this function owns and which is writable.
            unsafe { at(page).write_volatile(1) };
        }
        let this = Self::Batched(me);
        // SAFETY: pages of the region, which no other thread uses.
        if let (Err((_, error)), _) = unsafe { this.run([at(0), at(2)].into_iter(), PageSize::MIN) } {
            return Err(format!("process_madvise(MADV_DONTNEED) on oneself is refused: {error}"));
        }
        // SAFETY: inside the region, which is readable.
        let content = [0, 1, 2].map(|page| unsafe { at(page).read_volatile() });
        if content != [0, 1, 0] {
            return Err("process_madvise(MADV_DONTNEED) does not drop pages".into());
        }
        Ok(this)
    }

    /// Unmaps pages. Returns the number of pages that were unmapped before an error, and the number of system calls.
    ///
    /// # Safety
    /// The pages have this size, are private anonymous memory, and no thread needs their content.
    pub unsafe fn run(
        &self,
        pages: impl Iterator<Item = *mut u8>,
        size: PageSize,
    ) -> (Result<(), (usize, io::Error)>, u64) {
        let len = size.bytes();
        let mut calls = 0;
        let mut done = 0;
        match self {
            Self::Single => {
                for page in pages {
                    calls += 1;
                    // SAFETY: guaranteed by the caller.
                    if let Err(error) = unsafe { madvise(page.cast(), len, Advice::LinuxDontNeed) } {
                        return (Err((done, error.into())), calls);
                    }
                    done += 1;
                }
            }
            Self::Batched(me) => {
                let vector: Vec<libc::iovec> =
                    pages.map(|page| libc::iovec { iov_base: page.cast(), iov_len: len }).collect();
                while done < vector.len() {
                    let rest = &vector[done..vector.len().min(done + MOST)];
                    calls += 1;
                    // SAFETY: the vector describes the pages, for which the caller guarantees the conditions.
                    let bytes = unsafe {
                        libc::syscall(
                            libc::SYS_process_madvise,
                            me.as_raw_fd(),
                            rest.as_ptr(),
                            rest.len(),
                            libc::MADV_DONTNEED,
                            0,
                        )
                    };
                    match bytes {
                        // A signal may end the call early, but not in the middle of a page: the kernel counts whole pieces.
                        1.. => done += bytes as usize >> size.shift(),
                        0 => return (Err((done, io::ErrorKind::WriteZero.into())), calls),
                        _ => match io::Error::last_os_error() {
                            error if error.kind() == io::ErrorKind::Interrupted => {}
                            error => return (Err((done, error)), calls),
                        },
                    }
                }
            }
        }
        (Ok(()), calls)
    }
}
