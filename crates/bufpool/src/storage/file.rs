//! Files and block devices, without the kernel's page cache where this is possible.

use std::fs::OpenOptions;
use std::io::{self, Seek, SeekFrom};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

use bedplate_threads::outwait;
use io_uring::{opcode, types};
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock, seek};
use rustix::io::{Errno, retry_on_intr};

use super::ring::{GIVEN_UP, Rings, Wait};
use super::ring_queue::RingQueue;
use super::{Read, Storage, Write, WriteQueue};
use crate::buffer::Buffer;
use crate::page::PAGE;
use crate::page_size::PageSize;

/// A file or a block device.
pub struct File {
    file: std::fs::File,
    device: bool,
    direct: bool,
    rings: Rings,
}

impl File {
    /// Opens the file, and creates it if it does not exist. `direct` asks to bypass the page cache. Some file systems refuse
    /// that; see [`File::is_direct`].
    pub fn open(path: &Path, direct: bool) -> io::Result<Self> {
        let device = std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device());
        let open = |flags| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(!device).truncate(false);
            // With this flag the kernel refuses a device that a mounted file system or another pool uses.
            options.custom_flags(if device { flags | libc::O_EXCL } else { flags });
            patiently(device, || options.open(path))
        };
        let (file, direct) = direct_if_possible(direct, open)?;
        patiently(device, || Ok(flock(&file, FlockOperation::NonBlockingLockExclusive)?))?;
        let metadata = file.metadata()?;
        if metadata.is_file() && metadata.len() == 0 {
            // The file may be new. Its durable content is lost if its name is not durable.
            sync_folder_of(path)?;
        }
        Ok(Self { file, device, direct, rings: Rings::default() })
    }

    /// Opens an existing file for reading only. Others can open it for reading at the same time, but not for writing.
    pub fn open_for_reading(path: &Path, direct: bool) -> io::Result<Self> {
        let open = |flags| {
            let mut options = OpenOptions::new();
            options.read(true).custom_flags(flags);
            options.open(path)
        };
        let (file, direct) = direct_if_possible(direct, open)?;
        patiently(false, || Ok(flock(&file, FlockOperation::NonBlockingLockShared)?))?;
        let device = file.metadata()?.file_type().is_block_device();
        Ok(Self { file, device, direct, rings: Rings::default() })
    }

    /// Makes a thread of the kernel poll for reads and writes, so that callers make no system calls under load. The thread uses a
    /// processor. If the kernel refuses, nothing changes.
    pub fn polled(self) -> Self {
        Self { rings: Rings::polled(), ..self }
    }

    /// Whether the kernel's page cache is bypassed.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Whether several pages are read and written at once.
    pub fn has_rings(&self) -> bool {
        self.rings.work()
    }

    fn zero(&self, from: u64, to: u64) -> io::Result<()> {
        let zeros = Buffer::new(PageSize::MIN, 256);
        let step = zeros.bytes().len() as u64;
        for at in (from..to).step_by(step as usize) {
            let bytes = (to - at).min(step) as usize;
            self.file.write_all_at(&zeros.bytes()[..bytes], at)?;
        }
        Ok(())
    }

    fn read_as(&self, wait: Wait, reads: &mut [Read<'_>], done: &mut dyn FnMut(usize, io::Result<()>)) {
        let mut told = vec![false; reads.len()];
        if reads.len() > 1 || self.rings.is_polled() {
            let fd = types::Fd(self.file.as_raw_fd());
            let entry = |read: &mut Read<'_>| {
                opcode::Read::new(fd, read.memory(), read.size().bytes() as u32).offset(read.offset()).build()
            };
            let entries: Vec<_> = reads.iter_mut().map(entry).collect();
            let sizes: Vec<i32> = reads.iter().map(|read| read.size().bytes() as i32).collect();
            let complete = |index: usize, result: i32| {
                told[index] = true;
                match result {
                    result if result == sizes[index] => done(index, Ok(())),
                    GIVEN_UP => done(index, Err(io::ErrorKind::TimedOut.into())),
                    _ => told[index] = false,
                }
            };
            // SAFETY: each `Read` stands for exclusive access to a page of memory.
            unsafe { self.rings.run(&entries, wait, complete) };
        }
        for (index, read) in reads.iter_mut().enumerate() {
            if !told[index] {
                done(index, self.read_one(read));
            }
        }
    }

    fn read_one(&self, read: &mut Read<'_>) -> io::Result<()> {
        let mut done = 0;
        let len = read.size().bytes();
        while done < len {
            let offset = read.offset() + done as u64;
            // SAFETY: `Read` stands for exclusive access to a page of memory; only the rest of it is written.
            let n = unsafe {
                libc::pread(self.file.as_raw_fd(), read.memory().add(done).cast(), len - done, offset as i64)
            };
            match n {
                -1 => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error => return Err(error),
                },
                0 => {
                    // This part is behind the end of the file, so it was never written.
                    read.fill_zeros(done);
                    return Ok(());
                }
                n => done += n as usize,
            }
        }
        Ok(())
    }
}

/// Makes the name of a file durable.
fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match std::fs::File::open(folder)?.sync_all() {
        // Some file systems need no sync of a folder, and return this error.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        result => result,
    }
}

/// Opens a file with `O_DIRECT` if requested and possible, and otherwise without. Returns whether it used the flag.
fn direct_if_possible(
    direct: bool,
    open: impl Fn(i32) -> io::Result<std::fs::File>,
) -> io::Result<(std::fs::File, bool)> {
    match direct.then(|| open(libc::O_DIRECT)) {
        Some(Ok(file)) => Ok((file, true)),
        Some(Err(error)) if error.raw_os_error() != Some(libc::EINVAL) => Err(error),
        _ => Ok((open(0)?, false)),
    }
}

/// Opens or locks a file that others may have open for a moment: a forked child, or a process that has died and for which the
/// kernel still writes.
fn patiently<T>(device: bool, open: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let is_busy =
        |error: &io::Error| matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy);
    outwait(open, is_busy).map_err(|error| {
        let why = if device { "it is mounted, or in use" } else { "somebody else has it open" };
        if is_busy(&error) { io::Error::new(io::ErrorKind::ResourceBusy, why) } else { error }
    })
}

impl Storage for File {
    fn read(&self, reads: &mut [Read<'_>]) {
        let mut results: Vec<_> = reads.iter().map(|_| Ok(())).collect();
        self.read_as(Wait::ForAll, reads, &mut |index, result| results[index] = result);
        for (read, result) in reads.iter_mut().zip(results) {
            read.result = result;
        }
    }

    fn read_each(&self, reads: &mut [Read<'_>], done: &mut dyn FnMut(usize, io::Result<()>)) {
        self.read_as(Wait::ForEach, reads, done);
    }

    fn write(&self, writes: &mut [Write<'_>]) {
        let mut results: Vec<Option<i32>> = vec![None; writes.len()];
        if writes.len() > 1 || self.rings.is_polled() {
            let fd = types::Fd(self.file.as_raw_fd());
            let entry = |write: &Write<'_>| {
                let bytes = write.bytes();
                opcode::Write::new(fd, bytes.as_ptr(), bytes.len() as u32).offset(write.offset()).build()
            };
            let entries: Vec<_> = writes.iter().map(entry).collect();
            // SAFETY: each `Write` borrows what is written.
            unsafe { self.rings.run(&entries, Wait::ForAll, |index, result| results[index] = Some(result)) };
        }
        for (write, result) in writes.iter_mut().zip(results) {
            write.result = match result {
                Some(result) if result == write.bytes().len() as i32 => Ok(()),
                Some(GIVEN_UP) => Err(io::ErrorKind::TimedOut.into()),
                _ => self.file.write_all_at(write.bytes(), write.offset()),
            };
        }
    }

    fn write_queue(&self, depth: usize) -> Option<Box<dyn WriteQueue + '_>> {
        RingQueue::new(&self.file, depth).map(|queue| Box::new(queue) as Box<dyn WriteQueue>)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn grow(&self, blocks: Range<u64>) -> io::Result<()> {
        let [from, to] = [blocks.start, blocks.end].map(|block| block * PAGE as u64);
        let end = (&self.file).seek(SeekFrom::End(0))?;
        if self.device && to > end {
            return Err(io::ErrorKind::StorageFull.into());
        }
        // On a file, new blocks become zeros, and existing blocks belong to pages that were never given out.
        let flags = if self.device { FallocateFlags::ZERO_RANGE } else { FallocateFlags::empty() };
        // A file system in memory returns early when a signal arrives.
        match retry_on_intr(|| fallocate(&self.file, flags, from, to - from)) {
            Ok(()) => Ok(()),
            // This file system cannot reserve space, or this device cannot zero by itself.
            Err(Errno::OPNOTSUPP) if self.device => self.zero(from, to),
            Err(Errno::OPNOTSUPP) => Ok(self.file.set_len(end.max(to))?),
            Err(error) => Err(error.into()),
        }
    }

    fn limit(&self) -> io::Result<Option<u64>> {
        let size = || (&self.file).seek(SeekFrom::End(0));
        self.device.then(|| Ok(size()? / PAGE as u64)).transpose()
    }

    fn written_end(&self, blocks: Range<u64>) -> u64 {
        let size = (&self.file).seek(SeekFrom::End(0)).unwrap_or(u64::MAX);
        let end = blocks.end.min(size.div_ceil(PAGE as u64));
        // Space that was allocated and never written is also a hole. Devices, and file systems that do not report holes, have
        // none.
        let mut at = blocks.start * PAGE as u64;
        let mut written = blocks.start;
        while written < end {
            let hole = match seek(&self.file, rustix::fs::SeekFrom::Data(at)) {
                Ok(data) => seek(&self.file, rustix::fs::SeekFrom::Hole(data)),
                // The rest of the file is a hole.
                Err(Errno::NXIO) => return written,
                Err(error) => Err(error),
            };
            let Ok(hole) = hole else { return end };
            (at, written) = (hole, hole.div_ceil(PAGE as u64).min(end));
        }
        written
    }
}
