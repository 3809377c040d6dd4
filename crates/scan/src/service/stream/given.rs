//! The chunks that a stream has given to its worker, and whether their files are unchanged.
//!
//! A page that is known to be old is never left to the worker. It is read again, or becomes an error after too many reads.

use std::sync::atomic::Ordering::Relaxed;

use super::{Slot, Stream, Turn};
use crate::error;
use crate::plan::Chunk;
use crate::service::loads::{Loaded, Order, Outcome};
use crate::service::publish::publish;
use crate::service::{AGE, TRIES};
use crate::source::Stamp;

impl Stream {
    /// Whether a load shows that one of its files has changed since other chunks of the file were loaded.
    pub fn is_news(&self, loaded: &Loaded) -> bool {
        let now =
            |file| loaded.outcome.stamps.iter().find(|(other, _)| *other == file).map(|(_, stamp)| *stamp);
        self.slots.iter().any(|slot| match slot {
            Slot::Given { outcome, .. } => !outcome.changed(now).is_empty(),
            _ => false,
        })
    }

    /// Gives a chunk to the worker, in the frame that it was loaded into.
    pub(super) fn give(&mut self, slot: usize, turn: Turn, chunk: Chunk, outcome: Outcome) {
        let (faults, reading) = (outcome.faults.as_deref(), outcome.reading.as_deref());
        publish(&self.board, &mut self.audit, slot, slot, &chunk, faults, reading);
        self.slots[slot] = Slot::Given { turn, chunk, outcome };
    }

    /// Takes back unread pages of changed files, to read them again. This happens every second, and whenever a load found a new
    /// stamp. A page that was taken back too often becomes an error.
    pub fn check_age(&mut self, now: u64, force: bool, orders: &mut Vec<Order>) {
        if self.closing || !force && now < self.aged_at + AGE {
            return;
        }
        self.aged_at = now;
        let mut seen: Vec<(u32, Option<Stamp>)> = Vec::new();
        let given = self.slots.iter().enumerate().filter_map(|(slot, content)| match content {
            // No worker will see the cancelled bytes.
            Slot::Given { turn, .. } if !turn.wanted.is_empty() => Some((turn.number, slot)),
            _ => None,
        });
        let mut given: Vec<(u64, usize)> = given.collect();
        given.sort_unstable();
        for (number, slot) in given {
            let Slot::Given { outcome, .. } = &self.slots[slot] else { continue };
            let changed = outcome.changed(|file| match seen.iter().find(|(known, _)| *known == file) {
                Some((_, now)) => *now,
                None => {
                    let now = self.files.stamp(file);
                    seen.push((file, now));
                    now
                }
            });
            if changed.is_empty() || !self.board.entries()[slot].word.reclaim() {
                continue;
            }
            self.audit.take_back(slot);
            self.board.service().reclaimed.fetch_add(1, Relaxed);
            let Slot::Given { mut turn, chunk, mut outcome } =
                std::mem::replace(&mut self.slots[slot], Slot::Free)
            else {
                unreachable!("it was given")
            };
            if turn.tries < TRIES {
                turn.tries += 1;
                self.slots[slot] = Slot::Loading(turn);
                self.order(slot, number, chunk, orders);
            } else {
                changed.iter().for_each(|file| outcome.lose(&chunk, *file, error::CHANGING));
                self.give(slot, turn, chunk, outcome);
            }
        }
    }
}
