//! Libraries as bytes, for FUNCTION DUMP and for files: the format of Redis 7, so that both read each other's.
//!
//! Each library is the byte 245 and its code as a string of an RDB file. The version of the format follows in 2 bytes, and the CRC-64 of
//! everything before it in 8 bytes, the lowest byte first. Strings are written without compression; compressed ones are read.

use crc::{CRC_64_REDIS, Crc};

use crate::limits::FUNCTION_BYTES_MAX;

/// The byte before each library.
const LIBRARY: u8 = 245;
/// The version of the format. Payloads of later ones are refused.
const VERSION: u16 = 10;
/// Bytes of the version and of the checksum.
const VERSION_BYTES: usize = 2;
const CHECKSUM_BYTES: usize = 8;

fn checksum(bytes: &[u8]) -> u64 {
    static CRC: Crc<u64> = Crc::<u64>::new(&CRC_64_REDIS);
    CRC.checksum(bytes)
}

/// The payload with these codes.
pub(super) fn write<'a>(codes: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut payload = Vec::new();
    for code in codes {
        payload.push(LIBRARY);
        write_length(code.len(), &mut payload);
        payload.extend_from_slice(code);
    }
    payload.extend_from_slice(&VERSION.to_le_bytes());
    let checksum = checksum(&payload);
    payload.extend_from_slice(&checksum.to_le_bytes());
    payload
}

fn write_length(length: usize, payload: &mut Vec<u8>) {
    match length {
        0..=0x3F => payload.push(length as u8),
        0x40..=0x3FFF => payload.extend_from_slice(&(0x4000 | length as u16).to_be_bytes()),
        _ => {
            payload.push(0x80);
            payload.extend_from_slice(&(length as u32).to_be_bytes());
        }
    }
}

/// The codes of a payload. The error is the client's reply.
pub(super) fn read(payload: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let damaged = || "ERR DUMP payload version or checksum are wrong".to_owned();
    let (checked, sum) = payload.split_last_chunk::<CHECKSUM_BYTES>().ok_or_else(damaged)?;
    let (mut rest, version) = checked.split_last_chunk::<VERSION_BYTES>().ok_or_else(damaged)?;
    if u16::from_le_bytes(*version) > VERSION || u64::from_le_bytes(*sum) != checksum(checked) {
        return Err(damaged());
    }
    let mut codes = Vec::new();
    while let Some((kind, after)) = rest.split_first() {
        if *kind != LIBRARY {
            return Err("ERR given type is not a function".into());
        }
        rest = after;
        let code = read_string(&mut rest).ok_or("ERR failed loading the given functions payload")?;
        codes.push(code);
    }
    Ok(codes)
}

/// A length, or a special encoding of a string.
enum Length {
    Bytes(usize),
    Encoding(u8),
}

/// The encoding of a compressed string.
const COMPRESSED: u8 = 3;

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(taken)
}

fn read_length(rest: &mut &[u8]) -> Option<Length> {
    let first = *take(rest, 1)?.first()?;
    let low = first & 0x3F;
    Some(match first >> 6 {
        0 => Length::Bytes(low.into()),
        1 => Length::Bytes(usize::from(low) << 8 | usize::from(*take(rest, 1)?.first()?)),
        2 if first == 0x80 => Length::Bytes(u32::from_be_bytes(take(rest, 4)?.try_into().ok()?) as usize),
        2 if first == 0x81 => {
            Length::Bytes(usize::try_from(u64::from_be_bytes(take(rest, 8)?.try_into().ok()?)).ok()?)
        }
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

fn read_string(rest: &mut &[u8]) -> Option<Vec<u8>> {
    match read_length(rest)? {
        Length::Bytes(length) => take(rest, length).map(<[u8]>::to_vec),
        Length::Encoding(COMPRESSED) => {
            let (compressed, length) = (read_bytes(rest)?, read_bytes(rest)?);
            decompress(take(rest, compressed)?, length)
        }
        Length::Encoding(_) => None,
    }
}

/// Decompresses LZF: runs of bytes, and references to earlier ones. `None` if the result has another length.
fn decompress(mut compressed: &[u8], length: usize) -> Option<Vec<u8>> {
    if length > FUNCTION_BYTES_MAX {
        return None;
    }
    let mut text = Vec::with_capacity(length);
    while let Some((&control, after)) = compressed.split_first() {
        compressed = after;
        if control < 32 {
            text.extend_from_slice(take(&mut compressed, usize::from(control) + 1)?);
        } else {
            let mut count = usize::from(control >> 5);
            if count == 7 {
                count += usize::from(*take(&mut compressed, 1)?.first()?);
            }
            let low = *take(&mut compressed, 1)?.first()?;
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

    #[test]
    fn a_payload_has_the_codes() {
        for lengths in [vec![], vec![0, 5], vec![0x3F, 0x40, 0x3FFF, 0x4000, 100_000]] {
            let codes: Vec<Vec<u8>> = lengths.iter().map(|length| vec![b'x'; *length]).collect();
            let payload = write(codes.iter().map(Vec::as_slice));
            assert_eq!(read(&payload), Ok(codes));
        }
    }

    /// The payload of redis-server 7.0.15 for a library of 90 bytes.
    #[test]
    fn a_compressed_payload_of_redis_is_read() {
        let payload = b"\xf5\xc3@T@Z\x1f#!lua name=l\nredis.register_func\ttion('f', \xe0\x00\r\x03k,a) *\x04turn \x801\x14pcall('set','a')\nend)\n\x00\x07,\x0f\x0f$+H\x10";
        let code =
            b"#!lua name=l\nredis.register_function('f', function(k,a)\nreturn redis.pcall('set','a')\nend)";
        assert_eq!(read(payload), Ok(vec![code.to_vec()]));
    }

    #[test]
    fn every_damaged_byte_is_noticed() {
        let payload = write([&b"#!lua name=a\n"[..], b"x"].into_iter());
        for at in 0..payload.len() {
            let mut damaged = payload.clone();
            damaged[at] ^= 0x10;
            assert_eq!(read(&damaged).unwrap_err(), "ERR DUMP payload version or checksum are wrong");
            assert!(read(&payload[..at]).is_err());
        }
    }

    /// A payload with a right checksum and anything else inside.
    #[test]
    fn contents_with_a_right_checksum_are_checked() {
        let sealed = |inside: &[u8]| {
            let mut payload = [inside, &VERSION.to_le_bytes()].concat();
            payload.extend_from_slice(&checksum(&payload).to_le_bytes());
            payload
        };
        assert_eq!(read(&sealed(b"\x01x")).unwrap_err(), "ERR given type is not a function");
        for inside in [
            &b"\xf5"[..],
            b"\xf5\x05abc",
            b"\xf5\x80\xff\xff\xff\xff",
            b"\xf5\x81\xff\xff\xff\xff\xff\xff\xff\xff",
            b"\xf5\xc0\x01",
            b"\xf5\xc3\x02\x0a\xe0",
            b"\xf5\xc3\x03\x0a\x00a\x20",
            b"\xf5\xc3\x03\x80\x7f\xff\xff\xff\x20\x00\x00",
            b"\xf5\xc3\x02\x02\x20\x00",
        ] {
            let error = read(&sealed(inside)).unwrap_err();
            assert_eq!(error, "ERR failed loading the given functions payload", "{inside:?}");
        }
        let later = {
            let mut payload = (VERSION + 1).to_le_bytes().to_vec();
            payload.extend_from_slice(&checksum(&payload).to_le_bytes());
            payload
        };
        assert!(read(&later).unwrap_err().contains("version"));
    }
}
