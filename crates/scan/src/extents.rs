//! The positions of files on their devices (FIEMAP), so that requests follow the device's layout. The thread that opens a scan
//! asks for them. The control loop does not, because all channels would wait for a slow file system.
//!
//! The paper's module submits block addresses itself. Here the file system translates offsets. Its extents only decide where a
//! request ends, because the device splits a request that spans two extents. Such a request is complete only when the later part
//! is.

use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd};

use crate::source::File;

/// The largest number of extents that one `ioctl` returns.
const BATCH: usize = 512;
/// The largest number of extents that are examined for one scan. After them, requests end where frames end.
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

/// The extents of a file, as they were when it was opened. They are only a hint: where they have changed since, some requests end
/// earlier than necessary.
#[derive(Debug, Default)]
pub struct Extents {
    /// The ends of extents that the next extent does not follow on the device, in ascending order.
    breaks: Vec<u64>,
}

impl Extents {
    /// Asks for the extents of the files of one scan. The call waits for their file systems.
    pub fn of_all(files: &[File]) -> Vec<Self> {
        let mut left = MOST;
        files.iter().map(|file| Self::of(file, &mut left)).collect()
    }

    /// The end of a request from `from` to `to`: the first gap on the device between the two, or `to`.
    pub fn cut(&self, from: u64, to: u64) -> u64 {
        let after = self.breaks.partition_point(|end| *end <= from);
        self.breaks.get(after).map_or(to, |end| to.min(*end))
    }

    /// Asks for the extents of one file, as long as `left`, the number of extents that may still be examined, is not 0.
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
            // The loop ends for a file system without extents, for a file whose rest is a hole, and after the last extent.
            if found.last().is_none_or(|last| last.flags & LAST != 0) {
                break;
            }
        }
        extents
    }

    fn note(&mut self, end: u64, unit: u64) {
        // Requests are aligned to the unit. Extents may end between two units.
        if end.is_multiple_of(unit) {
            self.breaks.push(end);
        }
    }
}

impl Request {
    /// Asks for the next extents of a file, from the offset `start` on. An error returns none.
    fn ask(&mut self, file: &File, start: u64) -> &[Extent] {
        const { assert!(offset_of!(Request, extents) == 32 && size_of::<Extent>() == 56) };
        (self.start, self.length, self.flags) = (start, u64::MAX - start, 0);
        (self.mapped, self.count) = (0, BATCH as u32);
        // SAFETY: the request has the layout of linux/fiemap.h. It has room for `count` extents.
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
        // The writes alternate with those to another file, and leave a hole. So the file has more than one extent on any file
        // system that has extents.
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
        // Pools go back to earlier offsets. They get the same answer.
        let first = extents.breaks.first().copied().unwrap_or(2 << 20);
        assert_eq!(extents.cut(0, 2 << 20), first.min(2 << 20));
        // With `left` at 0, no extent is requested.
        let mut left = 0;
        assert!(Extents::of(&file, &mut left).breaks.is_empty());
    }
}
