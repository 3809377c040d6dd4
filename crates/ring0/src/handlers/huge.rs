//! Huge pages for large mappings (section 6.2 of the paper).
//!
//! The guest's part of an address translation is always short, because windows are pages of 1 GiB. The host's part
//! is short only where Linux backs memory by huge pages. For that, a mapping must begin at a multiple of 2 MiB, and
//! the program must advise Linux. This handler does both for large mappings for which the program gives no address.

use super::syscall::{Answer, SyscallFrame};
use crate::arch::instructions::syscall;
use crate::cpu::Cpu;

/// Smallest size in bytes of a mapping that the handler aligns.
pub const LARGE: u64 = 16 << 20;
const HUGE: u64 = 2 << 20;

/// Handles calls of `mmap` for 16 MiB or more of private anonymous memory, and leaves all other calls to Linux. It
/// is a handler of system calls ([`set_syscall_handler`](super::set_syscall_handler)), or can be called by one.
///
/// Such a call becomes up to four calls. If the first one fails, Linux gets the program's call unchanged. A failure
/// of the others is ignored.
pub fn map_huge(_: Cpu, frame: &mut SyscallFrame) -> Answer {
    let [address, bytes, protection, flags, file, offset] = frame.arguments;
    let wanted = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    let other = (libc::MAP_GROWSDOWN | libc::MAP_STACK | libc::MAP_HUGETLB | libc::MAP_32BIT) as u64;
    let is_large = frame.number == libc::SYS_mmap as u64 && address == 0 && bytes >= LARGE;
    // A reservation (`PROT_NONE`) gets its memory later, so advice would come too early.
    if !is_large || flags & wanted != wanted || flags & other != 0 || protection == libc::PROT_NONE as u64 {
        return Answer::Proxy;
    }
    let Some(more) = bytes.checked_add(4095 + HUGE).map(|bytes| bytes & !4095) else { return Answer::Proxy };
    let bytes = more - HUGE;
    // SAFETY: a new mapping, as the program asked for. Only its ends are unmapped again, and the program does not
    // know them.
    unsafe {
        let start = syscall(libc::SYS_mmap as u64, [0, more, protection, flags, file, offset]);
        if start < 0 {
            return Answer::Proxy;
        }
        let start = start as u64;
        let aligned = start.next_multiple_of(HUGE);
        let (end, mapped) = (aligned + bytes, start + more);
        if aligned > start {
            syscall(libc::SYS_munmap as u64, [start, aligned - start, 0, 0, 0, 0]);
        }
        if mapped > end {
            syscall(libc::SYS_munmap as u64, [end, mapped - end, 0, 0, 0, 0]);
        }
        syscall(libc::SYS_madvise as u64, [aligned, bytes, libc::MADV_HUGEPAGE as u64, 0, 0, 0]);
        Answer::Return(aligned as i64)
    }
}
