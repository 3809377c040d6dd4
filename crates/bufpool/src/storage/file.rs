//! Files and block devices, without the kernel's page cache where that can be done.

use std::fs::OpenOptions;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::{Read, Storage, Write};
use crate::page::PAGE;

/// A file or a block device.
pub struct File {
    file: std::fs::File,
    device: bool,
    direct: bool,
}

impl File {
    /// Opens it; a file that does not exist is created. `direct` asks to bypass the page cache, which some file systems
    /// refuse: [`File::is_direct`] tells.
    pub fn open(path: &Path, direct: bool) -> io::Result<Self> {
        let open = |flags| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .custom_flags(flags)
                .open(path)
        };
        let (file, direct) = match direct.then(|| open(libc::O_DIRECT)) {
            Some(Ok(file)) => (file, true),
            Some(Err(error)) if error.raw_os_error() != Some(libc::EINVAL) => return Err(error),
            _ => (open(0)?, false),
        };
        let device = file.metadata()?.file_type().is_block_device();
        Ok(Self { file, device, direct })
    }

    /// Whether the kernel's page cache is bypassed.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    fn read_one(&self, read: &mut Read<'_>) -> io::Result<()> {
        let mut done = 0;
        while done < PAGE {
            let offset = read.page() * PAGE as u64 + done as u64;
            // SAFETY: `Read` stands for exclusive access to a page of memory; only its rest is written.
            let n = unsafe {
                libc::pread(self.file.as_raw_fd(), read.memory().add(done).cast(), PAGE - done, offset as i64)
            };
            match n {
                -1 => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error => return Err(error),
                },
                0 => {
                    // Behind the end: never written.
                    // SAFETY: as above.
                    unsafe { read.memory().add(done).write_bytes(0, PAGE - done) };
                    return Ok(());
                }
                n => done += n as usize,
            }
        }
        Ok(())
    }
}

impl Storage for File {
    fn read(&self, reads: &mut [Read<'_>]) {
        for read in reads {
            read.result = self.read_one(read);
        }
    }

    fn write(&self, writes: &mut [Write<'_>]) {
        for write in writes {
            write.result = self.file.write_all_at(write.bytes(), write.page() * PAGE as u64);
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn pages(&self) -> io::Result<u64> {
        // Of a device, too, the end is its size.
        Ok((&self.file).seek(SeekFrom::End(0))? / PAGE as u64)
    }

    fn grow(&self, pages: u64) -> io::Result<()> {
        let room = self.pages()?;
        if pages <= room {
            return Ok(());
        }
        if self.device {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let more = (pages - room) * PAGE as u64;
        match fallocate(&self.file, FallocateFlags::empty(), room * PAGE as u64, more) {
            Ok(()) => Ok(()),
            // This file system cannot promise space.
            Err(Errno::OPNOTSUPP) => self.file.set_len(pages * PAGE as u64),
            Err(error) => Err(error.into()),
        }
    }
}
