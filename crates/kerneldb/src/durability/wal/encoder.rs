//! Packs drained transactions into frames.

use super::frame::{Frame, MAX_PAYLOAD};
use super::source::{OpRef, TxnSink};

/// A frame is closed once it has this many bytes.
pub(crate) const FRAME_BYTES: usize = 1 << 20;

/// Builds frames from the transactions of a source. Buffers come from a pool that the caller fills.
#[derive(Default)]
pub(crate) struct Encoder {
    current: Option<Frame>,
    closed: Vec<Frame>,
    last_ts: u64,
    /// Set when the source broke its promise; nothing is taken any more.
    broken: Option<String>,
    pub(crate) spare: Vec<Vec<u8>>,
}

impl Encoder {
    /// The first transaction will be `last_ts + 1`.
    pub(crate) fn new(last_ts: u64) -> Encoder {
        Encoder { last_ts, ..Encoder::default() }
    }

    /// Timestamp of the newest transaction taken.
    pub(crate) fn last_ts(&self) -> u64 {
        self.last_ts
    }

    /// Why the log cannot go on, if the source broke the sequence.
    pub(crate) fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    /// Closes the open frame and hands over all.
    pub(crate) fn take_frames(&mut self) -> Vec<Frame> {
        self.close();
        std::mem::take(&mut self.closed)
    }

    fn close(&mut self) {
        if let Some(mut frame) = self.current.take() {
            frame.close();
            self.closed.push(frame);
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
        if self.current.is_none() {
            let mut frame = Frame::new(self.spare.pop().unwrap_or_default());
            frame.first_ts = commit_ts;
            self.current = Some(frame);
        }
    }

    fn op(&mut self, op: OpRef<'_>) {
        if self.broken.is_none()
            && let Some(frame) = &mut self.current
        {
            frame.push_op(op);
        }
    }

    fn end(&mut self) {
        if self.broken.is_some() {
            return;
        }
        let Some(frame) = &mut self.current else { return };
        frame.end_txn();
        self.last_ts += 1;
        if frame.len() > MAX_PAYLOAD {
            self.broken = Some(format!("transaction {} is larger than 1 GiB", self.last_ts));
        }
        if frame.len() >= FRAME_BYTES {
            self.close();
        }
    }
}
