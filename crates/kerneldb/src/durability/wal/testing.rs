//! For tests: the log writer without threads, step by step.

use std::io;
use std::sync::Arc;

use super::encoder::Encoder;
use super::files::LogFiles;
use super::source::TxnSink;
use crate::LogTxn;
use crate::durability::disk::faulty::FaultyDir;

/// Hands one transaction to the encoder.
pub(crate) fn feed(encoder: &mut Encoder, txn: &LogTxn) {
    encoder.begin(txn.commit_ts);
    for op in &txn.ops {
        encoder.op(op.into());
    }
    encoder.end();
}

/// The work of the drainer and the flusher. Segments are smaller than the configuration allows, so
/// that there are many.
pub(crate) struct Writer {
    encoder: Encoder,
    files: LogFiles,
}

impl Writer {
    pub(crate) fn new(dir: &FaultyDir, id: [u8; 16], ts: u64, seq: u64) -> Writer {
        let files = LogFiles::new(Arc::new(dir.clone()), id, 2000, seq, ts);
        Writer { encoder: Encoder::new(ts), files }
    }

    /// Adds transactions as one frame.
    pub(crate) fn add(&mut self, txns: &[LogTxn]) {
        for txn in txns {
            feed(&mut self.encoder, txn);
        }
        for frame in self.encoder.take_frames() {
            self.files.push(frame);
        }
    }

    pub(crate) fn write(&mut self) -> io::Result<()> {
        self.files.write()
    }

    pub(crate) fn sync(&mut self) -> io::Result<()> {
        self.files.sync()
    }

    pub(crate) fn durable_ts(&self) -> u64 {
        self.files.durable_ts()
    }

    pub(crate) fn pending_bytes(&self) -> usize {
        self.files.pending_bytes()
    }
}
