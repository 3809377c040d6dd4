//! Literals of C.

use std::fmt::Write as _;

/// Bytes as a string literal.
pub(super) fn literal(bytes: &[u8]) -> String {
    let mut out = String::from("\"");
    for byte in bytes {
        match byte {
            b'"' | b'\\' => out.extend(['\\', char::from(*byte)]),
            // Question marks can be trigraphs, and digits after an escape of three digits are not a part of it.
            b' '..=b'~' if *byte != b'?' => out.push(char::from(*byte)),
            _ => {
                let _ = write!(out, "\\{byte:03o}");
            }
        }
    }
    out.push('"');
    out
}

/// A number as an expression.
pub(super) fn number(number: i64) -> String {
    match number {
        i64::MIN => format!("({} - 1)", self::number(i64::MIN + 1)),
        _ if number < 0 => format!("({number}{})", suffix(number)),
        _ => format!("{number}{}", suffix(number)),
    }
}

fn suffix(number: i64) -> &'static str {
    if i32::try_from(number).is_ok() { "" } else { "ll" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_have_no_byte_that_c_reads_otherwise() {
        assert_eq!(literal(b"a\"b\\c"), r#""a\"b\\c""#);
        assert_eq!(literal(b"\x001??/\n\xff"), r#""\0001\077\077/\012\377""#);
    }

    #[test]
    fn numbers_have_the_type_that_holds_them() {
        assert_eq!(number(7), "7");
        assert_eq!(number(-7), "(-7)");
        assert_eq!(number(1 << 31), "2147483648ll");
        assert_eq!(number(i64::MIN), "((-9223372036854775807ll) - 1)");
    }
}
