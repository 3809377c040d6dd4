//! Tests of workers that poll instead of waiting. Just-in-time reads are in time for them, too.

mod common;

use std::time::{Duration, Instant};

use bedplate_scan::{Channel, FRAME, Got, Scan, Service};
use common::{Fault, Faults, folder, write};

/// The time that the worker spends on each of the first pages.
const PACE: Duration = Duration::from_millis(700);

/// The method by which a worker gets its next page.
#[derive(Clone, Copy, Debug)]
enum By {
    /// The worker polls without a pause.
    Polling,
    /// The worker polls every millisecond.
    PollingAtTimes,
    /// The worker waits with a timeout of 0.
    WaitingForNoTime,
    /// The worker first checks whether a page is ready, and only then takes it.
    Looking,
    /// The worker sleeps until a page is ready.
    Waiting,
}

/// Takes the next page. Returns the time that this took; `None` at the end.
fn next(channel: &mut Channel, by: By) -> Option<Duration> {
    let start = Instant::now();
    loop {
        let got = match by {
            By::WaitingForNoTime => channel.wait_for_page(Some(Duration::ZERO)),
            By::Looking if !channel.wait(Some(Duration::ZERO)).unwrap() => Ok(Got::NotYet),
            _ => channel.get_page(),
        };
        match got.unwrap() {
            Got::Page(_) => {
                channel.put_page().unwrap();
                return Some(start.elapsed());
            }
            Got::End => return None,
            Got::NotYet => match by {
                By::Polling | By::WaitingForNoTime | By::Looking => {}
                By::PollingAtTimes => std::thread::sleep(Duration::from_millis(1)),
                By::Waiting => drop(channel.wait(None).unwrap()),
            },
        }
        assert!(start.elapsed() < Duration::from_secs(30), "no page for {by:?}");
    }
}

/// The worker is slow at first, so that little is read ahead for it, and then suddenly fast. Returns the longest time that it
/// then waits for a page.
fn longest(mut channel: Channel, by: By) -> Duration {
    for _ in 0..3 {
        assert!(channel.wait(None).unwrap());
        let Got::Page(_) = channel.get_page().unwrap() else { panic!("it was there") };
        std::thread::sleep(PACE);
        channel.put_page().unwrap();
    }
    let mut longest = Duration::ZERO;
    while let Some(time) = next(&mut channel, by) {
        longest = longest.max(time);
    }
    longest
}

/// On a busy machine any page may be late. A page that the service holds back is late in each of three attempts.
fn is_prompt(what: &str, by: By, open: impl Fn() -> Channel) {
    let mut took = Vec::new();
    for _ in 0..3 {
        took.push(longest(open(), by));
        if took.last().is_some_and(|took| *took < PACE / 2) {
            return;
        }
    }
    panic!("{by:?} of {what}: a page took {took:?}");
}

fn check(service: &Service) {
    let folder = folder();
    let path = write(folder.path(), 0, 12 * FRAME);
    for by in [By::Waiting, By::Polling, By::PollingAtTimes, By::WaitingForNoTime, By::Looking] {
        is_prompt("a scan", by, || service.open(Scan::of([&path])).unwrap());
        let pool = service.create_pool([&path], 16 * FRAME).unwrap();
        is_prompt("a pool", by, || service.join(pool.key(), FRAME).unwrap());
    }
}

#[test]
fn a_poller_is_heard() {
    check(&Service::start().unwrap());
}

/// Polling does not make a read faster. So a worker that polls for its page does not wake the service again and again.
#[test]
fn a_poller_rings_once_for_what_is_on_its_way() {
    const FRAMES: u64 = 6;
    let folder = folder();
    let path = write(folder.path(), 0, FRAMES as usize * FRAME);
    let faults = Faults::new(|_, _| Some(Fault::Slow(Duration::from_millis(100))));
    let service = Service::builder().wrap(faults.around()).build().unwrap();
    let pool = service.create_pool([&path], 16 * FRAME).unwrap();
    for by in [By::Polling, By::WaitingForNoTime, By::Looking] {
        let channels = [service.open(Scan::of([&path])).unwrap(), service.join(pool.key(), FRAME).unwrap()];
        for mut channel in channels {
            let mut asked = 0;
            while next(&mut channel, by).is_some() {
                asked += 1;
            }
            let calls = channel.statistics().calls;
            assert_eq!(asked, FRAMES);
            // A worker rings when it begins to poll. It rings again after another page than its next one has come.
            assert!(calls <= 3 * FRAMES, "{calls} calls for {FRAMES} frames, {by:?}");
        }
    }
}

/// The service gets the only processor although a worker polls without a pause.
#[test]
fn a_poller_is_heard_on_one_processor() {
    let mut one = rustix::thread::CpuSet::new();
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    one.set((0..rustix::thread::CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).unwrap());
    // The affinity holds for this thread and for all threads that it starts.
    rustix::thread::sched_setaffinity(None, &one).unwrap();
    check(&Service::start().unwrap());
}
