//! The first line of a library: `#!lua name=NAME`.

use super::super::shebang::{self, NoShebang};

/// The error of a name that a library or function cannot have.
pub(in crate::script) const BAD_NAME: &str = "Library names can only contain letters, numbers, or underscores(_) and must be at least one character long";

/// The name of a library, and its code from the end of the first line on. The error is the client's reply.
pub(super) fn parse(text: &[u8]) -> Result<(String, &[u8]), String> {
    let (words, code) = shebang::split(text).map_err(|why| match why {
        NoShebang::Missing => "ERR Missing library metadata",
        NoShebang::Endless | NoShebang::Unbalanced => "ERR Invalid library metadata",
    })?;
    let mut words = words.iter();
    let engine = words.next().map_or(&[][..], |word| word.get(2..).unwrap_or_default());
    let mut name = None;
    for word in words {
        let value = match word.split_at_checked(5) {
            Some((key, value)) if key.eq_ignore_ascii_case(b"name=") => value,
            _ => {
                return Err(format!("ERR Invalid metadata value given: {}", String::from_utf8_lossy(word)));
            }
        };
        if name.replace(value).is_some() {
            return Err("ERR Invalid metadata value, name argument was given multiple times".into());
        }
    }
    let name = name.ok_or("ERR Library name was not given")?;
    let name = is_name(name).ok_or_else(|| format!("ERR {BAD_NAME}"))?;
    if !engine.eq_ignore_ascii_case(b"lua") {
        return Err(format!("ERR Engine '{}' not found", String::from_utf8_lossy(engine)));
    }
    Ok((name.to_owned(), code))
}

/// The text if it can be a name.
pub(in crate::script) fn is_name(text: &[u8]) -> Option<&str> {
    let is_name = !text.is_empty() && text.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    is_name.then(|| std::str::from_utf8(text).ok()).flatten()
}
