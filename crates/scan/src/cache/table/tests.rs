//! Tests of a table's decisions: examples, and randomized tests against a model of the frames' contents.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

const UNIT: u64 = MIN_UNIT as u64;
const SIZE: u64 = 1 << 30;
const READERS: u64 = 3;
const FRAMES: u32 = (READERS as u32 + 1) * MAX_RANGES_HELD as u32;

/// Returns the first page of a window.
fn span(number: u64) -> Span {
    Span { start: number * FRAME as u64, len: UNIT as u32 }
}

fn table() -> Table {
    Table::new(SIZE, UNIT as u32)
}

/// Adds all frames to a table.
fn give(table: &mut Table, frames: u32) {
    table.allow_frames(frames);
    (0..frames).for_each(|_| assert!(table.add_frame(FAST_FRAME).loads.is_empty()));
}

/// Fetches a range, and checks that this starts exactly one read.
fn load(table: &mut Table, ticket: Ticket, span: Span) -> Load {
    let mut loads = table.fetch(ticket, span).unwrap().loads;
    assert_eq!(loads.len(), 1, "{span:?}");
    loads.remove(0)
}

fn delivered(actions: Actions) -> Vec<(Ticket, std::result::Result<usize, Errno>)> {
    assert!(actions.loads.is_empty());
    let place = |delivery: Delivery| (delivery.ticket, delivery.place.map(|(_, at)| at));
    actions.deliveries.into_iter().map(place).collect()
}

#[test]
fn fetches_past_the_limits_are_refused() {
    let mut table = Table::new(16 << 20, UNIT as u32);
    table.attach(1);
    let mut fetch =
        |fetch, start, len| table.fetch(Ticket { reader: 1, fetch }, Span { start, len }).map(|_| ());
    for (start, len) in
        [(0, 0), (0, MAX_RANGE_BYTES as u32 + 1), (1, MAX_RANGE_BYTES as u32), (16 << 20, 1), (u64::MAX, 2)]
    {
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
    let mut table = table();
    give(&mut table, FRAMES);
    table.attach(1);
    table.attach(2);
    let (one, two) = (Ticket { reader: 1, fetch: 7 }, Ticket { reader: 2, fetch: 9 });
    let read = load(&mut table, one, span(1));
    assert!(table.fetch(two, span(1)).unwrap().loads.is_empty());
    assert_eq!(delivered(table.complete(&read, Ok(()))), [(one, Ok(0)), (two, Ok(0))]);
    table.release(one).unwrap();
    table.detach(2);
    assert_eq!(delivered(table.fetch(one, span(1)).unwrap()), [(one, Ok(0))], "it is still there");
}

#[test]
fn ranges_that_overlap_are_read_once() {
    let mut table = table();
    give(&mut table, FRAMES);
    table.attach(1);
    let base = 3 * FRAME as u64;
    let ticket = |fetch| Ticket { reader: 1, fetch };
    let at = |start: u64, end: u64| Span { start: base + start, len: (end - start) as u32 };
    let first = load(&mut table, ticket(0), at(10 * UNIT + 1, 12 * UNIT));
    assert_eq!(
        (first.start(), first.at, first.len),
        (base + 10 * UNIT, 10 * UNIT as usize, 2 * UNIT as usize)
    );
    // This range surrounds units that are being read.
    let around = table.fetch(ticket(1), at(9 * UNIT, 13 * UNIT)).unwrap().loads;
    let extents: Vec<_> = around.iter().map(|load| (load.start() - base, load.len as u64)).collect();
    assert_eq!(extents, [(9 * UNIT, UNIT), (12 * UNIT, UNIT)]);
    assert!(delivered(table.complete(&around[0], Ok(()))).is_empty());
    assert_eq!(delivered(table.complete(&first, Ok(()))), [(ticket(0), Ok(10 * UNIT as usize + 1))]);
    assert_eq!(delivered(table.complete(&around[1], Ok(()))), [(ticket(1), Ok(9 * UNIT as usize))]);
    // This range is within units that are present.
    assert_eq!(
        delivered(table.fetch(ticket(2), at(12 * UNIT - 1, 12 * UNIT + 1)).unwrap()),
        [(ticket(2), Ok(12 * UNIT as usize - 1))]
    );
    // This range crosses the boundary of a window.
    let across = at(FRAME as u64 - UNIT + 5, FRAME as u64 + 5);
    let read = load(&mut table, ticket(3), across);
    assert_eq!((read.start(), read.at, read.len), (base + FRAME as u64 - UNIT, 0, 2 * UNIT as usize));
    assert_eq!(delivered(table.complete(&read, Ok(()))), [(ticket(3), Ok(5))]);
}

#[test]
fn the_end_of_a_file_is_as_long_as_it_is() {
    let mut table = Table::new(FRAME as u64 + 10, UNIT as u32);
    give(&mut table, FRAMES);
    table.attach(1);
    let read = load(&mut table, Ticket { reader: 1, fetch: 0 }, Span { start: FRAME as u64 + 3, len: 7 });
    assert_eq!((read.start(), read.len, read.needed), (FRAME as u64, UNIT as usize, 10));
}

#[test]
fn a_failed_read_is_tried_again_by_the_next_fetch() {
    let mut table = table();
    give(&mut table, FRAMES);
    table.attach(1);
    let ticket = Ticket { reader: 1, fetch: 0 };
    let read = load(&mut table, ticket, span(1));
    assert_eq!(delivered(table.complete(&read, Err(Errno::IO))), [(ticket, Err(Errno::IO))]);
    load(&mut table, ticket, span(1));
}

#[test]
fn frames_are_made_when_they_are_needed() {
    let mut table = table();
    table.allow_frames(FRAMES);
    table.attach(1);
    assert_eq!(table.frame_to_make(), None);
    let fetch = |table: &mut Table, reader, fetch| {
        table.fetch(Ticket { reader, fetch }, span(fetch.into())).unwrap().loads
    };
    assert!(fetch(&mut table, 1, 0).is_empty());
    assert_eq!(table.frame_to_make(), Some(Urgency::Needed));
    let loads = table.add_frame(FAST_FRAME).loads;
    assert_eq!((loads.len(), table.frame_to_make()), (1, None));
    table.complete(&loads[0], Ok(()));
    table.release(Ticket { reader: 1, fetch: 0 }).unwrap();
    // A single reader reuses the frame that it has released.
    let loads = fetch(&mut table, 1, 1);
    assert_eq!((loads.len(), table.frame_to_make()), (1, None));
    table.complete(&loads[0], Ok(()));
    table.release(Ticket { reader: 1, fetch: 1 }).unwrap();
    // With two readers, one may be behind the other.
    table.attach(2);
    assert_eq!(fetch(&mut table, 2, 2).len(), 1);
    assert_eq!(table.frame_to_make(), Some(Urgency::Wanted));
    assert!(table.add_frame(FAST_FRAME / 2).loads.is_empty());
    assert_eq!((table.frame_to_make(), table.made()), (None, 2));
    assert_eq!(fetch(&mut table, 2, 3).len(), 1);
    // If making a frame is fast, the table does not evict a present window.
    table.release(Ticket { reader: 2, fetch: 2 }).unwrap();
    assert!(fetch(&mut table, 2, 4).is_empty());
    assert_eq!(table.frame_to_make(), Some(Urgency::Needed));
    assert_eq!(table.add_frame(FAST_FRAME / 2).loads.len(), 1);
}

#[test]
fn what_no_frame_can_be_made_for_fails() {
    let mut table = table();
    table.allow_frames(FRAMES);
    table.attach(1);
    let tickets = [0, 1].map(|fetch| Ticket { reader: 1, fetch });
    tickets.iter().for_each(|&ticket| drop(table.fetch(ticket, span(ticket.fetch.into())).unwrap()));
    let failed = delivered(table.cannot_add_frame(Errno::NOMEM));
    assert_eq!(failed, tickets.map(|ticket| (ticket, Err(Errno::NOMEM))));
    assert_eq!(table.frame_to_make(), None);
    // The next fetch makes a frame needed again.
    table.fetch(tickets[0], span(0)).unwrap();
    assert_eq!(table.frame_to_make(), Some(Urgency::Needed));
}

#[derive(Clone, Debug)]
enum Step {
    Fetch(u64, Span),
    Release(usize),
    Complete(usize, bool),
    Make(bool, bool),
    Detach(u64),
}

/// Ranges in a few windows; some of them cross window boundaries.
fn any_span() -> impl Strategy<Value = Span> {
    (0u64..12, 0..FRAME as u64, 1..FRAME as u32 / 2).prop_map(|(window, at, len)| {
        let at = if window % 3 == 0 { FRAME as u64 - 3 * UNIT + at % (6 * UNIT) } else { at };
        Span { start: window * FRAME as u64 + at, len }
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..READERS, any_span()).prop_map(|(reader, span)| Step::Fetch(reader, span)),
        3 => any::<usize>().prop_map(Step::Release),
        3 => (any::<usize>(), prop::bool::weighted(0.9)).prop_map(|(at, good)| Step::Complete(at, good)),
        2 => (prop::bool::weighted(0.9), any::<bool>()).prop_map(|(good, fast)| Step::Make(good, fast)),
        1 => (0..READERS).prop_map(Step::Detach),
    ]
}

/// The state of readers and frames, derived only from loads and deliveries.
#[derive(Default)]
struct Model {
    waiting: HashMap<Ticket, Span>,
    /// Ranges that readers hold, each with its frame and its offset in the frame.
    held: HashMap<Ticket, (Span, u32, usize)>,
    loading: Vec<Load>,
    /// The unit of the file that each unit of a frame contains.
    frames: HashMap<(u32, u64), u64>,
}

/// The units of the file that a range overlaps, and their positions in a frame.
fn units(start: u64, len: u64, at: usize) -> impl Iterator<Item = (u64, u64)> {
    let (first, end) = (start / UNIT, (start + len).div_ceil(UNIT));
    (first..end).map(move |unit| (unit, at as u64 / UNIT + unit - first))
}

impl Model {
    fn see(&mut self, actions: Actions) {
        for load in actions.loads {
            assert!(load.frame < FRAMES);
            for (_, at) in units(load.start(), load.len as u64, load.at) {
                let is_read = |other: &Load| {
                    other.frame == load.frame
                        && units(other.start(), other.len as u64, other.at).any(|(_, other)| other == at)
                };
                assert!(!self.loading.iter().any(is_read), "a unit is read twice");
                let is_held = |(span, frame, place): &(Span, u32, usize)| {
                    *frame == load.frame
                        && units(span.start, span.len.into(), *place).any(|(_, held)| held == at)
                };
                assert!(!self.held.values().any(is_held), "a reader holds the unit");
                self.frames.remove(&(load.frame, at));
            }
            self.loading.push(load);
        }
        for Delivery { ticket, place } in actions.deliveries {
            let span = self.waiting.remove(&ticket).expect("it was waited for");
            if let Ok((frame, at)) = place {
                for (unit, place) in units(span.start, span.len.into(), at) {
                    assert_eq!(self.frames.get(&(frame, place)), Some(&unit), "the frame has the range");
                }
                self.held.insert(ticket, (span, frame, at));
            }
        }
    }

    fn complete(&mut self, table: &mut Table, at: usize, good: bool) {
        if self.loading.is_empty() {
            return;
        }
        let load = self.loading.swap_remove(at % self.loading.len());
        if good {
            let read = units(load.start(), load.len as u64, load.at);
            self.frames.extend(read.map(|(unit, at)| ((load.frame, at), unit)));
        }
        let actions = table.complete(&load, if good { Ok(()) } else { Err(Errno::IO) });
        self.see(actions);
    }
}

proptest! {
    /// The table never reads into units that a reader holds, and every fetch ends.
    #[test]
    fn every_fetch_ends_and_nothing_held_is_read_into(steps in prop::collection::vec(step(), 0..300)) {
        let (mut table, mut model) = (table(), Model::default());
        table.allow_frames(FRAMES);
        (0..READERS).for_each(|reader| table.attach(reader));
        for (number, step) in (0u32..).zip(steps) {
            match step {
                Step::Fetch(reader, span) => {
                    let ticket = Ticket { reader, fetch: number };
                    let count =
                        model.waiting.keys().chain(model.held.keys()).filter(|t| t.reader == reader).count();
                    match table.fetch(ticket, span) {
                        Ok(actions) => {
                            prop_assert!(count < MAX_RANGES_HELD);
                            model.waiting.insert(ticket, span);
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
                Step::Complete(at, good) => model.complete(&mut table, at, good),
                Step::Make(good, fast) => {
                    if table.frame_to_make().is_some() {
                        let time = if fast { Duration::ZERO } else { FAST_FRAME };
                        let actions = if good { table.add_frame(time) } else { table.cannot_add_frame(Errno::NOMEM) };
                        model.see(actions);
                    }
                }
                Step::Detach(reader) => {
                    model.waiting.retain(|ticket, _| ticket.reader != reader);
                    model.held.retain(|ticket, _| ticket.reader != reader);
                    model.see(table.detach(reader));
                    table.attach(reader);
                }
            }
            // If a window is queued, a frame is needed or all frames are in use.
            let held = model.held.values().map(|(_, frame, _)| *frame);
            let in_use: HashSet<u32> = held.chain(model.loading.iter().map(|load| load.frame)).collect();
            prop_assert!(
                table.queue.is_empty()
                    || table.frame_to_make() == Some(Urgency::Needed)
                    || in_use.len() == FRAMES as usize
            );
            prop_assert_eq!(in_use.len() + table.free.len() + table.idle.len(), table.made as usize);
            prop_assert!(table.made + table.wanted <= FRAMES);
        }
        while table.frame_to_make() == Some(Urgency::Needed) {
            model.see(table.add_frame(FAST_FRAME));
        }
        while !model.loading.is_empty() {
            model.complete(&mut table, 0, true);
        }
        prop_assert!(model.waiting.is_empty() && table.queue.is_empty() && table.is_at_rest());
    }
}
