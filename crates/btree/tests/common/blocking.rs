//! Storage that answers for some pages only when a test allows it, and that counts its read calls.
#![allow(dead_code, reason = "each test uses some of it")]

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use bedplate_bufpool::storage::{File, Read, Storage, Write};

/// On a slow machine, everything takes longer than expected, so a test fails only after this time.
pub const LIMIT: Duration = Duration::from_secs(30);

/// A file. A read of a shut page waits until the page is opened. Clones are the same file.
#[derive(Clone)]
pub struct Blocking {
    file: Arc<File>,
    state: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Default)]
struct State {
    shut: BTreeSet<u64>,
    /// Pages that a read waits for.
    waiting: BTreeSet<u64>,
    /// Calls of [`Storage::read`].
    calls: u64,
    finished: bool,
}

impl Blocking {
    pub fn new(path: &Path) -> Self {
        Self { file: Arc::new(File::open(path, true).unwrap()), state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.0.lock().unwrap()
    }

    /// Makes reads of these pages wait from now on.
    pub fn shut(&self, pages: impl IntoIterator<Item = u64>) {
        self.state().shut.extend(pages);
    }

    /// Lets reads of this page continue.
    pub fn open(&self, page: u64) {
        let mut state = self.state();
        state.shut.remove(&page);
        state.waiting.remove(&page);
        self.state.1.notify_all();
    }

    /// Lets reads of all pages continue.
    pub fn open_all(&self) {
        let mut state = self.state();
        state.shut.clear();
        state.waiting.clear();
        self.state.1.notify_all();
    }

    /// Records that the reading thread has ended, so that no thread waits any more.
    pub fn finish(&self) {
        self.state().finished = true;
        self.state.1.notify_all();
    }

    /// Waits for a page that a read waits for. Returns none if [`Blocking::finish`] has been called.
    pub fn waiting(&self) -> Option<u64> {
        let idle = |state: &mut State| state.waiting.is_empty() && !state.finished;
        let (state, time) = self.state.1.wait_timeout_while(self.state(), LIMIT, idle).unwrap();
        assert!(!time.timed_out(), "nobody reads");
        state.waiting.first().copied()
    }

    /// Number of read calls.
    pub fn calls(&self) -> u64 {
        self.state().calls
    }
}

impl Storage for Blocking {
    fn read(&self, reads: &mut [Read<'_>]) {
        let mut state = self.state();
        state.calls += 1;
        for read in &*reads {
            let page = read.page();
            while state.shut.contains(&page) {
                state.waiting.insert(page);
                self.state.1.notify_all();
                state = self.state.1.wait(state).unwrap();
            }
        }
        drop(state);
        self.file.read(reads);
    }

    fn write(&self, writes: &mut [Write<'_>]) {
        self.file.write(writes);
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    fn grow(&self, pages: Range<u64>) -> io::Result<()> {
        self.file.grow(pages)
    }
}
