//! Integers as Redis reads and prints them.

/// Parses a decimal integer the way Redis does: an optional `-`, no `+`, no leading zeros, no spaces,
/// nothing outside of 64 bits. `None` otherwise.
pub fn parse_i64(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    match digits {
        [] => return None,
        [b'0'] => return if negative { None } else { Some(0) },
        [b'0', ..] => return None,
        _ => {}
    }
    let mut value = 0i64;
    for &d in digits {
        if !d.is_ascii_digit() {
            return None;
        }
        let d = i64::from(d - b'0');
        // Accumulates on the negative side, which has room for i64::MIN.
        value = value.checked_mul(10)?.checked_sub(d)?;
    }
    if negative { Some(value) } else { value.checked_neg() }
}
