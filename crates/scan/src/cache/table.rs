//! Which range of a file is in which frame, and who holds it: decisions only, without memory, files or threads.
//!
//! Each range has a frame to itself. It is *queued* until there is a frame for it, then *reading*, then *ready*. Readers that
//! fetch a range that is there, or on its way, share it. A ready range is pinned by each reader that holds it. When no reader holds
//! it, it stays until its frame is needed; the range that was released longest ago goes first.
//!
//! Invariants:
//! - A frame is free, or it belongs to one range that is reading or ready.
//! - A range that is queued or being read has a waiter for each fetch; a ready range has as many pins as fetches.
//! - A reader has at most [`MAX_RANGES_HELD`] fetches. There are more frames than all readers may hold, so the range at the head of
//!   the queue gets a frame without waiting for any reader.

use std::collections::{BTreeMap, HashMap, VecDeque};

use rustix::io::Errno;

use crate::limits::{MAX_RANGE_BYTES, MAX_RANGES_HELD};
use crate::{Error, Result};

/// Some bytes of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// The first byte.
    pub start: u64,
    /// How many there are.
    pub len: u32,
}

impl Span {
    /// The byte after the last.
    pub fn end(self) -> u64 {
        self.start + u64::from(self.len)
    }

    /// Where the read of it begins, and how many bytes that has: the ends are rounded outwards to multiples of the file's unit.
    pub fn extent(self, unit: u64) -> (u64, u64) {
        let from = self.start / unit * unit;
        (from, self.end().next_multiple_of(unit) - from)
    }

    /// Checks that it can be fetched of a file of so many bytes.
    ///
    /// # Errors
    /// It is empty, beyond the end of the file, or too long for a frame.
    pub fn check(self, size: u64, unit: u64) -> Result<()> {
        let is_in_file = self.start.checked_add(self.len.into()).is_some_and(|end| end <= size);
        if self.len > 0 && is_in_file && self.extent(unit).1 <= MAX_RANGE_BYTES as u64 {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "a range of {} bytes at {} of a file of {size}: at least 1 byte of the file, and at most {MAX_RANGE_BYTES} when both \
             ends are rounded outwards to multiples of {unit}",
            self.len, self.start
        )))
    }
}

/// Which reader, and which of its fetches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    pub reader: u64,
    pub fetch: u32,
}

/// A read to be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    pub span: Span,
    pub frame: u32,
}

/// What a fetch has come to: the frame that has its range, or the error of the read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    pub ticket: Ticket,
    pub span: Span,
    pub frame: std::result::Result<u32, Errno>,
}

/// What the owner of the table does next.
#[derive(Debug, Default)]
pub struct Actions {
    pub loads: Vec<Load>,
    pub deliveries: Vec<Delivery>,
}

#[derive(Debug)]
enum State {
    Queued { waiters: Vec<Ticket> },
    Reading { frame: u32, waiters: Vec<Ticket> },
    Ready { frame: u32, pins: u32, released: u64 },
}

/// The ranges of one file.
#[derive(Debug)]
pub struct Table {
    size: u64,
    unit: u64,
    ranges: HashMap<Span, State>,
    /// Ranges without a frame, in the order of their fetches.
    queue: VecDeque<Span>,
    free: Vec<u32>,
    /// Ready ranges that no reader holds, by the time of their release.
    unpinned: BTreeMap<u64, Span>,
    readers: HashMap<u64, HashMap<u32, Span>>,
    clock: u64,
}

impl Table {
    /// The table of a file of so many bytes that is read in multiples of a unit, without frames.
    pub fn new(size: u64, unit: u64) -> Self {
        Self {
            size,
            unit,
            ranges: HashMap::new(),
            queue: VecDeque::new(),
            free: Vec::new(),
            unpinned: BTreeMap::new(),
            readers: HashMap::new(),
            clock: 0,
        }
    }

    /// Adds frames with these numbers.
    pub fn add_frames(&mut self, frames: std::ops::Range<u32>) -> Actions {
        self.free.extend(frames.rev());
        let mut actions = Actions::default();
        self.load_queued(&mut actions);
        actions
    }

    /// How many readers there are.
    pub fn readers(&self) -> usize {
        self.readers.len()
    }

    /// Whether no read is going on.
    pub fn is_at_rest(&self) -> bool {
        !self.ranges.values().any(|state| matches!(state, State::Reading { .. }))
    }

    /// A reader begins.
    pub fn attach(&mut self, reader: u64) {
        self.readers.insert(reader, HashMap::new());
    }

    /// A reader ends: whatever it holds or waits for is released.
    pub fn detach(&mut self, reader: u64) -> Actions {
        let held = self.readers.remove(&reader).unwrap_or_default();
        let mut actions = Actions::default();
        for (fetch, span) in held {
            self.let_go(Ticket { reader, fetch }, span);
        }
        self.load_queued(&mut actions);
        actions
    }

    /// A reader fetches a range.
    ///
    /// # Errors
    /// The range is none that [can be fetched](Span::check); the reader has a fetch of that number, or as many as it may.
    pub fn fetch(&mut self, ticket: Ticket, span: Span) -> Result<Actions> {
        span.check(self.size, self.unit)?;
        let held = self.readers.get_mut(&ticket.reader).ok_or(Error::Gone)?;
        if held.contains_key(&ticket.fetch) {
            return Err(Error::Invalid(format!("the reader has a fetch {}", ticket.fetch)));
        }
        if held.len() >= MAX_RANGES_HELD {
            return Err(Error::Held);
        }
        held.insert(ticket.fetch, span);
        let mut actions = Actions::default();
        match self.ranges.get_mut(&span) {
            Some(State::Ready { frame, pins, released }) => {
                if *pins == 0 {
                    self.unpinned.remove(released);
                }
                *pins += 1;
                actions.deliveries.push(Delivery { ticket, span, frame: Ok(*frame) });
            }
            Some(State::Queued { waiters } | State::Reading { waiters, .. }) => waiters.push(ticket),
            None => {
                self.ranges.insert(span, State::Queued { waiters: vec![ticket] });
                self.queue.push_back(span);
                self.load_queued(&mut actions);
            }
        }
        Ok(actions)
    }

    /// A reader does not need a range any more, or does not wait for it any longer.
    ///
    /// # Errors
    /// It has no such fetch.
    pub fn release(&mut self, ticket: Ticket) -> Result<Actions> {
        let held = self.readers.get_mut(&ticket.reader).ok_or(Error::Gone)?;
        let span = held.remove(&ticket.fetch).ok_or(Error::NotHeld)?;
        self.let_go(ticket, span);
        let mut actions = Actions::default();
        self.load_queued(&mut actions);
        Ok(actions)
    }

    /// A read is complete.
    pub fn complete(&mut self, span: Span, result: std::result::Result<(), Errno>) -> Actions {
        let mut actions = Actions::default();
        let Some(State::Reading { frame, waiters }) = self.ranges.remove(&span) else {
            unreachable!("reads are of ranges that are being read");
        };
        if let Err(error) = result {
            self.free.push(frame);
            for ticket in waiters {
                if let Some(held) = self.readers.get_mut(&ticket.reader) {
                    held.remove(&ticket.fetch);
                }
                actions.deliveries.push(Delivery { ticket, span, frame: Err(error) });
            }
        } else {
            let released = self.tick();
            let pins = waiters.len() as u32;
            if pins == 0 {
                self.unpinned.insert(released, span);
            }
            self.ranges.insert(span, State::Ready { frame, pins, released });
            let delivered = waiters.into_iter().map(|ticket| Delivery { ticket, span, frame: Ok(frame) });
            actions.deliveries.extend(delivered);
        }
        self.load_queued(&mut actions);
        actions
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// A fetch of a range ends.
    fn let_go(&mut self, ticket: Ticket, span: Span) {
        let now = self.tick();
        let is_over = match self.ranges.get_mut(&span).expect("a range that is held is there") {
            State::Ready { pins, released, .. } => {
                *pins -= 1;
                if *pins == 0 {
                    *released = now;
                    self.unpinned.insert(now, span);
                }
                false
            }
            // The read goes on: the frame cannot be used before it is complete.
            State::Reading { waiters, .. } => {
                waiters.retain(|waiter| *waiter != ticket);
                false
            }
            State::Queued { waiters } => {
                waiters.retain(|waiter| *waiter != ticket);
                waiters.is_empty()
            }
        };
        if is_over {
            self.ranges.remove(&span);
            self.queue.retain(|queued| *queued != span);
        }
    }

    /// Starts the reads of queued ranges, as far as there are frames.
    fn load_queued(&mut self, actions: &mut Actions) {
        while let Some(&span) = self.queue.front() {
            let Some(frame) = self.free_frame() else { break };
            self.queue.pop_front();
            let Some(State::Queued { waiters }) = self.ranges.remove(&span) else {
                unreachable!("ranges in the queue are queued");
            };
            self.ranges.insert(span, State::Reading { frame, waiters });
            actions.loads.push(Load { span, frame });
        }
    }

    /// A frame that is free, or that of the range that was released longest ago.
    fn free_frame(&mut self) -> Option<u32> {
        if let Some(frame) = self.free.pop() {
            return Some(frame);
        }
        let (_, span) = self.unpinned.pop_first()?;
        match self.ranges.remove(&span) {
            Some(State::Ready { frame, pins: 0, .. }) => Some(frame),
            _ => unreachable!("ranges that no reader holds are ready"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    const READERS: u64 = 3;
    const FRAMES: u32 = (READERS as u32 + 1) * MAX_RANGES_HELD as u32;

    fn span(number: u64) -> Span {
        Span { start: number << 20, len: 4096 }
    }

    #[test]
    fn fetches_past_the_limits_are_refused() {
        let mut table = Table::new(16 << 20, 4096);
        table.attach(1);
        let mut fetch =
            |fetch, start, len| table.fetch(Ticket { reader: 1, fetch }, Span { start, len }).map(|_| ());
        for (start, len) in [
            (0, 0),
            (0, MAX_RANGE_BYTES as u32 + 1),
            (1, MAX_RANGE_BYTES as u32),
            (16 << 20, 1),
            (u64::MAX, 2),
        ] {
            assert!(matches!(fetch(0, start, len), Err(Error::Invalid(_))), "{start} {len}");
        }
        for number in 0..MAX_RANGES_HELD as u32 {
            fetch(number, u64::from(number) << 12, MAX_RANGE_BYTES as u32).unwrap();
        }
        assert!(matches!(fetch(0, 0, 1), Err(Error::Invalid(_))), "the number is in use");
        assert!(matches!(fetch(99, 0, 1), Err(Error::Held)));
        assert!(matches!(table.release(Ticket { reader: 1, fetch: 99 }), Err(Error::NotHeld)));
        assert!(matches!(table.fetch(Ticket { reader: 2, fetch: 0 }, span(0)), Err(Error::Gone)));
    }

    #[test]
    fn readers_share_one_read() {
        let mut table = Table::new(1 << 30, 4096);
        assert!(table.add_frames(0..FRAMES).loads.is_empty());
        table.attach(1);
        table.attach(2);
        let (one, two) = (Ticket { reader: 1, fetch: 7 }, Ticket { reader: 2, fetch: 9 });
        assert_eq!(table.fetch(one, span(1)).unwrap().loads.len(), 1);
        assert!(table.fetch(two, span(1)).unwrap().loads.is_empty());
        let delivered = table.complete(span(1), Ok(())).deliveries;
        assert_eq!(delivered.iter().map(|delivery| delivery.ticket).collect::<Vec<_>>(), [one, two]);
        table.release(one).unwrap();
        table.detach(2);
        let again = table.fetch(one, span(1)).unwrap();
        assert!(again.loads.is_empty() && again.deliveries.len() == 1, "it is still there");
    }

    #[test]
    fn a_failed_read_is_tried_again_by_the_next_fetch() {
        let mut table = Table::new(1 << 30, 4096);
        table.add_frames(0..FRAMES);
        table.attach(1);
        let ticket = Ticket { reader: 1, fetch: 0 };
        table.fetch(ticket, span(1)).unwrap();
        let failed = table.complete(span(1), Err(Errno::IO)).deliveries;
        assert_eq!(failed, [Delivery { ticket, span: span(1), frame: Err(Errno::IO) }]);
        assert_eq!(table.fetch(ticket, span(1)).unwrap().loads.len(), 1);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Fetch(u64, u64),
        Release(usize),
        Complete(usize, bool),
        Detach(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..READERS, 0u64..40).prop_map(|(reader, number)| Step::Fetch(reader, number)),
            3 => any::<usize>().prop_map(Step::Release),
            3 => (any::<usize>(), prop::bool::weighted(0.9)).prop_map(|(at, good)| Step::Complete(at, good)),
            1 => (0..READERS).prop_map(Step::Detach),
        ]
    }

    /// What a reader that sees deliveries alone knows.
    #[derive(Default)]
    struct Model {
        waiting: HashMap<Ticket, Span>,
        held: HashMap<Ticket, (Span, u32)>,
        loading: Vec<Load>,
        /// What the frames have.
        frames: HashMap<u32, Span>,
    }

    impl Model {
        fn see(&mut self, actions: Actions) {
            for load in actions.loads {
                assert!(load.frame < FRAMES);
                assert!(
                    self.loading.iter().all(|other| other.frame != load.frame && other.span != load.span)
                );
                assert!(
                    self.held.values().all(|(_, frame)| *frame != load.frame),
                    "a reader holds the frame"
                );
                self.frames.remove(&load.frame);
                self.loading.push(load);
            }
            for Delivery { ticket, span, frame } in actions.deliveries {
                assert_eq!(self.waiting.remove(&ticket), Some(span));
                if let Ok(frame) = frame {
                    assert_eq!(self.frames.get(&frame), Some(&span), "the frame has the range");
                    self.held.insert(ticket, (span, frame));
                }
            }
        }
    }

    proptest! {
        /// Frames that readers hold are not read into, everything that is fetched arrives, and nothing is lost.
        #[test]
        fn every_fetch_ends_and_no_held_frame_is_reused(steps in prop::collection::vec(step(), 0..400)) {
            let (mut table, mut model) = (Table::new(1 << 30, 4096), Model::default());
            model.see(table.add_frames(0..FRAMES));
            (0..READERS).for_each(|reader| table.attach(reader));
            let complete = |table: &mut Table, model: &mut Model, at: usize, good: bool| {
                if model.loading.is_empty() {
                    return;
                }
                let load = model.loading.swap_remove(at % model.loading.len());
                if good {
                    model.frames.insert(load.frame, load.span);
                }
                let actions = table.complete(load.span, if good { Ok(()) } else { Err(Errno::IO) });
                model.see(actions);
            };
            for (number, step) in (0u32..).zip(steps) {
                match step {
                    Step::Fetch(reader, range) => {
                        let ticket = Ticket { reader, fetch: number };
                        let count = model.waiting.keys().chain(model.held.keys()).filter(|t| t.reader == reader).count();
                        match table.fetch(ticket, span(range)) {
                            Ok(actions) => {
                                prop_assert!(count < MAX_RANGES_HELD);
                                model.waiting.insert(ticket, span(range));
                                model.see(actions);
                            }
                            Err(_) => prop_assert_eq!(count, MAX_RANGES_HELD),
                        }
                    }
                    Step::Release(at) => {
                        let mut tickets: Vec<_> = model.waiting.keys().chain(model.held.keys()).copied().collect();
                        tickets.sort_by_key(|ticket| ticket.fetch);
                        if !tickets.is_empty() {
                            let ticket = tickets[at % tickets.len()];
                            model.waiting.remove(&ticket);
                            model.held.remove(&ticket);
                            model.see(table.release(ticket).unwrap());
                        }
                    }
                    Step::Complete(at, good) => complete(&mut table, &mut model, at, good),
                    Step::Detach(reader) => {
                        model.waiting.retain(|ticket, _| ticket.reader != reader);
                        model.held.retain(|ticket, _| ticket.reader != reader);
                        model.see(table.detach(reader));
                        table.attach(reader);
                    }
                }
                // There is a frame for whatever is queued, because readers cannot hold all of them.
                prop_assert!(table.queue.is_empty() || model.loading.len() + model.held.len() >= FRAMES as usize);
                let pinned: HashSet<u32> = model.held.values().map(|(_, frame)| *frame).collect();
                prop_assert!(pinned.len() + table.free.len() + model.loading.len() + table.unpinned.len() == FRAMES as usize);
            }
            while !model.loading.is_empty() {
                complete(&mut table, &mut model, 0, true);
            }
            prop_assert!(model.waiting.is_empty() && table.queue.is_empty() && table.is_at_rest());
        }
    }
}
