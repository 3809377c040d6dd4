//! Where files lie on their devices (FIEMAP), so that requests follow the device's layout. Who opens a scan asks for that,
//! not the control loop, which would keep all channels waiting for a file system that is slow.
//!
//! The paper's module submits block addresses itself; here the file system translates, and knowing its extents decides where
//! a request ends: one that spans two extents would be two for the device, and would be complete when the later one is.

use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd};

use crate::source::File;

/// Extents that are asked for at a time.
const BATCH: usize = 512;
/// Extents that are looked at for a scan. What lies behind them is read in requests that end where frames do.
const MOST: usize = 1 << 16;

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

/// The extents of a file, as they were when it was opened. A hint: where they have changed since, requests end where they
/// need not.
#[derive(Debug, Default)]
pub struct Extents {
    /// Ends of extents where the next does not follow on the device, in order.
    breaks: Vec<u64>,
}

impl Extents {
    /// Of files that are to be read together. This waits for their file systems.
    pub fn of_all(files: &[File]) -> Vec<Self> {
        let mut left = MOST;
        files.iter().map(|file| Self::of(file, &mut left)).collect()
    }

    /// Where a request from `from` to `to` should end: at the first gap on the device between the two, or at `to`.
    pub fn cut(&self, from: u64, to: u64) -> u64 {
        let after = self.breaks.partition_point(|end| *end <= from);
        self.breaks.get(after).map_or(to, |end| to.min(*end))
    }

    /// Of a file, as long as there are extents left to be looked at.
    fn of(file: &File, left: &mut usize) -> Self {
        let (mut extents, mut last) = (Self::default(), None);
        let mut request = Box::new(Request::default());
        while *left > 0 {
            let found = request.ask(file, last.map_or(0, |last: Extent| last.logical + last.length));
            *left = left.saturating_sub(found.len().max(1));
            for extent in found {
                if let Some(last) = last
                    && last.physical + last.length != extent.physical
                {
                    extents.note(last.logical + last.length, file.unit.into());
                }
                last = Some(*extent);
            }
            // File systems without extents, files whose rest is a hole, and the last one.
            if found.last().is_none_or(|last| last.flags & LAST != 0) {
                break;
            }
        }
        extents
    }

    fn note(&mut self, end: u64, unit: u64) {
        // Requests are aligned, extents may be finer.
        if end.is_multiple_of(unit) {
            self.breaks.push(end);
        }
    }
}

impl Request {
    /// The next extents of a file, from an offset on.
    fn ask(&mut self, file: &File, start: u64) -> &[Extent] {
        const { assert!(offset_of!(Request, extents) == 32 && size_of::<Extent>() == 56) };
        (self.start, self.length, self.flags) = (start, u64::MAX - start, 0);
        (self.mapped, self.count) = (0, BATCH as u32);
        // SAFETY: the request is as linux/fiemap.h has it, with room for as many extents as it says.
        let result = unsafe { libc::ioctl(file.as_fd().as_raw_fd(), FIEMAP, std::ptr::from_mut(self)) };
        let found = if result == 0 { (self.mapped as usize).min(BATCH) } else { 0 };
        &self.extents[..found]
    }
}

impl Default for Request {
    fn default() -> Self {
        let extents = [Extent::default(); BATCH];
        Self { start: 0, length: 0, flags: 0, mapped: 0, count: 0, reserved: 0, extents }
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
        let all = Extents::of_all(&[file.clone(), file.clone()]);
        let extents = &all[0];
        assert_eq!(extents.breaks, all[1].breaks);
        let (mut at, mut cuts) = (0, 0);
        while at < file.size {
            let to = (at + (2 << 20)).min(file.size);
            let end = extents.cut(at, to);
            assert!(at < end && end <= to && end.is_multiple_of(4096));
            cuts += usize::from(end < to);
            at = end;
        }
        assert!(cuts > 0 || extents.breaks.is_empty(), "no gap between the extents of a file with a hole");
        // Whoever goes back, as pools do, finds the same.
        let first = extents.breaks.first().copied().unwrap_or(2 << 20);
        assert_eq!(extents.cut(0, 2 << 20), first.min(2 << 20));
        // What there is no room for is not asked for.
        let mut left = 0;
        assert!(Extents::of(&file, &mut left).breaks.is_empty());
    }
}
