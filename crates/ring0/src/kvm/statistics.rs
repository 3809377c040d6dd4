//! KVM's own statistics. Only they count the exits that do not reach this process.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::FileExt;

const KVM_GET_STATS_FD: u64 = 0xaece;

/// A statistics file of KVM, and the offset of each value in it.
#[derive(Debug)]
pub struct Statistics {
    file: File,
    values: Vec<(String, u64)>,
}

impl Statistics {
    /// Opens the statistics of a processor or a virtual machine.
    pub fn open(of: &impl AsRawFd) -> io::Result<Statistics> {
        let fd: RawFd = of.as_raw_fd();
        // SAFETY: the request has no argument, and returns a new file.
        let fd = unsafe { libc::ioctl(fd, KVM_GET_STATS_FD as _, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the file was just opened, and nothing else owns it.
        let file = unsafe { File::from_raw_fd(fd) };
        let mut header = [0u8; 24];
        file.read_exact_at(&mut header, 0)?;
        let word = |bytes: &[u8], at: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&bytes[at..at + 4]);
            u32::from_ne_bytes(word)
        };
        let (name_bytes, count) = (word(&header, 4) as usize, word(&header, 8));
        let (descriptors, data) = (u64::from(word(&header, 16)), u64::from(word(&header, 20)));
        let mut values = Vec::with_capacity(count as usize);
        let size = 16 + name_bytes;
        let mut descriptor = vec![0u8; size];
        for index in 0..u64::from(count) {
            file.read_exact_at(&mut descriptor, descriptors + index * size as u64)?;
            let name = descriptor[16..].split(|byte| *byte == 0).next().unwrap_or_default();
            let offset = data + u64::from(word(&descriptor, 8));
            values.push((String::from_utf8_lossy(name).into_owned(), offset));
        }
        Ok(Statistics { file, values })
    }

    /// The value with this name, or `None` if KVM does not have it.
    pub fn get(&self, name: &str) -> Option<u64> {
        let (_, offset) = self.values.iter().find(|(known, _)| known == name)?;
        let mut value = [0; 8];
        self.file.read_exact_at(&mut value, *offset).ok()?;
        Some(u64::from_ne_bytes(value))
    }
}
