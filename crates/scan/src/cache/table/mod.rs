//! The table of a cached file: the part of the file in each frame, and the readers that hold it. It only makes decisions; it owns
//! no memory, files or threads.
//!
//! A *window* is the part of the file that fits into one frame, 2 MiB. Windows begin at multiples of their size. A range that
//! crosses such a multiple has a window that begins at the range's start, rounded down to the unit. So overlapping ranges are
//! mostly in one window, and the table reads each byte of a window once.
//!
//! A window is *queued* until it gets a frame. The table then reads those units that ranges need and that are missing. Readers
//! that fetch units that are present or being read share them. Each range that a reader holds pins its window. A window that no
//! reader holds or waits for stays until its frame is needed. The table evicts the least recently released window first.
//!
//! Frames are made on demand, up to a limit. A queued window makes a frame *needed*. If several readers share a file, ranges that
//! one of them has read should stay for the readers behind it. So a window does not take another window's frame if making a frame
//! takes about as long as reading it. If making takes longer, the window takes the frame, and another frame becomes *wanted*.
//! Needed frames are made before wanted ones.
//!
//! Invariants:
//! - A frame is free, or it belongs to exactly one window.
//! - The table does not read a present unit again while the window has its frame.
//! - Each fetch either waits in its window or pins its window.
//! - A reader has at most [`MAX_RANGES_HELD`] fetches. The limit exceeds the number of frames that all readers together may hold.
//!   So the window at the head of the queue gets a frame without waiting for any reader, although the frame may have to be made.
//!   If no frame can be made, the fetches of all queued windows fail.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use rustix::io::Errno;

use crate::bits::Bits;
use crate::limits::{FAST_FRAME, MAX_RANGE_BYTES, MAX_RANGES_HELD};
use crate::memory::FRAME;
use crate::{Error, Result};

/// A range of bytes of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// Offset of the first byte.
    pub start: u64,
    /// Number of bytes.
    pub len: u32,
}

impl Span {
    /// Offset of the byte after the last one.
    pub fn end(self) -> u64 {
        self.start + u64::from(self.len)
    }

    /// Checks that a reader can fetch the span from a file of `size` bytes that the cache reads in multiples of `unit`.
    ///
    /// # Errors
    /// The span is empty, extends beyond the end of the file, or is too long for a frame.
    pub fn check(self, size: u64, unit: u64) -> Result<()> {
        let is_in_file = self.start.checked_add(self.len.into()).is_some_and(|end| end <= size);
        if self.len > 0
            && is_in_file
            && self.end().next_multiple_of(unit) - self.start / unit * unit <= MAX_RANGE_BYTES as u64
        {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "a range of {} bytes at {} of a file of {size}: at least 1 byte of the file, and at most {MAX_RANGE_BYTES} when both \
             ends are rounded outwards to multiples of {unit}",
            self.len, self.start
        )))
    }
}

/// Number of frames that hold a whole file of `size` bytes.
pub fn frames_of(size: u64) -> u32 {
    u32::try_from(size.div_ceil(FRAME as u64)).unwrap_or(u32::MAX)
}

/// Size of the smallest unit in bytes: a page. The minimum keeps the sets of a window's units small.
pub const MIN_UNIT: usize = 4096;

/// The unit of a file whose direct reads must be multiples of `alignment`, a power of two.
pub fn unit_of(alignment: u32) -> u32 {
    alignment.max(MIN_UNIT as u32)
}

/// Identifies a fetch: the reader's number, and the reader's number for the fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    pub reader: u64,
    pub fetch: u32,
}

/// A read that the owner of the table must start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Offset of the window in the file.
    window: u64,
    pub frame: u32,
    /// Offset of the read in the window and in the frame.
    pub at: usize,
    /// Number of bytes to read, a multiple of the unit. They may extend beyond the end of the file.
    pub len: usize,
    /// Number of these bytes that are in the file.
    pub needed: usize,
}

impl Load {
    /// Offset of the read in the file.
    pub fn start(&self) -> u64 {
        self.window + self.at as u64
    }
}

/// The result of a fetch: the place of its range, or the error of the read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    pub ticket: Ticket,
    /// The frame, and the offset of the range in it.
    pub place: std::result::Result<(u32, usize), Errno>,
}

/// The actions that the owner of the table must carry out next.
#[derive(Debug, Default)]
pub struct Actions {
    pub loads: Vec<Load>,
    pub deliveries: Vec<Delivery>,
}

/// The urgency with which a frame must be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// A window waits for it.
    Needed,
    /// No window waits for it.
    Wanted,
}

/// A fetch whose range is not yet fully present.
#[derive(Debug)]
struct Waiter {
    ticket: Ticket,
    span: Span,
    units: Range<usize>,
}

#[derive(Debug)]
struct Window {
    /// The window's frame. `None`: the window is queued.
    frame: Option<u32>,
    /// Units that are present in the frame.
    there: Bits,
    /// Units that are present in the frame or being read.
    claimed: Bits,
    waiters: Vec<Waiter>,
    pins: u32,
    /// The time when the window was last released, by the table's clock.
    released: u64,
}

impl Window {
    fn queued(units: usize) -> Self {
        let (there, claimed) = (Bits::new(units), Bits::new(units));
        Self { frame: None, there, claimed, waiters: Vec::new(), pins: 0, released: 0 }
    }

    fn is_reading(&self) -> bool {
        self.claimed.count() > self.there.count()
    }

    /// Returns whether another window may take this window's frame.
    fn is_idle(&self) -> bool {
        self.pins == 0 && self.waiters.is_empty() && !self.is_reading() && self.frame.is_some()
    }
}

/// The windows of one file.
#[derive(Debug)]
pub struct Table {
    size: u64,
    unit: u64,
    /// The windows, by their offsets in the file.
    windows: HashMap<u64, Window>,
    /// Windows without a frame, in the order of their first fetches.
    queue: VecDeque<u64>,
    free: Vec<u32>,
    /// Number of frames that were made. Their numbers are 0 to `made` - 1.
    made: u32,
    /// Maximum number of frames.
    limit: u32,
    /// Number of frames to make in addition to those that queued windows need.
    wanted: u32,
    /// Whether making the latest frame took less than [`FAST_FRAME`].
    makes_fast: bool,
    /// The offsets of idle windows, by the time of their release.
    idle: BTreeMap<u64, u64>,
    readers: HashMap<u64, HashMap<u32, Span>>,
    clock: u64,
}

impl Table {
    /// Creates the table of a file of `size` bytes that is read in multiples of `unit`. It has no frames.
    pub fn new(size: u64, unit: u32) -> Self {
        assert!(unit.is_power_of_two() && (MIN_UNIT..=FRAME).contains(&(unit as usize)));
        Self {
            size,
            unit: unit.into(),
            windows: HashMap::new(),
            queue: VecDeque::new(),
            free: Vec::new(),
            made: 0,
            limit: 0,
            wanted: 0,
            makes_fast: false,
            idle: BTreeMap::new(),
            readers: HashMap::new(),
            clock: 0,
        }
    }

    /// Raises the maximum number of frames to `limit`. It never lowers it.
    pub fn allow_frames(&mut self, limit: u32) {
        self.limit = self.limit.max(limit);
    }

    /// Adds the next frame. `time` is the time that it took to make.
    pub fn add_frame(&mut self, time: Duration) -> Actions {
        assert!(self.made < self.limit);
        self.makes_fast = time < FAST_FRAME;
        self.free.push(self.made);
        self.made += 1;
        // A queued window uses the frame, if there is one. Otherwise the frame was a wanted one.
        if self.queue.is_empty() {
            self.wanted = self.wanted.saturating_sub(1);
        }
        self.wanted = self.wanted.min(self.limit - self.made);
        let mut actions = Actions::default();
        self.load_queued(&mut actions);
        actions
    }

    /// Reports that the next frame cannot be made. Queued windows get the frames that are available. The fetches of the other
    /// queued windows fail. They would otherwise wait for readers, and these readers may wait for them.
    pub fn cannot_add_frame(&mut self, error: Errno) -> Actions {
        (self.wanted, self.makes_fast) = (0, false);
        let mut actions = Actions::default();
        self.load_queued(&mut actions);
        for base in std::mem::take(&mut self.queue) {
            let window = self.windows.remove(&base).expect("what is queued is there");
            self.fail(window.waiters, error, &mut actions);
        }
        self.wanted = 0;
        actions
    }

    /// Returns the urgency with which a frame must be made, or none if no frame must be made.
    pub fn frame_to_make(&self) -> Option<Urgency> {
        if self.made == self.limit {
            None
        } else if !self.queue.is_empty() {
            Some(Urgency::Needed)
        } else {
            // A frame that several readers wanted is useless to a single reader.
            (self.wanted > 0 && self.readers.len() > 1).then_some(Urgency::Wanted)
        }
    }

    /// Number of frames that were made.
    pub fn made(&self) -> u32 {
        self.made
    }

    /// Number of readers.
    pub fn readers(&self) -> usize {
        self.readers.len()
    }

    /// Returns whether no read is in progress.
    pub fn is_at_rest(&self) -> bool {
        !self.windows.values().any(Window::is_reading)
    }

    /// Adds a reader.
    pub fn attach(&mut self, reader: u64) {
        self.readers.insert(reader, HashMap::new());
    }

    /// Removes a reader, and ends all of its fetches.
    pub fn detach(&mut self, reader: u64) -> Actions {
        let held = self.readers.remove(&reader).unwrap_or_default();
        let mut actions = Actions::default();
        for (fetch, span) in held {
            self.let_go(Ticket { reader, fetch }, span);
        }
        self.load_queued(&mut actions);
        actions
    }

    /// Returns the offset of a range's window.
    fn base_of(&self, span: Span) -> u64 {
        let aligned = span.start / FRAME as u64 * FRAME as u64;
        if span.end() <= aligned + FRAME as u64 { aligned } else { span.start / self.unit * self.unit }
    }

    /// Returns the units of a window that contain a range.
    fn units_of(&self, base: u64, span: Span) -> Range<usize> {
        let unit = |byte: u64| ((byte - base) / self.unit) as usize;
        unit(span.start)..unit(span.end() - 1) + 1
    }

    /// Fetches a range for a reader.
    ///
    /// # Errors
    /// The range fails [`Span::check`]. The reader already has a fetch of that number, or has [`MAX_RANGES_HELD`] fetches. The
    /// reader is unknown.
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
        let base = self.base_of(span);
        let units = self.units_of(base, span);
        let window = self.windows.entry(base).or_insert_with(|| {
            self.queue.push_back(base);
            Window::queued(FRAME / self.unit as usize)
        });
        if window.is_idle() {
            self.idle.remove(&window.released);
        }
        let mut actions = Actions::default();
        match window.frame {
            Some(frame) if window.there.has_all(units.clone()) => {
                window.pins += 1;
                let place = Ok((frame, (span.start - base) as usize));
                actions.deliveries.push(Delivery { ticket, place });
            }
            _ => {
                window.waiters.push(Waiter { ticket, span, units });
                self.load(base, &mut actions);
            }
        }
        self.load_queued(&mut actions);
        Ok(actions)
    }

    /// Ends a fetch: the reader no longer needs the range, or no longer waits for it.
    ///
    /// # Errors
    /// The reader has no such fetch, or is unknown.
    pub fn release(&mut self, ticket: Ticket) -> Result<Actions> {
        let held = self.readers.get_mut(&ticket.reader).ok_or(Error::Gone)?;
        let span = held.remove(&ticket.fetch).ok_or(Error::NotHeld)?;
        self.let_go(ticket, span);
        let mut actions = Actions::default();
        self.load_queued(&mut actions);
        Ok(actions)
    }

    /// Records that a read is complete.
    pub fn complete(&mut self, load: &Load, result: std::result::Result<(), Errno>) -> Actions {
        let mut actions = Actions::default();
        let window = self.windows.get_mut(&load.window).expect("a window that is read stays");
        let frame = window.frame.expect("a window that is read has a frame");
        let unit = self.unit as usize;
        let units = load.at / unit..(load.at + load.len) / unit;
        match result {
            Ok(()) => {
                units.for_each(|unit| window.there.set(unit));
                for waiter in
                    window.waiters.extract_if(.., |waiter| window.there.has_all(waiter.units.clone()))
                {
                    window.pins += 1;
                    let place = Ok((frame, (waiter.span.start - load.window) as usize));
                    actions.deliveries.push(Delivery { ticket: waiter.ticket, place });
                }
            }
            Err(error) => {
                let needs_it =
                    |waiter: &mut Waiter| waiter.units.start < units.end && units.start < waiter.units.end;
                let failed = window.waiters.extract_if(.., needs_it).collect();
                units.for_each(|unit| window.claimed.clear(unit));
                self.fail(failed, error, &mut actions);
            }
        }
        self.settle(load.window);
        self.load_queued(&mut actions);
        actions
    }

    /// Ends fetches with an error.
    fn fail(&mut self, waiters: Vec<Waiter>, error: Errno, actions: &mut Actions) {
        for Waiter { ticket, .. } in waiters {
            if let Some(held) = self.readers.get_mut(&ticket.reader) {
                held.remove(&ticket.fetch);
            }
            actions.deliveries.push(Delivery { ticket, place: Err(error) });
        }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Removes a fetch from its window.
    fn let_go(&mut self, ticket: Ticket, span: Span) {
        let base = self.base_of(span);
        let window = self.windows.get_mut(&base).expect("a window that is held or waited for is there");
        match window.waiters.iter().position(|waiter| waiter.ticket == ticket) {
            // A read of the window may still be in progress. The window keeps its frame until the read is complete.
            Some(at) => drop(window.waiters.swap_remove(at)),
            None => window.pins -= 1,
        }
        self.settle(base);
    }

    /// Makes a window idle, or removes it, if no fetch holds or waits for it any more.
    fn settle(&mut self, base: u64) {
        let now = self.tick();
        let window = self.windows.get_mut(&base).expect("the caller has it");
        let is_forgotten = match window.frame {
            None => window.waiters.is_empty(),
            Some(_) => window.is_idle() && window.there.count() == 0,
        };
        if is_forgotten {
            self.free.extend(window.frame);
            self.windows.remove(&base);
            self.queue.retain(|queued| *queued != base);
        } else if window.is_idle() {
            window.released = now;
            self.idle.insert(now, base);
        }
    }

    /// Gives frames to queued windows while frames are available.
    fn load_queued(&mut self, actions: &mut Actions) {
        while let Some(&base) = self.queue.front() {
            let Some(frame) = self.free_frame() else { break };
            self.queue.pop_front();
            self.windows.get_mut(&base).expect("what is queued is there").frame = Some(frame);
            self.load(base, actions);
        }
    }

    /// Starts the reads of those units that the window's waiters need and that are missing, if the window has a frame.
    fn load(&mut self, base: u64, actions: &mut Actions) {
        let window = self.windows.get_mut(&base).expect("the caller has it");
        let Some(frame) = window.frame else { return };
        let unit = self.unit as usize;
        for waiter in &window.waiters {
            for units in window.claimed.missing_runs(waiter.units.clone()) {
                units.clone().for_each(|unit| window.claimed.set(unit));
                let (at, len) = (units.start * unit, units.len() * unit);
                let left = self.size - (base + at as u64);
                actions.loads.push(Load {
                    window: base,
                    frame,
                    at,
                    len,
                    needed: (len as u64).min(left) as usize,
                });
            }
        }
    }

    /// Takes a free frame, or the frame of the least recently released window. `None`: no frame is available, or making another
    /// frame is better.
    fn free_frame(&mut self) -> Option<u32> {
        if let Some(frame) = self.free.pop() {
            return Some(frame);
        }
        // More frames than the file needs would hold nothing useful.
        let useful = self.limit.min(frames_of(self.size));
        let may_grow = self.readers.len() > 1 && self.made < useful;
        if may_grow && self.makes_fast {
            return None;
        }
        let (_, base) = self.idle.pop_first()?;
        if may_grow {
            self.wanted = (self.wanted + 1).min(useful - self.made);
        }
        let window = self.windows.remove(&base).expect("idle windows are there");
        assert!(window.is_idle());
        window.frame
    }
}

#[cfg(test)]
mod tests;
