//! Storage that keeps nothing but the pool's own pages, and takes no time.

use std::io;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bedplate_bufpool::PAGE;
use bedplate_bufpool::storage::{Read, Storage, Write};

/// Pages that it keeps, from the first one on.
const KEPT: usize = 2;

/// See the module.
#[derive(Default)]
pub struct Nothing {
    kept: Mutex<[Option<Box<[u8; PAGE]>>; KEPT]>,
}

impl Nothing {
    fn kept(&self) -> MutexGuard<'_, [Option<Box<[u8; PAGE]>>; KEPT]> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Storage for Nothing {
    fn read(&self, reads: &mut [Read<'_>]) {
        for read in reads {
            let kept = self.kept();
            let image = kept.get(read.page() as usize).and_then(Option::as_deref).unwrap_or(&[0; PAGE]);
            // SAFETY: the memory of a page, which is to be written.
            unsafe { read.memory().copy_from_nonoverlapping(image.as_ptr(), PAGE) };
        }
    }

    fn write(&self, writes: &mut [Write<'_>]) {
        for write in writes {
            for (page, image) in (write.page() as usize..).zip(write.bytes().as_chunks::<PAGE>().0) {
                if let Some(kept) = self.kept().get_mut(page) {
                    *kept = Some(Box::new(*image));
                }
            }
        }
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn grow(&self, _: Range<u64>) -> io::Result<()> {
        Ok(())
    }
}
