//! Free memory that costs the same for all sides.
//!
//! A virtual machine whose host backs memory lazily pays much for memory that it has not used for a while, and as a host takes back what is
//! free, this comes back. So a query would be measured by what memory was used before it.

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::system::sysinfo;

/// Memory is touched that is so much larger than the data, so that there is some for what the engine and a daemon have beside it.
const TIMES: u64 = 2;
/// At most one part in so many of the machine's free memory is touched.
const PART: u64 = 2;

/// Touches as much memory as work on so many bytes of data takes, and frees it. It is to be done just before the work.
pub fn touch(data: u64) {
    let system = sysinfo();
    let free = system.freeram as u64 * u64::from(system.mem_unit);
    let bytes = (data * TIMES).min(free / PART) as usize;
    if bytes == 0 {
        return;
    }
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let Ok(start) = (unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, MapFlags::PRIVATE) })
    else {
        return;
    };
    for advice in [Advice::LinuxHugepage, Advice::LinuxPopulateWrite] {
        // Where there is no such advice, or too little memory, less is touched.
        // SAFETY: the mapping is this function's, and the advices make pages of it.
        let _ = unsafe { madvise(start, bytes, advice) };
    }
    // SAFETY: nobody else knows the mapping.
    let _ = unsafe { munmap(start, bytes) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left() {
        let resident = || {
            let text = std::fs::read_to_string("/proc/self/statm").unwrap();
            text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
        };
        let before = resident();
        for bytes in [0, 1, 256 << 20] {
            touch(bytes);
        }
        assert!(resident() < before + (128 << 20));
    }
}
