//! The running log: threads, waiting, failing and resuming, stopping.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::replay::{Apply, Options, replay};
use super::source::{LogSource, OpRef, TxnSink};
use super::{Start, Wal, WalConfig};
use crate::durability::disk::Dir;
use crate::durability::disk::faulty::{Faults, FaultyDir};
use crate::durability::disk::real::RealDir;
use crate::{Durability, Error, LogTxn, Op};

const ID: [u8; 16] = [9; 16];
const LONG: Duration = Duration::from_secs(20);

/// Rings in memory.
#[derive(Clone, Default)]
struct Rings {
    queue: Arc<Mutex<VecDeque<LogTxn>>>,
    clock: Arc<Mutex<u64>>,
    looks: Arc<AtomicU64>,
}

impl Rings {
    fn commit(&self, size: usize) -> u64 {
        let mut clock = self.clock.lock().unwrap();
        *clock += 1;
        let key = format!("key {clock}").into_bytes();
        let op = Op::Put { key, value: vec![1; size], expire_at_ms: None };
        self.queue.lock().unwrap().push_back(LogTxn { commit_ts: *clock, ops: vec![op] });
        *clock
    }

    fn waiting(&self) -> usize {
        self.queue.lock().unwrap().len()
    }
}

impl LogSource for Rings {
    fn drain(&mut self, max_bytes: usize, sink: &mut dyn TxnSink) -> usize {
        self.looks.fetch_add(1, Ordering::Relaxed);
        let (mut n, mut bytes) = (0, 0);
        while bytes < max_bytes {
            let Some(txn) = self.queue.lock().unwrap().pop_front() else { break };
            sink.begin(txn.commit_ts);
            for op in &txn.ops {
                if let OpRef::Put { value, .. } = OpRef::from(op) {
                    bytes += value.len();
                }
                sink.op(op.into());
            }
            sink.end();
            n += 1;
        }
        n
    }
}

type Reports = Arc<Mutex<Vec<(u64, bool)>>>;

struct Running {
    wal: Wal,
    rings: Rings,
    reports: Reports,
}

fn start(config: WalConfig, dir: Arc<dyn Dir>) -> Running {
    let (rings, reports) = (Rings::default(), Reports::default());
    let (mut source, sink) = (rings.clone(), reports.clone());
    let wal = Wal::start(
        config,
        Start { dir, database_id: ID, ts: 0, seq: 1 },
        Box::new(move |run| run(&mut source)),
        Box::new(move |ts, failed| sink.lock().unwrap().push((ts, failed))),
    )
    .unwrap();
    Running { wal, rings, reports }
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn logged(dir: &dyn Dir) -> u64 {
    struct Ignore;
    impl TxnSink for Ignore {
        fn begin(&mut self, _: u64) {}
        fn op(&mut self, _: OpRef<'_>) {}
        fn end(&mut self) {}
    }
    impl Apply for Ignore {
        fn sink(&mut self) -> &mut dyn TxnSink {
            self
        }
        fn check(&mut self, _: u64, _: u64) -> crate::Result<()> {
            Ok(())
        }
    }
    let options = Options { database_id: &ID, after: 0, force: false, repair: false };
    replay(dir, &options, &mut Ignore).unwrap().last_ts
}

#[test]
fn asynchronous_commits_become_durable_by_themselves() {
    let dir = FaultyDir::new();
    let config = WalConfig { sync_interval: Duration::from_millis(20), ..WalConfig::default() };
    let running = start(config, Arc::new(dir.clone()));
    for _ in 0..100 {
        running.rings.commit(10);
    }
    until("durable", || running.wal.durable_ts() == 100);
    assert_eq!(logged(&dir.crash(&mut |_| 0)), 100);
    let stats = running.wal.stats();
    assert_eq!((stats.txns, stats.drained_ts, stats.segments, stats.errors), (100, 100, 1, 0));
    assert!(stats.bytes > 1000 && !stats.failed);
}

#[test]
fn written_data_is_readable_before_it_is_synced() {
    // The files of a killed process (not of a crashed machine).
    let dir = FaultyDir::new();
    let config = WalConfig { sync_interval: Duration::from_secs(60), ..WalConfig::default() };
    let running = start(config, Arc::new(dir.clone()));
    running.rings.commit(10);
    until("written", || running.wal.stats().bytes > 0);
    assert_eq!(running.wal.durable_ts(), 0);
    assert_eq!(logged(&dir), 1);
    // A thread that waits does not wait for the interval.
    assert!(running.wal.wait_durable(1, LONG).unwrap());
    assert_eq!(logged(&dir.crash(&mut |_| 0)), 1);
}

#[test]
fn synchronous_commits_share_fsyncs() {
    let temp = tempfile::tempdir().unwrap();
    let dir: Arc<dyn Dir> = Arc::new(RealDir::open_existing(temp.path()).unwrap());
    let config = WalConfig { durability: Durability::Sync, ..WalConfig::default() };
    let running = start(config, dir.clone());
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let ts = running.rings.commit(100);
                    assert!(running.wal.wait_durable(ts, LONG).unwrap());
                    assert!(running.wal.durable_ts() >= ts);
                }
            });
        }
    });
    let stats = running.wal.stats();
    assert_eq!(stats.durable_ts, 320);
    assert!(stats.syncs < 320, "{} fsyncs for 320 commits", stats.syncs);
    assert_eq!(logged(&*dir), 320);
}

#[test]
fn waiting_has_an_end() {
    let running = start(WalConfig::default(), Arc::new(FaultyDir::new()));
    assert!(running.wal.wait_durable(0, Duration::ZERO).unwrap());
    assert!(!running.wal.wait_durable(1, Duration::from_millis(30)).unwrap());
    assert!(!running.wal.wait_durable(1, Duration::ZERO).unwrap());
}

#[test]
fn an_event_loop_is_told() {
    let running = start(WalConfig::default(), Arc::new(FaultyDir::new()));
    let watch = running.wal.watch().unwrap();
    let readable = |timeout: Duration| {
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        poll(&mut [PollFd::from_borrowed_fd(watch.fd(), PollFlags::IN)], Some(&timeout)).unwrap() == 1
    };
    assert!(!readable(Duration::from_millis(20)));
    let ts = running.rings.commit(10);
    running.wal.request(ts);
    assert!(readable(LONG));
    assert!(readable(Duration::ZERO));
    watch.clear();
    assert_eq!(running.wal.durable_ts(), ts);
    assert!(!readable(Duration::from_millis(20)));
    watch.clear();
}

#[test]
fn a_failing_disk_is_reported_and_resumes() {
    for faults in [
        Faults { capacity: Some(300), ..Faults::default() },
        Faults { sync_fails: true, ..Faults::default() },
    ] {
        let dir = FaultyDir::new();
        let config = WalConfig {
            retry_interval: Duration::from_millis(5),
            sync_interval: Duration::from_millis(2),
            ..WalConfig::default()
        };
        let running = start(config, Arc::new(dir.clone()));
        let watch = running.wal.watch().unwrap();
        let first = running.rings.commit(20);
        assert!(running.wal.wait_durable(first, LONG).unwrap());
        watch.clear();
        dir.set_faults(faults);
        for _ in 0..20 {
            running.rings.commit(100);
        }
        until("failed", || running.wal.failed());
        assert!(running.wal.durable_ts() < 21);
        let error = running.wal.wait_durable(21, Duration::from_millis(30)).unwrap_err();
        assert!(matches!(error, Error::WalFailed), "{error}");
        let durable = running.wal.durable_ts();
        assert!(durable >= first);
        assert_eq!(logged(&dir.crash(&mut |_| 0)), durable);
        until("retried", || running.wal.stats().errors > 3);
        // The log resumes by itself, once the disk works again.
        dir.set_faults(Faults::default());
        assert!(running.wal.wait_durable(21, LONG).unwrap());
        until("resumed", || !running.wal.failed());
        assert_eq!(logged(&dir.crash(&mut |_| 0)), 21);
        // The report comes a moment after waiting threads are woken.
        until("told", || running.reports.lock().unwrap().last() == Some(&(21, false)));
        let reports = running.reports.lock().unwrap().clone();
        assert!(reports.iter().any(|r| r.1));
        assert!(reports.windows(2).all(|w| w[0].0 <= w[1].0 && w[0] != w[1]), "{reports:?}");
    }
}

#[test]
fn stopping_takes_everything_along_and_refuses_more() {
    let dir = FaultyDir::new();
    let config = WalConfig { sync_interval: Duration::from_secs(60), ..WalConfig::default() };
    let running = start(config, Arc::new(dir.clone()));
    for _ in 0..5000 {
        running.rings.commit(1000);
    }
    running.wal.stop().unwrap();
    running.wal.stop().unwrap();
    assert_eq!(running.wal.durable_ts(), 5000);
    assert_eq!(logged(&dir.crash(&mut |_| 0)), 5000);
    assert_eq!(*running.reports.lock().unwrap().last().unwrap(), (5000, true));
    // No thread waits forever for a log that has stopped.
    assert!(matches!(running.wal.wait_durable(5001, LONG), Err(Error::WalFailed)));
}

#[test]
fn stopping_on_a_dead_disk_says_so() {
    let dir = FaultyDir::new();
    let running = start(WalConfig::default(), Arc::new(dir.clone()));
    dir.set_faults(Faults { sync_fails: true, ..Faults::default() });
    running.rings.commit(10);
    assert!(matches!(running.wal.stop(), Err(Error::WalFailed)));
}

#[test]
fn a_slow_disk_pushes_back() {
    let dir = FaultyDir::new();
    dir.set_faults(Faults { sync_fails: true, ..Faults::default() });
    let config = WalConfig { max_unsynced_bytes: 1 << 20, ..WalConfig::default() };
    let running = start(config, Arc::new(dir.clone()));
    for _ in 0..5000 {
        running.rings.commit(1000);
    }
    until("failed", || running.wal.failed());
    std::thread::sleep(Duration::from_millis(50));
    // The rings stay full instead of memory growing.
    assert!(running.rings.waiting() > 2000, "{}", running.rings.waiting());
    dir.set_faults(Faults::default());
    assert!(running.wal.wait_durable(5000, LONG).unwrap());
}

#[test]
fn a_hole_in_the_sequence_stops_the_log() {
    let dir = FaultyDir::new();
    let running = start(WalConfig::default(), Arc::new(dir.clone()));
    running.rings.commit(10);
    *running.rings.clock.lock().unwrap() += 1;
    running.rings.commit(10);
    until("failed", || running.wal.failed());
    assert_eq!(running.wal.durable_ts(), 1);
    assert_eq!(logged(&dir), 1);
}

#[test]
fn a_panicking_source_fails_the_log() {
    struct Panics;
    impl LogSource for Panics {
        fn drain(&mut self, _: usize, _: &mut dyn TxnSink) -> usize {
            std::panic::resume_unwind(Box::new("as tested"))
        }
    }
    let wal = Wal::start(
        WalConfig::default(),
        Start { dir: Arc::new(FaultyDir::new()), database_id: ID, ts: 0, seq: 1 },
        Box::new(|run| run(&mut Panics)),
        Box::new(|_, _| ()),
    )
    .unwrap();
    until("failed", || wal.failed());
}

#[test]
fn an_idle_log_sleeps() {
    let running = start(WalConfig::default(), Arc::new(FaultyDir::new()));
    running.rings.commit(10);
    until("durable", || running.wal.durable_ts() == 1);
    std::thread::sleep(Duration::from_millis(200));
    let (before, started) = (running.rings.looks.load(Ordering::Relaxed), Instant::now());
    std::thread::sleep(Duration::from_millis(200));
    let looks = running.rings.looks.load(Ordering::Relaxed) - before;
    let most = started.elapsed().as_millis() as u64 / 4 + 5;
    assert!(looks <= most, "{looks} looks, at most {most} expected");
}

#[test]
fn bad_knobs_are_refused() {
    let ok = WalConfig::default();
    let zero = Duration::ZERO;
    for bad in [
        WalConfig { segment_bytes: 1, ..ok.clone() },
        WalConfig { sync_interval: zero, ..ok.clone() },
        WalConfig { write_threshold: 0, ..ok.clone() },
        WalConfig { max_unsynced_bytes: 0, ..ok.clone() },
        WalConfig { idle_sleep: zero, ..ok.clone() },
        WalConfig { retry_interval: zero, ..ok.clone() },
    ] {
        assert!(matches!(bad.check(), Err(Error::Config(_))), "{bad:?}");
    }
    ok.check().unwrap();
}
