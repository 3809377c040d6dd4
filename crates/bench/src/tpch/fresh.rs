//! Free memory that costs the same for all sides.
//!
//! If a host backs the memory of a virtual machine lazily, memory that was not used for a while costs much. This happens
//! repeatedly, because a host takes free memory back. So the memory in use before a query would affect its time.

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::system::sysinfo;

/// The touched memory is the size of the data times this, so that there is some for the engine and a daemon.
const TIMES: u64 = 2;
/// The touched memory is at most the machine's free memory divided by this.
const PART: u64 = 2;

/// Touches as much memory as work on `data` bytes takes, and frees it. The caller calls it just before the work.
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
        // Without this advice, or with too little memory, less is touched.
        // SAFETY: the mapping belongs to this function, and the advices only populate it.
        let _ = unsafe { madvise(start, bytes, advice) };
    }
    // SAFETY: no other code knows the mapping.
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
