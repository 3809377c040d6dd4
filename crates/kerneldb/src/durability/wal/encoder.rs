//! Packs drained transactions into frames.

use super::frame::Frame;
use super::source::{OpRef, TxnSink};
use crate::limits::{FRAME_BYTES, FRAME_PAYLOAD_MAX};

/// Builds frames from the transactions of a source. Buffers come from a pool that the caller fills.
///
/// No frame that the reader of the log would refuse leaves the encoder. A transaction that does not fit into a frame is
/// removed as a whole, and the log cannot go on. The database never commits such a large one
/// ([`crate::limits::TX_BYTES_MAX`]).
pub(crate) struct Encoder {
    current: Option<Frame>,
    closed: Vec<Frame>,
    last_ts: u64,
    /// Payload bytes and changes of the current frame before the current transaction.
    before: (usize, u32),
    /// Longest payload of a frame.
    payload_max: usize,
    /// The reason why the source is broken, if it is; the encoder then accepts nothing more.
    broken: Option<String>,
    pub(crate) spare: Vec<Vec<u8>>,
}

impl Encoder {
    /// The first transaction will be `last_ts + 1`.
    pub(crate) fn new(last_ts: u64) -> Encoder {
        Encoder::with_limit(last_ts, FRAME_PAYLOAD_MAX)
    }

    fn with_limit(last_ts: u64, payload_max: usize) -> Encoder {
        Encoder {
            current: None,
            closed: Vec::new(),
            last_ts,
            before: (0, 0),
            payload_max,
            broken: None,
            spare: Vec::new(),
        }
    }

    /// Timestamp of the newest transaction taken.
    pub(crate) fn last_ts(&self) -> u64 {
        self.last_ts
    }

    /// The reason why the log cannot go on, if the source broke the sequence or a transaction does not fit.
    pub(crate) fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    /// Closes the open frame and hands over all frames.
    pub(crate) fn take_frames(&mut self) -> Vec<Frame> {
        self.close();
        std::mem::take(&mut self.closed)
    }

    fn close(&mut self) {
        if let Some(mut frame) = self.current.take_if(|frame| frame.txns > 0) {
            frame.close();
            self.closed.push(frame);
        }
    }

    /// Removes the current transaction.
    fn refuse(&mut self) {
        let ts = self.last_ts + 1;
        self.broken = Some(format!("transaction {ts} does not fit into {} bytes", self.payload_max));
        if let Some(frame) = &mut self.current {
            frame.undo_to(self.before.0, self.before.1);
        }
    }
}

impl TxnSink for Encoder {
    fn begin(&mut self, commit_ts: u64) {
        if self.broken.is_some() {
            return;
        }
        if commit_ts != self.last_ts + 1 {
            // Logging around a hole would lose transactions silently.
            self.broken = Some(format!("commit {commit_ts} came after commit {}", self.last_ts));
            return;
        }
        let frame = self.current.get_or_insert_with(|| {
            let mut frame = Frame::new(self.spare.pop().unwrap_or_default());
            frame.first_ts = commit_ts;
            frame
        });
        self.before = (frame.payload_len(), frame.ops);
    }

    fn op(&mut self, op: OpRef<'_>) {
        if self.broken.is_some() {
            return;
        }
        let Some(frame) = &mut self.current else { return };
        // One more byte ends the transaction.
        if frame.payload_len() + Frame::op_len(&op) < self.payload_max {
            frame.push_op(op);
        } else {
            self.refuse();
        }
    }

    fn end(&mut self) {
        if self.broken.is_some() {
            return;
        }
        let Some(frame) = &mut self.current else { return };
        frame.end_txn();
        self.last_ts += 1;
        if frame.len() >= FRAME_BYTES {
            self.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durability::wal::frame::{FRAME_HEADER, FrameHeader, check_payload, decode_payload, salt};
    use crate::durability::wal::progress::Queue;
    use crate::durability::wal::testing::feed;
    use crate::{LogTxn, Op};

    fn put(bytes: usize) -> Op {
        Op::Put { key: b"key".to_vec(), value: vec![7; bytes - 9], expire_at_ms: None }
    }

    /// Transactions that a reader gets from the frames.
    fn read(frames: Vec<Frame>) -> Vec<LogTxn> {
        struct Collect(Vec<LogTxn>);
        impl TxnSink for Collect {
            fn begin(&mut self, commit_ts: u64) {
                self.0.push(LogTxn { commit_ts, ops: Vec::new() });
            }
            fn op(&mut self, op: OpRef<'_>) {
                self.0.last_mut().unwrap().ops.push(op.into());
            }
            fn end(&mut self) {}
        }
        let mut all = Collect(Vec::new());
        for mut frame in frames {
            let bytes = frame.finish(0, 1, salt(&[0; 16]));
            let header = FrameHeader::decode(bytes, salt(&[0; 16])).expect("the header is right");
            let payload = &bytes[FRAME_HEADER..][..header.payload as usize];
            assert!(check_payload(&header, payload));
            decode_payload(&header, payload, &mut all);
        }
        all.0
    }

    #[test]
    fn a_transaction_of_the_longest_payload_is_taken_and_a_longer_one_is_taken_back() {
        const LIMIT: usize = 1000;
        for (second, fits) in [(LIMIT - 101 - 1, true), (LIMIT - 101, false)] {
            let mut encoder = Encoder::with_limit(4, LIMIT);
            let txns = [
                LogTxn { commit_ts: 5, ops: vec![put(100)] },
                LogTxn { commit_ts: 6, ops: vec![put(second - 50), put(50)] },
            ];
            for txn in &txns {
                feed(&mut encoder, txn);
            }
            assert_eq!(encoder.broken().is_none(), fits);
            assert_eq!(encoder.last_ts(), if fits { 6 } else { 5 });
            // Transactions after a refused one are refused, too.
            if !fits {
                feed(&mut encoder, &LogTxn { commit_ts: 7, ops: vec![put(50)] });
                assert_eq!(encoder.last_ts(), 5);
            }
            let expected = if fits { &txns[..] } else { &txns[..1] };
            assert_eq!(read(encoder.take_frames()), expected);
        }
    }

    #[test]
    fn short_frames_that_wait_become_few() {
        let (mut encoder, mut queue, mut bytes) = (Encoder::new(0), Queue::default(), 0);
        let txns: Vec<_> =
            (1..=3000).map(|ts| LogTxn { commit_ts: ts, ops: vec![put(20 + ts as usize)] }).collect();
        for txn in &txns {
            feed(&mut encoder, txn);
            bytes += queue.add(encoder.take_frames());
        }
        let frames = std::mem::take(&mut queue.frames);
        assert!(frames.iter().all(|frame| frame.len() <= FRAME_BYTES));
        assert_eq!(frames.iter().map(Frame::len).sum::<usize>(), bytes);
        assert_eq!(frames.len(), bytes.div_ceil(FRAME_BYTES));
        assert_eq!(queue.spare.len(), txns.len() - frames.len());
        assert_eq!(read(frames), txns);
    }

    #[test]
    fn a_refused_transaction_alone_in_a_frame_leaves_no_frame() {
        let mut encoder = Encoder::with_limit(0, 100);
        feed(&mut encoder, &LogTxn { commit_ts: 1, ops: vec![put(100)] });
        assert!(encoder.broken().is_some());
        assert!(encoder.take_frames().is_empty());
    }
}
