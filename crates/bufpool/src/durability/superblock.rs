//! The pool's own pages: the description of the storage, the end of its pages, and the user's roots.
//!
//! Blocks 0 and 1 hold the same record in turn, so that one of them is whole if a crash interrupts the write of the other. The
//! record with the higher generation counts. The blocks have 4 KiB whatever the page size is, because the record has the page
//! size. With larger pages, both are in page 0, and the rest of pages 0 and 1 is unused. Page 2 and the following ones, up to
//! [`FIRST`], belong to the double-write area (`double_write`).
//!
//! `clean` says that all pages in storage are as the last [`close`](crate::Pool::close) left them. The flag is cleared,
//! durably, before the first page is written after that.
//!
//! Version 1 of the format did not have `written_up_to` and `lsn`. The pool reads it, and stores version 2. Programs that only
//! know pages of 4 KiB also wrote this size into the record. They refuse a record with another size.

use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::page::{self, HEADER, Image, PageId};
use crate::page_size::PageSize;
use crate::storage::{Storage, Write, read};

/// The first page that users can allocate.
pub const FIRST: u64 = 256;
/// Number of roots.
pub const ROOTS: usize = 8;

/// The record's first word without its highest byte, which is the version.
const MAGIC: u64 = u64::from_le_bytes(*b"BEDPOOL\0");
const VERSION: u64 = 2;
const OLD_VERSION: u64 = 1;
const VERSION_SHIFT: u32 = 56;
const COPIES: u64 = 2;
/// The size of the blocks that have the record.
const BLOCK: PageSize = PageSize::MIN;
/// Blocks that must be empty in storage that has no pool yet: the first MiB.
const EMPTY_BLOCKS: usize = 256;

/// The record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Superblock {
    pub generation: u64,
    pub size: PageSize,
    /// Pages from here on were not allocated when this was written.
    pub end: u64,
    /// Pages from here on have not been allocated since then either, because storage has no room for them.
    pub room: u64,
    /// The first page of the list of free pages, or zero if no page is free; valid if `clean`.
    pub free: u64,
    pub clean: bool,
    pub roots: [u64; ROOTS],
    /// Every page below this one that was in use when the record was written has been written.
    pub written_up_to: u64,
    /// When the record was written, no page had had a log record with a greater number.
    pub lsn: u64,
    /// Whether storage has this record in version 1.
    pub outdated: bool,
}

const WORDS: usize = 7 + ROOTS + 2;

impl Superblock {
    /// The superblock of an empty pool.
    pub fn empty(size: PageSize) -> Self {
        Self { size, end: FIRST, room: FIRST, written_up_to: FIRST, clean: true, ..Self::default() }
    }

    /// Clears `clean`: pages in storage are about to differ from those of the last close.
    pub fn open(&mut self) {
        self.clean = false;
        self.free = 0;
    }

    fn encode(&self, image: &mut Image) {
        let mut words = [0; WORDS];
        words[..7].copy_from_slice(&[
            MAGIC | VERSION << VERSION_SHIFT,
            self.size.bytes() as u64,
            self.generation,
            self.end,
            self.room,
            self.free,
            u64::from(self.clean),
        ]);
        words[7..7 + ROOTS].copy_from_slice(&self.roots);
        words[7 + ROOTS..].copy_from_slice(&[self.written_up_to, self.lsn]);
        image.fill(0);
        for (to, word) in image[HEADER..].chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
    }

    fn decode(image: &Image) -> std::result::Result<Self, String> {
        let mut words = [0; WORDS];
        for (word, from) in words.iter_mut().zip(image[HEADER..].chunks_exact(8)) {
            *word = u64::from_le_bytes(*from.first_chunk().expect("8 bytes"));
        }
        let [magic, size, generation, end, room, free, clean, ..] = words;
        let roots = *words[7..].first_chunk().expect("it has roots");
        let [written_up_to, lsn] = *words[7 + ROOTS..].first_chunk().expect("two words");
        let version = magic >> VERSION_SHIFT;
        if magic & ((1 << VERSION_SHIFT) - 1) != MAGIC {
            return Err("it begins with something else".into());
        }
        let (written_up_to, lsn) = match version {
            VERSION => (written_up_to, lsn),
            OLD_VERSION => (FIRST, 0),
            _ => {
                return Err(format!(
                    "its format has version {version}, and this program reads versions {OLD_VERSION} and {VERSION}"
                ));
            }
        };
        let page_size = usize::try_from(size).ok().and_then(PageSize::of);
        let size = page_size.ok_or_else(|| format!("its pages are of {size} bytes"))?;
        if end < FIRST
            || room < end
            || !(FIRST..=end).contains(&written_up_to)
            || clean > 1
            || generation == u64::MAX
        {
            return Err("its first page makes no sense".into());
        }
        let outdated = version == OLD_VERSION;
        Ok(Self { generation, size, end, room, free, clean: clean == 1, roots, written_up_to, lsn, outdated })
    }

    /// Reads the newest record. Returns none if the storage is empty.
    pub fn load(storage: &dyn Storage) -> Result<Option<Self>> {
        let mut buffer = Buffer::new(BLOCK, EMPTY_BLOCKS);
        let copies = COPIES as usize;
        read(storage, 0, buffer.images_mut(0..copies))?;
        let is_empty = |image: &Image| image.iter().all(|byte| *byte == 0);
        if buffer.images(0..copies).iter().all(is_empty) {
            // Some file systems have their superblock behind these blocks, so the first blocks do not show that the storage is
            // empty.
            read(storage, COPIES, buffer.images_mut(copies..EMPTY_BLOCKS))?;
            return match buffer.images(copies..EMPTY_BLOCKS).iter().all(is_empty) {
                true => Ok(None),
                false => Err(Error::Format("something else is in its first MiB".into())),
            };
        }
        let mut newest: Option<Self> = None;
        let mut reason = String::new();
        for (index, image) in buffer.images(0..copies).iter().enumerate() {
            if is_empty(image) {
                continue;
            }
            let verified = page::verify(image, PageId(index as u64)).map_err(|damage| damage.to_string());
            match verified.and_then(|()| Self::decode(image)) {
                Ok(superblock) if newest.is_none_or(|other| other.generation < superblock.generation) => {
                    newest = Some(superblock)
                }
                Ok(_) => {}
                Err(why) => reason = why,
            }
        }
        newest.map(Some).ok_or(Error::Format(reason))
    }

    /// Writes the record as a newer one. It is durable after the next sync, which must succeed before another record is written.
    pub fn store(&mut self, storage: &dyn Storage) -> Result<()> {
        let newer = Self { generation: self.generation + 1, ..*self };
        let page = PageId(newer.generation % COPIES);
        let mut buffer = Buffer::new(BLOCK, 1);
        newer.encode(buffer.image_mut(0));
        page::seal(buffer.image_mut(0), page);
        let mut writes = [Write::of(page.0, buffer.all())];
        storage.write(&mut writes);
        let [write] = writes;
        write.result.map_err(|source| Error::Write { page, source })?;
        // After a failure, the same copy is written again: the other one is whole.
        self.generation = newer.generation;
        Ok(())
    }
}
