//! Storage whose writes do not end until a test lets them.
#![allow(dead_code, reason = "every test uses some of it")]

use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use bedplate_bufpool::storage::{Read, Storage, Write};

use super::faulty::Faulty;

/// Time within which an expected event must happen.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A disk in memory; clones are the same disk. Reads are never blocked.
#[derive(Clone)]
pub struct Blocking {
    pub disk: Faulty,
    state: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Default)]
struct State {
    blocked: bool,
    /// Calls of `write` that wait.
    waiting: usize,
    /// Calls of `write` that began.
    begun: usize,
}

impl Blocking {
    pub fn new() -> Self {
        Self { disk: Faulty::new(1), state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.0.lock().unwrap()
    }

    /// Makes writes wait from now on.
    pub fn block_writes(&self) {
        self.state().blocked = true;
    }

    /// Lets writes continue.
    pub fn unblock_writes(&self) {
        self.state().blocked = false;
        self.state.1.notify_all();
    }

    /// Calls of `write` that have begun so far.
    pub fn begun(&self) -> usize {
        self.state().begun
    }

    /// Returns when a write waits.
    pub fn wait_until_a_write_waits(&self) {
        let state = self.state();
        let (state, _) = self.state.1.wait_timeout_while(state, LIMIT, |state| state.waiting == 0).unwrap();
        assert!(state.waiting > 0, "no write began in {LIMIT:?}");
    }
}

impl Storage for Blocking {
    fn read(&self, reads: &mut [Read<'_>]) {
        self.disk.read(reads);
    }

    fn write(&self, writes: &mut [Write<'_>]) {
        let mut state = self.state();
        state.begun += 1;
        state.waiting += 1;
        self.state.1.notify_all();
        state = self.state.1.wait_while(state, |state| state.blocked).unwrap();
        state.waiting -= 1;
        drop(state);
        self.disk.write(writes);
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.sync()
    }

    fn grow(&self, pages: Range<u64>) -> io::Result<()> {
        self.disk.grow(pages)
    }
}
