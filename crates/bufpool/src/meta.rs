//! The pool's own pages: what the storage is, where its pages end, and the user's roots.
//!
//! Pages 0 and 1 hold the same record in turn, so that one of them is whole whatever happens while the other is written;
//! the record with the higher generation counts. Up to [`FIRST`], pages belong to the double-write area
//! (`doublewrite`).
//!
//! `clean` says that everything in storage is of one moment, the last [`close`](crate::Pool::close). It is taken back,
//! durably, before the first page is written after it.

use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::page::{self, HEADER, Image, PAGE, PageId};
use crate::storage::{Storage, Write, read};

/// The first page that users are given.
pub const FIRST: u64 = 256;
/// How many roots there are.
pub const ROOTS: usize = 8;

const MAGIC: u64 = u64::from_le_bytes(*b"BEDPOOL\x01");
const COPIES: u64 = 2;

/// The record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Meta {
    pub generation: u64,
    /// Pages from here on were not allocated when this was written.
    pub end: u64,
    /// Nor were pages from here on ever since: there is no room for them.
    pub room: u64,
    /// The first page of the list of free pages, zero for none; valid when `clean`.
    pub free: u64,
    pub clean: bool,
    pub roots: [u64; ROOTS],
}

const WORDS: usize = 7 + ROOTS;

impl Meta {
    /// Of an empty pool.
    pub fn empty() -> Self {
        Self { end: FIRST, room: FIRST, clean: true, ..Self::default() }
    }

    /// What is in storage is not of one moment any more.
    pub fn open(&mut self) {
        self.clean = false;
        self.free = 0;
    }

    fn encode(&self, image: &mut Image) {
        let mut words = [0; WORDS];
        words[..7].copy_from_slice(&[
            MAGIC,
            PAGE as u64,
            self.generation,
            self.end,
            self.room,
            self.free,
            u64::from(self.clean),
        ]);
        words[7..].copy_from_slice(&self.roots);
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
        let [magic, size, generation, end, room, free, clean, roots @ ..] = words;
        if magic != MAGIC {
            return Err("it begins with something else".into());
        }
        if size != PAGE as u64 {
            return Err(format!("its pages are of {size} bytes"));
        }
        if end < FIRST || room < end || clean > 1 || generation == u64::MAX {
            return Err("its first page makes no sense".into());
        }
        Ok(Self { generation, end, room, free, clean: clean == 1, roots })
    }

    /// The newest record, or none if the storage is empty.
    pub fn load(storage: &dyn Storage) -> Result<Option<Self>> {
        let mut buffer = Buffer::new(FIRST as usize);
        let (record, rest) = buffer.split_at_mut(COPIES as usize);
        read(storage, 0, record)?;
        let is_empty = |images: &[Image]| images.iter().flatten().all(|byte| *byte == 0);
        if is_empty(record) {
            // Not everything begins at its beginning: the superblock of some file systems is behind these pages.
            read(storage, COPIES, rest)?;
            return match is_empty(rest) {
                true => Ok(None),
                false => Err(Error::Format("something else is in its first MiB".into())),
            };
        }
        let mut newest: Option<Self> = None;
        let mut reason = String::new();
        for (index, image) in record.iter().enumerate() {
            if image[..] == [0; PAGE] {
                continue;
            }
            let verified = page::verify(image, PageId(index as u64)).map_err(|damage| damage.to_string());
            match verified.and_then(|()| Self::decode(image)) {
                Ok(meta) if newest.is_none_or(|other| other.generation < meta.generation) => {
                    newest = Some(meta)
                }
                Ok(_) => {}
                Err(why) => reason = why,
            }
        }
        newest.map(Some).ok_or(Error::Format(reason))
    }

    /// Writes the record as a newer one. It is durable after the next sync, which has to come before another is written.
    pub fn store(&mut self, storage: &dyn Storage) -> Result<()> {
        let newer = Self { generation: self.generation + 1, ..*self };
        let page = PageId(newer.generation % COPIES);
        let mut buffer = Buffer::new(1);
        newer.encode(&mut buffer[0]);
        page::seal(&mut buffer[0], page);
        let mut writes = [Write::new(page.0, &buffer)];
        storage.write(&mut writes);
        let [write] = writes;
        write.result.map_err(|source| Error::Write { page, source })?;
        // After a failure, the same copy is written again: the other one is whole.
        self.generation = newer.generation;
        Ok(())
    }
}
