//! Unmapping pages, so that the kernel has their memory back: one by one, or many with one flush of TLBs.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::mm::{Advice, madvise};
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use crate::page::PAGE;
use crate::region::Region;

/// The most pages in one call (the kernel's UIO_MAXIOV is 1024).
pub(crate) const MOST: usize = 512;

/// How pages are unmapped.
#[derive(Debug)]
pub(crate) enum Release {
    /// A call, and a flush, for each page (or each run of neighbours).
    Single,
    /// One vectored `process_madvise` for the whole batch; the descriptor is of this process.
    Batched(OwnedFd),
}

impl Release {
    /// The batched way, if this kernel has it: of three pages, two are dropped with one call.
    pub fn probe() -> Result<Self, String> {
        let me = pidfd_open(getpid(), PidfdFlags::empty())
            .map_err(|error| format!("pidfd_open is refused: {error}"))?;
        let region = Region::new(3 * PAGE).map_err(|error| error.to_string())?;
        let at = |page: usize| region.base().wrapping_add(page * PAGE);
        for page in 0..3 {
            // SAFETY: in the region, which is ours and writable.
            unsafe { at(page).write_volatile(1) };
        }
        let this = Self::Batched(me);
        // SAFETY: pages of the region, which nobody else uses.
        if let (Err((_, error)), _) = unsafe { this.run([at(0), at(2)].into_iter()) } {
            return Err(format!("process_madvise(MADV_DONTNEED) on oneself is refused: {error}"));
        }
        // SAFETY: in the region, which is readable.
        let content = [0, 1, 2].map(|page| unsafe { at(page).read_volatile() });
        if content != [0, 1, 0] {
            return Err("process_madvise(MADV_DONTNEED) does not drop pages".into());
        }
        Ok(this)
    }

    /// Unmaps pages. Returns how many were unmapped before an error, and the number of system calls.
    ///
    /// # Safety
    /// They are pages of private anonymous memory, whose content nobody needs.
    pub unsafe fn run(&self, pages: impl Iterator<Item = *mut u8>) -> (Result<(), (usize, io::Error)>, u64) {
        let mut calls = 0;
        let mut done = 0;
        match self {
            Self::Single => {
                for page in pages {
                    calls += 1;
                    // SAFETY: as the caller promises.
                    if let Err(error) = unsafe { madvise(page.cast(), PAGE, Advice::LinuxDontNeed) } {
                        return (Err((done, error.into())), calls);
                    }
                    done += 1;
                }
            }
            Self::Batched(me) => {
                let vector: Vec<libc::iovec> =
                    pages.map(|page| libc::iovec { iov_base: page.cast(), iov_len: PAGE }).collect();
                while done < vector.len() {
                    let rest = &vector[done..vector.len().min(done + MOST)];
                    calls += 1;
                    // SAFETY: the vector describes what the caller promises.
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
                        // It stops early when a signal comes.
                        1.. => done += bytes as usize / PAGE,
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
