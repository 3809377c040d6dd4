//! Storage that answers only on command.
#![allow(dead_code, reason = "every test uses some of it")]

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use bedplate_bufpool::PageId;
use bedplate_bufpool::storage::{Read, Storage, Write};

use super::faulty::Faulty;

/// A disk that answers for some pages only on command. It reads one page after the other.
#[derive(Clone)]
pub struct Slow {
    disk: Faulty,
    shut: Arc<(Mutex<BTreeSet<u64>>, Condvar)>,
    asked: Arc<AtomicUsize>,
}

impl Slow {
    pub fn new() -> Self {
        Self { disk: Faulty::new(1), shut: Arc::default(), asked: Arc::default() }
    }

    /// Returns when the disk has been asked for a page for which it does not answer.
    pub fn wait_until_asked(&self) {
        while self.asked.load(Ordering::Relaxed) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn shut(&self, pages: &[PageId]) {
        self.shut.0.lock().unwrap().extend(pages.iter().map(|page| page.0));
    }

    pub fn open(&self, pages: &[PageId]) {
        self.shut.0.lock().unwrap().retain(|page| !pages.contains(&PageId(*page)));
        self.shut.1.notify_all();
    }
}

impl Storage for Slow {
    fn read(&self, reads: &mut [Read<'_>]) {
        for read in reads {
            let shut = self.shut.0.lock().unwrap();
            self.asked.fetch_add(usize::from(shut.contains(&read.page())), Ordering::Relaxed);
            drop(self.shut.1.wait_while(shut, |shut| shut.contains(&read.page())).unwrap());
            self.disk.read(std::slice::from_mut(read));
        }
    }

    fn read_each(&self, reads: &mut [Read<'_>], done: &mut dyn FnMut(usize, io::Result<()>)) {
        for (index, read) in reads.iter_mut().enumerate() {
            self.read(std::slice::from_mut(read));
            done(index, std::mem::replace(&mut read.result, Ok(())));
        }
    }

    fn write(&self, writes: &mut [Write<'_>]) {
        self.disk.write(writes);
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.sync()
    }

    fn grow(&self, pages: Range<u64>) -> io::Result<()> {
        self.disk.grow(pages)
    }
}
