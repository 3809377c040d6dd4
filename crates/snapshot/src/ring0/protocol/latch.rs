//! The read-write latch (section 4.1). Page faults hold it for reading; a change of the set of snapshots holds it
//! for writing.
//!
//! It is a spin lock, because handlers take it. A waiting thread calls `relax`, which must serve the requests of
//! other processors. A waiting writer keeps new readers out, so a snapshot does not wait for a busy database.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use bedplate_ring0::word::{Atomic, Atomics};

const WRITER: u32 = 1 << 31;
const MINUS_ONE: u32 = u32::MAX;

/// The latch. See the module.
#[derive(Debug)]
pub struct Latch<A: Atomics> {
    /// The number of readers, and a bit for a writer that holds the latch or waits for it.
    word: A::U32,
}

impl<A: Atomics> Latch<A> {
    pub fn new() -> Self {
        Self { word: A::U32::new(0) }
    }

    /// Acquires the latch for reading.
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

    /// Acquires the latch for writing.
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

/// The latch held for reading. Dropping it releases the latch.
#[must_use]
pub struct Reading<'a, A: Atomics>(&'a Latch<A>);

impl<A: Atomics> Drop for Reading<'_, A> {
    #[inline]
    fn drop(&mut self) {
        self.0.word.fetch_add(MINUS_ONE, Release);
    }
}

/// The latch held for writing. Dropping it releases the latch.
#[must_use]
pub struct Writing<'a, A: Atomics>(&'a Latch<A>);

impl<A: Atomics> Drop for Writing<'_, A> {
    fn drop(&mut self) {
        self.0.word.fetch_and(!WRITER, Release);
    }
}
