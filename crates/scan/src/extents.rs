//! Where a file lies on its device (FIEMAP), read ahead of the scan, so that requests follow the device's layout.
//!
//! The paper's module submits block addresses itself; here the file system translates, and knowing its extents decides where
//! a request ends: one that spans two extents would be two for the device, and would be complete when the later one is.

use std::collections::VecDeque;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd};

use crate::source::File;

/// Extents that are asked for at a time.
const BATCH: usize = 64;

/// `struct fiemap_extent` of linux/fiemap.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// `struct fiemap`, with room for extents.
#[repr(C)]
struct Request {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [Extent; BATCH],
}

const LAST: u32 = 1;
/// `_IOWR('f', 11, struct fiemap)`
const FIEMAP: libc::c_ulong = 0xc020_660b;

/// The extents of a file ahead of a scan.
#[derive(Debug, Default)]
pub struct Extents {
    /// Ends of extents where the next does not follow on the device.
    breaks: VecDeque<u64>,
    /// Up to where they are known.
    known: u64,
    /// There is nothing more to learn.
    over: bool,
}

impl Extents {
    /// Of a file that has not been looked at.
    pub fn new() -> Self {
        Self::default()
    }

    /// Where a request from `from` to `to` should end: at the first gap on the device between the two, or at `to`.
    pub fn cut(&mut self, file: &File, from: u64, to: u64) -> u64 {
        // Scans go forward; who goes back does without what has been forgotten.
        while self.breaks.front().is_some_and(|end| *end <= from) {
            self.breaks.pop_front();
        }
        if !self.over && self.known < to {
            self.read(file, from);
        }
        match self.breaks.iter().find(|end| **end > from) {
            Some(end) if *end < to => *end,
            _ => to,
        }
    }

    fn read(&mut self, file: &File, from: u64) {
        let start = self.known.max(from);
        let mut request = Request {
            start,
            length: u64::MAX - start,
            flags: 0,
            mapped: 0,
            count: BATCH as u32,
            reserved: 0,
            extents: [Extent::default(); BATCH],
        };
        const { assert!(offset_of!(Request, extents) == 32 && size_of::<Extent>() == 56) };
        // SAFETY: the request is as linux/fiemap.h has it, with room for as many extents as it says.
        let result = unsafe { libc::ioctl(file.as_fd().as_raw_fd(), FIEMAP, &raw mut request) };
        let extents = &request.extents[..(request.mapped as usize).min(BATCH)];
        // File systems without extents, and files whose rest is a hole.
        let (true, Some(last)) = (result == 0, extents.last()) else {
            self.over = true;
            return;
        };
        for pair in extents.windows(2) {
            if pair[0].physical + pair[0].length != pair[1].physical {
                self.note(pair[0].logical + pair[0].length, file.unit.into());
            }
        }
        self.known = last.logical + last.length;
        self.over = last.flags & LAST != 0;
        if !self.over {
            self.note(self.known, file.unit.into());
        }
    }

    fn note(&mut self, end: u64, unit: u64) {
        // Requests are aligned, extents may be finer.
        if end.is_multiple_of(unit) {
            self.breaks.push_back(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Source;
    use std::os::unix::fs::FileExt;

    #[test]
    fn requests_end_where_extents_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let (file, other) =
            (std::fs::File::create(&path).unwrap(), tempfile::tempfile_in(folder.path()).unwrap());
        let block = vec![1u8; 1 << 16];
        // Written in turns with another file, and with a hole: more than one extent, on any file system that has them.
        for i in (0..200u64).filter(|i| *i != 100) {
            file.write_all_at(&block, i << 16).unwrap();
            file.sync_data().unwrap();
            other.write_all_at(&block, i << 16).unwrap();
            other.sync_data().unwrap();
        }
        let file = File::open(&Source::from(&path)).unwrap();
        let mut extents = Extents::new();
        let (mut at, mut cuts) = (0, 0);
        while at < file.size {
            let to = (at + (2 << 20)).min(file.size);
            let end = extents.cut(&file, at, to);
            assert!(at < end && end <= to && end.is_multiple_of(4096));
            cuts += usize::from(end < to);
            at = end;
        }
        assert!(cuts > 0 || extents.known == 0, "no gap between the extents of a file with a hole");
    }
}
