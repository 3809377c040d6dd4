//! Gives a frame to a worker, in a private channel and in a pool alike.

use super::board::{Audit, Board, Content, Faults, Judgment};
use super::loads::Reading;
use super::wake;
use crate::plan::Chunk;

/// Describes a frame with a chunk and its faults in an empty entry, and tells the worker.
pub fn publish(
    board: &Board,
    audit: &mut Audit,
    slot: usize,
    frame: usize,
    chunk: &Chunk,
    faults: Option<&Faults>,
    reading: Option<&Reading>,
) {
    for (words, part) in board.segments(slot).iter().zip(&chunk.parts) {
        let judgment = reading.map_or_else(Judgment::default, |reading| reading.of(part.segment.file));
        words.set(part.segment, judgment);
    }
    if let Some(faults) = faults {
        board.faults(slot).iter().zip(faults.units()).for_each(|(word, fault)| word.set(*fault));
    }
    let (segments, faulty) = (chunk.parts.len() as u32, faults.is_some());
    let entry = &board.entries()[slot];
    let read_began_ns = reading.map_or(0, |reading| reading.began_ns);
    entry.describe(Content { frame: frame as u32, segments, faulty, read_began_ns });
    audit.give(slot);
    entry.word.publish();
    wake(board);
}
