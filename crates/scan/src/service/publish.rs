//! How a worker gets a frame, in a private channel and in a pool alike.

use super::board::{Audit, Board, Content, Faults};
use super::wake;
use crate::plan::Chunk;

/// Says in an entry, which is empty, that a frame has a chunk but for its faults, and has the worker know.
pub fn publish(
    board: &Board,
    audit: &mut Audit,
    slot: usize,
    frame: usize,
    chunk: &Chunk,
    faults: Option<&Faults>,
) {
    for (words, part) in board.segments(slot).iter().zip(&chunk.parts) {
        words.set(part.segment);
    }
    if let Some(faults) = faults {
        board.faults(slot).iter().zip(faults.units()).for_each(|(word, fault)| word.set(*fault));
    }
    let (segments, faulty) = (chunk.parts.len() as u32, faults.is_some());
    let entry = &board.entries()[slot];
    entry.describe(Content { frame: frame as u32, segments, faulty });
    audit.give(slot);
    entry.word.publish();
    wake(board);
}
