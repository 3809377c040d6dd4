//! Tests of cancelled ranges. Bytes of them that have not come yet do not come. Every other byte comes once.

mod common;

use std::time::Duration;

use bedplate_scan::{Channel, Daemon, Error, FRAME, Options, Range, Scan, Service};
use common::{Fault, Faults, folder, is_right, write};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

const PAGE: u64 = 8192;
const FRAMES: u64 = 6;
const LEN: u64 = FRAMES * FRAME as u64;

/// A step of a test with a channel.
#[derive(Clone, Debug)]
enum Step {
    Announce(Vec<Range>),
    Cancel(Vec<Range>),
    /// Takes this number of pages.
    Take(usize),
    /// Pauses, so that the service reads.
    Rest,
}

fn range() -> impl Strategy<Value = Range> {
    // Many ranges begin or end at pages, many do not, and many span the whole file.
    let place = prop_oneof![0..LEN, (0..LEN / PAGE).prop_map(|page| page * PAGE), Just(0), Just(LEN)];
    (place.clone(), place).prop_map(|(a, b)| Range { file: 0, start: a.min(b), end: a.max(b) })
}

fn step() -> impl Strategy<Value = Step> {
    let ranges = || prop::collection::vec(range(), 0..5);
    prop_oneof![
        2 => ranges().prop_map(Step::Announce),
        3 => ranges().prop_map(Step::Cancel),
        4 => (0usize..400).prop_map(Step::Take),
        1 => Just(Step::Rest),
    ]
}

/// The ranges that the channel still has to deliver, in order.
#[derive(Default)]
struct Model(Vec<(u64, u64)>);

impl Model {
    fn announce(&mut self, ranges: &[Range]) {
        self.0.extend(
            ranges.iter().filter(|range| range.start < range.end).map(|range| (range.start, range.end)),
        );
    }

    /// Removes the ranges. Returns the number of removed bytes.
    fn cancel(&mut self, ranges: &[Range]) -> u64 {
        let before = self.bytes();
        for range in ranges.iter().filter(|range| range.start < range.end) {
            let without =
                |(start, end): (u64, u64)| [(start, end.min(range.start)), (start.max(range.end), end)];
            self.0 =
                self.0.iter().flat_map(|part| without(*part)).filter(|(start, end)| start < end).collect();
        }
        before - self.bytes()
    }

    /// Checks a delivered page, and removes it.
    fn take(&mut self, offset: u64, len: u64) {
        let (start, end) = self.0[0];
        assert_eq!(offset, start, "another page was to come");
        assert!(len > 0 && offset + len <= end, "the page is longer than what was announced");
        self.0[0].0 += len;
        if self.0[0].0 == end {
            self.0.remove(0);
        }
    }

    fn bytes(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }
}

/// Takes the next page, if the model expects one.
fn take(channel: &mut Channel, model: &mut Model) -> bool {
    match channel.next_page().unwrap() {
        Some(page) => {
            assert!(is_right(0, page.offset(), &page));
            model.take(page.offset(), page.len() as u64);
            true
        }
        None => {
            assert_eq!(model.bytes(), 0, "the scan is over too early");
            false
        }
    }
}

fn play(mut channel: Channel, steps: &[Step]) {
    let (mut model, mut announced, mut cancelled) = (Model::default(), 0, 0);
    for step in steps {
        match step {
            Step::Announce(ranges) => {
                channel.notify_ranges(ranges).unwrap();
                model.announce(ranges);
                announced += ranges.iter().map(|range| range.end - range.start).sum::<u64>();
            }
            Step::Cancel(ranges) => {
                let bytes = model.cancel(ranges);
                assert_eq!(channel.cancel_ranges(ranges).unwrap(), bytes);
                cancelled += bytes;
            }
            Step::Take(count) => {
                for _ in 0..*count {
                    if !take(&mut channel, &mut model) {
                        break;
                    }
                }
            }
            Step::Rest => std::thread::sleep(Duration::from_millis(2)),
        }
        assert_eq!(channel.total_bytes(), announced - cancelled);
    }
    while take(&mut channel, &mut model) {}
    assert_eq!(channel.statistics().cancelled, cancelled);
}

/// Takes random steps. The channel delivers exactly the bytes that a simple model predicts.
fn check(cases: u32, open: impl Fn(usize, bool) -> Channel) {
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let strategy = (prop::collection::vec(step(), 1..12), 2usize..6, any::<bool>());
    let result = runner.run(&strategy, |(steps, frames, watched)| {
        play(open(frames, watched), &steps);
        Ok(())
    });
    result.unwrap();
}

fn scan(path: &std::path::Path, frames: usize, watched: bool) -> Scan {
    let scan =
        Scan::of([path]).ranges([]).page_size(PAGE as usize).unwrap().ring_bytes(frames * FRAME).unwrap();
    if watched { scan } else { scan.unwatched() }
}

#[test]
fn cancelled_bytes_do_not_come_and_all_others_come_once() {
    let folder = folder();
    let path = write(folder.path(), 0, LEN as usize);
    let service = Service::start().unwrap();
    check(100, |frames, watched| service.open(scan(&path, frames, watched)).unwrap());
}

#[test]
fn cancelling_works_through_a_daemon() {
    let folder = folder();
    let path = write(folder.path(), 0, LEN as usize);
    let place = tempfile::tempdir().unwrap();
    let socket = place.path().join("socket");
    let daemon = Daemon::bind(Service::start().unwrap(), &socket, &Options::default()).unwrap();
    let stopper = daemon.stopper();
    let thread = std::thread::spawn(move || daemon.run());
    let remote = Service::connect(&socket).unwrap();
    check(40, |frames, watched| remote.open(scan(&path, frames, watched)).unwrap());
    // The client sends more ranges than fit into one message.
    let mut channel = remote.open(Scan::of([&path]).page_size(4096).unwrap()).unwrap();
    let many: Vec<Range> =
        (0..3000).map(|unit| Range { file: 0, start: unit * 4096, end: unit * 4096 + 100 }).collect();
    assert_eq!(channel.cancel_ranges(&many).unwrap(), 300_000);
    let mut bytes = 0;
    while let Some(page) = channel.next_page().unwrap() {
        assert!(page.offset() >= 3000 * 4096 || page.offset() % 4096 == 100);
        bytes += page.len() as u64;
    }
    assert_eq!(bytes, LEN - 300_000);
    stopper.stop();
    thread.join().unwrap().unwrap();
}

/// When reads in flight end, their data and errors are discarded, and nothing else is read.
#[test]
fn reads_in_flight_are_discarded() {
    let folder = folder();
    let path = write(folder.path(), 0, LEN as usize);
    // Every read of a cancelled range fails.
    let bad = 3 * FRAME as u64;
    let faults = Faults::new(move |read, _| {
        (read.offset < bad).then_some(Fault::Late(rustix::io::Errno::AGAIN, Duration::from_millis(100)))
    });
    let service = Service::builder().wrap(faults.around()).build().unwrap();
    let mut channel = service.open(Scan::of([&path])).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(channel.cancel_ranges(&[Range { file: 0, start: 0, end: bad }]).unwrap(), bad);
    let mut model = Model(vec![(bad, LEN)]);
    while take(&mut channel, &mut model) {}
    assert_eq!(service.statistics().bytes_read, LEN - bad);
}

#[test]
fn what_cannot_be_cancelled_is_refused() {
    let folder = folder();
    let path = write(folder.path(), 0, LEN as usize);
    let service = Service::start().unwrap();
    let mut channel = service.open(Scan::of([&path])).unwrap();
    for (file, start, end) in [(1, 0, 1), (0, 5, 4), (0, 0, LEN + 1)] {
        assert!(matches!(channel.cancel_ranges(&[Range { file, start, end }]), Err(Error::Invalid(_))));
    }
    assert_eq!(channel.cancel_ranges(&[]).unwrap(), 0);
    let pool = service.create_pool([&path], 8 * FRAME).unwrap();
    let mut member = service.join(pool.key(), FRAME).unwrap();
    assert!(matches!(member.cancel_ranges(&[Range { file: 0, start: 0, end: 1 }]), Err(Error::Invalid(_))));
    // The refused call has cancelled nothing.
    for channel in [&mut channel, &mut member] {
        let mut bytes = 0;
        while let Some(page) = channel.next_page().unwrap() {
            bytes += page.len() as u64;
        }
        assert_eq!(bytes, LEN);
    }
}
