//! The file format of `dump` and `load`: SET commands in the Redis protocol, so that `redis-cli --pipe`
//! can load it too. The text of a last ECHO proves that the file is complete and undamaged:
//!
//! ```text
//! SET key value [PXAT unix-time-in-milliseconds]     any number of times
//! ECHO "bedplate-dump keys=N crc32c=XXXXXXXX"        of all bytes before
//! ```

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;

use anyhow::{Context, bail};
use redis::{Parser, Value};

/// One key of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    pub key: Vec<u8>,
    pub value: Vec<u8>,
    /// Absolute expiry in milliseconds since the Unix epoch.
    pub expire_at_ms: Option<u64>,
}

impl Key {
    /// The command that writes it.
    pub fn command(&self) -> redis::Cmd {
        let mut command = redis::cmd("SET");
        command.arg(&self.key).arg(&self.value);
        if let Some(at) = self.expire_at_ms {
            command.arg("PXAT").arg(at);
        }
        command
    }
}

fn trailer(keys: u64, crc: u32) -> String {
    format!("bedplate-dump keys={keys} crc32c={crc:08x}")
}

/// Writes a file.
pub struct Writer<W: Write> {
    out: BufWriter<W>,
    keys: u64,
    bytes: u64,
    crc: u32,
}

impl<W: Write> Writer<W> {
    pub fn new(out: W) -> Self {
        Writer { out: BufWriter::with_capacity(1 << 20, out), keys: 0, bytes: 0, crc: 0 }
    }

    pub fn key(&mut self, key: &Key) -> io::Result<()> {
        let packed = key.command().get_packed_command();
        self.crc = crc32c::crc32c_append(self.crc, &packed);
        self.keys += 1;
        self.bytes += packed.len() as u64;
        self.out.write_all(&packed)
    }

    pub fn keys(&self) -> u64 {
        self.keys
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes the end; returns the inner writer.
    pub fn finish(mut self) -> io::Result<W> {
        let end = redis::cmd("ECHO").arg(trailer(self.keys, self.crc)).get_packed_command();
        self.out.write_all(&end)?;
        self.out.into_inner().map_err(io::IntoInnerError::into_error)
    }
}

/// Reads a file, or standard input for `-`.
pub struct Reader {
    input: Box<dyn Read>,
    parser: Parser,
    keys: u64,
    bytes: u64,
    crc: u32,
    /// Size of the file, if it is one.
    size: Option<u64>,
}

impl Reader {
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::new(Box::new(io::stdin()), None));
        }
        let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
        let size = file.metadata().ok().filter(|m| m.is_file()).map(|m| m.len());
        Ok(Self::new(Box::new(BufReader::with_capacity(1 << 20, file)), size))
    }

    fn new(input: Box<dyn Read>, size: Option<u64>) -> Self {
        Reader { input, parser: Parser::new(), keys: 0, bytes: 0, crc: 0, size }
    }

    /// Keys read so far.
    pub fn keys(&self) -> u64 {
        self.keys
    }

    /// Bytes of the commands read so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Size in bytes if it is known.
    pub fn size(&self) -> Option<u64> {
        self.size
    }

    /// The next key; `None` at the end of a complete, undamaged file. Commands other than SET are refused,
    /// because a dump is data.
    pub fn next(&mut self) -> anyhow::Result<Option<Key>> {
        let at = format!("after {} keys", self.keys);
        let value = match self.parser.parse_value(&mut self.input) {
            Ok(value) => value,
            Err(error) if error.is_io_error() || error.is_connection_dropped() => {
                bail!("the dump ends {at} without its last line: it is incomplete");
            }
            Err(error) => return Err(error).with_context(|| format!("the dump is damaged {at}")),
        };
        let words = words(value).with_context(|| format!("the dump is damaged {at}: not a command"))?;
        let key = match words.as_slice() {
            [name, key, value] if name == b"SET" => {
                Key { key: key.clone(), value: value.clone(), expire_at_ms: None }
            }
            [name, key, value, option, time] if name == b"SET" && option == b"PXAT" => {
                let time = std::str::from_utf8(time).ok().and_then(|t| t.parse().ok());
                let time = time.with_context(|| format!("the dump is damaged {at}: not a time"))?;
                Key { key: key.clone(), value: value.clone(), expire_at_ms: Some(time) }
            }
            [name, text] if name == b"ECHO" => {
                if text.as_slice() != trailer(self.keys, self.crc).as_bytes() {
                    bail!("the dump is damaged: its checksum or its number of keys differs");
                }
                return Ok(None);
            }
            [name, ..] => bail!("the dump is damaged {at}: unexpected {}", String::from_utf8_lossy(name)),
            [] => bail!("the dump is damaged {at}: an empty command"),
        };
        let packed = key.command().get_packed_command();
        self.crc = crc32c::crc32c_append(self.crc, &packed);
        self.bytes += packed.len() as u64;
        self.keys += 1;
        Ok(Some(key))
    }
}

fn words(value: Value) -> Option<Vec<Vec<u8>>> {
    let Value::Array(items) = value else { return None };
    items
        .into_iter()
        .map(|item| match item {
            Value::BulkString(bytes) => Some(bytes),
            _ => None,
        })
        .collect()
}

/// Reads arbitrary bytes as a file. That never panics, and only a file that a writer can write is accepted.
#[cfg(any(test, fuzzing))]
pub fn arbitrary_bytes(input: &[u8]) {
    let mut reader = Reader::new(Box::new(io::Cursor::new(input.to_vec())), None);
    let mut writer = Writer::new(Vec::new());
    loop {
        match reader.next() {
            Ok(Some(key)) => writer.key(&key).expect("memory can be written"),
            Ok(None) => break,
            Err(_) => return,
        }
    }
    assert_eq!(reader.keys(), writer.keys());
    assert_eq!(reader.bytes(), writer.bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Pieces of files, in any order.
    fn pieces() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            Just(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n".to_vec()),
            Just(b"*2\r\n$4\r\nECHO\r\n".to_vec()),
            "[*$+:_,#%~>|=(-][0-9]{0,10}\r\n".prop_map(String::into_bytes),
            Just(b"\r\n".to_vec()),
            proptest::collection::vec(any::<u8>(), 0..6),
        ];
        proptest::collection::vec(piece, 0..20).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_break_nothing(input in pieces()) {
            arbitrary_bytes(&input);
        }
    }

    #[test]
    fn lengths_that_are_not_there_take_no_memory() {
        assert!(read(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$9999999999999\r\nv".to_vec()).is_err());
        assert!(read(b"*9999999999999\r\n$3\r\nSET\r\n".to_vec()).is_err());
    }

    fn keys() -> Vec<Key> {
        vec![
            Key { key: b"plain".to_vec(), value: b"value".to_vec(), expire_at_ms: None },
            Key { key: b"\r\n\0*3".to_vec(), value: vec![], expire_at_ms: Some(1_700_000_000_000) },
            Key { key: vec![0xff; 255], value: vec![7; 65_536], expire_at_ms: None },
        ]
    }

    fn written() -> Vec<u8> {
        let mut writer = Writer::new(Vec::new());
        keys().iter().for_each(|key| writer.key(key).unwrap());
        writer.finish().unwrap()
    }

    fn read(bytes: Vec<u8>) -> anyhow::Result<Vec<Key>> {
        let mut reader = Reader::new(Box::new(io::Cursor::new(bytes)), None);
        let mut keys = Vec::new();
        while let Some(key) = reader.next()? {
            keys.push(key);
        }
        Ok(keys)
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(read(written()).unwrap(), keys());
        assert_eq!(read(Writer::new(Vec::new()).finish().unwrap()).unwrap(), []);
    }

    #[test]
    fn every_truncation_is_noticed() {
        let bytes = written();
        let interesting = (0..300).chain(bytes.len() - 100..bytes.len());
        for length in interesting {
            assert!(read(bytes[..length].to_vec()).is_err(), "{length} of {} bytes", bytes.len());
        }
    }

    #[test]
    fn every_changed_byte_of_data_is_noticed() {
        let bytes = written();
        for position in (0..bytes.len()).step_by(61) {
            let mut changed = bytes.clone();
            changed[position] ^= 1;
            assert!(read(changed).is_err(), "byte {position}");
        }
    }

    #[test]
    fn only_set_is_accepted() {
        let flush = redis::cmd("FLUSHALL").get_packed_command();
        assert!(read(flush).unwrap_err().to_string().contains("FLUSHALL"));
    }
}
