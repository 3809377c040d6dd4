//! Keys and values as people write and read them: text with escapes, or hexadecimal digits.

use std::ffi::OsStr;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;

use anyhow::{Context, bail};

/// The notation of keys and values.
#[derive(clap::Args, Clone, Copy)]
pub struct Format {
    /// Keys and values are hexadecimal digits. Without it they are text, in which \n, \r, \t, \\ and \xNN stand for bytes.
    #[arg(long)]
    hex: bool,
}

impl Format {
    /// The bytes of an argument.
    pub fn parse(self, text: &OsStr) -> anyhow::Result<Vec<u8>> {
        let bytes = text.as_bytes();
        if self.hex { parse_hex(bytes) } else { parse_escapes(bytes) }
            .with_context(|| format!("reading {:?}", text.to_string_lossy()))
    }

    /// The text of bytes, in one line. [`Format::parse`] reads it.
    pub fn show(self, bytes: &[u8]) -> String {
        let mut text = String::new();
        if self.hex {
            push_hex(&mut text, "", bytes);
            return text;
        }
        for chunk in bytes.utf8_chunks() {
            for char in chunk.valid().chars() {
                match char {
                    '\\' => text.push_str("\\\\"),
                    '\n' => text.push_str("\\n"),
                    '\r' => text.push_str("\\r"),
                    '\t' => text.push_str("\\t"),
                    char if char.is_control() => {
                        push_hex(&mut text, "\\x", char.encode_utf8(&mut [0; 4]).as_bytes());
                    }
                    char => text.push(char),
                }
            }
            push_hex(&mut text, "\\x", chunk.invalid());
        }
        text
    }
}

fn push_hex(text: &mut String, prefix: &str, bytes: &[u8]) {
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(text, "{prefix}{byte:02x}");
    }
}

fn digits(pair: &[u8]) -> anyhow::Result<u8> {
    let text =
        std::str::from_utf8(pair).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()));
    match text.map(|text| u8::from_str_radix(text, 16)) {
        Some(Ok(byte)) if pair.len() == 2 => Ok(byte),
        _ => bail!("a byte is two hexadecimal digits"),
    }
}

fn parse_hex(bytes: &[u8]) -> anyhow::Result<Vec<u8>> {
    bytes.chunks(2).map(digits).collect()
}

fn parse_escapes(bytes: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut parsed = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte != b'\\' {
            parsed.push(*byte);
            continue;
        }
        let Some((escape, after)) = rest.split_first() else {
            bail!("it ends with a backslash: write \\\\ for one");
        };
        rest = after;
        parsed.push(match escape {
            b'\\' => b'\\',
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'x' => {
                let (pair, after) = rest.split_at(rest.len().min(2));
                rest = after;
                digits(pair)?
            }
            _ => bail!("\\{} is no escape: write \\\\ for a backslash", *escape as char),
        });
    }
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: Format = Format { hex: false };
    const HEX: Format = Format { hex: true };

    #[test]
    fn text_is_read_and_shown() {
        assert_eq!(TEXT.parse(OsStr::new(r"a\\b\n\x00ü")).unwrap(), b"a\\b\n\0\xc3\xbc");
        assert_eq!(TEXT.show(b"a\\b\n\0\xc3\xbc\xff"), r"a\\b\n\x00ü\xff");
        assert_eq!(
            (HEX.show(b"\x00\xab"), HEX.parse(OsStr::new("00aB")).unwrap()),
            ("00ab".into(), vec![0, 0xab])
        );
        for wrong in ["\\", "\\q", "\\x1", "\\x+1"] {
            assert!(TEXT.parse(OsStr::new(wrong)).is_err(), "{wrong}");
        }
        for wrong in ["0", "0g", "+1", "00 "] {
            assert!(HEX.parse(OsStr::new(wrong)).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_again(bytes in proptest::collection::vec(any::<u8>(), 0..40), hex: bool) {
            let format = Format { hex };
            let text = format.show(&bytes);
            prop_assert!(!text.contains(['\n', '\t']));
            prop_assert_eq!(format.parse(OsStr::new(&text)).unwrap(), bytes);
        }
    }
}
