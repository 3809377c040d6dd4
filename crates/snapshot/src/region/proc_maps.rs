//! Queries about the process's mappings: their ends, and whether there are rings of io_uring.
//!
//! Some calls accept only a part of one mapping: `UFFDIO_ZEROPAGE`, and `mremap` before Linux 6.17. Later kernels
//! refuse several mappings in `mremap` if userfaultfd is registered for one of them. When `mremap` refuses, it has
//! already unmapped the target.
//!
//! A part of a region may consist of several mappings, for three reasons. The owner may have locked some pages in
//! memory. One part may have become private before another. One part may have got its first copy while the pages
//! next to it were registered with userfaultfd.

use std::os::fd::OwnedFd;

use linux_raw_sys::general::{procmap_query, procmap_query_flags};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

use super::above_standard::open;

/// The number of the ioctl `PROCMAP_QUERY` (Linux 6.11).
const QUERY: Opcode = opcode::read_write::<procmap_query>(b'f', 17);

/// The kernel's name for mappings of rings.
const RING: &[u8] = b"anon_inode:[io_uring]";

/// Whether this process has mapped a ring of io_uring. Nothing is allocated.
///
/// # Errors
/// `/proc` is not available.
pub fn has_mapped_ring() -> Result<bool, Errno> {
    ProcMaps::open()?.have_ring()
}

fn memmem(text: &[u8], wanted: &[u8]) -> bool {
    text.windows(wanted.len()).any(|part| part == wanted)
}

fn query(address: usize, flags: u64) -> procmap_query {
    procmap_query {
        size: size_of::<procmap_query>() as u64,
        query_flags: flags,
        query_addr: address as u64,
        vma_start: 0,
        vma_end: 0,
        vma_flags: 0,
        vma_page_size: 0,
        vma_offset: 0,
        inode: 0,
        dev_major: 0,
        dev_minor: 0,
        vma_name_size: 0,
        build_id_size: 0,
        vma_name_addr: 0,
        build_id_addr: 0,
    }
}

/// `/proc/self/maps`.
pub struct ProcMaps(OwnedFd);

impl ProcMaps {
    pub fn open() -> Result<Self, Errno> {
        open(c"/proc/self/maps").map(Self)
    }

    /// The end of the mapping that contains an address. Only one thread may call this at a time. Nothing is
    /// allocated.
    ///
    /// # Errors
    /// [`Errno::NOENT`] if no mapping contains the address; errors of reading the file.
    pub fn end_of(&self, address: usize) -> Result<usize, Errno> {
        let mut query = query(address, 0);
        // SAFETY: the structure that this ioctl reads and writes.
        match unsafe { ioctl(&self.0, Updater::<QUERY, procmap_query>::new(&mut query)) } {
            Ok(()) => Ok(query.vma_end as usize),
            Err(Errno::NOTTY) => self.end_in_text(address),
            Err(error) => Err(error),
        }
    }

    /// Whether the process has mapped a ring of io_uring.
    fn have_ring(&self) -> Result<bool, Errno> {
        const WANTED: u32 = procmap_query_flags::PROCMAP_QUERY_VMA_WRITABLE as u32
            | procmap_query_flags::PROCMAP_QUERY_VMA_SHARED as u32
            | procmap_query_flags::PROCMAP_QUERY_COVERING_OR_NEXT_VMA as u32
            | procmap_query_flags::PROCMAP_QUERY_FILE_BACKED_VMA as u32;
        let (mut name, mut at) = ([0u8; 256], 0);
        loop {
            let mut query = query(at, WANTED.into());
            query.vma_name_size = name.len() as u32;
            query.vma_name_addr = name.as_mut_ptr() as u64;
            // SAFETY: the structure that this ioctl reads and writes, with the length of the buffer that it fills.
            match unsafe { ioctl(&self.0, Updater::<QUERY, procmap_query>::new(&mut query)) } {
                Ok(()) if name.starts_with(RING) => return Ok(true),
                Ok(()) => {}
                Err(Errno::NOENT) => return Ok(false),
                // If a name does not fit, the call does not return an address from which to continue.
                Err(Errno::NOTTY | Errno::NAMETOOLONG) => return self.have_ring_in_text(),
                Err(error) => return Err(error),
            }
            at = query.vma_end as usize;
        }
    }

    /// The same as [`have_ring`](Self::have_ring), for kernels without that ioctl.
    fn have_ring_in_text(&self) -> Result<bool, Errno> {
        let (mut text, mut carried, mut read) = ([0; 4096], 0, 0);
        loop {
            match rustix::io::pread(&self.0, &mut text[carried..], read) {
                Ok(0) => return Ok(false),
                Ok(bytes) => {
                    read += bytes as u64;
                    let end = carried + bytes;
                    if memmem(&text[..end], RING) {
                        return Ok(true);
                    }
                    // The next part may begin within the name.
                    carried = end.min(RING.len() - 1);
                    text.copy_within(end - carried..end, 0);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The same as [`end_of`](Self::end_of), for kernels without that ioctl.
    fn end_in_text(&self, address: usize) -> Result<usize, Errno> {
        let (mut text, mut line, mut read) = ([0; 4096], Line::default(), 0);
        loop {
            match rustix::io::pread(&self.0, &mut text, read) {
                Ok(0) => return Err(Errno::NOENT),
                Ok(bytes) => {
                    read += bytes as u64;
                    for &byte in &text[..bytes] {
                        if line.take(byte) && address < line.end {
                            return if line.start <= address { Ok(line.end) } else { Err(Errno::NOENT) };
                        }
                    }
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// A line of the file that may have been read in part: `START-END` in hexadecimal, a space, and the rest.
#[derive(Default)]
struct Line {
    start: usize,
    end: usize,
    part: Part,
}

#[derive(Default)]
enum Part {
    #[default]
    Start,
    End,
    Rest,
}

impl Line {
    /// Takes the next byte of the file. Returns whether it completes the line's addresses.
    fn take(&mut self, byte: u8) -> bool {
        let digit = char::from(byte).to_digit(16).unwrap_or(0) as usize;
        match (&self.part, byte) {
            (_, b'\n') => *self = Self::default(),
            (Part::Start, b'-') => self.part = Part::End,
            (Part::Start, _) => self.start = self.start << 4 | digit,
            (Part::End, b' ') => {
                self.part = Part::Rest;
                return true;
            }
            (Part::End, _) => self.end = self.end << 4 | digit,
            (Part::Rest, _) => {}
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAGE;
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

    #[test]
    fn both_ways_find_rings() {
        let maps = ProcMaps::open().unwrap();
        assert_eq!((maps.have_ring(), maps.have_ring_in_text()), (Ok(false), Ok(false)));
        let params = &mut [0u32; 30];
        // SAFETY: sets up a ring; the kernel writes its description to these 120 bytes.
        let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr()) };
        if ring < 0 {
            println!("skipped: there is no io_uring here: {}", std::io::Error::last_os_error());
            return;
        }
        // SAFETY: the ring's first mapping, which no code uses.
        let at = unsafe {
            let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            libc::mmap(std::ptr::null_mut(), PAGE, access, flags, ring as i32, 0)
        };
        assert_ne!(at, libc::MAP_FAILED);
        assert_eq!((maps.have_ring(), maps.have_ring_in_text()), (Ok(true), Ok(true)));
        // SAFETY: the mapping above, and its descriptor.
        unsafe {
            libc::munmap(at, PAGE);
            libc::close(ring as i32);
        }
    }

    #[test]
    fn both_ways_give_the_ends_of_mappings() {
        let maps = ProcMaps::open().unwrap();
        // The kernel chooses higher addresses for mappings of other threads, so none of them is placed in the gap.
        let low = std::ptr::without_provenance_mut(1 << 36);
        // SAFETY: new mappings that only this test uses.
        let at = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let at = mmap_anonymous(low, 4 * PAGE, access, MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE);
            let at = at.unwrap();
            mprotect(at.byte_add(PAGE), PAGE, MprotectFlags::READ).unwrap();
            munmap(at.byte_add(2 * PAGE), PAGE).unwrap();
            at as usize
        };
        let in_text = |page: usize| maps.end_in_text(at + page * PAGE + 1);
        let asked = |page: usize| maps.end_of(at + page * PAGE + 1);
        for ends in [&in_text as &dyn Fn(usize) -> Result<usize, Errno>, &asked] {
            assert_eq!(ends(0), Ok(at + PAGE));
            assert_eq!(ends(1), Ok(at + 2 * PAGE));
            assert_eq!(ends(2), Err(Errno::NOENT));
            // The kernel may have merged the page with a mapping behind it.
            assert!(ends(3).unwrap() >= at + 4 * PAGE);
        }
        assert_eq!(maps.end_in_text(usize::MAX), Err(Errno::NOENT));
    }
}
