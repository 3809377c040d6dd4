//! A worker of the pool's model.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::Cells;
use super::board::{Board, Content};
use crate::memory::FRAME;

/// A worker: the chunks that it has had, and its position.
pub struct Worker {
    pub board: Arc<Board>,
    pub cells: Cells,
    pub cursor: usize,
    pub had: BTreeSet<usize>,
    pub failed: BTreeSet<usize>,
}

/// A page that a worker holds.
pub struct Held {
    slot: usize,
    chunk: usize,
    frame: usize,
}

impl Held {
    pub fn slot(&self) -> usize {
        self.slot
    }

    pub fn chunk(&self) -> usize {
        self.chunk
    }
}

impl Worker {
    /// Takes the next chunk, if there is one. Counts errors.
    pub fn get(&mut self) -> Option<Held> {
        let entries = self.board.entries();
        let count = entries.len();
        let mut slots = (0..count).map(|step| (self.cursor + step) % count);
        let Some(slot) = slots.find(|slot| entries[*slot].word.take()) else {
            self.board.worker().starved.fetch_add(1, Relaxed);
            return None;
        };
        self.cursor = (slot + 1) % count;
        let Content { frame, segments, faulty, .. } = entries[slot].content();
        assert_eq!(segments, 1);
        let segment = self.board.segments(slot)[0].get();
        let chunk = (segment.offset / FRAME as u64) as usize;
        if faulty && self.board.faults(slot)[0].get().is_some() {
            entries[slot].word.finish();
            assert!(self.failed.insert(chunk) && !self.had.contains(&chunk), "{chunk} is told twice");
            return None;
        }
        Some(Held { slot, chunk, frame: frame as usize })
    }

    /// Reads a page.
    pub fn read(&mut self, page: &Held) {
        // SAFETY: loom checks that no thread writes to it.
        let chunk = self.cells[page.frame].with(|cell| unsafe { *cell });
        assert_eq!(chunk, page.chunk, "a frame has what it should not");
    }

    /// Reads the page once more, and returns it.
    pub fn put(&mut self, page: Held) {
        self.read(&page);
        assert!(self.had.insert(page.chunk), "chunk {} came twice", page.chunk);
        self.board.entries()[page.slot].word.finish();
    }

    /// Takes chunks one after the other, at most `most`.
    pub fn ingest(&mut self, most: usize) {
        for _ in 0..most {
            let Some(page) = self.get() else { return };
            self.read(&page);
            self.put(page);
        }
    }
}
