//! Reading `/proc/self/maps`, which lists the mappings of the process.

use std::ops::Range;

use super::{ADDRESS_END, WINDOW};
use crate::arch::instructions::syscall;
use crate::error::Error;

/// One mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Area {
    /// The addresses of the mapping.
    pub range: Range<u64>,
    /// Whether the mapping has any access rights.
    pub accessible: bool,
    /// Whether the mapping is the main thread's stack.
    pub main_stack: bool,
}

impl Area {
    /// Whether the mapping only reserves addresses: it has no access rights and is at least as large as a window.
    /// Such a mapping needs no windows. It is checked again on an access to it.
    pub fn is_reservation(&self) -> bool {
        !self.accessible && self.range.end - self.range.start >= WINDOW
    }
}

/// The mappings of this process below the end of its addresses.
pub fn areas() -> Result<Vec<Area>, Error> {
    let text = std::fs::read("/proc/self/maps").map_err(|source| Error::Maps { source })?;
    Ok(text.split(|byte| *byte == b'\n').filter_map(parse).collect())
}

/// Calls `act` for each mapping. It does the same as `areas` without allocating, because the host part may have
/// interrupted ring 0 in the allocator. Returns whether the file could be read to the end.
pub fn for_each(mut act: impl FnMut(&Area)) -> bool {
    let mut buffer = [0u8; 8 << 10];
    let path = c"/proc/self/maps".as_ptr() as u64;
    // SAFETY: opens a file for reading; the path is a static string.
    let fd = unsafe {
        syscall(libc::SYS_open as u64, [path, (libc::O_RDONLY | libc::O_CLOEXEC) as u64, 0, 0, 0, 0])
    };
    if fd < 0 {
        return false;
    }
    let mut filled = 0;
    let complete = loop {
        let (to, room) = (buffer.as_mut_ptr() as u64 + filled as u64, (buffer.len() - filled) as u64);
        // SAFETY: reads into the free part of the buffer.
        let count = unsafe { syscall(libc::SYS_read as u64, [fd as u64, to, room, 0, 0, 0]) };
        match count {
            0 => break true,
            count if count > 0 => filled += count as usize,
            count if count == -i64::from(libc::EINTR) => continue,
            _ => break false,
        }
        let whole = buffer[..filled].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        buffer[..whole].split(|byte| *byte == b'\n').filter_map(parse).for_each(|area| act(&area));
        buffer.copy_within(whole..filled, 0);
        filled -= whole;
        if filled == buffer.len() {
            break false; // A line fills the 8 KiB buffer; paths are shorter.
        }
    };
    // SAFETY: closes the file opened above.
    unsafe { syscall(libc::SYS_close as u64, [fd as u64, 0, 0, 0, 0, 0]) };
    complete
}

fn parse(line: &[u8]) -> Option<Area> {
    let line = line.trim_ascii_end();
    let (start, rest) = hexadecimal(line)?;
    let (end, rest) = hexadecimal(rest.strip_prefix(b"-")?)?;
    let accessible = !rest.strip_prefix(b" ")?.starts_with(b"---");
    (start < end && end <= ADDRESS_END).then(|| Area {
        range: start..end,
        accessible,
        main_stack: line.ends_with(b" [stack]"),
    })
}

fn hexadecimal(text: &[u8]) -> Option<(u64, &[u8])> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let value = text[..digits]
        .iter()
        .fold(0u64, |value, byte| value << 4 | u64::from(char::from(*byte).to_digit(16).unwrap_or(0)));
    (1..=16).contains(&digits).then_some((value, &text[digits..]))
}

/// The first addresses of all windows that contain memory of `areas`.
pub fn windows(areas: &[Area]) -> Vec<u64> {
    let mut starts: Vec<u64> = areas
        .iter()
        .filter(|area| !area.is_reservation())
        .flat_map(|area| (area.range.start / WINDOW..=(area.range.end - 1) / WINDOW).map(|n| n * WINDOW))
        .collect();
    starts.sort_unstable();
    starts.dedup();
    starts
}

/// Grows the main stack to its limit, but at most to 64 MiB, without giving it memory. This is needed because KVM
/// cannot grow a stack. If it fails, code that grows the stack continues in ring 3.
pub fn grow_main_stack(areas: &[Area]) {
    let Some(stack) = areas.iter().find(|area| area.main_stack) else { return };
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes to the variable only.
    if unsafe { libc::getrlimit(libc::RLIMIT_STACK, &raw mut limit) } != 0 {
        return;
    }
    let bytes = limit.rlim_cur.min(64 << 20).saturating_sub(4096);
    let lowest = (stack.range.end.saturating_sub(bytes) + 4095) & !4095;
    if lowest >= stack.range.start {
        return;
    }
    let now = [0u64; 2];
    // A futex call reads the word, which makes the kernel grow the stack. The call returns at once: either the word
    // differs from the expected value, or the timeout of zero has expired.
    // SAFETY: reads one word. If there is no memory at that address, the call returns an error.
    unsafe {
        let wait = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as u64;
        syscall(libc::SYS_futex as u64, [lowest, wait, 1, now.as_ptr() as u64, 0, 0]);
    }
}

/// Whether there is any mapping at the address. Does not touch the memory.
pub fn is_mapped(address: u64) -> bool {
    let mut resident = 0u8;
    let arguments = [address & !4095, 4096, (&raw mut resident) as u64, 0, 0, 0];
    // SAFETY: writes one byte to the variable.
    unsafe { syscall(libc::SYS_mincore as u64, arguments) != -i64::from(libc::ENOMEM) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_understood() {
        let area = parse(b"7ffc9a400000-7ffc9a421000 rw-p 00000000 00:00 0                          [stack]")
            .unwrap();
        assert_eq!(area.range, 0x7ffc_9a40_0000..0x7ffc_9a42_1000);
        assert!(area.accessible && area.main_stack);
        assert!(!parse(b"100000-200000 ---p 00000000 00:00 0 ").unwrap().accessible);
        assert_eq!(parse(b"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0   [vsyscall]"), None);
        assert_eq!(parse(b"nonsense"), None);
    }

    #[test]
    fn reservations_are_not_windows() {
        let area =
            |start: u64, end: u64, accessible| Area { range: start..end, accessible, main_stack: false };
        let list = [
            area(0x1000, 0x2000, true),
            area(WINDOW - 4096, WINDOW + 4096, true),
            area(10 * WINDOW, 1034 * WINDOW, false),
            area(5 * WINDOW, 5 * WINDOW + 4096, false),
        ];
        assert_eq!(windows(&list), [0, WINDOW, 5 * WINDOW]);
    }

    #[test]
    fn is_mapped_finds_mappings() {
        let here = 0u64;
        assert!(is_mapped((&raw const here) as u64));
        assert!(!is_mapped(0x1000));
        let mut same = Vec::new();
        assert!(for_each(|area| same.push(area.clone())));
        let stack = |areas: &[Area]| areas.iter().find(|area| area.main_stack).map(|area| area.range.end);
        assert!(stack(&same).is_some());
        assert_eq!(stack(&same), stack(&areas().unwrap()));
        assert!(areas().unwrap().iter().any(|area| area.range.contains(&((&raw const here) as u64))));
    }
}
