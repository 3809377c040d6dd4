//! The format of checkpoint and dump files: encoding and decoding, over any stream. This module opens no files.
//!
//! All integers are little-endian. A file is a header, blocks of about 256 KiB, and a footer, so it can be
//! written to and read from a pipe. The footer marks its end; its size does not.
//!
//! ```text
//! header (64 bytes)
//!   0  u64 magic        8  u32 version     12 u32 header bytes
//!  16  u8[16] database  32 u64 timestamp   40 u64 creation, ms since the epoch
//!  48  u64 keys expected (0 = not known)   56 u32 reserved   60 u32 crc32c of bytes 0..60
//! block: header (24 bytes), payload
//!   0  u32 magic         4 u32 crc32c of bytes 8..24
//!   8  u32 payload bytes 12 u32 entries    16 u32 number of the block   20 u32 crc32c of the payload
//!   an entry: u8 key length, u8 flags (1 = expires), u16 0, u32 value length, [u64 expiry in ms],
//!             key, value
//! footer (48 bytes)
//!   0  u32 magic         4 u32 crc32c of bytes 8..48
//!   8  u64 entries      16 u64 payload bytes  24 u64 blocks
//!  32  u32 crc32c over the blocks' payload checksums, in order   36 u32 0   40 u64 timestamp
//! ```

use std::io::{self, Read};

use crate::durability::wal::OpRef;
use crate::{Error, KEY_MAX, Result, SnapshotItem, VALUE_MAX};

const HEADER: usize = 64;
const BLOCK_HEADER: usize = 24;
const FOOTER: usize = 48;
const ENTRY_HEADER: usize = 8;
const ENTRY_MAX: usize = ENTRY_HEADER + 8 + KEY_MAX + VALUE_MAX;

/// A block is written once it has this many bytes. That is few enough for them to stay in a processor's own cache
/// until they are written, beside the memory that is read meanwhile.
pub(crate) const BLOCK_BYTES: usize = 256 << 10;
/// Number of bytes whose checksum is computed at a time, while they are in the fastest cache. The number is small
/// so that memory that is fetched meanwhile does not have to wait. It is a multiple of the size that the fast
/// algorithm of the checksum works on.
const SUM_BYTES: usize = 2 * 768;
/// Longest payload that a reader accepts (and allocates memory for). Blocks of older files have a mebibyte.
const MAX_PAYLOAD: usize = (1 << 20) + ENTRY_MAX;

const MAGIC: u64 = u64::from_le_bytes(*b"KDBCKP\r\n");
const VERSION: u32 = 1;
const BLOCK_MAGIC: u32 = u32::from_le_bytes(*b"KBl\x1a");
const FOOTER_MAGIC: u32 = u32::from_le_bytes(*b"KEn\x1a");
const EXPIRES: u8 = 1;

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

fn corrupt<T>(text: impl Into<String>) -> Result<T> {
    Err(Error::Corrupt(text.into()))
}

/// The header of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) database_id: [u8; 16],
    pub(crate) ts: u64,
    pub(crate) created_ms: u64,
    pub(crate) entries_expected: u64,
}

/// The counts in the footer of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) entries: u64,
    pub(crate) payload: u64,
    pub(crate) blocks: u64,
    crc: u32,
}

/// Builds the byte stream of a file in one buffer that is handed to `write` whenever a block is full.
///
/// This is the hot path of a checkpoint. An entry costs one bounds check and a few copies into memory that is
/// reused; there is no allocation and no call per entry.
pub(crate) struct Encoder {
    buffer: Vec<u8>,
    /// Offset of the current block's header in the buffer.
    block: usize,
    /// Offset up to which `crc` covers the block's payload.
    summed: usize,
    crc: u32,
    entries: u32,
    totals: Totals,
    ts: u64,
}

impl Encoder {
    pub(crate) fn new(header: &Header) -> Encoder {
        let mut buffer = Vec::with_capacity(HEADER + BLOCK_HEADER + BLOCK_BYTES + SUM_BYTES + ENTRY_MAX);
        buffer.extend_from_slice(&MAGIC.to_le_bytes());
        buffer.extend_from_slice(&VERSION.to_le_bytes());
        buffer.extend_from_slice(&(HEADER as u32).to_le_bytes());
        buffer.extend_from_slice(&header.database_id);
        buffer.extend_from_slice(&header.ts.to_le_bytes());
        buffer.extend_from_slice(&header.created_ms.to_le_bytes());
        buffer.extend_from_slice(&header.entries_expected.to_le_bytes());
        buffer.extend_from_slice(&[0; 4]);
        let crc = crc32c::crc32c(&buffer);
        buffer.extend_from_slice(&crc.to_le_bytes());
        let totals = Totals::default();
        let mut encoder = Encoder { buffer, block: 0, summed: 0, crc: 0, entries: 0, totals, ts: header.ts };
        encoder.begin_block();
        encoder
    }

    fn begin_block(&mut self) {
        self.block = self.buffer.len();
        self.buffer.extend_from_slice(&[0; BLOCK_HEADER]);
        (self.summed, self.crc) = (self.buffer.len(), 0);
    }

    /// Adds a key. True: a block is full, and [`Encoder::take_block`] must be called before the next key.
    #[inline]
    pub(crate) fn push(&mut self, item: &SnapshotItem<'_>) -> bool {
        debug_assert!((1..=KEY_MAX).contains(&item.key.len()) && item.value.len() <= VALUE_MAX);
        let flags = if item.expire_at_ms.is_some() { EXPIRES } else { 0 };
        let head = item.key.len() as u64 | u64::from(flags) << 8 | (item.value.len() as u64) << 32;
        let out = &mut self.buffer;
        out.extend_from_slice(&head.to_le_bytes());
        if let Some(expiry) = item.expire_at_ms {
            out.extend_from_slice(&expiry.to_le_bytes());
        }
        append(out, item.key);
        append(out, item.value);
        self.entries += 1;
        if out.len() - self.summed < SUM_BYTES {
            return false;
        }
        let end = self.summed + (out.len() - self.summed) / SUM_BYTES * SUM_BYTES;
        self.crc = crc32c::crc32c_append(self.crc, &out[self.summed..end]);
        self.summed = end;
        out.len() - self.block >= BLOCK_HEADER + BLOCK_BYTES
    }

    /// Keys so far.
    pub(crate) fn entries(&self) -> u64 {
        self.totals.entries + u64::from(self.entries)
    }

    /// Bytes so far, roughly (including those not handed to `write` yet).
    pub(crate) fn bytes(&self) -> u64 {
        self.totals.payload + self.buffer.len() as u64
    }

    fn end_block(&mut self) {
        let payload = self.buffer.len() - self.block - BLOCK_HEADER;
        let crc = crc32c::crc32c_append(self.crc, &self.buffer[self.summed..]);
        let header = &mut self.buffer[self.block..self.block + BLOCK_HEADER];
        header[0..4].copy_from_slice(&BLOCK_MAGIC.to_le_bytes());
        header[8..12].copy_from_slice(&(payload as u32).to_le_bytes());
        header[12..16].copy_from_slice(&self.entries.to_le_bytes());
        header[16..20].copy_from_slice(&(self.totals.blocks as u32).to_le_bytes());
        header[20..24].copy_from_slice(&crc.to_le_bytes());
        let header_crc = crc32c::crc32c(&header[8..]);
        header[4..8].copy_from_slice(&header_crc.to_le_bytes());
        self.totals.add(self.entries, payload, crc);
        self.entries = 0;
    }

    /// Ends the block and hands the bytes since the last call to `write`.
    pub(crate) fn take_block(&mut self, write: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        self.end_block();
        let result = write(&self.buffer);
        self.buffer.clear();
        self.begin_block();
        result
    }

    /// Hands the last bytes to `write`; the stream is complete then.
    pub(crate) fn finish(mut self, write: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<Totals> {
        if self.entries > 0 {
            self.end_block();
        } else {
            self.buffer.truncate(self.block);
        }
        let mut footer = [0; FOOTER];
        footer[0..4].copy_from_slice(&FOOTER_MAGIC.to_le_bytes());
        footer[8..16].copy_from_slice(&self.totals.entries.to_le_bytes());
        footer[16..24].copy_from_slice(&self.totals.payload.to_le_bytes());
        footer[24..32].copy_from_slice(&self.totals.blocks.to_le_bytes());
        footer[32..36].copy_from_slice(&self.totals.crc.to_le_bytes());
        footer[40..48].copy_from_slice(&self.ts.to_le_bytes());
        let crc = crc32c::crc32c(&footer[8..]);
        footer[4..8].copy_from_slice(&crc.to_le_bytes());
        self.buffer.extend_from_slice(&footer);
        write(&self.buffer)?;
        Ok(self.totals)
    }
}

/// Appends bytes. Eight to sixteen bytes, which are common for keys and values, are copied as two words that may
/// overlap.
#[inline]
fn append(out: &mut Vec<u8>, bytes: &[u8]) {
    match (bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) {
        (Some(first), Some(last)) if bytes.len() <= 16 => {
            let (start, end) = (out.len(), out.len() + bytes.len());
            out.extend_from_slice(&[0; 16]);
            out[start..start + 8].copy_from_slice(first);
            out[end - 8..end].copy_from_slice(last);
            out.truncate(end);
        }
        _ => out.extend_from_slice(bytes),
    }
}

impl Totals {
    fn add(&mut self, entries: u32, payload: usize, crc: u32) {
        self.entries += u64::from(entries);
        self.payload += payload as u64;
        self.blocks += 1;
        self.crc = crc32c::crc32c_append(self.crc, &crc.to_le_bytes());
    }
}

/// Reads a file block by block. It verifies every checksum and count before it hands out a key, so damage is
/// noticed before the damaged block is used.
pub(crate) struct Decoder<R> {
    input: R,
    header: Header,
    payload: Vec<u8>,
    totals: Totals,
    bytes: u64,
    done: bool,
}

impl<R: Read> Decoder<R> {
    /// Reads and checks the header.
    pub(crate) fn new(mut input: R) -> Result<Decoder<R>> {
        let mut bytes = [0; HEADER];
        read_exact(&mut input, &mut bytes, "the header")?;
        if u64_at(&bytes, 0) != MAGIC {
            return corrupt("this is not a checkpoint or dump file");
        }
        if u32_at(&bytes, 60) != crc32c::crc32c(&bytes[..60]) {
            return corrupt("the header is damaged");
        }
        let version = u32_at(&bytes, 8);
        if version != VERSION {
            return corrupt(format!("format version {version}, this program reads version {VERSION}"));
        }
        let header = Header {
            database_id: bytes[16..32].try_into().expect("16 bytes"),
            ts: u64_at(&bytes, 32),
            created_ms: u64_at(&bytes, 40),
            entries_expected: u64_at(&bytes, 48),
        };
        let totals = Totals::default();
        Ok(Decoder { input, header, payload: Vec::new(), totals, bytes: HEADER as u64, done: false })
    }

    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    /// Entries, payload bytes and blocks read so far.
    pub(crate) fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Bytes read so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads and checks the next block and hands its keys to `f` (as [`OpRef::Put`]). False after the footer,
    /// which has then been checked.
    pub(crate) fn next_block(&mut self, f: &mut dyn FnMut(OpRef<'_>) -> Result<()>) -> Result<bool> {
        if self.done {
            return Ok(false);
        }
        let number = self.totals.blocks;
        let mut bytes = [0; FOOTER];
        read_exact(&mut self.input, &mut bytes[..BLOCK_HEADER], "a block header")?;
        self.bytes += BLOCK_HEADER as u64;
        if u32_at(&bytes, 0) == FOOTER_MAGIC {
            read_exact(&mut self.input, &mut bytes[BLOCK_HEADER..], "the footer")?;
            self.bytes += (FOOTER - BLOCK_HEADER) as u64;
            self.check_footer(&bytes)?;
            self.done = true;
            return Ok(false);
        }
        let header = &bytes[..BLOCK_HEADER];
        if u32_at(header, 0) != BLOCK_MAGIC || u32_at(header, 4) != crc32c::crc32c(&header[8..]) {
            return corrupt(format!("the header of block {number} is damaged"));
        }
        let (payload, entries) = (u32_at(header, 8) as usize, u32_at(header, 12));
        if payload > MAX_PAYLOAD || u64::from(u32_at(header, 16)) != number {
            return corrupt(format!("block {number} is out of order or too long"));
        }
        self.payload.resize(payload, 0);
        read_exact(&mut self.input, &mut self.payload, "a block")?;
        self.bytes += payload as u64;
        let crc = crc32c::crc32c(&self.payload);
        if crc != u32_at(header, 20) {
            return corrupt(format!("block {number} is damaged"));
        }
        if count_entries(&self.payload) != Some(entries) {
            return corrupt(format!("block {number} is malformed"));
        }
        self.totals.add(entries, payload, crc);
        let mut rest = &self.payload[..];
        while let Some(entry) = next_entry(&mut rest) {
            f(entry)?;
        }
        Ok(true)
    }

    fn check_footer(&self, bytes: &[u8; FOOTER]) -> Result<()> {
        if u32_at(bytes, 4) != crc32c::crc32c(&bytes[8..]) {
            return corrupt("the footer is damaged");
        }
        let said = Totals {
            entries: u64_at(bytes, 8),
            payload: u64_at(bytes, 16),
            blocks: u64_at(bytes, 24),
            crc: u32_at(bytes, 32),
        };
        if said != self.totals || u64_at(bytes, 40) != self.header.ts {
            return corrupt("the footer does not fit the blocks");
        }
        Ok(())
    }
}

fn read_exact(input: &mut impl Read, buffer: &mut [u8], what: &str) -> Result<()> {
    input.read_exact(buffer).map_err(|e| match e.kind() {
        io::ErrorKind::UnexpectedEof => Error::Corrupt(format!("the file ends within {what}")),
        _ => Error::io(format!("reading {what}"), e),
    })
}

/// The next entry; `None` at the end or if it is malformed.
fn next_entry<'a>(rest: &mut &'a [u8]) -> Option<OpRef<'a>> {
    let (head, tail) = rest.split_at_checked(ENTRY_HEADER)?;
    let (key_len, flags) = (usize::from(head[0]), head[1]);
    let value_len = u32_at(head, 4) as usize;
    if key_len == 0 || value_len > VALUE_MAX || flags > EXPIRES || head[2..4] != [0, 0] {
        return None;
    }
    let (expire_at_ms, tail) = match flags {
        EXPIRES => {
            let (expiry, tail) = tail.split_at_checked(8)?;
            (Some(u64_at(expiry, 0)), tail)
        }
        _ => (None, tail),
    };
    let (key, tail) = tail.split_at_checked(key_len)?;
    let (value, tail) = tail.split_at_checked(value_len)?;
    *rest = tail;
    Some(OpRef::Put { key, value, expire_at_ms })
}

/// Number of entries; `None` if the payload is not exactly a sequence of them.
fn count_entries(payload: &[u8]) -> Option<u32> {
    let mut rest = payload;
    let mut entries = 0;
    while next_entry(&mut rest).is_some() {
        entries += 1;
    }
    rest.is_empty().then_some(entries)
}

/// Reads arbitrary bytes as a file, or, past the checksums, as the payload of a block. The reader must not panic,
/// and must accept only bytes that a writer can have written.
#[cfg(any(test, fuzzing))]
pub(crate) fn arbitrary_bytes(input: &[u8]) {
    let decode = |file: &[u8]| -> Result<u64> {
        let mut decoder = Decoder::new(file)?;
        let mut keys = 0;
        let mut take = |op: OpRef<'_>| {
            let OpRef::Put { key, value, .. } = op else { return corrupt("a checkpoint has values only") };
            assert!((1..=KEY_MAX).contains(&key.len()) && value.len() <= VALUE_MAX);
            keys += 1;
            Ok(())
        };
        while decoder.next_block(&mut take)? {}
        assert_eq!(keys, decoder.totals().entries);
        Ok(keys)
    };
    let Some((&entries, payload)) = input.split_first() else { return };
    let _ = decode(payload);
    let header = Header { database_id: [7; 16], ts: 9, created_ms: 1, entries_expected: 0 };
    let mut encoder = Encoder::new(&header);
    encoder.buffer.extend_from_slice(payload);
    encoder.entries = u32::from(entries);
    let mut file = Vec::new();
    let written = encoder.finish(&mut |bytes: &[u8]| {
        file.extend_from_slice(bytes);
        Ok(())
    });
    assert!(written.is_ok());
    if let Ok(keys) = decode(&file) {
        assert_eq!(keys, u64::from(entries));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Item = (Vec<u8>, Vec<u8>, Option<u64>);

    fn header(entries_expected: u64) -> Header {
        Header { database_id: [3; 16], ts: 77, created_ms: 5, entries_expected }
    }

    fn encode(items: &[Item]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut write = |bytes: &[u8]| {
            out.extend_from_slice(bytes);
            Ok(())
        };
        let mut encoder = Encoder::new(&header(items.len() as u64));
        for (key, value, expire_at_ms) in items {
            let item = SnapshotItem { key, value, expire_at_ms: *expire_at_ms, commit_ts: 1 };
            if encoder.push(&item) {
                encoder.take_block(&mut write).unwrap();
            }
        }
        assert_eq!(encoder.entries(), items.len() as u64);
        encoder.finish(&mut write).unwrap();
        out
    }

    fn decode(bytes: &[u8]) -> Result<Vec<Item>> {
        let mut items = Vec::new();
        let mut decoder = Decoder::new(bytes)?;
        while decoder.next_block(&mut |op| {
            if let OpRef::Put { key, value, expire_at_ms } = op {
                items.push((key.to_vec(), value.to_vec(), expire_at_ms));
            }
            Ok(())
        })? {}
        assert_eq!(*decoder.header(), header(items.len() as u64));
        assert_eq!(decoder.bytes(), bytes.len() as u64);
        Ok(items)
    }

    fn item() -> impl Strategy<Value = Item> {
        let bytes = proptest::collection::vec(any::<u8>(), 0..70_000usize);
        let key = proptest::collection::vec(any::<u8>(), 1..=255);
        let value = prop_oneof![
            5 => proptest::collection::vec(any::<u8>(), 0..20),
            1 => bytes.prop_map(|mut v| { v.truncate(VALUE_MAX); v }),
        ];
        (key, value, any::<Option<u64>>())
    }

    #[test]
    fn an_empty_file() {
        let bytes = encode(&[]);
        assert_eq!(bytes.len(), HEADER + FOOTER);
        assert_eq!(decode(&bytes).unwrap(), vec![]);
    }

    #[test]
    fn full_blocks() {
        let items: Vec<Item> = (0..16u8).map(|i| (vec![i], vec![i; VALUE_MAX], None)).collect();
        let bytes = encode(&items);
        assert_eq!(decode(&bytes).unwrap(), items);
        let blocks = (bytes.len() - HEADER - FOOTER) / BLOCK_BYTES;
        assert_eq!(blocks, 4);
    }

    /// Blocks of a mebibyte, as earlier versions wrote them.
    #[test]
    fn long_blocks_can_be_read() {
        let long = |len: usize| {
            let items: Vec<Item> =
                (0..len).map(|i| (vec![i as u8], vec![i as u8; VALUE_MAX], None)).collect();
            let mut encoder = Encoder::new(&header(len as u64));
            for (key, value, _) in &items {
                encoder.push(&SnapshotItem { key, value, expire_at_ms: None, commit_ts: 1 });
            }
            let mut bytes = Vec::new();
            let written = encoder.finish(&mut |b| {
                bytes.extend_from_slice(b);
                Ok(())
            });
            assert_eq!(written.unwrap().blocks, 1);
            (items, bytes)
        };
        let (items, bytes) = long(16);
        assert_eq!(decode(&bytes).unwrap(), items);
        assert!(matches!(decode(&long(18).1), Err(Error::Corrupt(_))));
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_found() {
        let items: Vec<Item> = (1..9u8).map(|i| (vec![i; 3], vec![i; 2], Some(u64::from(i)))).collect();
        let bytes = encode(&items);
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(decode(&bad), Err(Error::Corrupt(_))), "bit {bit}");
        }
        for cut in 0..bytes.len() {
            assert!(matches!(decode(&bytes[..cut]), Err(Error::Corrupt(_))), "cut at {cut}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn what_goes_in_comes_out(items in proptest::collection::vec(item(), 0..80)) {
            prop_assert_eq!(decode(&encode(&items)).unwrap(), items);
        }

        #[test]
        fn arbitrary_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..3000), valid in any::<bool>()) {
            if valid {
                // The bytes follow valid headers.
                let mut start = encode(&[]);
                start.truncate(HEADER);
                let mut block = vec![0; BLOCK_HEADER];
                block[0..4].copy_from_slice(&BLOCK_MAGIC.to_le_bytes());
                block[8..12].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
                block[12..16].copy_from_slice(&1u32.to_le_bytes());
                block[20..24].copy_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
                let crc = crc32c::crc32c(&block[8..]);
                block[4..8].copy_from_slice(&crc.to_le_bytes());
                bytes = [start, block, bytes].concat();
            }
            prop_assert!(matches!(decode(&bytes), Err(Error::Corrupt(_))));
        }

        #[test]
        fn huge_lengths_are_not_believed(len in any::<u32>()) {
            let mut bytes = encode(&[(vec![1], vec![2], None)]);
            let block = &mut bytes[HEADER..HEADER + BLOCK_HEADER];
            if len != u32_at(block, 8) {
                block[8..12].copy_from_slice(&len.to_le_bytes());
                let crc = crc32c::crc32c(&block[8..]);
                block[4..8].copy_from_slice(&crc.to_le_bytes());
                prop_assert!(matches!(decode(&bytes), Err(Error::Corrupt(_))));
            }
        }
    }
}
