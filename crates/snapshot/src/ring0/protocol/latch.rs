//! The read-write latch (4.1): many page faults, or one change of the set of snapshots.
//!
//! It spins, because it is taken in handlers; whoever waits calls `relax`, which answers what other processors wait
//! for. A writer that waits keeps new readers out, so that a snapshot does not wait for a busy database.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use bedplate_ring0::word::{Atomic, Atomics};

const WRITER: u32 = 1 << 31;
const MINUS_ONE: u32 = u32::MAX;

/// See the module.
#[derive(Debug)]
pub struct Latch<A: Atomics> {
    /// How many readers there are, and whether a writer is there or waits.
    word: A::U32,
}

impl<A: Atomics> Latch<A> {
    pub fn new() -> Self {
        Self { word: A::U32::new(0) }
    }

    /// Shares it with other readers.
    #[inline]
    pub fn read(&self, relax: impl Fn()) -> Reading<'_, A> {
        while self.word.fetch_add(1, Acquire) & WRITER != 0 {
            self.word.fetch_add(MINUS_ONE, Relaxed);
            while self.word.load(Relaxed) & WRITER != 0 {
                relax();
            }
        }
        Reading(self)
    }

    /// Has it alone.
    pub fn write(&self, relax: impl Fn()) -> Writing<'_, A> {
        while self.word.fetch_or(WRITER, Acquire) & WRITER != 0 {
            relax();
        }
        while self.word.load(Acquire) & !WRITER != 0 {
            relax();
        }
        Writing(self)
    }
}

/// A reader, until it is dropped.
#[must_use]
pub struct Reading<'a, A: Atomics>(&'a Latch<A>);

impl<A: Atomics> Drop for Reading<'_, A> {
    #[inline]
    fn drop(&mut self) {
        self.0.word.fetch_add(MINUS_ONE, Release);
    }
}

/// The writer, until it is dropped.
#[must_use]
pub struct Writing<'a, A: Atomics>(&'a Latch<A>);

impl<A: Atomics> Drop for Writing<'_, A> {
    fn drop(&mut self) {
        self.0.word.fetch_and(!WRITER, Release);
    }
}
