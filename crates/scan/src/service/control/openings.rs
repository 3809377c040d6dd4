//! Commands of other threads to the loop: to open and to close.
//!
//! A thread that learns that a channel or pool is open finds it counted. The loop closes it again if a step of the opening fails,
//! or if the thread that asked does not receive the answer, because no other thread would ever close it.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Release;
use std::sync::mpsc::{SendError, Sender};

use super::Control;
use crate::board::Board;
use crate::extents::Extents;
use crate::memory::Frames;
use crate::plan::Range;
use crate::ranges::RangeSet;
use crate::service::files::Files;
use crate::service::inbox::{Command, Founding, Opening, Terms};
use crate::service::loads::Owner;
use crate::service::pool::Pool;
use crate::service::shared::unknown;
use crate::service::stream::Stream;
use crate::source::File;
use crate::worker::Cancelled;
use crate::{Error, Result};

impl Control {
    /// Executes the commands. Returns whether the loop must stop.
    pub(super) fn commands(&mut self) -> bool {
        let (commands, stop) = self.inbox.take();
        for command in commands {
            match command {
                Command::Open(opening, answer) => {
                    let opened = self.open(opening);
                    if let Some(id) = self.answer(&answer, opened) {
                        self.close(id);
                    }
                }
                Command::Ranges(id, ranges, answer) => {
                    let _ = answer.send(self.add_ranges(id, &ranges));
                }
                Command::Cancel(id, ranges, answer) => {
                    let _ = answer.send(self.cancel(id, &ranges));
                }
                Command::Found(founding, answer) => {
                    let founded = self.found(founding);
                    if let Some(id) = self.answer(&answer, founded) {
                        self.dissolve(id);
                    }
                }
                Command::Join(pool, board, answer) => {
                    let joined = self.join(pool, board);
                    if let Some(member) = self.answer(&answer, joined) {
                        self.leave(pool, member);
                    }
                }
                Command::Leave(pool, member) => self.leave(pool, member),
                Command::Dissolve(pool) => self.dissolve(pool),
                Command::Close(id) => self.close(id),
            }
        }
        stop
    }

    /// Answers after the opened object is counted. Returns the object if no thread receives the answer.
    fn answer(&self, to: &Sender<Result<usize>>, with: Result<usize>) -> Option<usize> {
        self.count();
        match to.send(with) {
            Err(SendError(Ok(unheard))) => Some(unheard),
            _ => None,
        }
    }

    fn open(&mut self, opening: Opening) -> Result<usize> {
        let Opening { board, frames, files, extents, plan, terms } = opening;
        let (files, memory) = self.add(files, extents, terms, &frames)?;
        let (id, now) = (self.number(), self.clock.now());
        self.streams.insert(id, Stream::new(id, board, files, frames, memory, plan, terms.pages_held, now));
        Ok(id)
    }

    fn found(&mut self, founding: Founding) -> Result<usize> {
        let Founding { frames, files, extents, chunks, terms } = founding;
        let (files, memory) = self.add(files, extents, terms, &frames)?;
        let (id, now) = (self.number(), self.clock.now());
        self.pools.insert(id, Pool::new(id, files, frames, memory, chunks, terms.pages_held, now));
        Ok(id)
    }

    fn join(&mut self, pool: usize, board: Arc<Board>) -> Result<usize> {
        let (id, now) = (self.number(), self.clock.now());
        match self.pools.get_mut(&pool) {
            // The client got the key before the last member that could pass it on left.
            Some(pool) if pool.closing => Err(unknown()),
            Some(pool) => pool.join(id, board, now).map(|()| id),
            None => Err(Error::Gone),
        }
    }

    fn add_ranges(&mut self, id: usize, ranges: &[Range]) -> Result<()> {
        // The stream has ended if its worker broke the rules.
        let stream = self.streams.get_mut(&id).ok_or(Error::Gone)?;
        stream.plan().add(ranges)?;
        let bytes = ranges.iter().map(|range| range.end - range.start).sum();
        stream.board.service().total_bytes.fetch_add(bytes, Release);
        stream.publish_total();
        Ok(())
    }

    fn cancel(&mut self, id: usize, ranges: &[Range]) -> Result<Cancelled> {
        let stream = self.streams.get_mut(&id).ok_or(Error::Gone)?;
        let mut discarded = Vec::new();
        stream.plan().check(ranges)?;
        let cancelled = stream.cancel(&RangeSet::new(ranges), &mut discarded)?;
        self.loads.give_up(
            |owner| matches!(owner, Owner::Stream { stream, number } if stream == id && discarded.contains(&number)),
        );
        Ok(cancelled)
    }

    /// Closes a stream that has no worker any more.
    fn close(&mut self, id: usize) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.closing = true;
        }
        self.loads.give_up(|owner| matches!(owner, Owner::Stream { stream, .. } if stream == id));
        self.bury(id);
    }

    /// Removes a member that is gone from its pool.
    fn leave(&mut self, pool: usize, member: usize) {
        if let Some(pool) = self.pools.get_mut(&pool) {
            pool.leave(member);
        }
        self.desert(pool);
    }

    /// Prevents further joins of a pool.
    fn dissolve(&mut self, pool: usize) {
        if let Some(pool) = self.pools.get_mut(&pool) {
            pool.closing = true;
        }
        self.desert(pool);
    }

    /// Registers files and memory with the engine: all of them, or none.
    fn add(
        &mut self,
        files: Vec<File>,
        extents: Vec<Extents>,
        terms: Terms,
        frames: &Arc<Frames>,
    ) -> Result<(Rc<Files>, usize)> {
        let memory = self.engine.add_memory(frames.buffer())?;
        match Files::add(&mut *self.engine, files, extents, terms.is_watched) {
            Ok(files) => Ok((Rc::new(files), memory)),
            Err(error) => {
                self.engine.remove_memory(memory);
                Err(error)
            }
        }
    }

    fn number(&mut self) -> usize {
        self.next += 1;
        self.next
    }

    /// Removes a pool that has no member and can get none, as soon as no read is in flight.
    pub(super) fn desert(&mut self, id: usize) {
        let Some(pool) = self.pools.get(&id).filter(|pool| pool.is_deserted()) else { return };
        if !pool.is_down() {
            return self.loads.give_up(|owner| matches!(owner, Owner::Pool { pool, .. } if pool == id));
        }
        if let Some(pool) = self.pools.remove(&id) {
            pool.files.remove(&mut *self.engine);
            self.engine.remove_memory(pool.memory);
        }
    }

    /// Removes a closed stream as soon as no read of it is in flight.
    pub(super) fn bury(&mut self, id: usize) {
        if !self.streams.get(&id).is_some_and(|stream| stream.closing && stream.is_down()) {
            return;
        }
        if let Some(stream) = self.streams.remove(&id) {
            stream.files.remove(&mut *self.engine);
            self.engine.remove_memory(stream.memory);
        }
    }
}
