//! Figure 11's system calls: an empty one, and reads and writes of a page, in the page cache and past it. The same
//! code measures both sides: in ring 0 its system calls are proxied.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::{Error, Result};

use super::clock::Clock;
use super::{Costs, PAGE};

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

/// The files, made and opened before the measurement.
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

    /// A description of the files: size, file system and device.
    pub fn describe(&self) -> String {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let device = self.cached.metadata().map(|data| data.dev()).unwrap_or_default();
        let place = file_system(&mounts, device).unwrap_or_else(|| "an unknown file system".to_owned());
        let direct = if self.direct.is_some() { "" } else { ", which has no direct access" };
        format!("{FILE_PAGES} pages on {place}{direct}")
    }

    /// Measures all calls, on the calling side.
    pub fn measure(&self, clock: Clock) -> Result<Costs> {
        let mut costs = Costs::new();
        let mut buffer = Box::new(Buffer([7; PAGE]));
        let mut add = |operation: &str, cost| costs.push((operation.to_owned(), cost));
        add(
            EMPTY,
            clock.time(CALLS, || {
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
            let cost = clock.time(calls, || {
                (0..calls)
                    .try_for_each(|call| file.read_exact_at(&mut buffer.0, place(call)))
                    .map_err(Error::io("reading"))
            })?;
            add(read, cost);
            let cost = clock.time(calls, || {
                (0..calls)
                    .try_for_each(|call| file.write_all_at(&buffer.0, place(call)))
                    .map_err(Error::io("writing"))
            })?;
            add(write, cost);
        }
        Ok(costs)
    }
}

/// File system and device in the mount table, by the device's number.
fn file_system(mounts: &str, device: u64) -> Option<String> {
    let number = format!("{}:{}", libc::major(device), libc::minor(device));
    let line = mounts.lines().find(|line| line.split(' ').nth(2) == Some(&number))?;
    let mut words = line.split_once(" - ")?.1.split(' ');
    Some(format!("{} ({})", words.next()?, words.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_system_is_found_by_its_device() {
        let mounts = "22 1 0:20 / /proc rw - proc proc rw\n30 1 7:0 / /disk rw,relatime shared:1 - ext4 /dev/loop0 rw\n";
        assert_eq!(file_system(mounts, libc::makedev(7, 0)).as_deref(), Some("ext4 (/dev/loop0)"));
        assert_eq!(file_system(mounts, libc::makedev(7, 1)), None);
    }

    #[test]
    fn every_call_has_a_cost() {
        let files = Files::create(&std::env::temp_dir()).unwrap();
        let costs = files.measure(Clock::Nanoseconds).unwrap();
        assert_eq!(costs.len(), if files.direct.is_some() { 5 } else { 3 });
        assert!(costs.iter().all(|(_, cost)| *cost > 0.0), "{costs:?}");
    }
}
