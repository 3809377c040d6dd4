//! The format of the log's records and segments.
//!
//! A segment begins with a header: [`MAGIC`] (8 bytes), the LSN at which the segment begins (8), the crc32c of both (4),
//! and zeros (4). Records follow:
//!
//! | bytes | content |
//! |---|---|
//! | 0..4 | length of the body |
//! | 4..8 | crc32c of the LSN at which the record begins, the length, the kind, and the body |
//! | 8 | kind |
//! | 9.. | body |
//!
//! An LSN is an offset in the whole log, in which headers do not count. The LSN *of* a record is the offset of its end, so
//! the record is durable when the log is durable up to its LSN. No record crosses the end of a segment.
//!
//! | kind | body |
//! |---|---|
//! | tree | the record that a tree gave to its journal |
//! | commit | timestamp (8), then writes: tree (8), length of the key (2), length of the value (4) or `u32::MAX` for a removal, key, value |
//! | checkpoint | the LSN from which redo starts (8), the timestamp of the last commit before it (8) |

const MAGIC: [u8; 8] = *b"BEDLOG\x00\x01";
/// Bytes of a segment's header.
pub(crate) const HEADER: usize = 24;
/// Bytes before the body of a record.
pub(crate) const HEAD: usize = 9;
const TREE: u8 = 1;
const COMMIT: u8 = 2;
const CHECKPOINT: u8 = 3;
const REMOVED: u32 = u32::MAX;

/// The content of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record<'r> {
    /// A change of pages.
    Tree(&'r [u8]),
    /// A transaction.
    Commit(Commit<'r>),
    /// A checkpoint.
    Checkpoint(Checkpoint),
}

/// A transaction's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Commit<'r> {
    pub timestamp: u64,
    writes: &'r [u8],
}

/// The point from which recovery starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    /// Records up to this LSN are no longer needed.
    pub redo_from: u64,
    /// The timestamp of the last commit whose record is not needed.
    pub timestamp: u64,
}

/// A put, or a removal if there is no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Write<'r> {
    pub tree: u64,
    pub key: &'r [u8],
    pub value: Option<&'r [u8]>,
}

/// Bytes of a commit's record.
pub(crate) fn commit_bytes<'w>(writes: impl Iterator<Item = Write<'w>>) -> u64 {
    let write = |write: Write<'_>| 14 + write.key.len() + write.value.map_or(0, <[u8]>::len);
    (HEAD + 8 + writes.map(write).sum::<usize>()) as u64
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// The header of a segment that begins at this LSN.
pub(crate) fn header(start: u64) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&MAGIC);
    header[8..16].copy_from_slice(&start.to_le_bytes());
    let sum = crc32c::crc32c(&header[..16]);
    header[16..20].copy_from_slice(&sum.to_le_bytes());
    header
}

/// The LSN at which a segment begins, if its header is one.
pub(crate) fn start_of(segment: &[u8]) -> Option<u64> {
    let start = word(segment, 8)?;
    (segment.get(..HEADER)? == header(start)).then_some(start)
}

/// Appends a record that begins at `start` to a buffer.
pub(crate) fn encode_tree(buffer: &mut Vec<u8>, start: u64, parts: &[&[u8]]) {
    encode(buffer, start, TREE, |body| parts.iter().for_each(|part| body.extend_from_slice(part)));
}

/// Appends a transaction's record.
pub(crate) fn encode_commit<'w>(
    buffer: &mut Vec<u8>,
    start: u64,
    timestamp: u64,
    writes: impl Iterator<Item = Write<'w>>,
) {
    encode(buffer, start, COMMIT, |body| {
        body.extend_from_slice(&timestamp.to_le_bytes());
        for Write { tree, key, value } in writes {
            body.extend_from_slice(&tree.to_le_bytes());
            body.extend_from_slice(&(key.len() as u16).to_le_bytes());
            let len = value.map_or(REMOVED, |value| value.len() as u32);
            body.extend_from_slice(&len.to_le_bytes());
            body.extend_from_slice(key);
            body.extend_from_slice(value.unwrap_or_default());
        }
    });
}

/// Appends a checkpoint's record.
pub(crate) fn encode_checkpoint(buffer: &mut Vec<u8>, start: u64, checkpoint: Checkpoint) {
    encode(buffer, start, CHECKPOINT, |body| {
        body.extend_from_slice(&checkpoint.redo_from.to_le_bytes());
        body.extend_from_slice(&checkpoint.timestamp.to_le_bytes());
    });
}

fn encode(buffer: &mut Vec<u8>, start: u64, kind: u8, body: impl FnOnce(&mut Vec<u8>)) {
    let at = buffer.len();
    buffer.extend_from_slice(&[0; HEAD]);
    body(buffer);
    let len = (buffer.len() - at - HEAD) as u32;
    buffer[at..at + 4].copy_from_slice(&len.to_le_bytes());
    buffer[at + 8] = kind;
    let sum = checksum(start, len, &buffer[at + 8..]);
    buffer[at + 4..at + 8].copy_from_slice(&sum.to_le_bytes());
}

/// `rest` is the kind and the body.
fn checksum(start: u64, len: u32, rest: &[u8]) -> u32 {
    let sum = crc32c::crc32c_append(crc32c::crc32c(&start.to_le_bytes()), &len.to_le_bytes());
    crc32c::crc32c_append(sum, rest)
}

/// The record that begins at `start`, which is `bytes[0]`, and its length. Returns none if these bytes are not a complete record.
pub(crate) fn decode(bytes: &[u8], start: u64) -> Option<(Record<'_>, usize)> {
    let (head, rest) = bytes.split_first_chunk::<HEAD>()?;
    let len = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
    let body = rest.get(..len as usize)?;
    let end = HEAD + len as usize;
    if head[4..8] != checksum(start, len, &bytes[8..end]).to_le_bytes() {
        return None;
    }
    let record = match head[8] {
        TREE => Record::Tree(body),
        COMMIT => Record::Commit(Commit { timestamp: word(body, 0)?, writes: &body[8..] }),
        CHECKPOINT => Record::Checkpoint(Checkpoint { redo_from: word(body, 0)?, timestamp: word(body, 8)? }),
        _ => return None,
    };
    Some((record, end))
}

impl<'r> Commit<'r> {
    /// The writes, in the order of the record.
    pub fn writes(self) -> impl Iterator<Item = Write<'r>> {
        let mut rest = self.writes;
        std::iter::from_fn(move || {
            let tree = word(rest, 0)?;
            let key_len = u16::from_le_bytes(*rest.get(8..)?.first_chunk()?) as usize;
            let value_len = u32::from_le_bytes(*rest.get(10..)?.first_chunk()?);
            let (key, after) = rest.get(14..)?.split_at_checked(key_len)?;
            let value = if value_len == REMOVED { 0 } else { value_len as usize };
            let (value, after) = after.split_at_checked(value)?;
            rest = after;
            Some(Write { tree, key, value: (value_len != REMOVED).then_some(value) })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_and_no_byte_of_them_may_change() {
        let writes = [
            Write { tree: 0, key: b"", value: Some(b"") },
            Write { tree: 7, key: b"key", value: None },
            Write { tree: u64::MAX, key: b"k", value: Some(b"value") },
        ];
        let mut bytes = Vec::new();
        encode_commit(&mut bytes, 5, 9, writes.into_iter());
        let (record, len) = decode(&bytes, 5).unwrap();
        let Record::Commit(commit) = record else { panic!("{record:?}") };
        assert_eq!((commit.timestamp, len), (9, bytes.len()));
        assert_eq!(commit_bytes(writes.into_iter()), bytes.len() as u64);
        assert_eq!(commit.writes().collect::<Vec<_>>(), writes);
        assert_eq!(decode(&bytes, 6), None, "a record of another place");
        for at in 0..bytes.len() {
            assert_eq!(decode(&bytes[..at], 5), None);
            let mut changed = bytes.clone();
            changed[at] ^= 0x10;
            assert_eq!(decode(&changed, 5), None, "byte {at}");
        }
        assert_eq!(start_of(&header(77)), Some(77));
        for at in 0..HEADER {
            let mut changed = header(77);
            changed[at] ^= 1;
            assert_eq!(start_of(&changed), None, "byte {at}");
        }
    }
}
