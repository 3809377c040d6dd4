//! The file that all sides read, and the sums of its words.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rand::{Rng, SeedableRng, rngs::SmallRng};
use rustix::fs::{Advice, fadvise};
use tempfile::TempDir;

use super::meter::sum;
use crate::{Error, Result};

/// Bytes of a block; each block has a known sum.
pub const BLOCK: usize = 64 << 10;

/// A file on a disk. Dropping this removes it.
pub struct Data {
    folder: TempDir,
    pub size: u64,
    sums: Vec<u64>,
}

impl Data {
    /// Writes a file of `size` bytes, a multiple of [`BLOCK`].
    pub fn write(directory: &Path, size: u64) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("bedplate-bench-")
            .tempdir_in(directory)
            .map_err(Error::io("create a directory for the file to scan"))?;
        let path = folder.path().join("table");
        let mut file = File::create(path).map_err(Error::io("create the file to scan"))?;
        let (mut block, mut sums) = (vec![0u8; BLOCK], Vec::new());
        for number in 0..size / BLOCK as u64 {
            // No device can compress random bytes.
            SmallRng::seed_from_u64(number).fill_bytes(&mut block);
            sums.push(sum(&block));
            file.write_all(&block).map_err(Error::io("write the file to scan"))?;
        }
        file.sync_all().map_err(Error::io("sync the file to scan"))?;
        Ok(Self { folder, size, sums })
    }

    /// The path of the file.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("table")
    }

    /// The sum of the words of a range, which must have whole blocks.
    pub fn sum(&self, range: Range<u64>) -> u64 {
        let block = |at: u64| (at / BLOCK as u64) as usize;
        self.sums[block(range.start)..block(range.end)].iter().fold(0, |a, b| a.wrapping_add(*b))
    }
}

/// Opens a file for reading.
pub fn open(path: &Path, flags: i32) -> Result<File> {
    let open = OpenOptions::new().read(true).custom_flags(flags).open(path);
    open.map_err(Error::io("open the file to scan"))
}

/// Drops all blocks of a file from the page cache.
pub fn forget(path: &Path) -> Result<()> {
    let file = open(path, 0)?;
    fadvise(&file, 0, None, Advice::DontNeed).map_err(Error::io("drop the file from the page cache"))
}
