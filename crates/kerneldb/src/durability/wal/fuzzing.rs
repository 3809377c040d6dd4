//! The log with arbitrary bytes in it.

use super::frame::{FrameHeader, SegmentHeader, salt};
use super::replay::{Apply, Options, replay};
use super::source::{OpRef, TxnSink};
use crate::durability::disk::faulty::FaultyDir;
use crate::{KEY_MAX, Result, VALUE_MAX};

/// Checks the transactions that a log hands over.
#[derive(Default)]
struct Check {
    last_ts: u64,
    open: bool,
}

impl TxnSink for Check {
    fn begin(&mut self, commit_ts: u64) {
        assert_eq!(commit_ts, self.last_ts + 1);
        assert!(!std::mem::replace(&mut self.open, true));
        self.last_ts = commit_ts;
    }

    fn op(&mut self, op: OpRef<'_>) {
        let (OpRef::Put { key, .. } | OpRef::Delete { key }) = op;
        assert!(self.open && (1..=KEY_MAX).contains(&key.len()));
        if let OpRef::Put { value, .. } = op {
            assert!(value.len() <= VALUE_MAX);
        }
    }

    fn end(&mut self) {
        assert!(std::mem::replace(&mut self.open, false));
    }
}

impl Apply for Check {
    fn sink(&mut self) -> &mut dyn TxnSink {
        self
    }

    fn check(&mut self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }
}

/// Replays a log that consists of one segment.
fn read(segment: Vec<u8>, force: bool, repair: bool) -> Result<u64> {
    let dir = FaultyDir::new();
    dir.put(&super::files::segment_name(1, 1), segment);
    let mut check = Check::default();
    let options = Options { database_id: &[7; 16], after: 0, force, repair };
    let done = replay(&dir, &options, &mut check)?;
    assert!(!check.open && done.last_ts == check.last_ts);
    Ok(done.last_ts)
}

/// Replays arbitrary bytes as a segment, behind a valid header, and, past the checksums, as the payload of
/// a frame. The replay must not panic, and its commits must have no gaps.
pub(crate) fn arbitrary_bytes(input: &[u8]) {
    let [txns, ops, bytes @ ..] = input else { return };
    let header = SegmentHeader { database_id: [7; 16], first_ts: 1, seq: 1, created_ms: 1 }.encode();
    let frame = FrameHeader {
        payload: bytes.len() as u32,
        payload_crc: crc32c::crc32c(bytes),
        first_ts: 1,
        durable_ts: 0,
        txns: u32::from(*txns),
        ops: u32::from(*ops),
        seq: 1,
    };
    let mut framed = [&header[..], &frame.encode(salt(&[7; 16])), bytes].concat();
    framed.resize(header.len() + frame.frame_len() as usize, 0);
    for segment in [bytes.to_vec(), [&header[..], bytes].concat(), framed] {
        let strict = read(segment.clone(), false, false);
        let forced = read(segment.clone(), true, false);
        if let (Ok(strict), Ok(forced)) = (&strict, &forced) {
            assert_eq!(strict, forced);
        }
        // A replay with repair has the same result as one without.
        assert_eq!(read(segment, true, true).ok(), forced.ok());
    }
}
