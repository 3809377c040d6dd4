//! The format of RDB files, as far as DUMP, RESTORE and FUNCTION DUMP use it. Redis 7 reads what is written here, and the other way round.
//!
//! A payload is its contents, the version of the format in 2 bytes, and the CRC-64 of everything before it in 8 bytes. Both numbers begin
//! with their lowest byte. A string in the contents is its length and its bytes, or a small integer, or compressed with LZF. Strings are
//! written without compression.

use crc::{CRC_64_REDIS, Crc};

/// The version of the format, that of Redis 7.0. Payloads of later ones are refused.
const VERSION: u16 = 10;
/// Bytes of the version and of the checksum.
const VERSION_BYTES: usize = 2;
const CHECKSUM_BYTES: usize = 8;

/// The encodings of strings: integers of 1, 2 and 4 bytes, and compression.
const INT8: u8 = 0;
const INT16: u8 = 1;
const INT32: u8 = 2;
const COMPRESSED: u8 = 3;

fn checksum(bytes: &[u8]) -> u64 {
    static CRC: Crc<u64> = Crc::<u64>::new(&CRC_64_REDIS);
    CRC.checksum(bytes)
}

/// Appends the version and the checksum to contents.
pub(crate) fn seal(mut contents: Vec<u8>) -> Vec<u8> {
    contents.extend_from_slice(&VERSION.to_le_bytes());
    let checksum = checksum(&contents);
    contents.extend_from_slice(&checksum.to_le_bytes());
    contents
}

/// The contents of a payload. The error is the client's reply.
pub(crate) fn open(payload: &[u8]) -> Result<&[u8], &'static str> {
    let damaged = "ERR DUMP payload version or checksum are wrong";
    let (checked, sum) = payload.split_last_chunk::<CHECKSUM_BYTES>().ok_or(damaged)?;
    let (contents, version) = checked.split_last_chunk::<VERSION_BYTES>().ok_or(damaged)?;
    if u16::from_le_bytes(*version) > VERSION || u64::from_le_bytes(*sum) != checksum(checked) {
        return Err(damaged);
    }
    Ok(contents)
}

/// Writes a string as it is.
pub(crate) fn write_string(string: &[u8], contents: &mut Vec<u8>) {
    match string.len() {
        length @ 0..=0x3F => contents.push(length as u8),
        length @ 0x40..=0x3FFF => contents.extend_from_slice(&(0x4000 | length as u16).to_be_bytes()),
        length => {
            contents.push(0x80);
            contents.extend_from_slice(&(length as u32).to_be_bytes());
        }
    }
    contents.extend_from_slice(string);
}

/// Writes a value: as an integer if it is the usual text of one with at most 32 bits, and otherwise as a string.
pub(crate) fn write_value(value: &[u8], contents: &mut Vec<u8>) {
    let number = std::str::from_utf8(value).ok().and_then(|text| text.parse::<i32>().ok());
    let Some(number) = number.filter(|number| number.to_string().as_bytes() == value) else {
        return write_string(value, contents);
    };
    let mut write = |encoding: u8, bytes: &[u8]| {
        contents.push(0xC0 | encoding);
        contents.extend_from_slice(bytes);
    };
    if let Ok(number) = i8::try_from(number) {
        write(INT8, &number.to_le_bytes());
    } else if let Ok(number) = i16::try_from(number) {
        write(INT16, &number.to_le_bytes());
    } else {
        write(INT32, &number.to_le_bytes());
    }
}

/// The reason why a string cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StringError {
    /// It is not a string in this format, or it is not complete.
    Damaged,
    /// It is longer than the reader takes.
    TooLong,
}

/// A length, or a special encoding of a string.
enum Length {
    Bytes(usize),
    Encoding(u8),
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(taken)
}

fn take_array<const BYTES: usize>(rest: &mut &[u8]) -> Option<[u8; BYTES]> {
    take(rest, BYTES)?.try_into().ok()
}

fn read_length(rest: &mut &[u8]) -> Option<Length> {
    let [first] = take_array(rest)?;
    let low = first & 0x3F;
    Some(match first >> 6 {
        0 => Length::Bytes(low.into()),
        1 => Length::Bytes(usize::from(low) << 8 | usize::from(take_array::<1>(rest)?[0])),
        2 if first == 0x80 => Length::Bytes(u32::from_be_bytes(take_array(rest)?) as usize),
        2 if first == 0x81 => Length::Bytes(usize::try_from(u64::from_be_bytes(take_array(rest)?)).ok()?),
        2 => return None,
        _ => Length::Encoding(low),
    })
}

fn read_bytes(rest: &mut &[u8]) -> Option<usize> {
    match read_length(rest)? {
        Length::Bytes(length) => Some(length),
        Length::Encoding(_) => None,
    }
}

/// Reads a string of at most `bytes_max` bytes from the front of `rest`.
pub(crate) fn read_string(rest: &mut &[u8], bytes_max: usize) -> Result<Vec<u8>, StringError> {
    use StringError::{Damaged, TooLong};
    let number = match read_length(rest).ok_or(Damaged)? {
        Length::Bytes(length) => {
            let string = take(rest, length).ok_or(Damaged)?;
            return if length > bytes_max { Err(TooLong) } else { Ok(string.to_vec()) };
        }
        Length::Encoding(INT8) => i32::from(i8::from_le_bytes(take_array(rest).ok_or(Damaged)?)),
        Length::Encoding(INT16) => i32::from(i16::from_le_bytes(take_array(rest).ok_or(Damaged)?)),
        Length::Encoding(INT32) => i32::from_le_bytes(take_array(rest).ok_or(Damaged)?),
        Length::Encoding(COMPRESSED) => {
            let compressed = read_bytes(rest).ok_or(Damaged)?;
            let length = read_bytes(rest).ok_or(Damaged)?;
            let compressed = take(rest, compressed).ok_or(Damaged)?;
            return if length > bytes_max {
                Err(TooLong)
            } else {
                decompress(compressed, length).ok_or(Damaged)
            };
        }
        Length::Encoding(_) => return Err(Damaged),
    };
    Ok(number.to_string().into_bytes())
}

/// Decompresses LZF: runs of bytes, and references to earlier ones. `None` if the result has another length.
fn decompress(mut compressed: &[u8], length: usize) -> Option<Vec<u8>> {
    let mut text = Vec::with_capacity(length);
    while let Some((&control, after)) = compressed.split_first() {
        compressed = after;
        if control < 32 {
            text.extend_from_slice(take(&mut compressed, usize::from(control) + 1)?);
        } else {
            let mut count = usize::from(control >> 5);
            if count == 7 {
                count += usize::from(take_array::<1>(&mut compressed)?[0]);
            }
            let [low] = take_array(&mut compressed)?;
            let back = (usize::from(control & 0x1F) << 8 | usize::from(low)) + 1;
            let start = text.len().checked_sub(back)?;
            // The bytes may be a part of the copy itself.
            (start..start + count + 2).for_each(|from| text.push(text[from]));
        }
        if text.len() > length {
            return None;
        }
    }
    (text.len() == length).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 100_000;

    fn read_all(mut contents: &[u8]) -> Result<Vec<u8>, StringError> {
        let string = read_string(&mut contents, MAX)?;
        assert!(contents.is_empty());
        Ok(string)
    }

    #[test]
    fn what_is_written_is_read() {
        for length in [0, 5, 0x3F, 0x40, 0x3FFF, 0x4000, MAX] {
            let string = vec![b'x'; length];
            for write in [write_string, write_value] {
                let mut contents = Vec::new();
                write(&string, &mut contents);
                assert_eq!(read_all(&contents), Ok(string.clone()));
            }
        }
        for number in
            ["0", "-1", "127", "-128", "128", "32767", "-32768", "32768", "2147483647", "-2147483648"]
        {
            let mut contents = Vec::new();
            write_value(number.as_bytes(), &mut contents);
            assert!(contents.len() < 6);
            assert_eq!(read_all(&contents), Ok(number.into()));
        }
    }

    /// Texts that are not the usual text of a number are strings.
    #[test]
    fn other_texts_of_numbers_stay_as_they_are() {
        for text in ["007", "-0", "+5", "2147483648", "-2147483649", " 1", "1 ", "", "-", "1.0"] {
            let mut contents = Vec::new();
            write_value(text.as_bytes(), &mut contents);
            assert_eq!(contents[1..], *text.as_bytes());
            assert_eq!(read_all(&contents), Ok(text.into()));
        }
    }

    /// Bytes of redis-server 7.0.15.
    #[test]
    fn payloads_of_redis_are_opened() {
        let payload = b"\x00\xc1\x7f\xff\n\x00\x17`\x82(T\x80\x84\x80";
        let contents = open(payload).unwrap();
        assert_eq!(read_all(&contents[1..]), Ok(b"-129".to_vec()));
        let payload = b"\x00\xc3\t@d\x01aa\xe0W\x00\x01aa\n\x00\xe8\xa3\xb5\x07\xb0m\xf2q";
        assert_eq!(read_all(&open(payload).unwrap()[1..]), Ok(vec![b'a'; 100]));
    }

    #[test]
    fn every_damaged_byte_is_noticed() {
        let payload = seal(b"contents".to_vec());
        assert_eq!(open(&payload), Ok(&b"contents"[..]));
        for at in 0..payload.len() {
            let mut damaged = payload.clone();
            damaged[at] ^= 0x10;
            assert_eq!(open(&damaged).unwrap_err(), "ERR DUMP payload version or checksum are wrong");
            assert!(open(&payload[..at]).is_err());
        }
    }

    #[test]
    fn a_later_version_is_refused_and_an_earlier_one_is_not() {
        for (version, accepted) in [(VERSION - 1, true), (VERSION, true), (VERSION + 1, false)] {
            let mut payload = version.to_le_bytes().to_vec();
            payload.extend_from_slice(&checksum(&payload).to_le_bytes());
            assert_eq!(open(&payload).is_ok(), accepted);
        }
    }

    #[test]
    fn damaged_strings_are_noticed() {
        for contents in [
            &b""[..],
            b"\x05abc",
            b"\x40",
            b"\x80\xff\xff\xff\xff",
            b"\x81\xff\xff\xff\xff\xff\xff\xff\xff",
            b"\x82\x00\x00\x00\x01a",
            b"\xc0",
            b"\xc1\x00",
            b"\xc2\x00\x00\x00",
            b"\xc4\x00",
            b"\xc3\x02\x0a\xe0",
            b"\xc3\x03\x0a\x00a\x20",
            b"\xc3\x02\x02\x20\x00",
            b"\xc3\x02\x02\x00a",
            b"\xc3\xc0\x02\x00a",
        ] {
            assert_eq!(read_all(contents), Err(StringError::Damaged), "{contents:?}");
        }
    }

    #[test]
    fn a_string_of_one_byte_too_many_is_refused() {
        let mut contents = Vec::new();
        write_string(&vec![b'x'; MAX + 1], &mut contents);
        assert_eq!(read_all(&contents), Err(StringError::TooLong));
        // A short text can claim to be the compression of a long one.
        assert_eq!(read_all(b"\xc3\x03\x80\x7f\xff\xff\xff\x20\x00\x00"), Err(StringError::TooLong));
        for (length, result) in [(MAX, Err(StringError::Damaged)), (MAX + 1, Err(StringError::TooLong))] {
            let mut contents = b"\xc3\x02\x80".to_vec();
            contents.extend_from_slice(&(length as u32).to_be_bytes());
            contents.extend_from_slice(b"\x00a");
            assert_eq!(read_all(&contents), result);
        }
    }
}
