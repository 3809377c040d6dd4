//! Whether a worker keeps to the rules of its board, which another process may write anything to.
//!
//! The service knows how often it published every entry, and which entries it has given away. The worker can only have
//! moved those from ready to in-use to done; it has one in use at a time; and all others are empty. Whatever else is seen
//! was written by something that is no worker. Without this, a worker that says that it uses everything it was given would keep all
//! of that from the others of its pool.

use super::{Board, State};

/// What the service knows of a board's entries.
#[derive(Debug)]
pub struct Audit(Vec<Known>);

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    published: u64,
    given: bool,
}

impl Audit {
    /// Of a board whose entries are all empty.
    pub fn new(slots: usize) -> Self {
        Self(vec![Known::default(); slots])
    }

    /// The service is about to publish an entry.
    pub fn give(&mut self, slot: usize) {
        let known = &mut self.0[slot];
        known.published = known.published.wrapping_add(1);
        known.given = true;
    }

    /// The service has taken an entry back.
    pub fn take_back(&mut self, slot: usize) {
        self.0[slot].given = false;
    }

    /// Whether everything is as a worker may have it.
    pub fn is_kept(&self, board: &Board) -> bool {
        let mut in_use = None;
        for (entry, known) in board.entries().iter().zip(&self.0) {
            let (published, state) = entry.word.look();
            if published != known.published || known.given == (state == State::Empty) {
                return false;
            }
            if state != State::InUse {
                continue;
            }
            // The first may have been returned since it was looked at; if not, there were two at one moment.
            if in_use.replace(entry).is_some_and(|first| first.word.state() == State::InUse) {
                return false;
            }
        }
        true
    }
}
