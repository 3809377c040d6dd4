//! The states of an entry of the buffer status table (paper 3.2), and which side may make which transition.
//!
//! | transition | by | how |
//! |---|---|---|
//! | empty → ready | service | store (Release), because the service wrote the entry's description before |
//! | ready → in-use | worker | compare-and-swap, because the service may reclaim the page concurrently. Acquire: the worker then reads the description. Release: a thread that sees this entry in use also sees the previous one no longer in use. |
//! | ready → empty | service | compare-and-swap, because the worker may take the page concurrently |
//! | in-use → done | worker | store (Release), because the worker's reads of the page must come before |
//! | done → empty | service | store, after the service has seen done with Acquire |
//!
//! Invariant (the safety condition of 4.1.2): the service changes a frame or an entry's description only while the entry is
//! empty. The worker reads them only while the entry is in use. The upper 62 bits count publications. The count prevents an ABA
//! error: between a worker's load and its swap, the service may reclaim the page and publish another one.

use super::words::{AtomicU64, Ordering};

/// The state of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum State {
    /// The entry holds nothing; the service may fill it.
    Empty = 0,
    /// The entry holds data that the worker may take.
    Ready = 1,
    /// The worker is reading the entry's data.
    InUse = 2,
    /// The worker has finished with the entry.
    Done = 3,
}

/// A state and the number of publications of the entry.
#[derive(Debug)]
#[repr(transparent)]
pub struct Word(AtomicU64);

const STATES: u64 = 3;
const PUBLICATION: u64 = 4;

impl Word {
    /// Creates the word of an empty entry that was never published.
    pub fn new() -> Self {
        Self(AtomicU64::new(State::Empty as u64))
    }

    /// The current state.
    pub fn state(&self) -> State {
        state(self.0.load(Ordering::Acquire))
    }

    /// The number of publications, and the current state.
    pub fn look(&self) -> (u64, State) {
        let word = self.0.load(Ordering::Acquire);
        (word / PUBLICATION, state(word))
    }

    /// Service side: empty → ready.
    pub fn publish(&self) {
        let word = self.0.load(Ordering::Relaxed);
        self.0.store((word & !STATES).wrapping_add(PUBLICATION) | State::Ready as u64, Ordering::Release);
    }

    /// Worker side: ready → in-use. Returns `false` if the entry was not ready or the service reclaimed it first.
    pub fn take(&self) -> bool {
        self.swap_ready(State::InUse)
    }

    /// Service side: ready → empty. Returns `false` if the entry was not ready or the worker took it first.
    pub fn reclaim(&self) -> bool {
        // Acquire: the service's later writes to the frame must not become visible before the swap.
        self.swap_ready(State::Empty)
    }

    fn swap_ready(&self, to: State) -> bool {
        let word = self.0.load(Ordering::Relaxed);
        state(word) == State::Ready
            && self
                .0
                .compare_exchange(word, word & !STATES | to as u64, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }

    /// Worker side: in-use → done.
    pub fn finish(&self) {
        self.set(State::Done);
    }

    /// Service side: done → empty. Returns `false` if the entry is not done.
    pub fn recycle(&self) -> bool {
        let done = self.state() == State::Done;
        if done {
            self.set(State::Empty);
        }
        done
    }

    fn set(&self, to: State) {
        let word = self.0.load(Ordering::Relaxed);
        self.0.store(word & !STATES | to as u64, Ordering::Release);
    }
}

fn state(word: u64) -> State {
    match word & STATES {
        0 => State::Empty,
        1 => State::Ready,
        2 => State::InUse,
        _ => State::Done,
    }
}
