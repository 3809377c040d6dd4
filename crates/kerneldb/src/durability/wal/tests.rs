//! The log against a model: random transactions, faults at random calls, crashes at random points.

use std::collections::HashMap;

use proptest::prelude::*;
use proptest::test_runner::TestRng;

use super::encoder::Encoder;
use super::files::{list_segments, remove_segments, segment_name};
use super::frame::{FRAME_HEADER, FrameHeader, SEGMENT_HEADER, SegmentHeader, check_payload};
use super::replay::{Apply, Options, Replayed, replay};
use super::source::{OpRef, TxnSink};
use super::testing::{Writer, feed};
use crate::durability::disk::Dir;
use crate::durability::disk::faulty::{Faults, FaultyDir};
use crate::{Error, LogTxn, Op, Result};

const ID: [u8; 16] = *b"sixteen byte id!";

/// Collects the replayed transactions.
#[derive(Default)]
struct Collect {
    txns: Vec<LogTxn>,
}

impl TxnSink for Collect {
    fn begin(&mut self, commit_ts: u64) {
        self.txns.push(LogTxn { commit_ts, ops: Vec::new() });
    }
    fn op(&mut self, op: OpRef<'_>) {
        self.txns.last_mut().unwrap().ops.push(op.into());
    }
    fn end(&mut self) {}
}

impl Apply for Collect {
    fn sink(&mut self) -> &mut dyn TxnSink {
        self
    }
    fn check(&mut self, bytes: u64, total: u64) -> Result<()> {
        assert!(bytes <= total);
        Ok(())
    }
}

fn read(dir: &dyn Dir, after: u64, force: bool) -> Result<(Vec<LogTxn>, Replayed)> {
    let mut collect = Collect::default();
    let options = Options { database_id: &ID, after, force, repair: true };
    let done = replay(dir, &options, &mut collect)?;
    Ok((collect.txns, done))
}

fn writer(dir: &FaultyDir, done: &Replayed) -> Writer {
    Writer::new(dir, ID, done.last_ts, done.next_seq)
}

fn txn(ts: u64, n: usize, size: usize) -> LogTxn {
    let op = |i: usize| match (ts as usize + i) % 4 {
        0 => Op::Delete { key: format!("key {ts} {i}").into_bytes() },
        1 => Op::Put { key: vec![7; 255], value: vec![ts as u8; size], expire_at_ms: Some(ts * 3) },
        _ => Op::Put { key: format!("key {i}").into_bytes(), value: vec![i as u8; size], expire_at_ms: None },
    };
    LogTxn { commit_ts: ts, ops: (0..n).map(op).collect() }
}

fn fresh() -> Replayed {
    Replayed { next_seq: 1, ..Replayed::default() }
}

/// A log of `n` transactions in frames of `per_frame`, all synced.
fn written(n: u64, per_frame: usize) -> (FaultyDir, Vec<LogTxn>) {
    let dir = FaultyDir::new();
    let mut log = writer(&dir, &fresh());
    let txns: Vec<_> = (1..=n).map(|ts| txn(ts, ts as usize % 3, 10)).collect();
    for chunk in txns.chunks(per_frame) {
        log.add(chunk);
        log.sync().unwrap();
    }
    assert_eq!(log.durable_ts(), n);
    assert_eq!(log.pending_bytes(), 0);
    (dir, txns)
}

#[test]
fn everything_comes_back() {
    let (dir, txns) = written(200, 3);
    assert!(list_segments(&dir).unwrap().len() > 2);
    let (got, done) = read(&dir, 0, false).unwrap();
    assert_eq!(got, txns);
    assert_eq!((done.last_ts, done.txns, done.torn_bytes), (200, 200, 0));
    assert_eq!(done.ops, txns.iter().map(|t| t.ops.len() as u64).sum::<u64>());
    for after in [1, 2, 57, 199, 200, 300] {
        let (got, done) = read(&dir, after, false).unwrap();
        assert_eq!(got, txns[(after as usize).min(200)..]);
        assert_eq!(done.last_ts, after.max(200));
    }
}

#[test]
fn an_empty_directory_is_an_empty_log() {
    let (got, done) = read(&FaultyDir::new(), 0, false).unwrap();
    assert!(got.is_empty());
    assert_eq!(done, fresh());
}

#[test]
fn cut_at_every_byte_is_a_prefix() {
    let (dir, txns) = written(6, 2);
    let segments = list_segments(&dir).unwrap();
    assert_eq!(segments.len(), 1);
    let name = segment_name(segments[0].0, segments[0].1);
    let whole = dir.contents(&name).unwrap();
    for cut in SEGMENT_HEADER..whole.len() {
        let dir = FaultyDir::new();
        dir.put(&name, whole[..cut].to_vec());
        let (got, done) = read(&dir, 0, false).unwrap();
        assert_eq!(got, txns[..got.len()], "cut at {cut}");
        assert_eq!(done.last_ts, got.len() as u64);
        // The log goes on behind the cut.
        let mut log = writer(&dir, &done);
        let more: Vec<_> = (1..=3).map(|i| txn(done.last_ts + i, 2, 5)).collect();
        log.add(&more);
        log.sync().unwrap();
        let (again, _) = read(&dir, 0, false).unwrap();
        assert_eq!(again, [got, more].concat());
    }
}

#[test]
fn damage_of_durable_data_is_an_error() {
    let (dir, txns) = written(60, 2);
    let segments = list_segments(&dir).unwrap();
    let last = segments.last().unwrap().1;
    for &(first_ts, seq) in &segments {
        let name = segment_name(first_ts, seq);
        let whole = dir.contents(&name).unwrap();
        let header = FrameHeader::decode(&whole[SEGMENT_HEADER..], super::frame::salt(&ID)).unwrap();
        let first_frame_end = SEGMENT_HEADER + header.frame_len() as usize;
        for at in 0..first_frame_end {
            // Padding has no contents.
            if at >= SEGMENT_HEADER + FRAME_HEADER + header.payload as usize {
                continue;
            }
            let mut bad = whole.clone();
            bad[at] ^= 0x20;
            dir.put(&name, bad);
            let read = |after, force| read(&dir.crash(&mut |n| n - 1), after, force);
            let error = read(0, false).map(|(got, _)| got.len()).unwrap_err();
            assert!(matches!(error, Error::Corrupt(_)), "{seq} of {last}, byte {at}: {error}");
            assert!(error.to_string().contains(&name), "{error}");
            // With force, everything before the damage is recovered.
            let (got, done) = read(0, true).unwrap();
            assert_eq!(got, txns[..first_ts as usize - 1]);
            assert!(done.damage.is_some());
            // A checkpoint that covers the damage makes it harmless.
            let after = header.last_ts();
            if at >= SEGMENT_HEADER {
                let (got, _) = read(after, false).unwrap();
                assert_eq!(got, txns[after as usize..]);
            }
        }
        dir.put(&name, whole);
    }
}

#[test]
fn forced_recovery_goes_on_and_stays() {
    let (dir, txns) = written(60, 2);
    let segments = list_segments(&dir).unwrap();
    let (first_ts, seq) = segments[1];
    let name = segment_name(first_ts, seq);
    let mut bad = dir.contents(&name).unwrap();
    bad[SEGMENT_HEADER + 3] ^= 1;
    dir.put(&name, bad);
    let (got, done) = read(&dir, 0, true).unwrap();
    assert_eq!(got, txns[..first_ts as usize - 1]);
    let mut log = writer(&dir, &done);
    let more = [txn(first_ts, 2, 3)];
    log.add(&more);
    log.sync().unwrap();
    // From now on it is a normal log.
    let (again, done) = read(&dir, 0, false).unwrap();
    assert_eq!(again, [got, more.to_vec()].concat());
    assert_eq!(done.damage, None);
}

#[test]
fn missing_segments_are_an_error() {
    let (dir, _) = written(60, 2);
    let segments = list_segments(&dir).unwrap();
    let (ts, seq) = segments[0];
    dir.remove(&segment_name(ts, seq)).unwrap();
    let error = read(&dir, 0, false).unwrap_err().to_string();
    assert!(error.contains("no usable checkpoint"), "{error}");
    let (ts, seq) = segments[2];
    dir.remove(&segment_name(ts, seq)).unwrap();
    let error = read(&dir, segments[1].0, false).unwrap_err().to_string();
    assert!(error.contains("damaged or missing"), "{error}");
}

#[test]
fn another_databases_log_is_refused() {
    let (dir, _) = written(4, 2);
    let options = Options { database_id: &[1; 16], after: 0, force: true, repair: false };
    let error = replay(&dir, &options, &mut Collect::default()).unwrap_err();
    assert!(error.to_string().contains("another database"), "{error}");
}

#[test]
fn truncation_keeps_what_a_checkpoint_needs() {
    for ts in 0..=60 {
        let (dir, txns) = written(60, 2);
        let before = list_segments(&dir).unwrap();
        let removed = remove_segments(&dir, ts).unwrap();
        let after = list_segments(&dir).unwrap();
        assert_eq!(after, before[removed..]);
        assert!(!after.is_empty());
        // No segment stays that could be removed.
        assert!(after.len() == 1 || after[1].0 > ts + 1);
        let (got, _) = read(&dir, ts, false).unwrap();
        assert_eq!(got, txns[ts as usize..]);
    }
}

#[test]
fn a_failed_fsync_is_never_believed_later() {
    let dir = FaultyDir::new();
    let mut log = writer(&dir, &fresh());
    let txns: Vec<_> = (1..=9).map(|ts| txn(ts, 2, 20)).collect();
    log.add(&txns[..3]);
    log.sync().unwrap();
    log.add(&txns[3..6]);
    dir.set_faults(Faults { sync_fails: true, ..Faults::default() });
    for _ in 0..3 {
        assert!(log.sync().is_err());
        assert_eq!(log.durable_ts(), 3);
    }
    dir.set_faults(Faults::default());
    log.add(&txns[6..]);
    log.sync().unwrap();
    assert_eq!(log.durable_ts(), 9);
    // The log is complete, whichever bytes of the failed attempts the disk forgot.
    for choice in 0..2 {
        let after = dir.crash(&mut |n| (n - 1) * choice);
        assert_eq!(read(&after, 0, false).unwrap().0, txns);
    }
    // The failed attempts left no files except the first segment and its successor.
    assert_eq!(list_segments(&dir).unwrap().len(), 2);
}

#[test]
fn a_full_disk_loses_nothing() {
    let dir = FaultyDir::new();
    let mut log = writer(&dir, &fresh());
    let txns: Vec<_> = (1..=200).map(|ts| txn(ts, 3, 30)).collect();
    dir.set_faults(Faults { capacity: Some(6000), ..Faults::default() });
    let mut failed = 0;
    for (i, one) in txns.iter().enumerate() {
        log.add(std::slice::from_ref(one));
        if log.sync().is_err() {
            failed += 1;
            let durable = log.durable_ts();
            assert!(durable <= i as u64);
            let crashed = dir.crash(&mut |_| 0);
            assert_eq!(read(&crashed, 0, false).unwrap().1.last_ts, durable);
        }
        if i == 150 {
            dir.set_faults(Faults::default());
        }
    }
    assert!(failed > 50);
    assert_eq!(log.durable_ts(), 200);
    assert_eq!(read(&dir.crash(&mut |_| 0), 0, false).unwrap().0, txns);
}

#[test]
fn a_broken_sequence_stops_the_encoder() {
    let mut encoder = Encoder::new(4);
    feed(&mut encoder, &txn(5, 1, 1));
    feed(&mut encoder, &txn(7, 1, 1));
    assert!(encoder.broken().unwrap().contains("commit 7 came after commit 5"));
    feed(&mut encoder, &txn(6, 1, 1));
    let frames = encoder.take_frames();
    assert_eq!((frames.len(), frames[0].first_ts, frames[0].txns), (1, 5, 1));
}

#[test]
fn a_value_cannot_pose_as_a_frame() {
    // A client stores the bytes of a frame of this very segment, which claims that everything is
    // durable.
    let mut fake = Encoder::new(50);
    feed(&mut fake, &txn(51, 1, 1));
    let fake = fake.take_frames()[0].finish(100, 1, super::frame::salt(&[0; 16])).to_vec();
    let dir = FaultyDir::new();
    let mut log = writer(&dir, &fresh());
    log.add(&[LogTxn {
        commit_ts: 1,
        ops: (0..8)
            .map(|pad| Op::Put {
                key: vec![b'k'; 8 - pad],
                value: [vec![0; pad], fake.clone()].concat(),
                expire_at_ms: None,
            })
            .collect(),
    }]);
    log.sync().unwrap();
    let name = segment_name(1, 1);
    let mut bytes = dir.contents(&name).unwrap();
    bytes[SEGMENT_HEADER + FRAME_HEADER] ^= 1;
    dir.put(&name, bytes);
    let (got, done) = read(&dir, 0, false).unwrap();
    assert!(got.is_empty() && done.torn_bytes > 0);
}

#[derive(Clone, Debug)]
enum Step {
    Add {
        txns: usize,
        size: usize,
    },
    Write,
    Sync,
    /// Power failure, recovery, and continuation.
    Crash,
    /// The process dies; the operating system keeps the written data.
    Kill,
    /// A checkpoint at a part (in 256ths) of the durable commits; the log is cut.
    Checkpoint(u8),
    Faults {
        after: u64,
        errno: i32,
        more: u64,
    },
    Capacity(Option<u64>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (1..6usize, 0..400usize).prop_map(|(txns, size)| Step::Add { txns, size }),
        4 => Just(Step::Write),
        4 => Just(Step::Sync),
        2 => Just(Step::Crash),
        1 => Just(Step::Kill),
        1 => any::<u8>().prop_map(Step::Checkpoint),
        2 => (1..9u64, prop_oneof![Just(libc::EIO), Just(libc::ENOSPC)], 0..4u64)
            .prop_map(|(after, errno, more)| Step::Faults { after, errno, more }),
        1 => prop_oneof![Just(None), (0..9000u64).prop_map(Some)].prop_map(Step::Capacity),
    ];
    proptest::collection::vec(step, 1..60)
}

/// Runs the steps and checks after every recovery that all durable commits are there, and that the
/// recovered ones are exactly a prefix of the committed ones.
fn run(steps: &[Step], rng: &mut TestRng) {
    let mut dir = FaultyDir::new();
    let mut log = writer(&dir, &fresh());
    let mut committed: Vec<LogTxn> = Vec::new();
    let (mut durable, mut checkpoint) = (0, 0);
    for step in steps {
        match step {
            Step::Add { txns, size } => {
                let more: Vec<_> = (0..*txns)
                    .map(|i| txn((committed.len() + 1 + i) as u64, rng.random_range(0..4), *size))
                    .collect();
                log.add(&more);
                committed.extend(more);
            }
            // Errors are expected, and the writer stays usable.
            Step::Write => drop(log.write()),
            Step::Sync => {
                if log.sync().is_ok() {
                    assert_eq!(log.durable_ts(), committed.len() as u64);
                }
            }
            Step::Checkpoint(part) => {
                checkpoint = checkpoint.max(durable * u64::from(*part) / 256);
                let _ = remove_segments(&dir, checkpoint);
            }
            Step::Faults { after, errno, more } => {
                let first = dir.calls() + after;
                let at = (0..=*more).map(|i| (first + i, *errno)).collect::<HashMap<_, _>>();
                dir.set_faults(Faults { at, ..Faults::default() });
            }
            Step::Capacity(capacity) => {
                dir.set_faults(Faults { capacity: *capacity, ..Faults::default() });
            }
            Step::Crash | Step::Kill => {
                durable = durable.max(log.durable_ts());
                dir = match step {
                    Step::Crash => dir.crash(&mut |n| rng.random_range(0..n)),
                    _ => dir,
                };
                dir.set_faults(Faults::default());
                let (got, done) = read(&dir, checkpoint, false).unwrap();
                assert!(done.last_ts >= durable, "{} of {durable} recovered", done.last_ts);
                assert_eq!(got, committed[checkpoint as usize..done.last_ts as usize]);
                committed.truncate(done.last_ts as usize);
                log = writer(&dir, &done);
            }
        }
        durable = durable.max(log.durable_ts());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn nothing_durable_is_lost(steps in steps(), seed in any::<[u8; 32]>()) {
        let mut rng = TestRng::from_seed(proptest::test_runner::RngAlgorithm::ChaCha, &seed);
        let steps = [&steps[..], &[Step::Crash]].concat();
        run(&steps, &mut rng);
    }

    #[test]
    fn arbitrary_bytes_are_no_frames(mut bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = SegmentHeader::decode(&bytes);
        prop_assert!(FrameHeader::decode(&bytes, 0).is_none());
        // An intact header, with a payload that does not match it.
        let ops = bytes.first().copied().unwrap_or(0).into();
        let header = FrameHeader {
            payload: bytes.len() as u32, payload_crc: crc32c::crc32c(&bytes),
            first_ts: 1, durable_ts: 0, txns: 1, ops, seq: 1,
        };
        let valid = check_payload(&header, &bytes);
        bytes.push(0);
        prop_assert!(!valid || !check_payload(&header, &bytes));
    }

    #[test]
    fn arbitrary_bytes_in_a_segment(bytes in proptest::collection::vec(any::<u8>(), 0..2000), seed in any::<u64>()) {
        let (dir, txns) = written(20, 2);
        let (first_ts, seq) = *list_segments(&dir).unwrap().last().unwrap();
        let name = segment_name(first_ts, seq);
        let mut whole = dir.contents(&name).unwrap();
        let at = seed as usize % (whole.len() + 1);
        let end = (at + bytes.len()).max(whole.len());
        whole.resize(end, 0);
        whole[at..at + bytes.len()].copy_from_slice(&bytes);
        dir.put(&name, whole);
        if let Ok((got, _)) = read(&dir, 0, false) {
            prop_assert_eq!(&got, &txns[..got.len()]);
        }
        let (got, _) = read(&dir, 0, true).unwrap();
        prop_assert_eq!(&got, &txns[..got.len()]);
    }
}
