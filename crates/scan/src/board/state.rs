//! The life of an entry of the buffer status table (paper 3.2), and who may take which step.
//!
//! | step | by | how |
//! |---|---|---|
//! | empty → ready | service | store (Release): what the entry describes was written before |
//! | ready → in-use | worker | compare-and-swap (Acquire): the service may take the page back meanwhile; Release: who sees the entry in use sees that the one before is not |
//! | ready → empty | service | compare-and-swap: the worker may use the page meanwhile |
//! | in-use → done | worker | store (Release): the worker's reads of the page are over |
//! | done → empty | service | store (the service saw done with Acquire) |
//!
//! Invariant (the safety condition of 4.1.2): the service changes a frame, or what an entry says, only while the entry is
//! empty; the worker looks at them only while it is in-use. The upper 62 bits count publications, so that a worker
//! cannot take a page for one that was taken back and published anew between its look and its swap.

use super::words::{AtomicU64, Ordering};

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum State {
    /// Nothing is in it; the service may fill it.
    Empty = 0,
    /// It has data that the worker may take.
    Ready = 1,
    /// The worker reads its data.
    InUse = 2,
    /// The worker is through with it.
    Done = 3,
}

/// A state and the number of its publication.
#[derive(Debug)]
#[repr(transparent)]
pub struct Word(AtomicU64);

const STATES: u64 = 3;
const PUBLICATION: u64 = 4;

impl Word {
    /// An empty entry.
    pub fn new() -> Self {
        Self(AtomicU64::new(State::Empty as u64))
    }

    /// The state now.
    pub fn state(&self) -> State {
        state(self.0.load(Ordering::Acquire))
    }

    /// How often it was published, and the state now.
    pub fn look(&self) -> (u64, State) {
        let word = self.0.load(Ordering::Acquire);
        (word / PUBLICATION, state(word))
    }

    /// Service, empty → ready.
    pub fn publish(&self) {
        let word = self.0.load(Ordering::Relaxed);
        self.0.store((word & !STATES).wrapping_add(PUBLICATION) | State::Ready as u64, Ordering::Release);
    }

    /// Worker, ready → in-use. `false`: it was not ready, or the service was faster.
    pub fn take(&self) -> bool {
        self.swap_ready(State::InUse)
    }

    /// Service, ready → empty. `false`: it was not ready, or the worker was faster.
    pub fn reclaim(&self) -> bool {
        // What the service writes to the frame from now on must not seem to happen before the swap.
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

    /// Worker, in-use → done.
    pub fn finish(&self) {
        self.set(State::Done);
    }

    /// Service, done → empty. `false`: it is not done.
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
