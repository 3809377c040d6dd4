//! Whether a worker keeps to the rules of its board, which another process may write anything to.
//!
//! The service knows how often it published every entry, and which entries it has given away. The worker can only have
//! moved those from ready to in-use to done; it has no more in use at a time than pages may be out; and all others are empty. Whatever else is seen
//! was written by something that is no worker. Without this, a worker that says that it uses everything it was given would keep all
//! of that from the others of its pool.

use super::{Board, State};

/// What the service knows of a board's entries.
#[derive(Debug)]
pub struct Audit {
    known: Vec<Known>,
    /// Entries that may be in use at a time.
    most: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    published: u64,
    given: bool,
}

impl Audit {
    /// Of a board whose entries are all empty, of which so many may be in use at a time.
    pub fn new(slots: usize, most: usize) -> Self {
        Self { known: vec![Known::default(); slots], most }
    }

    /// The service is about to publish an entry.
    pub fn give(&mut self, slot: usize) {
        let known = &mut self.known[slot];
        known.published = known.published.wrapping_add(1);
        known.given = true;
    }

    /// The service has taken an entry back.
    pub fn take_back(&mut self, slot: usize) {
        self.known[slot].given = false;
    }

    /// Whether everything is as a worker may have it.
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
            // Some may have been returned since they were looked at. Those that were not were in use at one moment.
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
