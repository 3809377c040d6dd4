//! The table in both forms: a file for scans, and the same bytes as pages of a buffer pool's file.
//!
//! A page of the pool has a header, so a page of the table is [`PAYLOAD`] bytes of data and a rest that no client consumes.
//! Scans read that rest, too.

use std::io::Read;
use std::path::PathBuf;

use bedplate_bufpool::{Choice, Kind, PAGE, PAYLOAD, PageId, Pool};

use super::super::data::{Data, forget, open};
use super::super::meter::sum;
use crate::{Error, Result};

/// Memory of the pool that the table is copied with.
const COPYING: usize = 16 << 20;

/// Adapter for `map_err`.
pub fn failed(error: bedplate_bufpool::Error) -> Error {
    Error::io("a buffer pool")(std::io::Error::other(error))
}

/// The files of the table, and its contents.
#[derive(Clone, Debug)]
pub struct Table {
    pub file: PathBuf,
    pool: PathBuf,
    /// The table's first page in the pool; the others follow.
    first: u64,
    pub pages: u64,
    /// The sum of the words of all pages.
    pub sum: u64,
}

impl Table {
    /// Copies the file into a pool's file beside it. Afterwards, neither of them is in a cache.
    pub fn copy(data: &Data) -> Result<Self> {
        let file = data.path();
        let mut table = Self {
            pool: file.with_extension("pool"),
            file,
            first: 0,
            pages: data.size / PAGE as u64,
            sum: 0,
        };
        let pool = table.open(Kind::Hashtable, COPYING)?;
        let mut from = open(&table.file, 0)?;
        let mut bytes = [0; PAGE];
        for number in 0..table.pages {
            from.read_exact(&mut bytes).map_err(Error::io("read the file to scan"))?;
            let mut page = pool.allocate().map_err(failed)?;
            page.write(0, &bytes[..PAYLOAD]);
            if number == 0 {
                table.first = page.page().0;
            }
            if page.page() != table.page(number) {
                return Err(Error::engine(format!("page {number} of the table is page {}", page.page())));
            }
            table.sum = table.sum.wrapping_add(sum(&bytes[..PAYLOAD]));
        }
        pool.close().map_err(failed)?;
        for path in [&table.file, &table.pool] {
            forget(path)?;
        }
        Ok(table)
    }

    /// Opens the pool, with nothing in memory. Only one process can have it open at a time.
    pub fn open(&self, kind: Kind, memory: usize) -> Result<Pool> {
        let capacity = 2 * self.pages * PAGE as u64 + (64 << 20);
        let builder = Pool::builder(&self.pool).memory(memory).capacity(capacity);
        builder.engine(Choice::Only(kind)).open().map_err(failed)
    }

    /// A page of the table in the pool.
    pub fn page(&self, number: u64) -> PageId {
        PageId(self.first + number)
    }

    /// Bytes that a client consumes.
    pub fn consumed(&self) -> u64 {
        self.pages * PAYLOAD as u64
    }
}
