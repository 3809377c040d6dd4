//! Storage that keeps only the pool's own pages and takes little time, so that a benchmark measures eviction and not a
//! disk.
//!
//! Other pages read as if they had never been written. A pool accepts this after it has made them durable
//! ([`Pool::sync`]).
//!
//! [`Pool::sync`]: bedplate_bufpool::Pool::sync

use std::io;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bedplate_bufpool::PAGE;
use bedplate_bufpool::storage::{Read, Storage, Write};

/// Number of pages that it keeps, from the first one on.
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
            let kept =
                if read.page() < KEPT as u64 { self.kept()[read.page() as usize].clone() } else { None };
            match kept {
                Some(image) => read.fill(&image[..]),
                None => read.fill_zeros(0),
            }
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
