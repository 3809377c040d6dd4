//! A storage device in the memory of the process: a read or a write copies the page and makes no system call.
//!
//! It stands for a device whose completions a thread polls. The cost of a miss on it is the pool's work and the copy.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bedplate_bufpool::PAGE;
use bedplate_bufpool::storage::{Read, Storage, Write};

/// The device.
pub struct Ram(Mutex<Vec<[u8; PAGE]>>);

impl Ram {
    /// A device with the content of a file, whose length is a multiple of a page.
    pub fn copy_of(file: &Path) -> io::Result<Self> {
        let bytes = std::fs::read(file)?;
        match bytes.as_chunks::<PAGE>() {
            (pages, []) => Ok(Self(Mutex::new(pages.to_vec()))),
            (_, rest) => Err(io::Error::other(format!("the file has {} bytes of a page", rest.len()))),
        }
    }

    fn pages(&self) -> MutexGuard<'_, Vec<[u8; PAGE]>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Storage for Ram {
    fn read(&self, reads: &mut [Read<'_>]) {
        let pages = self.pages();
        for read in reads {
            match pages.get(read.page() as usize) {
                Some(page) => read.fill(page),
                None => read.fill_zeros(0),
            }
        }
    }

    fn write(&self, writes: &mut [Write<'_>]) {
        let mut pages = self.pages();
        for write in writes {
            let (first, images) = (write.page() as usize, write.bytes().as_chunks::<PAGE>().0);
            if pages.len() < first + images.len() {
                pages.resize(first + images.len(), [0; PAGE]);
            }
            pages[first..first + images.len()].copy_from_slice(images);
        }
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn grow(&self, _: Range<u64>) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_returns_what_was_written_and_zeros_elsewhere() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [7; 2 * PAGE]).unwrap();
        let device = Ram::copy_of(file.path()).unwrap();
        device.write(&mut [Write::new(1, &[[8; PAGE], [9; PAGE]])]);
        let byte_of = |page| {
            let mut bytes = Box::new(Aligned([1; PAGE]));
            device.read(&mut [Read::into_image(page, &mut bytes.0)]);
            assert!(bytes.0.iter().all(|byte| *byte == bytes.0[0]));
            bytes.0[0]
        };
        assert_eq!([0, 1, 2, 3].map(byte_of), [7, 8, 9, 0]);
        std::fs::write(file.path(), [7; PAGE + 1]).unwrap();
        assert!(Ram::copy_of(file.path()).is_err());
    }

    #[repr(align(4096))]
    struct Aligned([u8; PAGE]);
}
