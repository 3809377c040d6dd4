//! A store's files, which stay unchanged while recovery runs on them.
//!
//! Reads come from the files. Written pages go to a nameless file in the directory for temporary files, and later reads of them
//! come from there. Bytes that are appended to the log are dropped, because no code reads them again.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bedplate_bufpool::PAGE;
use bedplate_bufpool::storage::{File, Read, Storage, Write};

use super::disk::{Directory, Disk, Segment};

/// The pages of a store, and written pages that hide them.
pub(crate) struct Overlay {
    base: File,
    above: Mutex<Above>,
}

#[derive(Default)]
struct Above {
    /// Created when the first page is written.
    file: Option<std::fs::File>,
    /// The position of each block in the file.
    places: HashMap<u64, u64>,
}

impl Overlay {
    pub fn new(base: File) -> Self {
        Self { base, above: Mutex::default() }
    }

    fn above(&self) -> MutexGuard<'_, Above> {
        self.above.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A file that disappears when it is closed.
fn nameless() -> io::Result<std::fs::File> {
    for attempt in 0.. {
        let name = format!("bedplate-verify-{}-{attempt}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // Other users must not read the pages of the store.
        match OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            file => {
                let file = file?;
                std::fs::remove_file(&path)?;
                return Ok(file);
            }
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

impl Above {
    fn read(&self, block: u64) -> Option<io::Result<[u8; PAGE]>> {
        let (file, place) = (self.file.as_ref()?, self.places.get(&block)?);
        let mut image = [0; PAGE];
        Some(file.read_exact_at(&mut image, place * PAGE as u64).map(|()| image))
    }

    fn write(&mut self, block: u64, content: &[u8]) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(nameless()?),
        };
        let next = self.places.len() as u64;
        let place = *self.places.entry(block).or_insert(next);
        file.write_all_at(content, place * PAGE as u64)
    }
}

impl Storage for Overlay {
    fn read(&self, reads: &mut [Read<'_>]) {
        let above = self.above();
        let is_above = |read: &Read<'_>| above.places.contains_key(&read.block());
        for run in reads.chunk_by_mut(|one, next| is_above(one) == is_above(next)) {
            if !run.first().is_some_and(is_above) {
                self.base.read(run);
                continue;
            }
            for read in run {
                // A page is written whole, so all of its blocks are in the file.
                for part in 0..read.size().bytes() / PAGE {
                    match above.read(read.block() + part as u64) {
                        Some(Ok(content)) => read.fill_part(part * PAGE, &content),
                        Some(Err(error)) => read.result = Err(error),
                        None => {}
                    }
                }
            }
        }
    }

    fn write(&self, writes: &mut [Write<'_>]) {
        let mut above = self.above();
        for write in writes {
            let mut blocks = (write.block()..).zip(write.bytes().chunks(PAGE));
            write.result = blocks.try_for_each(|(block, content)| above.write(block, content));
        }
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn grow(&self, _: Range<u64>) -> io::Result<()> {
        Ok(())
    }

    fn limit(&self) -> io::Result<Option<u64>> {
        self.base.limit()
    }

    fn written_end(&self, blocks: Range<u64>) -> u64 {
        self.base.written_end(blocks)
    }
}

/// The log of a store, or none for an empty one.
pub(crate) struct ReadOnly(pub Option<Directory>);

impl Disk for ReadOnly {
    fn list(&self) -> io::Result<Vec<u64>> {
        self.0.as_ref().map_or(Ok(Vec::new()), Directory::list)
    }

    fn read(&self, number: u64) -> io::Result<Vec<u8>> {
        self.0.as_ref().ok_or(io::ErrorKind::NotFound)?.read(number)
    }

    fn create(&self, _: u64, _: &[u8], _: u64) -> io::Result<Box<dyn Segment>> {
        Ok(Box::new(Dropped))
    }

    fn reopen(&self, _: u64, _: &[u8]) -> io::Result<Box<dyn Segment>> {
        Ok(Box::new(Dropped))
    }

    fn remove(&self, _: u64) -> io::Result<()> {
        Ok(())
    }
}

/// A segment that drops its bytes.
struct Dropped;

impl Segment for Dropped {
    fn reserve(&mut self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn trim(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn append(&mut self, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}
