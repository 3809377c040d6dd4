//! Parts that tests of the control loop share: an engine that reads nothing, and files that change.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::files::Files;
use super::loads::{Loaded, Order, Outcome};
use crate::engine::{Completion, Engine, Kind, Read};
use crate::extents::Extents;
use crate::memory::Buffer;
use crate::source::{File, Source};
use crate::{Error, Result};

/// The state of the engine.
#[derive(Debug, Default)]
pub struct Known {
    pub files: BTreeSet<usize>,
    pub memories: BTreeSet<usize>,
    /// The reads that were submitted.
    pub reads: Vec<Read>,
    next: usize,
    /// Number of steps that succeed before one fails.
    pub fails_after: Option<usize>,
}

impl Known {
    fn step(&mut self) -> Result<usize> {
        if self.fails_after == Some(0) {
            return Err(Error::Invalid("the engine fails, as this test wants".into()));
        }
        self.fails_after = self.fails_after.map(|after| after - 1);
        self.next += 1;
        Ok(self.next)
    }
}

/// An engine that reads nothing.
#[derive(Clone, Default)]
pub struct Fake(pub Rc<RefCell<Known>>);

impl Engine for Fake {
    fn kind(&self) -> Kind {
        Kind::Threads
    }

    fn about(&self) -> String {
        String::new()
    }

    fn add_file(&mut self, _: Arc<OwnedFd>) -> Result<usize> {
        let mut known = self.0.borrow_mut();
        let file = known.step()?;
        known.files.insert(file);
        Ok(file)
    }

    fn remove_file(&mut self, file: usize) {
        assert!(self.0.borrow_mut().files.remove(&file), "it was not known");
    }

    fn add_memory(&mut self, _: Buffer) -> Result<usize> {
        let mut known = self.0.borrow_mut();
        let memory = known.step()?;
        known.memories.insert(memory);
        Ok(memory)
    }

    fn remove_memory(&mut self, memory: usize) {
        assert!(self.0.borrow_mut().memories.remove(&memory), "it was not known");
    }

    fn submit(&mut self, read: Read) {
        self.0.borrow_mut().reads.push(read);
    }

    fn wait(&mut self, _: Option<Duration>, _: &mut Vec<Completion>) {}
}

/// Files of a folder that is removed with this object.
pub struct Folder {
    folder: tempfile::TempDir,
    writes: u8,
}

impl Folder {
    /// Creates files of these sizes.
    pub fn new(sizes: &[usize]) -> Self {
        let folder = Self { folder: tempfile::tempdir().unwrap(), writes: 0 };
        for (file, size) in sizes.iter().enumerate() {
            fs::write(folder.path(file), vec![0; *size]).unwrap();
        }
        folder
    }

    /// Makes a file of this number of bytes, none of which has been written.
    pub fn sparse(bytes: u64) -> Self {
        let folder = Self::new(&[0]);
        fs::OpenOptions::new().write(true).open(folder.path(0)).unwrap().set_len(bytes).unwrap();
        folder
    }

    fn path(&self, file: usize) -> PathBuf {
        self.folder.path().join(file.to_string())
    }

    /// Opens this number of files.
    pub fn open(&self, count: usize) -> Vec<File> {
        (0..count).map(|file| File::open(&Source::from(&self.path(file))).unwrap()).collect()
    }

    /// Opens this number of files for a stream or a pool.
    pub fn files(&self, count: usize) -> Rc<Files> {
        let files = self.open(count);
        let extents = Extents::of_all(&files);
        Rc::new(Files::add(&mut Fake::default(), files, extents, true).unwrap())
    }

    /// Changes a file.
    pub fn change(&mut self, file: usize) {
        self.writes = self.writes.wrapping_add(1);
        let file = fs::OpenOptions::new().write(true).open(self.path(file)).unwrap();
        file.write_all_at(&[self.writes], 0).unwrap();
        // Before Linux 6.13, two changes within a tick have equal stamps.
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The result of a load if its files did not change during the read.
pub fn load(order: Order) -> Loaded {
    let mut outcome = Outcome::default();
    for part in &order.chunk.parts {
        let file = part.segment.file;
        if !outcome.stamps.iter().any(|(known, _)| *known == file) {
            outcome.stamps.extend(order.files.stamp(file).map(|stamp| (file, stamp)));
        }
    }
    Loaded { order, outcome, took_ns: 1, bytes_read: 1, again: 0 }
}
