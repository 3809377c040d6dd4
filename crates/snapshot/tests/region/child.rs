//! A forked child that sees a snapshot, and executes orders from a pipe.
//!
//! Between its fork and its end it only makes system calls, because the threads that hold the allocator's locks do not exist in
//! it.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;

use bedplate_snapshot::engine::Arena;
use bedplate_snapshot::{Error, PAGE};

const SHOW: u8 = b's';
const FILL: u8 = b'f';

pub struct Child {
    pid: libc::pid_t,
    orders: std::io::PipeWriter,
    answers: std::io::PipeReader,
    bytes: usize,
}

impl Child {
    pub fn fork(region: &dyn Arena, bytes: usize) -> Result<Self, Error> {
        let (mine, orders) = std::io::pipe().unwrap();
        let (answers, theirs) = std::io::pipe().unwrap();
        let base = region.base();
        let frozen = region.freeze()?;
        // SAFETY: nothing in between touches the region; the child exits without returning.
        match unsafe { libc::fork() } {
            -1 => panic!("fork: {}", std::io::Error::last_os_error()),
            0 => {
                // SAFETY: the child of the fork above, with one thread, which maps the region and then writes to it.
                unsafe {
                    let status = match frozen.map_in_child() {
                        Ok(()) => obey(mine.as_raw_fd(), theirs.as_raw_fd(), base, bytes),
                        Err(_) => 1,
                    };
                    libc::_exit(status)
                }
            }
            pid => {
                frozen.thaw();
                Ok(Self { pid, orders, answers, bytes })
            }
        }
    }

    /// The whole memory that the child sees.
    pub fn show(&mut self) -> Vec<u8> {
        self.orders.write_all(&[SHOW, 0, 0]).unwrap();
        let mut bytes = vec![0; self.bytes];
        self.answers.read_exact(&mut bytes).expect("the child is there");
        bytes
    }

    /// Makes the child fill pages.
    pub fn fill(&mut self, page: usize, count: usize, value: u8) {
        for page in page..page + count {
            let page = (page as u16).to_ne_bytes();
            self.orders.write_all(&[FILL + (value & 1), page[0], page[1]]).unwrap();
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: a child of this test, for which no code has waited.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
        }
    }
}

/// The byte with which a child fills pages.
pub fn filling(value: u8) -> u8 {
    0xf0 | value & 1
}

/// # Safety
/// There are `bytes` bytes at `base`, to which no other thread writes.
unsafe fn obey(orders: libc::c_int, answers: libc::c_int, base: usize, bytes: usize) -> libc::c_int {
    let mut order = [0u8; 3];
    loop {
        // SAFETY: this function's own buffer.
        if unsafe { libc::read(orders, order.as_mut_ptr().cast(), order.len()) } != order.len() as isize {
            return 1;
        }
        if order[0] == SHOW {
            let mut shown = 0;
            while shown < bytes {
                // SAFETY: guaranteed by the caller.
                let n = unsafe { libc::write(answers, (base + shown) as *const libc::c_void, bytes - shown) };
                if n <= 0 {
                    return 1;
                }
                shown += n as usize;
            }
        } else {
            let page = usize::from(u16::from_ne_bytes([order[1], order[2]]));
            // SAFETY: guaranteed by the caller.
            unsafe { ((base + page * PAGE) as *mut u8).write_bytes(filling(order[0] - FILL), PAGE) };
        }
    }
}
