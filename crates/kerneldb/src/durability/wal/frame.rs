//! The format of log segments: encoding and decoding of headers and frames. No I/O.
//!
//! All integers are little-endian. A segment is a [`SegmentHeader`] followed by frames, each at a
//! multiple of 8 bytes; zeros follow the last frame (reserved space). A frame is one or more whole
//! transactions with consecutive commit timestamps:
//!
//! ```text
//! frame header (48 bytes)
//!   0  u32 magic          4  u32 crc32c of bytes 8..48
//!   8  u32 payload bytes 12  u32 crc32c of the payload
//!  16  u64 first commit timestamp
//!  24  u64 durable timestamp: commits up to it were on disk when this frame was written
//!  32  u32 transactions  36  u32 changes
//!  40  u64 sequence number of the segment
//! payload, padded with zeros to a multiple of 8: for every transaction its changes, then a 0 byte;
//!   a change: u8 tag (1 put, 2 put with expiry, 3 delete), u8 key length, [u32 value length],
//!             [u64 expiry in ms], key, [value]
//! ```
//!
//! The frame header's checksum is seeded with the database's id, which clients do not know. A value that a client
//! has stored can therefore never pass for a frame when damaged data is searched for frames.
//!
//! The header has a checksum of its own. A length is therefore used (and memory allocated for it) only if it is
//! intact. The durable timestamp tells an incomplete write from damage. A crash can only destroy bytes that were
//! not yet synced, so an invalid frame that a later frame calls durable is damaged.

use super::source::{OpRef, TxnSink};
use crate::limits::{FRAME_PAYLOAD_MAX, TX_WRITE_BYTES};

pub(crate) const SEGMENT_HEADER: usize = 64;
pub(crate) const FRAME_HEADER: usize = 48;
/// Most bytes of a change besides its key and value.
pub(crate) const CHANGE_HEADER_MAX: usize = 14;
// The operators count more bytes for a write than it takes in a frame.
const _: () = assert!(TX_WRITE_BYTES > CHANGE_HEADER_MAX);

const SEGMENT_MAGIC: u64 = u64::from_le_bytes(*b"KDBLOG\r\n");
const VERSION: u32 = 1;
const FRAME_MAGIC: u32 = u32::from_le_bytes(*b"KFr\x1a");

const END: u8 = 0;
const PUT: u8 = 1;
const PUT_EXPIRES: u8 = 2;
const DELETE: u8 = 3;

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

/// Seed of the frame headers' checksums.
pub(crate) fn salt(database_id: &[u8; 16]) -> u32 {
    crc32c::crc32c(database_id)
}

/// First bytes of every segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) database_id: [u8; 16],
    /// Commit timestamp of the first frame. Everything below it is durable in earlier segments (or a checkpoint).
    /// From it on, this segment replaces the contents of earlier segments.
    pub(crate) first_ts: u64,
    /// Increases with every segment of the database.
    pub(crate) seq: u64,
    pub(crate) created_ms: u64,
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> [u8; SEGMENT_HEADER] {
        let mut out = [0; SEGMENT_HEADER];
        out[0..8].copy_from_slice(&SEGMENT_MAGIC.to_le_bytes());
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        out[12..16].copy_from_slice(&(SEGMENT_HEADER as u32).to_le_bytes());
        out[16..32].copy_from_slice(&self.database_id);
        out[32..40].copy_from_slice(&self.first_ts.to_le_bytes());
        out[40..48].copy_from_slice(&self.seq.to_le_bytes());
        out[48..56].copy_from_slice(&self.created_ms.to_le_bytes());
        let crc = crc32c::crc32c(&out[..60]);
        out[60..64].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Decodes a header; the error text describes the fault.
    pub(crate) fn decode(bytes: &[u8]) -> Result<SegmentHeader, String> {
        if bytes.len() < SEGMENT_HEADER {
            return Err(format!("is only {} bytes long", bytes.len()));
        }
        if u64_at(bytes, 0) != SEGMENT_MAGIC {
            return Err("has no segment header".into());
        }
        if u32_at(bytes, 60) != crc32c::crc32c(&bytes[..60]) {
            return Err("has a damaged segment header".into());
        }
        let version = u32_at(bytes, 8);
        if version != VERSION {
            return Err(format!("has format version {version}, this program reads version {VERSION}"));
        }
        Ok(SegmentHeader {
            database_id: bytes[16..32].try_into().expect("16 bytes"),
            first_ts: u64_at(bytes, 32),
            seq: u64_at(bytes, 40),
            created_ms: u64_at(bytes, 48),
        })
    }
}

/// Header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub(crate) payload: u32,
    pub(crate) payload_crc: u32,
    pub(crate) first_ts: u64,
    pub(crate) durable_ts: u64,
    pub(crate) txns: u32,
    pub(crate) ops: u32,
    pub(crate) seq: u64,
}

impl FrameHeader {
    pub(crate) fn encode(&self, salt: u32) -> [u8; FRAME_HEADER] {
        let mut out = [0; FRAME_HEADER];
        out[0..4].copy_from_slice(&FRAME_MAGIC.to_le_bytes());
        out[8..12].copy_from_slice(&self.payload.to_le_bytes());
        out[12..16].copy_from_slice(&self.payload_crc.to_le_bytes());
        out[16..24].copy_from_slice(&self.first_ts.to_le_bytes());
        out[24..32].copy_from_slice(&self.durable_ts.to_le_bytes());
        out[32..36].copy_from_slice(&self.txns.to_le_bytes());
        out[36..40].copy_from_slice(&self.ops.to_le_bytes());
        out[40..48].copy_from_slice(&self.seq.to_le_bytes());
        let crc = crc32c::crc32c_append(salt, &out[8..]);
        out[4..8].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// The header at the start of `bytes`, if it is intact.
    pub(crate) fn decode(bytes: &[u8], salt: u32) -> Option<FrameHeader> {
        if bytes.len() < FRAME_HEADER || u32_at(bytes, 0) != FRAME_MAGIC {
            return None;
        }
        if u32_at(bytes, 4) != crc32c::crc32c_append(salt, &bytes[8..FRAME_HEADER]) {
            return None;
        }
        let header = FrameHeader {
            payload: u32_at(bytes, 8),
            payload_crc: u32_at(bytes, 12),
            first_ts: u64_at(bytes, 16),
            durable_ts: u64_at(bytes, 24),
            txns: u32_at(bytes, 32),
            ops: u32_at(bytes, 36),
            seq: u64_at(bytes, 40),
        };
        let sane = header.txns > 0
            && header.first_ts > 0
            && header.payload as usize <= FRAME_PAYLOAD_MAX
            && header.first_ts.checked_add(u64::from(header.txns)).is_some();
        sane.then_some(header)
    }

    /// Whether a header could begin here, judging by its first bytes.
    pub(crate) fn maybe(bytes: &[u8]) -> bool {
        bytes.starts_with(&FRAME_MAGIC.to_le_bytes())
    }

    /// Commit timestamp of the last transaction.
    pub(crate) fn last_ts(&self) -> u64 {
        self.first_ts + u64::from(self.txns) - 1
    }

    /// Bytes of the whole frame.
    pub(crate) fn frame_len(&self) -> u64 {
        (FRAME_HEADER + (self.payload as usize).next_multiple_of(8)) as u64
    }
}

/// A frame in memory: its bytes with room for the header in front.
#[derive(Debug, Default)]
pub(crate) struct Frame {
    bytes: Vec<u8>,
    pub(crate) first_ts: u64,
    pub(crate) txns: u32,
    pub(crate) ops: u32,
    payload: u32,
    payload_crc: Option<u32>,
}

impl Frame {
    /// An empty frame that uses the memory of `buffer`.
    pub(crate) fn new(mut buffer: Vec<u8>) -> Frame {
        buffer.clear();
        buffer.resize(FRAME_HEADER, 0);
        Frame { bytes: buffer, ..Frame::default() }
    }

    /// Adds one change of the current transaction.
    pub(crate) fn push_op(&mut self, op: OpRef<'_>) {
        let out = &mut self.bytes;
        match op {
            OpRef::Put { key, value, expire_at_ms } => {
                debug_assert!(!key.is_empty() && key.len() <= crate::KEY_MAX);
                out.reserve(CHANGE_HEADER_MAX + key.len() + value.len());
                out.push(if expire_at_ms.is_some() { PUT_EXPIRES } else { PUT });
                out.push(key.len() as u8);
                out.extend_from_slice(&(value.len() as u32).to_le_bytes());
                if let Some(expiry) = expire_at_ms {
                    out.extend_from_slice(&expiry.to_le_bytes());
                }
                out.extend_from_slice(key);
                out.extend_from_slice(value);
            }
            OpRef::Delete { key } => {
                out.extend_from_slice(&[DELETE, key.len() as u8]);
                out.extend_from_slice(key);
            }
        }
        self.ops += 1;
    }

    /// Bytes of the payload so far.
    pub(crate) fn payload_len(&self) -> usize {
        self.bytes.len() - FRAME_HEADER
    }

    /// Bytes of the payload that a change takes.
    pub(crate) fn op_len(op: &OpRef<'_>) -> usize {
        match op {
            OpRef::Put { key, value, expire_at_ms: None } => 6 + key.len() + value.len(),
            OpRef::Put { key, value, expire_at_ms: Some(_) } => CHANGE_HEADER_MAX + key.len() + value.len(),
            OpRef::Delete { key } => 2 + key.len(),
        }
    }

    /// Removes the changes of a transaction that was not ended. `payload` and `ops` are the frame's values before
    /// it.
    pub(crate) fn undo_to(&mut self, payload: usize, ops: u32) {
        self.bytes.truncate(FRAME_HEADER + payload);
        self.ops = ops;
    }

    /// Ends the current transaction.
    pub(crate) fn end_txn(&mut self) {
        self.bytes.push(END);
        self.txns += 1;
    }

    /// Bytes so far, including the header.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Ends the frame: pads the payload.
    pub(crate) fn close(&mut self) {
        self.payload = (self.bytes.len() - FRAME_HEADER) as u32;
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
    }

    /// Adds the transactions of the frame that follows this one, and returns that frame's memory. Both are closed.
    pub(crate) fn absorb(&mut self, next: Frame) -> Vec<u8> {
        debug_assert_eq!(next.first_ts, self.last_ts() + 1);
        self.bytes.truncate(FRAME_HEADER + self.payload as usize);
        self.bytes.extend_from_slice(&next.bytes[FRAME_HEADER..][..next.payload as usize]);
        self.txns += next.txns;
        self.ops += next.ops;
        self.payload_crc = None;
        self.close();
        next.into_buffer()
    }

    /// Commit timestamp of the last transaction of a closed frame.
    pub(crate) fn last_ts(&self) -> u64 {
        self.first_ts + u64::from(self.txns) - 1
    }

    /// Fills in the header and returns the bytes to write.
    pub(crate) fn finish(&mut self, durable_ts: u64, seq: u64, salt: u32) -> &[u8] {
        let payload = &self.bytes[FRAME_HEADER..FRAME_HEADER + self.payload as usize];
        let payload_crc = *self.payload_crc.get_or_insert_with(|| crc32c::crc32c(payload));
        let header = FrameHeader {
            payload: self.payload,
            payload_crc,
            first_ts: self.first_ts,
            durable_ts,
            txns: self.txns,
            ops: self.ops,
            seq,
        };
        self.bytes[..FRAME_HEADER].copy_from_slice(&header.encode(salt));
        &self.bytes
    }

    /// The memory, for another frame.
    pub(crate) fn into_buffer(self) -> Vec<u8> {
        self.bytes
    }
}

/// Checks a payload against its header: checksum, structure and counts.
pub(crate) fn check_payload(header: &FrameHeader, payload: &[u8]) -> bool {
    struct Nothing;
    impl TxnSink for Nothing {
        fn begin(&mut self, _: u64) {}
        fn op(&mut self, _: OpRef<'_>) {}
        fn end(&mut self) {}
    }
    payload.len() == header.payload as usize
        && crc32c::crc32c(payload) == header.payload_crc
        && decode_payload(header, payload, &mut Nothing)
}

/// Hands the transactions of a payload to `sink`. False if the payload is malformed; `sink` may then have received
/// a part, so [`check_payload`] comes first.
pub(crate) fn decode_payload(header: &FrameHeader, payload: &[u8], sink: &mut dyn TxnSink) -> bool {
    let mut rest = payload;
    let mut ops = 0u64;
    for txn in 0..u64::from(header.txns) {
        sink.begin(header.first_ts + txn);
        loop {
            match next_op(&mut rest) {
                Some(Some(op)) => {
                    ops += 1;
                    sink.op(op);
                }
                Some(None) => break,
                None => return false,
            }
        }
        sink.end();
    }
    rest.is_empty() && ops == u64::from(header.ops)
}

/// `None`: malformed; `Some(None)`: end of the transaction.
fn next_op<'a>(rest: &mut &'a [u8]) -> Option<Option<OpRef<'a>>> {
    fn take<'a>(rest: &mut &'a [u8], n: usize) -> Option<&'a [u8]> {
        let (head, tail) = rest.split_at_checked(n)?;
        *rest = tail;
        Some(head)
    }
    let tag = take(rest, 1)?[0];
    if tag == END {
        return Some(None);
    }
    let key_len = usize::from(take(rest, 1)?[0]);
    if key_len == 0 {
        return None;
    }
    match tag {
        PUT | PUT_EXPIRES => {
            let value_len = u32_at(take(rest, 4)?, 0) as usize;
            let expire_at_ms = match tag {
                PUT_EXPIRES => Some(u64_at(take(rest, 8)?, 0)),
                _ => None,
            };
            let key = take(rest, key_len)?;
            let value = take(rest, value_len)?;
            (value_len <= crate::VALUE_MAX).then_some(Some(OpRef::Put { key, value, expire_at_ms }))
        }
        DELETE => Some(Some(OpRef::Delete { key: take(rest, key_len)? })),
        _ => None,
    }
}
