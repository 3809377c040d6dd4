//! The format of a dump: a stream that is written and read once, from start to end.
//!
//! | bytes | content |
//! |---|---|
//! | 0..8 | [`MAGIC`] |
//! | 8..12 | version, 1 |
//! | 12..16 | zeros |
//! | 16.. | blocks |
//!
//! A block has a head of 9 bytes: kind (1), length of the body (4), and the crc32c of the block's number, counted from 0 (8),
//! the kind, the length and the body (4). The body follows. Numbers are little-endian.
//!
//! | kind | body |
//! |---|---|
//! | 1, tree | the name of a tree, whose records follow. Names rise as byte strings |
//! | 2, records | one or more records: length of the key (2), length of the value (4), key, value. Keys rise within a tree |
//! | 3, end | number of trees (8), number of records (8). Nothing follows |
//!
//! The number in the checksum lets the reader detect a block that is missing, repeated or moved. The reader allocates at most
//! twice the bytes that it has read, whatever a length says.

use std::io::{self, BufReader, BufWriter, Read, Write};

use super::error::{Error, Result};
use super::limits::MAX_TREE_NAME;
use crate::{LONGEST_KEY, MAX_VALUE};

const MAGIC: [u8; 8] = *b"BEDDUMP\n";
const VERSION: u32 = 1;
const HEADER: usize = 16;
const HEAD: usize = 9;
const TREE: u8 = 1;
const RECORDS: u8 = 2;
const END: u8 = 3;
/// Bytes before the key of a record.
const RECORD: usize = 6;
/// Bytes of records after which a block ends. The last record may make it longer.
const BLOCK: usize = 64 << 10;
/// The longest body: a block that is almost full, and the longest record.
const MAX_BODY: usize = BLOCK + RECORD + LONGEST_KEY + MAX_VALUE;

/// Number of trees and records, and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub trees: u64,
    pub records: u64,
    pub bytes: u64,
}

fn checksum(number: u64, kind: u8, body: &[u8]) -> u32 {
    let len = (body.len() as u32).to_le_bytes();
    let sum = crc32c::crc32c_append(crc32c::crc32c(&number.to_le_bytes()), &[kind]);
    crc32c::crc32c_append(crc32c::crc32c_append(sum, &len), body)
}

fn header() -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header
}

/// Writes a dump.
pub(crate) struct Writer<W: Write> {
    output: BufWriter<W>,
    /// Records that are not written yet.
    body: Vec<u8>,
    blocks: u64,
    totals: Totals,
}

impl<W: Write> Writer<W> {
    pub fn new(output: W) -> Result<Self> {
        let mut writer =
            Self { output: BufWriter::new(output), body: Vec::new(), blocks: 0, totals: Totals::default() };
        writer.write(&header())?;
        Ok(writer)
    }

    /// Begins a tree.
    pub fn tree(&mut self, name: &str) -> Result<()> {
        self.records()?;
        self.totals.trees += 1;
        self.block(TREE, name.as_bytes())
    }

    /// Adds a record to the last tree.
    pub fn record(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.totals.records += 1;
        self.body.extend_from_slice(&(key.len() as u16).to_le_bytes());
        self.body.extend_from_slice(&(value.len() as u32).to_le_bytes());
        self.body.extend_from_slice(key);
        self.body.extend_from_slice(value);
        if self.body.len() >= BLOCK { self.records() } else { Ok(()) }
    }

    /// The amounts that are written so far.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Ends the dump.
    pub fn finish(mut self) -> Result<Totals> {
        self.records()?;
        let Totals { trees, records, .. } = self.totals;
        self.block(END, &[trees.to_le_bytes(), records.to_le_bytes()].concat())?;
        self.output.flush().map_err(Error::io("write the dump"))?;
        Ok(self.totals)
    }

    fn records(&mut self) -> Result<()> {
        if self.body.is_empty() {
            return Ok(());
        }
        let mut body = std::mem::take(&mut self.body);
        self.block(RECORDS, &body)?;
        body.clear();
        // A value of many megabytes should not keep its memory.
        body.shrink_to(2 * BLOCK);
        self.body = body;
        Ok(())
    }

    fn block(&mut self, kind: u8, body: &[u8]) -> Result<()> {
        let mut head = [kind; HEAD];
        head[1..5].copy_from_slice(&(body.len() as u32).to_le_bytes());
        head[5..].copy_from_slice(&checksum(self.blocks, kind, body).to_le_bytes());
        self.blocks += 1;
        self.write(&head)?;
        self.write(body)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.totals.bytes += bytes.len() as u64;
        self.output.write_all(bytes).map_err(Error::io("write the dump"))
    }
}

/// Reads a dump, and refuses one that is damaged or incomplete.
pub(crate) struct Reader<R: Read> {
    input: BufReader<R>,
    /// Kind and body of the block that was read last, and the number of bytes of it that were returned.
    kind: u8,
    body: Vec<u8>,
    at: usize,
    blocks: u64,
    /// The last tree, and its last key.
    tree: Option<String>,
    key: Option<Vec<u8>>,
    totals: Totals,
}

impl<R: Read> Reader<R> {
    /// Reads the beginning of a dump.
    pub fn new(input: R) -> Result<Self> {
        let (input, body) = (BufReader::new(input), Vec::new());
        let totals = Totals::default();
        let mut reader = Self { input, kind: 0, body, at: 0, blocks: 0, tree: None, key: None, totals };
        let mut found = [0; HEADER];
        reader.read(&mut found)?;
        if found[..8] != MAGIC {
            return Err(reader.damaged("does not begin as one"));
        }
        if found[8..12] != VERSION.to_le_bytes() {
            return Err(reader.damaged("has another version than 1"));
        }
        if found != header() {
            return Err(reader.damaged("has a header that makes no sense"));
        }
        reader.block()?;
        Ok(reader)
    }

    /// The amounts that are read so far.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// The name of the next tree, or none at the end of the dump. The caller has read all records of the previous tree.
    pub fn next_tree(&mut self) -> Result<Option<String>> {
        match self.kind {
            TREE => {}
            END => return self.end(),
            _ => return Err(self.damaged("has records without a tree")),
        }
        let name = match std::str::from_utf8(&self.body) {
            Ok(name) if (1..=MAX_TREE_NAME).contains(&name.len()) => name.to_owned(),
            _ => return Err(self.damaged("has a tree without a valid name")),
        };
        if self.tree.as_ref().is_some_and(|before| *before >= name) {
            return Err(self.damaged("has trees that are not in order"));
        }
        self.totals.trees += 1;
        (self.tree, self.key) = (Some(name.clone()), None);
        self.block()?;
        Ok(Some(name))
    }

    /// The next record of the tree, or none after its last one.
    pub fn next_record(&mut self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        if self.kind != RECORDS {
            return Ok(None);
        }
        let Some((key, value)) = self.record() else {
            return Err(self.damaged("has a record that makes no sense"));
        };
        if self.key.as_ref().is_some_and(|before| *before >= key) {
            return Err(self.damaged("has keys that are not in order"));
        }
        self.key = Some(key.clone());
        self.totals.records += 1;
        if self.at == self.body.len() {
            self.block()?;
        }
        Ok(Some((key, value)))
    }

    fn record(&mut self) -> Option<(Vec<u8>, Vec<u8>)> {
        let rest = &self.body[self.at..];
        let key_len = usize::from(u16::from_le_bytes(*rest.first_chunk()?));
        let value_len = u32::from_le_bytes(*rest.get(2..)?.first_chunk()?) as usize;
        if key_len > LONGEST_KEY || value_len > MAX_VALUE {
            return None;
        }
        let key = rest.get(RECORD..RECORD + key_len)?.to_vec();
        let value = rest.get(RECORD + key_len..RECORD + key_len + value_len)?.to_vec();
        self.at += RECORD + key_len + value_len;
        Some((key, value))
    }

    fn end(&mut self) -> Result<Option<String>> {
        let counts = [self.totals.trees.to_le_bytes(), self.totals.records.to_le_bytes()].concat();
        if self.body != counts {
            return Err(self.damaged("has another number of records than it says"));
        }
        let more = self.input.read(&mut [0]).map_err(Error::io("read the dump"))?;
        if more > 0 {
            return Err(self.damaged("has bytes behind its end"));
        }
        Ok(None)
    }

    /// Reads the next block.
    fn block(&mut self) -> Result<()> {
        let mut head = [0; HEAD];
        self.read(&mut head)?;
        let len = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
        if len > MAX_BODY {
            return Err(self.damaged("has a block that is too long"));
        }
        self.body.clear();
        // A value of many megabytes should not keep its memory.
        self.body.shrink_to(2 * BLOCK);
        let read = (&mut self.input).take(len as u64).read_to_end(&mut self.body);
        self.totals.bytes += read.map_err(Error::io("read the dump"))? as u64;
        if self.body.len() < len {
            return Err(self.damaged("ends too early"));
        }
        (self.kind, self.at) = (head[0], 0);
        if head[5..] != checksum(self.blocks, self.kind, &self.body).to_le_bytes() {
            return Err(self.damaged("has a block with a wrong checksum"));
        }
        self.blocks += 1;
        match self.kind {
            RECORDS if self.body.is_empty() => Err(self.damaged("has a block without records")),
            TREE | RECORDS | END => Ok(()),
            _ => Err(self.damaged("has a block of an unknown kind")),
        }
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<()> {
        match self.input.read_exact(bytes) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(self.damaged("ends too early")),
            done => {
                self.totals.bytes += bytes.len() as u64;
                done.map_err(Error::io("read the dump"))
            }
        }
    }

    fn damaged(&self, what: &'static str) -> Error {
        Error::Dump { byte: self.totals.bytes, what }
    }
}

/// Reads arbitrary bytes as a dump. If the dump is accepted, a dump written from the result has the same trees and records.
#[cfg(any(test, fuzzing))]
pub(crate) fn read_and_write(input: &[u8]) -> Result<Vec<u8>> {
    let mut output = Vec::new();
    let mut writer = Writer::new(&mut output)?;
    let mut reader = Reader::new(input)?;
    while let Some(name) = reader.next_tree()? {
        writer.tree(&name)?;
        while let Some((key, value)) = reader.next_record()? {
            writer.record(&key, &value)?;
        }
    }
    let (read, written) = (reader.totals(), writer.finish()?);
    assert_eq!((read.trees, read.records), (written.trees, written.records));
    assert_eq!(read.bytes, input.len() as u64);
    Ok(output)
}

#[cfg(test)]
mod tests {
    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    use super::*;

    type Trees = std::collections::BTreeMap<String, std::collections::BTreeMap<Vec<u8>, Vec<u8>>>;

    fn write(trees: &Trees) -> Vec<u8> {
        let mut output = Vec::new();
        let mut writer = Writer::new(&mut output).unwrap();
        for (name, records) in trees {
            writer.tree(name).unwrap();
            records.iter().for_each(|(key, value)| writer.record(key, value).unwrap());
        }
        let totals = writer.finish().unwrap();
        assert_eq!(totals.bytes, output.len() as u64);
        output
    }

    fn read(input: &[u8]) -> Result<Trees> {
        let mut reader = Reader::new(input)?;
        let mut trees = Trees::new();
        while let Some(name) = reader.next_tree()? {
            let records = trees.entry(name).or_default();
            while let Some((key, value)) = reader.next_record()? {
                records.insert(key, value);
            }
        }
        Ok(trees)
    }

    fn is_refused(input: &[u8]) -> bool {
        matches!(read(input), Err(Error::Dump { .. }))
    }

    fn trees() -> impl Strategy<Value = Trees> {
        let value = prop_oneof![vec(any::<u8>(), 0..200), (0..70_000usize).prop_map(|len| vec![7; len])];
        let records = btree_map(vec(any::<u8>(), 0..40), value, 0..20);
        btree_map("[a-zä]{1,20}", records, 0..5)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn a_dump_comes_back(trees in trees()) {
            let bytes = write(&trees);
            prop_assert_eq!(read(&bytes).unwrap(), trees);
            prop_assert_eq!(read_and_write(&bytes).unwrap(), bytes);
        }

        #[test]
        fn no_byte_may_change_or_be_missing(trees in trees(), at: prop::sample::Index, flip in 1..=255u8) {
            let mut bytes = write(&trees);
            let at = at.index(bytes.len());
            prop_assert!(is_refused(&bytes[..at]));
            bytes[at] ^= flip;
            prop_assert!(is_refused(&bytes));
            bytes[at] ^= flip;
            bytes.push(0);
            prop_assert!(is_refused(&bytes));
        }

        #[test]
        fn arbitrary_bytes_do_no_harm(mut bytes in vec(any::<u8>(), 0..300), valid_header: bool) {
            if valid_header {
                bytes.splice(0..0, header());
            }
            prop_assert!(read_and_write(&bytes).is_err());
        }
    }

    /// A dump of these blocks, with right checksums.
    fn blocks(blocks: &[(u8, &[u8])]) -> Vec<u8> {
        let mut bytes = header().to_vec();
        for (number, (kind, body)) in blocks.iter().enumerate() {
            bytes.push(*kind);
            bytes.extend((body.len() as u32).to_le_bytes());
            bytes.extend(checksum(number as u64, *kind, body).to_le_bytes());
            bytes.extend(*body);
        }
        bytes
    }

    #[test]
    fn blocks_that_make_no_sense_are_refused() {
        let end = |trees: u64, records: u64| [trees.to_le_bytes(), records.to_le_bytes()].concat();
        let record = |key: &[u8]| [&(key.len() as u16).to_le_bytes()[..], &[0; 4], key].concat();
        let (a, b) = (record(b"a"), record(b"b"));
        let long_key = record(&[1; LONGEST_KEY + 1]);
        let long_name = [b'n'; MAX_TREE_NAME + 1];
        assert!(read(&blocks(&[(TREE, b"t"), (RECORDS, &a), (RECORDS, &b), (END, &end(1, 2))])).is_ok());
        for (what, bytes) in [
            ("no tree", blocks(&[(RECORDS, &a), (END, &end(0, 1))])),
            ("order of keys", blocks(&[(TREE, b"t"), (RECORDS, &b), (RECORDS, &a), (END, &end(1, 2))])),
            ("a key twice", blocks(&[(TREE, b"t"), (RECORDS, &a), (RECORDS, &a), (END, &end(1, 2))])),
            ("order of trees", blocks(&[(TREE, b"t"), (TREE, b"s"), (END, &end(2, 0))])),
            ("a tree twice", blocks(&[(TREE, b"t"), (TREE, b"t"), (END, &end(2, 0))])),
            ("no name", blocks(&[(TREE, b""), (END, &end(1, 0))])),
            ("long name", blocks(&[(TREE, &long_name), (END, &end(1, 0))])),
            ("no text", blocks(&[(TREE, b"\xff"), (END, &end(1, 0))])),
            ("no records", blocks(&[(TREE, b"t"), (RECORDS, b""), (END, &end(1, 0))])),
            ("part of a record", blocks(&[(TREE, b"t"), (RECORDS, &a[..6]), (END, &end(1, 1))])),
            ("long key", blocks(&[(TREE, b"t"), (RECORDS, &long_key), (END, &end(1, 1))])),
            ("trees", blocks(&[(TREE, b"t"), (RECORDS, &a), (END, &end(2, 1))])),
            ("records", blocks(&[(TREE, b"t"), (RECORDS, &a), (END, &end(1, 2))])),
            ("unknown", blocks(&[(TREE, b"t"), (7, b""), (END, &end(1, 0))])),
            ("behind the end", blocks(&[(END, &end(0, 0)), (END, &end(0, 0))])),
        ] {
            assert!(matches!(read(&bytes), Err(Error::Dump { .. })), "{what}");
        }
    }
}
