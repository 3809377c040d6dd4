//! Checks whether a worker keeps the rules of its board. Another process has the board mapped and can write anything to it.
//!
//! The service knows the number of publications of every entry, and which entries it has given to the worker. A correct worker
//! only moves given entries from ready to in-use to done. It has at most as many entries in use as it may hold pages. All entries
//! that the service has not given are empty. Any other state comes from a process that breaks the rules. Without this check, a
//! worker could claim to use every page that it was given. It would thereby keep these frames from the other workers of its pool.

use super::{Board, State};

/// The service's own record of a board's entries.
#[derive(Debug)]
pub struct Audit {
    known: Vec<Known>,
    /// Maximum number of entries in use at the same time.
    most: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    published: u64,
    given: bool,
}

impl Audit {
    /// Creates the record of a board whose entries are all empty. At most `most` of them may be in use at the same time.
    pub fn new(slots: usize, most: usize) -> Self {
        Self { known: vec![Known::default(); slots], most }
    }

    /// The service must call this before it publishes an entry.
    pub fn give(&mut self, slot: usize) {
        let known = &mut self.known[slot];
        known.published = known.published.wrapping_add(1);
        known.given = true;
    }

    /// The service must call this when it has made an entry empty again.
    pub fn take_back(&mut self, slot: usize) {
        self.known[slot].given = false;
    }

    /// Returns whether all entries are in states that a correct worker can have caused.
    pub fn is_kept(&self, board: &Board) -> bool {
        let mut in_use = Vec::new();
        for (entry, known) in board.entries().iter().zip(&self.known) {
            let (published, state) = entry.word.look();
            if published != known.published || known.given == (state == State::Empty) {
                return false;
            }
            if state != State::InUse {
                continue;
            }
            in_use.push(entry);
            // The worker may have returned some of these entries since the first look. Those still in use now were all in use at
            // one moment.
            if in_use.len() > self.most {
                in_use.retain(|entry| entry.word.state() == State::InUse);
            }
            if in_use.len() > self.most {
                return false;
            }
        }
        true
    }
}
