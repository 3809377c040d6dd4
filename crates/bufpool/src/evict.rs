//! Making room: a clock over the slots with another chance for pages that were used since its hand passed, and more of them
//! for those that were used again and again (`credit`).
//!
//! Whoever needs room evicts, a batch at a time. What is clean leaves first; what is dirty is written, without being
//! locked for it, and leaves unless it was used meanwhile.

use std::time::Duration;

use crate::credit::ROUNDS;
use crate::engine::Victim;
use crate::error::{Error, Result};
use crate::page::PageId;
use crate::pool::Pool;
use crate::protocol::slots::Slot;
use crate::protocol::sweep::{self, Found};
use crate::wait::Backoff;

/// So many slots are passed at most by who would rather do without room than wait.
const PART: usize = 1 << 14;

/// How long all pages may be pinned before that is an error.
const PATIENCE: Duration = Duration::from_secs(2);

impl Pool {
    /// A slot for a page that the caller brings in.
    pub(crate) fn take_slot(&self) -> Result<Slot> {
        let mut backoff = Backoff::default();
        loop {
            if let Some(slot) = self.engine.take(&self.slots) {
                return Ok(slot);
            }
            if self.evict()? > 0 {
                continue;
            }
            // What is being read ahead is nobody's: it can be evicted when it is there.
            if backoff.elapsed() > PATIENCE && self.prefetched.in_flight() == 0 {
                return Err(Error::Pinned { frames: self.slots.count() });
            }
            self.pause(&mut backoff);
        }
    }

    /// Evicts what can go without being written, a batch at most. Of a large memory, the clock's hand passes over a part.
    pub(crate) fn evict_clean(&self) {
        let mut victims = Vec::new();
        for _ in 0..(ROUNDS * self.slots.count()).min(PART) {
            let slot = self.slots.advance();
            self.consider(slot, &mut victims, &mut Vec::new());
            if victims.len() >= self.batch {
                break;
            }
        }
        // What the kernel does not take back stays where it is.
        let _ = self.release(&mut victims);
    }

    /// Evicts a batch, and returns how many pages that were. It is an error only if there were none.
    fn evict(&self) -> Result<usize> {
        let mut victims = Vec::with_capacity(self.batch);
        let mut dirty = Vec::new();
        // The first times around, everything may have been used.
        for _ in 0..ROUNDS * self.slots.count() {
            let slot = self.slots.advance();
            self.consider(slot, &mut victims, &mut dirty);
            if victims.len() + dirty.len() >= self.batch {
                break;
            }
        }
        let mut evicted = self.release(&mut victims)?;
        if !dirty.is_empty() {
            // What somebody holds stays in this list; what was written leaves it, and is clean now.
            let written = self.write_back(&mut dirty.clone());
            for slot in dirty {
                self.consider(slot, &mut victims, &mut Vec::new());
            }
            evicted += self.release(&mut victims)?;
            if evicted == 0 {
                written?;
            }
        }
        Ok(evicted)
    }

    fn consider(&self, slot: Slot, victims: &mut Vec<Victim>, dirty: &mut Vec<Slot>) {
        let word = |page| self.engine.word_of(slot, PageId(page));
        match sweep::consider(&self.slots, slot, word, || self.credit.spend(slot)) {
            Found::Nothing => {}
            Found::Cooled => self.credit.earn(slot),
            Found::Dirty => dirty.push(slot),
            Found::Victim(page) => victims.push(Victim { slot, page: PageId(page) }),
        }
    }

    /// Gives the memory of victims back, and their slots.
    fn release(&self, victims: &mut Vec<Victim>) -> Result<usize> {
        if victims.is_empty() {
            return Ok(0);
        }
        let (result, calls) = self.engine.release(victims);
        let released = match &result {
            Ok(()) => victims.len(),
            Err((released, _)) => *released,
        };
        for victim in &victims[released..] {
            sweep::spare(self.engine.word_of(victim.slot, victim.page));
        }
        victims.truncate(released);
        for victim in victims.iter() {
            let word = self.engine.word_of(victim.slot, victim.page);
            sweep::release(&self.slots, victim.slot, word, self.layout);
        }
        self.engine.give(&self.slots, victims.drain(..).map(|victim| victim.slot));
        self.counters.evicted.add(released as u64);
        self.counters.release_calls.add(calls);
        match result {
            Err((0, source)) => Err(Error::Storage { what: "give memory back to the kernel", source }),
            _ => Ok(released),
        }
    }
}
