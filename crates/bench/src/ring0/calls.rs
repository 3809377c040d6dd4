//! Figure 11's system calls: an empty one, and reads and writes of a page, in the page cache and past it. The same
//! code measures both sides: in ring 0 its system calls are proxied.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use crate::{Error, Result};

use super::clock::Clock;
use super::{PAGE, Row};

pub const EMPTY: &str = "empty system call (getppid)";
pub const CACHED_READ: &str = "cached pread of 4 KiB";
pub const CACHED_WRITE: &str = "cached pwrite of 4 KiB";
pub const UNCACHED_READ: &str = "uncached pread of 4 KiB";
pub const UNCACHED_WRITE: &str = "uncached pwrite of 4 KiB";

const CALLS: usize = 2000;
const UNCACHED_CALLS: usize = 200;
const FILE_PAGES: usize = 256;

/// A page at an address that direct access accepts.
#[repr(align(4096))]
struct Buffer([u8; PAGE]);

/// The files, made and opened outside of what is measured.
pub struct Files {
    cached: File,
    /// None where the file system has no access past its cache.
    direct: Option<File>,
}

impl Files {
    pub fn create(directory: &Path) -> Result<Files> {
        let file = tempfile::NamedTempFile::new_in(directory).map_err(Error::io("creating a file"))?;
        let content = vec![7; FILE_PAGES * PAGE];
        file.as_file().write_all_at(&content, 0).map_err(Error::io("filling it"))?;
        file.as_file().sync_all().map_err(Error::io("syncing it"))?;
        let direct = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(file.path());
        Ok(Files { cached: file.into_file(), direct: direct.ok() })
    }

    /// Measures all calls, on the side that this is called on.
    pub fn measure(&self, clock: Clock, rounds: usize, side: &'static str) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        let mut buffer = Box::new(Buffer([7; PAGE]));
        let mut add = |operation, cost| rows.push(Row { operation, side, cost });
        add(
            EMPTY,
            clock.median(rounds, CALLS, || {
                for _ in 0..CALLS {
                    // SAFETY: has no arguments and no effect.
                    unsafe { libc::syscall(libc::SYS_getppid) };
                }
                Ok(())
            })?,
        );
        let files = [
            (Some(&self.cached), CALLS, CACHED_READ, CACHED_WRITE),
            (self.direct.as_ref(), UNCACHED_CALLS, UNCACHED_READ, UNCACHED_WRITE),
        ];
        for (file, calls, read, write) in files {
            let Some(file) = file else { continue };
            let place = |call| (call % FILE_PAGES * PAGE) as u64;
            let cost = clock.median(rounds, calls, || {
                (0..calls)
                    .try_for_each(|call| file.read_exact_at(&mut buffer.0, place(call)))
                    .map_err(Error::io("reading"))
            })?;
            add(read, cost);
            let cost = clock.median(rounds, calls, || {
                (0..calls)
                    .try_for_each(|call| file.write_all_at(&buffer.0, place(call)))
                    .map_err(Error::io("writing"))
            })?;
            add(write, cost);
        }
        Ok(rows)
    }
}
