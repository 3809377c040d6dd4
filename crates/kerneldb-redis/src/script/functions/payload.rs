//! Libraries as bytes, for FUNCTION DUMP and for files: the format of Redis 7, so that both read each other's.
//!
//! The contents of a payload ([`crate::rdb`]) are, for each library, the byte 245 and its code as a string.

use crate::limits::FUNCTION_BYTES_MAX;
use crate::rdb;

/// The byte before each library.
const LIBRARY: u8 = 245;

/// The payload with these codes.
pub(super) fn write<'a>(codes: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut contents = Vec::new();
    for code in codes {
        contents.push(LIBRARY);
        rdb::write_string(code, &mut contents);
    }
    rdb::seal(contents)
}

/// The codes of a payload. The error is the client's reply.
pub(super) fn read(payload: &[u8]) -> Result<Vec<Vec<u8>>, &'static str> {
    let mut rest = rdb::open(payload)?;
    let mut codes = Vec::new();
    while let Some((kind, after)) = rest.split_first() {
        if *kind != LIBRARY {
            return Err("ERR given type is not a function");
        }
        rest = after;
        let code = rdb::read_string(&mut rest, FUNCTION_BYTES_MAX);
        codes.push(code.map_err(|_| "ERR failed loading the given functions payload")?);
    }
    Ok(codes)
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

    /// A payload with a right checksum and anything else inside.
    #[test]
    fn contents_with_a_right_checksum_are_checked() {
        assert_eq!(read(&rdb::seal(b"\x01x".to_vec())).unwrap_err(), "ERR given type is not a function");
        for contents in [&b"\xf5"[..], b"\xf5\x05abc", b"\xf5\xc3\x03\x80\x7f\xff\xff\xff\x20\x00\x00"] {
            let error = read(&rdb::seal(contents.to_vec())).unwrap_err();
            assert_eq!(error, "ERR failed loading the given functions payload", "{contents:?}");
        }
    }
}
