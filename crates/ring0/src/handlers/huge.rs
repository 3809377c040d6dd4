//! Large mappings in huge pages (the paper's 6.2).
//!
//! The guest's half of a translation is short anyway: windows are pages of 1 GiB. The host's half is short where Linux
//! backs memory by huge pages, for which a mapping must begin at a multiple of 2 MiB and Linux must be told. This
//! handler does so for what a program maps, in one piece, without saying where.

use super::syscall::{Answer, SyscallFrame};
use crate::arch::instructions::syscall;
use crate::cpu::Cpu;

/// From how many bytes on.
pub const LARGE: u64 = 16 << 20;
const HUGE: u64 = 2 << 20;

/// A handler of system calls ([`set_syscall_handler`](super::set_syscall_handler)), or a part of one: answers calls of
/// `mmap` for private memory of 16 MiB and more, and leaves all others to Linux.
///
/// Such a call becomes up to four. If one fails, the mapping is what Linux would have made.
pub fn map_huge(_: Cpu, frame: &mut SyscallFrame) -> Answer {
    let [address, bytes, protection, flags, file, offset] = frame.arguments;
    let wanted = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    let other = (libc::MAP_GROWSDOWN | libc::MAP_STACK | libc::MAP_HUGETLB | libc::MAP_32BIT) as u64;
    let is_large = frame.number == libc::SYS_mmap as u64 && address == 0 && bytes >= LARGE;
    // A reservation gets its memory later, and is told about then if at all.
    if !is_large || flags & wanted != wanted || flags & other != 0 || protection == libc::PROT_NONE as u64 {
        return Answer::Proxy;
    }
    let Some(more) = bytes.checked_add(4095 + HUGE).map(|bytes| bytes & !4095) else { return Answer::Proxy };
    let bytes = more - HUGE;
    // SAFETY: a new mapping, as the program asked for, of which the ends, which it does not know, are unmapped again.
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
